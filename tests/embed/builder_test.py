"""A process that only compiles never loads the driver, although NVRTC would: so it can fork, and its children use a GPU."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import harness
from harness import flashjit, need, scratch


def test_compiling_leaves_the_driver_alone():
    need("nvrtc")
    mark = scratch("loaded")
    environment = {"LD_LIBRARY_PATH": os.path.join(harness.ARGS.build, "lib", "fake"), "FAKE_CUDA_MARK": mark}
    flashjit("doctor", env=environment)
    assert os.path.exists(mark), "the recording driver is not found, so this test would prove nothing"
    os.remove(mark)
    flashjit("compile", "fwd bf16 d=64 heads=4", "--arch", "sm_80,sm_90a", env=environment)
    assert not os.path.exists(mark)


if __name__ == "__main__":
    harness.main(globals())

"""runtime/examples/ring.cpp beside an installed copy: MPI's processes, one that fails, GPUs with NCCL, and a machine without MPI."""

import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import harness
from harness import Skip, need, scratch, source
from install_test import PROJECT, installed, run

# Open MPI 4 and 5: more processes than cores, and as root, as in a container. Others read none of this.
ANYWHERE = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


def configure(*options):
    return run("cmake", "-S", source(PROJECT), "-B", scratch("project"), f"-DCMAKE_PREFIX_PATH={installed()}", "-DCMAKE_BUILD_TYPE=Release", *options)


def built():
    need("host")
    for program in ("mpicxx", "mpirun"):
        if not shutil.which(program):
            raise Skip(f"no {program} on this machine (Debian: libopenmpi-dev openmpi-bin)")
    assert "`ring` is left out" not in configure()
    run("cmake", "--build", scratch("project"), "--target", "ring")
    return scratch("project/ring")


def built_for_gpus():
    """NCCL is where NCCL_ROOT of the environment says, or a package."""
    for program in ("mpicxx", "mpirun"):
        if not shutil.which(program):
            raise Skip(f"no {program} on this machine (Debian: libopenmpi-dev openmpi-bin)")
    if "`ring_nccl` is left out" in configure():
        raise Skip("no NCCL, or no CUDA toolkit, that CMake finds")
    run("cmake", "--build", scratch("project"), "--target", "ring_nccl")
    return scratch("project/ring_nccl")


def test_rings_of_gpus():
    """As many as there are, and one that sends to itself."""
    ring = built_for_gpus()
    need("gpu")
    count = len(run("nvidia-smi", "-L").strip().splitlines())
    for ranks in sorted({1, min(2, count), min(4, count)}):
        out = run("mpirun", "-n", str(ranks), ring, env=ANYWHERE)
        assert f"{128 * ranks} tokens on {ranks} ranks: right" in out, out


def test_a_ring_without_gpus():
    ring = built_for_gpus()
    out = run("mpirun", "-n", "1", ring, env={**ANYWHERE, "CUDA_VISIBLE_DEVICES": ""}, expect=1)
    assert "cudaGetDeviceCount: " in out, out


def test_rings_of_2_and_4():
    ring = built()
    for ranks in (2, 4):
        out = run("mpirun", "-n", str(ranks), ring, env=ANYWHERE)
        assert f"{128 * ranks} tokens on {ranks} ranks: right" in out, out


def test_a_rank_that_fails_ends_all():
    """The second rank has no compiler, and the first one waits for it."""
    ring = built()
    out = run("mpirun", "-n", "1", ring, ":", "-n", "1", "env", "FLASHJIT_JIT=off", ring, env=ANYWHERE, expect=1)
    assert "rank 1: invalid: " in out and "tokens on" not in out, out


def test_the_project_without_mpi():
    out = configure("-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON")
    assert "`ring_nccl` is left out" in out and "`ring` is left out" in out and "libopenmpi-dev openmpi-bin" in out, out


if __name__ == "__main__":
    harness.main(globals())

"""flashjit tune on a driver that records: compiling beside measuring, records of a GPU, several of them."""

import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import harness
from harness import flashjit, need, read, refused, scratch

SPEC = "fwd bf16 d=64 heads=2 b=1 q_len=128 k_len=128"  # its assumed shape is its only shape


def environment():
    # What this driver is given to run computes nothing, so tunings on it are not verified.
    return {"LD_LIBRARY_PATH": os.path.join(harness.ARGS.build, "lib", "fake")}


def test_tune_on_a_gpu():
    need("nvrtc")
    args = [SPEC, "fwd fp16 d=40 heads=4/2 mask=\"causal\"", "--shape", "q=128", "--target", "gpu", "--device", "1"]
    lines = flashjit("tune", *args, "--budget", "2s", "--no-verify", "--json", "--report-json", "r.json", env=environment()).lines()
    assert len(lines) == 2 and all(line["ok"] and line["target"] == "sm_90a" for line in lines), lines
    for line in lines:
        assert line["best_us"] <= line["default_us"] * 1.02 and line["tried"] >= 4 and line["space"] > 100, line
    report = json.loads(read(scratch("r.json")))
    assert report["machine"]["gpu"] == "Fake H200" and report["machine"]["driver"] == "13.0", report["machine"]
    spec = report["specs"][0]
    # The made-up GPU is faster with less shared memory, and that is what was found.
    measured = [c for c in spec["candidates"] if c["status"] in ("measured", "stopped")]
    assert spec["best_us"] <= 1.02 * min(c["us"] for c in measured) and spec["cut"], spec
    records = read(scratch("store/v1/tuned.txt")).decode()
    assert "device=Fake H200\tunits=132\tdriver=13.0" in records, records
    # prepare on such a GPU takes the record; on another kind it does not.
    run = flashjit("run", SPEC, "--shape", "q=128", "--target", "gpu", "--device", "1", "--json", env=environment()).line()
    assert run["schedule"] == lines[0]["best_schedule"] and any("tuning record" in note for note in run["notes"]), run
    other = flashjit("run", SPEC, "--shape", "q=128", "--target", "gpu", "--device", "0", "--json", env=environment()).line()
    assert not any("tuning record" in note for note in other["notes"]), other


def test_a_busy_machine_decides_nothing():
    need("nvrtc")
    args = ["tune", SPEC, "--shape", "q=128", "--target", "gpu", "--device", "1", "--no-verify", "--budget", "2s"]
    busy = {**environment(), "FAKE_CUDA_BUSY": "1"}
    line = flashjit(*args, "--json", env=busy).line()
    assert line["noise"] > 0.1 and line["recorded"] is False, line
    assert line["best_schedule"] == line["default_schedule"] and "the machine is busy" in line["best_why"], line
    assert not os.path.exists(scratch("store/v1/tuned.txt"))
    text = flashjit(*args, env=busy).out
    assert "the default stays" in text and " 1.000 " in text.splitlines()[-2], text
    calm = flashjit(*args, "--json", env=environment()).line()
    assert calm["recorded"] is True and calm["best_us"] < calm["default_us"], calm


def test_kernels_that_need_a_workspace():
    need("nvrtc")
    line = flashjit("tune", SPEC, "--shape", "q=128", "--schedule", "family=naive", "--target", "gpu", "--device", "1", "--budget", "1s", "--no-verify", "--json",
                    env=environment()).line()
    assert line["ok"] and line["best_us"] > 0 and "family=naive" in line["best_schedule"], line


def test_gpus_of_one_kind_only():
    need("nvrtc")
    refused("tune", SPEC, "--shape", "q=128", "--target", "gpu", "--device", "0", "--device", "1", "--json", env=environment(), kind="invalid",
            says=["--device", "Fake A100", "Fake H200"])


if __name__ == "__main__":
    harness.main(globals())

"""build --shard, bundle merge, tune --shard and tune --merge: what several machines do, on one. tools/FLEETS.md is their page."""

import ast
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time

import harness
from harness import flashjit, need, read, refused, scratch, source, write

# Ten kernels for two targets; every one of four shards has some.
MANIFEST = b"""# which kernels
fwd bf16 d=64 heads=4/2 mask="causal"
bwd bf16 d=64 heads=4/2 mask="causal"
fwd bf16 d=128 heads=8 q_len=1
merge bf16 d=64 heads=4
fwd fp16 d=64 heads=2 ;; schedule=family=sync ;; arch=sm_90a,sm_80
"""
QUICK = b"merge bf16 d=64 heads=4\nmerge fp16 d=64 heads=4\nmerge bf16 d=128 heads=2\n"
TARGETS = "sm_80,sm_90a"
EXAMPLES = ("tools", "examples")


def build(name, manifest="m.txt", *args, **options):
    return flashjit("build", scratch(manifest), "--arch", TARGETS, "-o", scratch(name), "--json", *args, **options).lines()


def shards(count, manifest="m.txt", name="s{}.fjb"):
    """All shards, one after the other; their files."""
    for number in range(1, count + 1):
        build(name.format(number), manifest, "--shard", f"{number}/{count}")
    return [scratch(name.format(number)) for number in range(1, count + 1)]


def merge(out, *files, **options):
    return flashjit("bundle", "merge", *files, "-o", scratch(out), "--json", **options).line()


def start(*args, **environment):
    """Beside others, with a store of its own, as on another machine."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FLASHJIT_") or k == "FLASHJIT_NVRTC"}
    return subprocess.Popen([os.path.join(harness.ARGS.build, "bin", "flashjit"), *args], env={**kept, **environment}, cwd=scratch(""),
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)


def start_build(number):
    return start("build", scratch("m.txt"), "--arch", TARGETS, "-o", scratch(f"s{number}.fjb"), "--shard", f"{number}/4", "--jobs", "1", "--json",
                 FLASHJIT_CACHE_DIR=scratch(f"store{number}"))


def forge(name, old, new):
    """The bundle with other texts in its index."""
    whole = read(scratch(name))
    head = 32 + int.from_bytes(whole[24:32], "little")
    changed = whole[:head].replace(old, new)
    assert changed != whole[:head] and len(old) == len(new), name
    return write("forged.fjb", changed + hashlib.sha256(changed).digest() + whole[head + 32:])


def test_four_shards_side_by_side_of_which_one_is_killed():
    need("nvrtc")
    write("m.txt", MANIFEST)
    processes = [start_build(number) for number in (1, 2, 3, 4)]
    while not os.path.exists(scratch("store3")):  # it is about to compile
        assert processes[2].poll() is None, processes[2].communicate()
        time.sleep(0.01)
    processes[2].send_signal(signal.SIGKILL)
    for process in processes:
        process.communicate(timeout=240)
    assert [process.returncode for process in processes] == [0, 0, -signal.SIGKILL, 0]
    there = sorted(name for name in os.listdir(scratch("")) if name.endswith(".fjb"))
    assert there == ["s1.fjb", "s2.fjb", "s4.fjb"], there
    refused("bundle", "merge", *map(scratch, there), "-o", scratch("all.fjb"), "--json", kind="not_found", says="shard 3 of 4 is missing, of the 10 kernels")
    assert not os.path.exists(scratch("all.fjb"))
    again = start_build(3)
    again.communicate(timeout=240)
    assert again.returncode == 0
    files = [scratch(f"s{number}.fjb") for number in (4, 3, 2, 1)]
    line = merge("all.fjb", *files)
    assert line["kernels"] == 10 and line["twice"] == 0 and line["shards"] is None, line
    build("undivided.fjb", "m.txt", "--no-cache")
    assert read(scratch("all.fjb")) == read(scratch("undivided.fjb"))


def test_every_kernel_is_in_one_shard_whatever_the_order():
    need("nvrtc")
    write("m.txt", MANIFEST)
    write("backwards.txt", b"\n".join(reversed(MANIFEST.split(b"\n"))))
    lines = [build(f"s{number}.fjb", "m.txt", "--shard", f"{number}/3") for number in (1, 2, 3)]
    keys = [[(line["target"], line["spec"], line["pins"]) for line in shard[:-1]] for shard in lines]
    assert sum(len(shard) for shard in keys) == 10 and len({key for shard in keys for key in shard}) == 10 and all(keys), keys
    for number, shard in enumerate(lines, 1):
        total = shard[-1]
        assert (total["shard"], total["kernels"], total["manifest_kernels"]) == (f"{number}/3", len(shard) - 1, 10), total
    build("other.fjb", "backwards.txt", "--shard", "2/3", env={"LC_ALL": "de_DE.UTF-8", "FLASHJIT_CACHE_DIR": scratch("elsewhere")})
    assert read(scratch("other.fjb")) == read(scratch("s2.fjb"))


def test_an_empty_shard_says_so():
    need("nvrtc")
    write("m.txt", QUICK)
    files = shards(8)
    text = flashjit("build", scratch("m.txt"), "--arch", TARGETS, "-o", scratch("s8.fjb"), "--shard", "8/8").out
    assert "no kernels: shard 8/8 is empty, and others have the 6 of" in text, text
    for command in ("ls", "verify"):
        assert flashjit("bundle", command, files[7]).out == f"{files[7]}: no kernels: shard 8 of 8, of 6 kernels\n"
    line = flashjit("bundle", "verify", files[7], "--json").line()
    assert line["ok"] and line["kernels"] == 0 and line["shards"]["numbers"] == [8] and line["shards"]["count"] == 8, line
    assert merge("all.fjb", *files)["kernels"] == 6
    refused("bundle", "merge", *files[:7], "-o", scratch("x.fjb"), "--json", says="shard 8 of 8 is missing")


def test_refused_shards():
    write("m.txt", QUICK)
    for shard, says in [("0/16", "numbered from 1 to 16"), ("17/16", "there is no shard 17"), ("x/16", "'x/16' is not NUMBER/COUNT"), ("", "NUMBER/COUNT"),
                        ("1/0", "1 to 10000 shards, not 0"), ("3", "the third of 16 shards is 3/16")]:
        refused("build", scratch("m.txt"), "--arch", TARGETS, "-o", "x.fjb", "--json", "--shard", shard, kind="invalid", says=["--shard: ", says])
        refused("tune", "fwd fp32 d=8 heads=1", "--shape", "q=8", "--target", "host", "--records", "x.txt", "--json", "--shard", shard, kind="invalid",
                says=["--shard: ", says])
    refused("tune", "fwd fp32 d=8 heads=1", "--shape", "q=8", "--shard", "1/2", code=2, says="--records")
    refused("tune", "--partial", code=2, says="--merge")
    assert not os.path.exists(scratch("x.fjb")) and not os.path.exists(scratch("x.txt"))


def test_every_shard_refuses_a_line_that_cannot_be_read():
    need("nvrtc")
    write("m.txt", QUICK + b"fwd bf16 d=63 heads=4\n")
    for number in (1, 2):
        run = refused("build", scratch("m.txt"), "--arch", "sm_80", "-o", scratch("x.fjb"), "--json", "--shard", f"{number}/2", kind="invalid",
                      says=["m.txt:4: d: 63", "x.fjb was not written: 1 of 4"])
        assert len(run.lines()) == 2, run  # nothing was compiled
    assert not os.path.exists(scratch("x.fjb"))


def test_merge_of_some_shards_and_then_of_the_rest():
    need("nvrtc")
    write("m.txt", QUICK)
    files = shards(3)
    build("undivided.fjb")
    line = merge("some.fjb", files[0], files[2], "--partial")
    assert line["shards"]["numbers"] == [1, 3] and line["shards"]["kernels"] == 6, line
    assert "shards 1 and 3 of 3, of 6 kernels" in flashjit("bundle", "verify", scratch("some.fjb")).out
    assert merge("all.fjb", scratch("some.fjb"), files[1], files[1])["twice"] == 2
    assert read(scratch("all.fjb")) == read(scratch("undivided.fjb"))
    assert merge("whole.fjb", *files, "--partial")["shards"] is None
    refused("bundle", "merge", scratch("undivided.fjb"), files[0], "--partial", "-o", scratch("x.fjb"), "--json", kind="invalid", says="undivided.fjb does not")


def test_merge_names_what_does_not_belong_together():
    need("nvrtc")
    write("m.txt", QUICK)
    write("other.txt", QUICK + b"merge fp16 d=128 heads=2\n")
    files, others = shards(2), shards(2, "other.txt", "o{}.fjb")
    out = ["-o", scratch("x.fjb"), "--json"]
    refused("bundle", "merge", files[0], others[1], *out, kind="not_found",
            says=["shard 2 of 2 is missing, of the 6 kernels", "s1.fjb", "shard 1 of 2 is missing, of the 8 kernels", "o2.fjb"])
    assert merge("both.fjb", *files, *others)["kernels"] == 8
    kernel = flashjit("bundle", "ls", files[0], "--json").lines()[0]
    another = forge("s1.fjb", kernel["compiler"].encode(), kernel["compiler"][::-1].encode())
    refused("bundle", "merge", *files, another, *out, kind="invalid", says=["differ", kernel["spec"], "s1.fjb", "forged.fjb", kernel["compiler"]])
    templates = flashjit("bundle", "verify", files[1], "--json").line()["templates"]
    older = forge("s2.fjb", templates.encode(), templates[::-1].encode())
    refused("bundle", "merge", files[0], older, *out, kind="unsupported", says=["built by another version of FlashJIT: ", "forged.fjb; the rest by this one"])
    # A whole bundle is not asked for anything, and says of kernels that differ.
    build("undivided.fjb")
    different = forge("undivided.fjb", kernel["compiler"].encode(), kernel["compiler"][::-1].encode())
    line = merge("x.fjb", scratch("undivided.fjb"), different)
    assert line["twice"] == line["differing"] == 6, line


def test_merge_by_the_manifest():
    need("nvrtc")
    write("m.txt", QUICK)
    files = shards(2)
    build("undivided.fjb")
    out = ["-o", scratch("x.fjb"), "--json"]
    by_manifest = ["--manifest", scratch("m.txt"), "--arch"]
    for given in ([scratch("undivided.fjb")], files):
        assert merge("all.fjb", *given, *by_manifest, TARGETS)["kernels"] == 6
    refused("bundle", "merge", scratch("undivided.fjb"), *by_manifest, "sm_80,sm_120a", *out, kind="not_found",
            says=["the bundles lack 3 of the 6 kernels of", "merge bf16 d=64 heads=4 for sm_120a"])
    refused("bundle", "merge", *files, *by_manifest, "sm_80", *out, kind="invalid", says=["another manifest, or of other targets", "s1.fjb"])
    refused("bundle", "merge", *files, "--manifest", scratch("m.txt"), *out, kind="invalid", says="m.txt:1 names no target")
    refused("bundle", "merge", *files, "--manifest", scratch("m.txt"), "--partial", *out, code=2, says="--partial")
    refused("bundle", "merge", *files, "--arch", "sm_80", *out, code=2, says="--manifest")


PROBLEMS = ["fwd fp32 d=8 heads=1", "fwd fp32 d=16 heads=2", "fwd fp32 d=24 heads=1", "fwd fp32 d=32 heads=2"]


def tune_args(number, count, *more):
    return ["tune", *PROBLEMS, "--shape", "q=16", "--target", "host", "--budget", "2s", "--shard", f"{number}/{count}", "--records",
            scratch(f"r{number}.txt"), "--json", *more]


def problems(path):
    """What a file of records is about."""
    fields = [dict(field.split("=", 1) for field in line.split("\t")) for line in read(path).decode().splitlines() if not line.startswith("#")]
    return sorted(record["spec"] for record in fields)


def test_tuned_shards():
    need("host")
    lines = [flashjit(*tune_args(number, 2)).lines() for number in (1, 2)]
    assert sorted(line["spec"] for shard in lines for line in shard) == sorted(flashjit("explain", spec, "--arch", "x86-64-v3", "--json").line()["spec"] for spec in PROBLEMS)
    files = [scratch("r1.txt"), scratch("r2.txt")]
    refused("tune", "--merge", files[0], "--records", scratch("all.txt"), says=["shard 2 of 2 is missing, of the 4 problems"])
    assert not os.path.exists(scratch("all.txt"))
    flashjit("tune", "--merge", *files, "--records", scratch("all.txt"))
    assert problems(scratch("all.txt")) == sorted(problems(files[0]) + problems(files[1])) and b"#shard" not in read(scratch("all.txt"))
    flashjit("tune", "--merge", files[0], "--partial", "--records", scratch("some.txt"))
    assert b"#shard=1/2" in read(scratch("some.txt"))
    flashjit("tune", "--merge", files[1], "--records", scratch("some.txt"))
    assert read(scratch("some.txt")) == read(scratch("all.txt"))
    empty = flashjit("tune", *PROBLEMS, "--shape", "q=16", "--target", "host", "--shard", "7/9", "--records", scratch("r7.txt"))
    assert "shard 7/9 is empty: others have the 4 problems" in empty.out, empty
    if problems(files[0]):
        text = read(files[0]).decode()
        last = text.splitlines()[-1]
        write("twice.txt", text.replace(last, last.replace("\tus=", "\tus=1")).encode())
        refused("tune", "--merge", *files, scratch("twice.txt"), says=["different records", "r1.txt", "twice.txt"])
    write("odd.txt", read(files[0]).replace(b"#shard=1/2", b"#shard=8/2"))
    refused("tune", "--merge", scratch("odd.txt"), files[1], says=["odd.txt", "does not say of which shard"])


def test_a_tuned_shard_that_was_killed_is_not_there_until_it_is_run_again():
    need("host")
    process = start(*tune_args(1, 2), FLASHJIT_CACHE_DIR=scratch("store"))
    while not os.path.exists(scratch("r1.txt")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL and b"ended=no" in read(scratch("r1.txt"))
    flashjit(*tune_args(2, 2))
    files = [scratch("r1.txt"), scratch("r2.txt")]
    refused("tune", "--merge", *files, says="shard 1 of 2 is missing, of the 4 problems")
    assert len(flashjit(*tune_args(1, 2)).lines()) == 2
    assert b"ended=yes" in read(scratch("r1.txt"))
    flashjit("tune", "--merge", *files)


def as_scheduled(*command, **environment):
    """Runs what a scheduler would start, with `flashjit` on its path."""
    path = os.path.join(harness.ARGS.build, "bin") + os.pathsep + os.environ["PATH"]
    done = subprocess.run(command, env={**os.environ, "PATH": path, "FLASHJIT_CACHE_DIR": scratch("store"), **environment}, cwd=scratch(""),
                          capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, (command, done.stderr)


def test_examples_are_sound():
    names = sorted(os.listdir(source(*EXAMPLES)))
    page = read(source("tools", "FLEETS.md")).decode()
    for name in names:
        path = source(*EXAMPLES, name)
        assert name in page, f"tools/FLEETS.md does not name {name}"
        if name.endswith(".sh"):
            done = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        elif name.endswith(".py"):
            ast.parse(read(path), path)
        else:
            assert list(harness.find("yaml").safe_load_all(read(path))), name


def test_the_job_arrays_of_slurm():
    need("nvrtc")
    write("m.txt", QUICK)
    for number in (1, 2, 3):
        as_scheduled("bash", source(*EXAMPLES, "slurm-build.sh"), scratch("m.txt"), TARGETS, scratch("shards"), SLURM_ARRAY_TASK_ID=str(number), SHARDS="3")
    merge("all.fjb", *(scratch(f"shards/{number}.fjb") for number in (1, 2, 3)))
    build("undivided.fjb")
    assert read(scratch("all.fjb")) == read(scratch("undivided.fjb"))
    need("host")
    write("sweep.txt", b"q=16 fwd fp32 d=8 heads=1\nq=16 fwd fp32 d=16 heads=1\n")
    for number in (1, 2):
        as_scheduled("bash", source(*EXAMPLES, "slurm-tune.sh"), scratch("sweep.txt"), scratch("tuned"), SLURM_ARRAY_TASK_ID=str(number), SHARDS="2",
                     TARGET="host", BUDGET="1s")
    flashjit("tune", "--merge", scratch("tuned/1.txt"), scratch("tuned/2.txt"), "--records", scratch("tuned.txt"))


def test_the_indexed_job_of_kubernetes():
    need("nvrtc")
    built, merged = harness.find("yaml").safe_load_all(read(source(*EXAMPLES, "kubernetes-build.yaml")))
    os.mkdir(scratch("folder"))
    write("folder/kernels.txt", QUICK)

    def run(job, **environment):
        container = job["spec"]["template"]["spec"]["containers"][0]
        given = {each["name"]: each["value"] for each in container["env"]}
        assert given["FOLDER"] == container["volumeMounts"][0]["mountPath"], container
        as_scheduled(*container["command"], *container["args"], **{**given, "FOLDER": scratch("folder"), **environment})
        return given

    for index in range(built["spec"]["completions"]):
        assert run(built, JOB_COMPLETION_INDEX=str(index))["SHARDS"] == str(built["spec"]["completions"])
    run(merged)
    write("m.txt", QUICK)
    build("undivided.fjb")
    assert read(scratch("folder/kernels.fjb")) == read(scratch("undivided.fjb"))


RAY = b"""
class Task:
    def __init__(self, function):
        self.remote = function
def remote(**options):
    return Task
def init():
    pass
def get(results):
    return results
"""


def test_the_script_of_ray():
    need("nvrtc")
    write("m.txt", QUICK)
    write("ray.py", RAY)  # which does at once what Ray does elsewhere
    shutil.copy(source(*EXAMPLES, "ray_build.py"), scratch("ray_build.py"))
    as_scheduled(sys.executable, "-B", "ray_build.py", "m.txt", TARGETS, "3", "all.fjb")
    build("undivided.fjb")
    assert read(scratch("all.fjb")) == read(scratch("undivided.fjb"))


if __name__ == "__main__":
    harness.main(globals())

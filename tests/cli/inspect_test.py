"""Looking behind a kernel: flashjit cache explain, FLASHJIT_DUMP_DIR, FLASHJIT_LOG, --override, --isolate, --timeout."""

import glob
import os
import time

import harness
from harness import flashjit, need, read, refused, scratch, write

SPEC = 'fwd bf16 d=64 heads=4/2 mask="causal"'


def explain(spec, *args, **options):
    return flashjit("cache", "explain", spec, "--arch", "sm_80", "--json", *args, **options).line()


def causes(line):
    return {d["field"]: (d["here"], d["there"]) for d in line["nearest"]["differs"] if d["cause"]}


def follows(line):
    return [d["field"] for d in line["nearest"]["differs"] if not d["cause"]]


def test_cache_explain():
    need("nvrtc")
    line = explain(SPEC)
    assert line["ok"] and line["hit"] is False and line["nearest"] is None and line["searched"] == 0, line
    assert scratch("store") in line["miss"], line
    compiled = flashjit("compile", SPEC, "--arch", "sm_80", "--json").line()
    line = explain(SPEC)
    assert line["hit"] is True and line["layer"] == scratch("store") and line["key"] == compiled["key"], line
    assert line["schedule"] == compiled["schedule"], line

    line = explain('fwd bf16 d=64 heads=4/2 mask="causal" lse=ln')
    assert line["hit"] is False and line["nearest"]["key"] == compiled["key"] and line["searched"] == 1, line
    assert causes(line) == {"spec.lse": ("ln", "")}, line
    assert "generated config.gen.cuh" in follows(line), line

    pinned = "family=sync,tile_q=128"
    assert "tile_q=128" not in compiled["schedule"]
    there = dict(part.split("=") for part in compiled["schedule"].split(","))["tile_q"]
    line = explain(SPEC, "--schedule", pinned)
    assert causes(line)["schedule.tile_q"] == ("128", there), line
    assert all(field.startswith("schedule.") for field in causes(line)), line
    assert f"schedule.tile_q: 128 here, {there} there" in flashjit("cache", "explain", SPEC, "--arch", "sm_80", "--schedule", pinned).out

    line = flashjit("cache", "explain", SPEC, "--arch", "sm_86", "--json").line()
    assert causes(line) == {"target": ("sm_86", "sm_80")} and "options" in follows(line), line
    # Nearest is the one with the least between: here the same spec, not the same target.
    flashjit("compile", "fwd fp16 d=128 heads=2", "--arch", "sm_86")
    assert flashjit("cache", "explain", SPEC, "--arch", "sm_86", "--json").line()["nearest"]["key"] == compiled["key"]


def test_cache_explain_on_a_processor():
    need("host")
    explain_host = lambda *args: flashjit("cache", "explain", *args, "--arch", "x86-64-v3", "--json").line()
    assert explain_host(SPEC)["hit"] is False
    compiled = flashjit("compile", SPEC, "--arch", "x86-64-v3", "--json").line()
    line = explain_host('fwd  bf16 heads=4/2 d=64 mask=" causal "')
    assert line["hit"] is True and line["key"] == compiled["key"], line
    line = explain_host('fwd bf16 d=64 heads=4/2 mask="window(8, 0)"')
    assert line["hit"] is False and causes(line) == {"spec.mask": ('"window(8, 0)"', '"causal"')}, line
    assert any(field.startswith("tiles.") for field in follows(line)), line
    # What another text says in other words is no difference, nor is a parameter that a named row declares anyhow.
    flashjit("compile", 'fwd bf16 d=64 heads=4/2 params="doc: i32[2]" mask="document(doc) & k<=q"', "--arch", "x86-64-v3")
    other = 'fwd bf16 d=64 heads=4/2 mask="document(doc) & k <= q"'
    assert explain_host(other)["hit"] is True
    assert causes(explain_host(other + " lse=ln")) == {"spec.lse": ("ln", "")}
    here = flashjit("explain", SPEC, "--json").line()["target"]
    assert flashjit("cache", "explain", SPEC, "--json").line()["target"] == here


def test_cache_explain_of_layers_and_damage():
    need("nvrtc")
    flashjit("compile", SPEC, "--arch", "sm_80", env={"FLASHJIT_CACHE_DIR": scratch("site")})
    env = {"FLASHJIT_CACHE_DIR": scratch("store") + ":" + scratch("site")}
    assert explain(SPEC, env=env)["layer"] == scratch("site")
    entry = next(path for path in glob.glob(scratch("site") + "/v1/*/*"))
    with open(entry, "ab") as file:
        file.write(b"x")
    line = explain(SPEC, env=env)
    assert line["hit"] is False and f"a damaged entry in {scratch('site')}" in line["miss"], line
    assert f"no entry in {scratch('store')}" in line["miss"], line


def test_cache_explain_refuses():
    refused("cache", "explain", "fwd nonsense", "--arch", "sm_80", "--json", kind="invalid")
    refused("cache", "explain", SPEC, "--arch", "host", "--json", kind="invalid", says=["no target `host`", "x86-64-v3"])
    refused("cache", "explain", SPEC, "--arch", "sm_80", "--json", env={"FLASHJIT_NVRTC": "/nonexistent"}, kind="not_found", says="FLASHJIT_NVRTC")


def test_dump_folder():
    need("nvrtc")
    env = {"FLASHJIT_DUMP_DIR": scratch("dump")}
    for family in ["sync", "hopper"]:
        line = flashjit("compile", SPEC, "--arch", "sm_90a", "--schedule", f"family={family}", "--json", env=env).line()
        folder = os.path.join(scratch("dump"), line["key"][:16])
        text = lambda name: read(os.path.join(folder, name)).decode()
        assert text("spec.txt").strip() == line["spec"] and text("schedule.txt").strip() == line["schedule"]
        assert "target: sm_90a" in text("key.txt") and ".target sm_90a" in text("kernel.ptx")
        assert read(os.path.join(folder, "kernel.cubin"))[:4] == b"\x7fELF" and "registers" in text("facts/log.txt")
        passes = sorted(os.path.basename(path) for path in glob.glob(folder + "/ir/*.txt"))
        dumped = flashjit("compile", SPEC, "--arch", "sm_90a", "--schedule", line["schedule"], "--dump-after", "all", "--json").line()["dumps"]
        assert passes == [f"{i + 1:02}_{name}.txt" for i, name in enumerate(dumped)], passes
        assert all(text("ir/" + path) == dumped[path[3:-4]] for path in passes)
        assert "flashjit_forward" in text("entry.cu") and text("templates/kernel_config.h")


def test_dump_folder_of_a_processor():
    need("host")
    env = {"FLASHJIT_DUMP_DIR": scratch("dump")}
    line = flashjit("compile", SPEC, "--arch", "x86-64-v3", "--json", env=env).line()
    folder = os.path.join(scratch("dump"), line["key"][:16])
    text = lambda name: read(os.path.join(folder, name)).decode()
    assert text("spec.txt").strip() == line["spec"] and text("schedule.txt").strip() == line["schedule"]
    assert "x86-64-v3" in text("key.txt") and text("program.txt") and text("facts/target.txt").strip() == "x86-64-v3"
    assert "define " in text("kernel.ll") and read(os.path.join(folder, "kernel.o"))[:4] == b"\x7fELF"
    dumped = flashjit("compile", SPEC, "--arch", "x86-64-v3", "--dump-after", "all", "--json").line()["dumps"]
    assert sorted(os.listdir(folder + "/ir")) == [f"{i + 1:02}_{name}.txt" for i, name in enumerate(dumped)]
    # An engine writes what the command does, also where the kernel comes from the store.
    again = {"FLASHJIT_DUMP_DIR": scratch("again")}
    run = flashjit("run", SPEC, "--shape", "q=16", "--target", "x86-64-v3", "--json", env=again).line()
    (second,) = glob.glob(scratch("again") + "/*")
    assert run["key"].startswith(os.path.basename(second)) and os.path.exists(second + "/kernel.o"), run
    told = flashjit("compile", SPEC, "--arch", "x86-64-v3", "--json", env={"FLASHJIT_DUMP_DIR": "/proc/dump"}).line()
    assert any("FLASHJIT_DUMP_DIR" in note and "unset it" in note for note in told["notes"]), told


def test_dump_of_a_refused_kernel():
    need("nvrtc")
    line = flashjit("compile", SPEC, "--arch", "sm_80", "--out", scratch("kernels"), "--json").line()
    entry = os.path.join(line["folder"], "entry.cu")
    with open(entry, "a") as file:
        file.write("nonsense;\n")
    refused("compile", SPEC, "--arch", "sm_80", "--override", line["folder"], "--json", env={"FLASHJIT_DUMP_DIR": scratch("dump")}, kind="compile")
    (error,) = glob.glob(scratch("dump") + "/*/error.txt")
    assert b"nonsense" in read(error)
    assert b"nonsense" in read(os.path.join(os.path.dirname(error), "entry.cu"))


def test_override():
    need("nvrtc")
    plain = flashjit("compile", SPEC, "--arch", "sm_80", "--out", scratch("kernels"), "--json").line()
    folder = plain["folder"]
    same = flashjit("compile", SPEC, "--arch", "sm_80", "--override", folder, "--json").line()
    assert same["key"] == plain["key"] and same["source"] == "disk" and any("no file" in note for note in same["notes"]), same
    with open(os.path.join(folder, "entry.cu"), "a") as file:
        file.write('extern "C" __global__ void another(float* x) { *x = 1; }\n')
    edited = flashjit("compile", SPEC, "--arch", "sm_80", "--override", folder, "--json").line()
    assert edited["key"] != plain["key"] and edited["source"] == "compiled", edited
    assert any(note.startswith("override: ") and "entry.cu" in note for note in edited["notes"]), edited
    line = explain(SPEC)
    assert line["hit"] and line["key"] == plain["key"], "an edited kernel must not take the place of the generated one"
    refused("compile", "fwd fp16 d=64 heads=2", "--arch", "sm_80", "--override", folder, "--json", kind="invalid", says=["--override: ", "spec"])
    refused("compile", SPEC, "--arch", "sm_80", "--schedule", "tile_q=128", "--override", folder, "--json", kind="invalid", says="schedule")
    refused("compile", SPEC, "--arch", "x86-64-v3", "--override", folder, "--json", kind="invalid", says="processor")
    refused("run", SPEC, "--shape", "q=8", "--target", "host", "--override", folder, "--json", says="--override: ")
    with open(os.path.join(folder, "misspelt.cuh"), "w") as file:
        file.write("")
    refused("compile", SPEC, "--arch", "sm_80", "--override", folder, "--json", kind="invalid", says=["misspelt.cuh", "entry.cu"])


def test_override_runs():
    need("gpu")
    plain = flashjit("run", SPEC, "--shape", "q=64", "--check", "--json", env={"FLASHJIT_DUMP_DIR": scratch("dump")}).line()
    folder = os.path.join(scratch("dump"), plain["key"][:16])
    entry = os.path.join(folder, "entry.cu")
    text = read(entry).decode()
    call = text.index("  flashjit::", text.index("flashjit_forward("))
    write(entry, (text[:call] + "  return;\n" + text[call:]).encode())
    refused("run", SPEC, "--shape", "q=64", "--check", "--override", folder, "--schedule", plain["schedule"], "--json", says="outside the error rule")


def test_isolated_compiler():
    need("nvrtc")
    here = flashjit("compile", SPEC, "--arch", "sm_80", "--no-cache", "--out", scratch("here"), "--json").line()
    there = flashjit("compile", SPEC, "--arch", "sm_80", "--no-cache", "--isolate", "--out", scratch("there"), "--json").line()
    assert here["key"] == there["key"]
    assert read(os.path.join(here["folder"], "kernel.cubin")) == read(os.path.join(there["folder"], "kernel.cubin"))


def test_options_of_gpus_are_refused_for_processors():
    need("host")
    spec = "fwd fp32 d=16 heads=2"
    for option in ("--line-info", "--isolate"):
        for more in ([], ["--verify"]):
            refused("compile", spec, "--arch", "x86-64-v3", option, *more, "--json", kind="invalid", says=[f"error: {option}: x86-64-v3", "processor"])
    for command in (["run", spec], ["bench", spec, "--seconds", "0.05"]):
        for target in ("host", "x86-64-v3", "auto"):
            if target != "auto" or not harness.has("gpu"):
                refused(*command, "--shape", "q=8", "--target", target, "--line-info", "--json", kind="invalid", says=["error: --line-info: x86-64", "processor"])
        # A variable is said to all programs, and is nothing to this one.
        flashjit(*command, "--shape", "q=8", "--target", "host", env={"FLASHJIT_LINE_INFO": "on"})
    flashjit("compile", spec, "--arch", "x86-64-v3", env={"FLASHJIT_LINE_INFO": "on"})


def test_a_library_that_ends_its_process():
    dying = {"FLASHJIT_NVRTC": os.path.join(harness.ARGS.build, "lib", "libdying_library.so")}
    refused("compile", SPEC, "--arch", "sm_80", "--no-cache", "--isolate", env=dying, says="signal 6")
    assert "signal 6" in flashjit("doctor", env=dying).out


def test_doctor_says_what_an_engine_would():
    os.mkdir(scratch("empty"), 0o700)
    store = flashjit("doctor", "--json", env={"FLASHJIT_CACHE_DIR": scratch("empty")}).line()["store"]
    assert store["found"] and "the first compile creates" in store["detail"], store
    assert not flashjit("doctor", "--json", env={"FLASHJIT_CACHE_DIR": "/dev/null/x"}).line()["store"]["found"]
    for name, value in (("FLASHJIT_JIT", "off"), ("FLASHJIT_TRUSTED_LIST", scratch("absent"))):
        run = flashjit("doctor", "--json", env={name: value})
        assert name in run.out and not run.line()["can_compile"], str(run)
        assert not run.line()["can_run"] or name == "FLASHJIT_JIT" and harness.has("gpu"), str(run)  # GPUs have bundles
    if harness.has("host"):
        assert flashjit("doctor", "--json", env={"FLASHJIT_THREADS": "3"}).line()["host"]["threads"] == 3


def test_timeout():
    need("nvrtc")
    for how in [[], ["--isolate"]]:
        refused("compile", SPEC, "--arch", "sm_80", "--no-cache", "--timeout", "5", "--json", *how, kind="timeout", says="after 5 ms")
    refused("compile", SPEC, "--arch", "sm_80", "--timeout", "0", code=2)


def nested(inner, times, around):
    for i in range(1, times + 1):
        inner = around(i, inner)
    return inner


def test_long_masks_are_explained_in_time():
    low = nested("q", 14, lambda i, x: f"min(where(q<{i},{x},q-{i}),where(q>{i + 30},q+{i},q*2))")
    high = nested("k", 14, lambda i, x: f"max(where(k<{i},{x},k-{i}),where(k>{i + 30},k+{i},k*2))")
    masks = [
        "&".join(f"abs(abs(abs(k-q)-{i})-{3 * i})<{i + 9}" for i in range(1, 31)),
        f"{low}<{high}",
        nested("k", 26, lambda i, x: f"max(min({x},q-{3 * i}),where(h<{i},q+{i},k_len-{i}))") + "<q",
    ]
    for mask in masks:
        start = time.monotonic()
        for operation in ["fwd", "bwd"]:
            flashjit("explain", f'{operation} bf16 d=64 heads=4 mask="{mask}"', "--arch", "sm_90a")
        assert time.monotonic() - start < 8, mask


def test_log_says_what_decided():
    need("host")
    log = scratch("log")
    flashjit("run", "fwd fp32 d=32 heads=2", "--shape", "q=8", "--target", "host", env={"FLASHJIT_LOG": log})
    refused("run", "fwd fp32 d=32 heads=2 out=e5m2", "--shape", "q=8", "--target", "host", env={"FLASHJIT_LOG": log})
    first = read(log).decode().splitlines()[0]
    for part in [f"prepare fwd fp32 d=32 heads=2: compiled (no entry in {scratch('store')}) for x86-64", " ms, schedule family=host", "key "]:
        assert part in first, first


def test_measurements_that_decided():
    def rows(spec, pins="family=hopper,tile_q=128,warpgroups=2,keys=whole"):
        lines = flashjit("explain", spec, "--arch", "sm_90a", "--schedule", pins, "--all").out.splitlines()
        return [line.strip() for line in lines if ", as measured: " in line]

    ones, turns = rows("fwd bf16 d=64 heads=8")
    assert ones.startswith("row_sum=adds, as measured: 16 bits, smaller V dims (speed with ones: 64: 0.92; H200"), ones
    assert turns.startswith("exclusive=issue, as measured: 16 bits, sums by additions (speed with turns: "), turns
    ones, turns = rows('fwd e4m3 d=64 heads=8 out=bf16 mask="window(1024, 0)"')
    assert ones.startswith("row_sum=matrix, as measured: 8 bits, V dim up to 80 ("), ones
    assert turns.startswith("exclusive=none, as measured: 8 bits, a window ("), turns
    # Where a pin has decided, no measurement has.
    assert not any(line.startswith("row_sum") for line in rows("fwd bf16 d=128 heads=8", "family=hopper,row_sum=matrix,warpgroups=1"))


if __name__ == "__main__":
    harness.main(globals())

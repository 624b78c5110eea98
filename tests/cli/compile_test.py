"""flashjit compile, explain and cache."""

import glob
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess

import harness
from harness import flashjit, need, read, refused, scratch, write

SPEC = 'fwd bf16 d=64 heads=4/2 mask="causal"'
FIELDS = {"spec", "target", "schedule", "ok", "error", "source", "compile_ms", "registers", "spill_bytes", "smem_bytes", "cubin_bytes", "family", "key"}


def families(arch):
    return ["sync", "hopper"] if arch == "sm_90a" else ["sync"]


def test_json_fields():
    need("nvrtc")
    lines = flashjit("compile", SPEC, "fwd fp16 d=128 heads=2", "--arch", "sm_80,sm_90a", "--json").lines()
    assert [line["target"] for line in lines] == ["sm_80", "sm_90a"] * 2, lines
    for line in lines:
        assert FIELDS <= set(line), FIELDS - set(line)
        assert line["ok"] and line["error"] is None and line["source"] == "compiled"
        assert line["family"] in families(line["target"]) and f"family={line['family']}," in line["schedule"], line
        assert line["registers"] > 0 and line["smem_bytes"] > 0 and line["cubin_bytes"] > 0 and line["compile_ms"] > 0
        assert line["spill_bytes"] == 0, line
    assert len({line["key"] for line in lines}) == 4, "keys must differ"


def test_second_time_from_disk():
    need("nvrtc")
    for family, arch in [("sync", "sm_80"), ("hopper", "sm_90a")]:
        args = [SPEC, "--arch", arch, "--schedule", f"family={family}", "--json"]
        first, second = flashjit("compile", *args).line(), flashjit("compile", *args).line()
        assert first["source"] == "compiled" and second["source"] == "disk" and first["family"] == family, (first, second)
        assert first["key"] == second["key"] and first["registers"] == second["registers"]
        assert flashjit("compile", *args, "--no-cache").line()["source"] == "compiled"


def test_pinned_schedule_is_kept():
    need("nvrtc")
    line = flashjit("compile", SPEC, "--arch", "sm_80", "--schedule", "tile_q=64,tile_kv=32,warps=4", "--json").line()
    for pin in ["tile_q=64", "tile_kv=32", "warps=4"]:
        assert pin in line["schedule"], line["schedule"]


def test_lines_for_profilers():
    """Another kernel in the store, whose code names the printed loop."""
    need("nvrtc")
    keys, spec = set(), "fwd bf16 d=64 heads=1"
    for more, env in (([], None), (["--line-info"], None), ([], {"FLASHJIT_LINE_INFO": "on"})):
        out = scratch(f"lines{len(keys)}{len(more)}")
        line = flashjit("compile", spec, "--arch", "sm_90a", *more, "--emit", "cubin", "--out", out, "--json", env=env).line()
        cubin, wanted = read(os.path.join(line["folder"], "kernel.cubin")), bool(more or env)
        assert (b".debug_line" in cubin) == (b"loop.gen.cuh" in cubin) == wanted
        keys.add((wanted, line["key"]))
    assert len(keys) == 2 and len({key for _, key in keys}) == 2, keys
    refused("compile", spec, "--arch", "sm_90a", env={"FLASHJIT_LINE_INFO": "yes"}, says=["FLASHJIT_LINE_INFO", "on or off"])


def test_emit_and_out():
    need("nvrtc")
    out = scratch("kernels")
    line = flashjit("compile", SPEC, "--arch", "sm_80", "--emit", "spec,ir,cuda,ptx,cubin,facts", "--out", out, "--json").line()
    folder = line["folder"]
    for name in ["spec.txt", "program.txt", "config.gen.cuh", "variant.gen.cuh", "entry.cu", "kernel.ptx", "kernel.cubin", "facts.json"]:
        assert read(os.path.join(folder, name)), f"{name} is empty"
    assert read(os.path.join(folder, "kernel.cubin"))[:4] == b"\x7fELF"
    assert len(read(os.path.join(folder, "kernel.cubin"))) == line["cubin_bytes"]
    assert json.loads(read(os.path.join(folder, "facts.json")))["key"] == line["key"]
    hopper = flashjit("compile", SPEC, "--arch", "sm_90a", "--schedule", "family=hopper", "--emit", "cuda", "--out", out, "--json").line()
    assert b"wgmma.mma_async" in read(os.path.join(hopper["folder"], "matrix.gen.cuh"))
    # The spec that is written is the spec that was asked for.
    spec = read(os.path.join(folder, "spec.txt")).decode().strip()
    assert flashjit("compile", spec, "--arch", "sm_80", "--json").line()["key"] == line["key"]


def test_emit_text_without_out():
    need("nvrtc")
    line = flashjit("compile", SPEC, "--arch", "sm_80", "--emit", "cuda", "--json").line()
    assert "flashjit_forward" in line["files"]["entry.cu"]
    refused("compile", SPEC, "--arch", "sm_80", "--emit", "cubin", "--json", kind="invalid", says="--out")


def test_dump_after():
    need("nvrtc")
    dumps = flashjit("compile", SPEC, "--arch", "sm_80", "--dump-after", "all", "--json").line()["dumps"]
    assert len(dumps) >= 3 and all(dumps.values()), dumps.keys()
    last = list(dumps)[-1]
    assert list(flashjit("compile", SPEC, "--arch", "sm_80", "--dump-after", last, "--json").line()["dumps"]) == [last]
    refused("compile", SPEC, "--arch", "sm_80", "--dump-after", "nonsense", "--json", kind="invalid", says=["nonsense", last])


def test_user_text_never_reaches_source():
    need("nvrtc")
    line = flashjit("compile", 'fwd bf16 d=64 heads=4 params="zzqqy: fp32" score="s * zzqqy"', "--arch", "sm_80", "--emit", "cuda", "--json").line()
    for name, text in line["files"].items():
        code = "\n".join(row for row in text.splitlines() if not row.lstrip().startswith("//"))
        assert "zzqqy" not in code, f"{name} has the user's name in code"


def test_host_target():
    need("host")
    line = flashjit("compile", "fwd fp32 d=64 heads=2", "--arch", "x86-64-v3", "--emit", "llvm,ir", "--json").line()
    assert "define" in line["files"]["kernel.ll"] and line["family"] == "host"
    assert line["source"] == "compiled" and len(line["key"]) == 64, line
    again = flashjit("compile", "fwd  fp32 heads=2 d=64", "--arch", "x86-64-v3", "--json").line()
    assert again["source"] == "disk" and again["key"] == line["key"], again
    assert flashjit("compile", "fwd fp32 d=64 heads=2", "--arch", "x86-64-v3", "--no-cache", "--json").line()["source"] == "compiled"
    listed = flashjit("cache", "ls", "--json").line()
    assert (listed["key"], listed["target"], listed["sound"]) == (line["key"], "x86-64-v3", True), listed
    refused("compile", "fwd fp32 d=64 heads=2", "--arch", "x86-64-v3", "--emit", "ptx", "--json", kind="invalid", says="ptx")
    line = flashjit("compile", "fwd fp32 d=64 heads=2", "--arch", "x86-64-v3", "--out", scratch("kernels"), "--json").line()
    assert sorted(os.listdir(line["folder"])) == ["facts.json", "kernel.ll", "schedule.txt", "spec.txt"], line
    refused("compile", "fwd fp32 d=64 heads=2", "--arch", "x86-64-v3", "--json", env={"FLASHJIT_JIT": "off"}, kind="invalid", says="FLASHJIT_JIT=off")


def test_verify():
    need("host")
    arguments = ["compile", "fwd fp32 d=64 heads=2", "--arch", "x86-64-v3", "--json"]
    flashjit(*arguments)
    assert flashjit("cache", "ls", "--json").line()["verified"] is None
    assert flashjit(*arguments, "--verify").line()["source"] == "disk"
    assert flashjit("cache", "ls", "--json").line()["verified"] is True
    # Without a store, what is compiled for the answer is not what was tried.
    refused(*arguments, "--verify", env={"FLASHJIT_CACHE_DIR": "/proc/none"}, kind="io", says=["--verify", "FLASHJIT_CACHE_DIR"])


RUN_HOST = ["run", "fwd fp32 d=64 heads=2", "--target", "host", "--shape", "q=8", "--json"]


def run_beside(name, change):
    """The command, copied, beside a copy of the host library of which `change` made other bytes."""
    build = scratch(name)
    for folder, file in [("bin", "flashjit"), ("lib", "libflashjit_host.so")]:
        os.makedirs(os.path.join(build, folder))
        shutil.copy(os.path.join(harness.ARGS.build, folder, file), os.path.join(build, folder))
    path = os.path.join(build, "lib", "libflashjit_host.so")
    data = bytearray(read(path))
    change(data)
    with open(path, "wb") as file:
        file.write(data)
    env = dict(os.environ, FLASHJIT_CACHE_DIR=scratch("store"))
    return subprocess.run([os.path.join(build, "bin", "flashjit"), *RUN_HOST], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_another_host_library_has_kernels_of_its_own():
    need("host")
    assert [flashjit(*RUN_HOST).line()["source"] for _ in range(2)] == ["compiled", "disk"]

    def change_build_id(data):
        note = data.index(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0") + 16
        data[note] ^= 1
    other = run_beside("other", change_build_id)
    assert json.loads(other.stdout)["source"] == "compiled", other
    assert flashjit(*RUN_HOST).line()["source"] == "disk"


# Plans and kernels pass between the two libraries as they lie in memory: with other headers that would be a crash.
def test_a_host_library_of_another_build_is_refused():
    need("host")
    own = re.search(rb"interface-[0-9a-f]{16}", read(os.path.join(harness.ARGS.build, "bin", "flashjit"))).group().decode()
    foreign = own[:-4] + ("beef" if own[-4:] != "beef" else "cafe")

    def change_digest(data):
        at = data.index(own.encode())
        data[at:at + len(own)] = foreign.encode()

    # As in libraries that were built before there was a digest: its symbol is not found.
    def lose_digest(data):
        at = data.index(b"\0flashjit_host_interface\0") + 1
        data[at:at + 8] = b"nonsense"
    for name, change, theirs in [("changed", change_digest, foreign), ("older", lose_digest, "an older interface")]:
        run = run_beside(name, change)
        error = json.loads(run.stdout)["error"]
        assert run.returncode > 0 and error["kind"] == "not_found", run
        for says in (own, theirs, scratch(name) + "/lib/libflashjit_host.so", "of one build"):
            assert says in error["message"], (says, error)


def test_a_host_library_that_cannot_be_opened_is_named():
    need("host")

    def cut_short(data):
        del data[10:]
    error = json.loads(run_beside("short", cut_short).stdout)["error"]
    assert error["kind"] == "not_found" and "was not found" not in error["message"], error
    for says in (scratch("short") + "/lib/libflashjit_host.so", "cannot be opened", "install it again"):
        assert says in error["message"], (says, error)


def test_unknown_targets():
    for arch in ["sm_75", "sm_9000", "", "SM_80", "x86-64-v9", "sm_80;rm", "a" * 5000]:
        refused("explain", SPEC, "--arch", arch, "--json", kind=None, says="sm_80")
        if arch:
            refused("compile", SPEC, "--arch", arch, "--json", says="sm_80")


def test_one_bad_of_several():
    need("nvrtc")
    lines = flashjit("compile", SPEC, "--arch", "sm_80,sm_1", "--json", expect=1).lines()
    assert [line["ok"] for line in lines] == [True, False], lines


def test_bad_schedules():
    for schedule in ["tile_q=63", "tile_q=0", "tile_q=99999999999", "nonsense=1", "tile_q", "tile_q=64,tile_q=128", "tile_q=-64", ","]:
        refused("explain", SPEC, "--arch", "sm_80", "--schedule", schedule, "--json", says=schedule.split("=")[0] if "=" in schedule else [])


def test_no_nvrtc():
    env = {"FLASHJIT_NVRTC": "/nonexistent"}
    refused("compile", SPEC, "--arch", "sm_80", "--json", "--no-cache", env=env, kind="not_found", says=["FLASHJIT_NVRTC", "/nonexistent"])
    assert flashjit("doctor", "--json", env=env).line()["nvrtc"]["found"] is False
    flashjit("explain", SPEC, "--arch", "sm_80", env=env)


def test_not_a_library():
    path = write("libnvrtc.so", b"this is no library")
    refused("compile", SPEC, "--arch", "sm_80", "--json", "--no-cache", env={"FLASHJIT_NVRTC": path}, says=path)


def test_jit_off():
    refused("compile", SPEC, "--arch", "sm_80", "--json", env={"FLASHJIT_JIT": "off"}, kind="not_found", says=["no bundle", "flashjit build"])


def test_no_home():
    need("nvrtc")
    env = {"HOME": None, "FLASHJIT_CACHE_DIR": None, "XDG_CACHE_HOME": None}
    run = flashjit("compile", SPEC, "--arch", "sm_80", "--json", env=env)
    assert run.line()["ok"] and "note:" in run.err, str(run)
    assert flashjit("doctor", "--json", env=env).line()["store"]["found"] is False
    refused("cache", "stat", "--json", env=env, kind="not_found", says="FLASHJIT_CACHE_DIR")


def limit_files(size):
    # A limit on file sizes stands in for a full disk: write() fails half-way in the same manner.
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_full_disk():
    need("nvrtc")
    out = scratch("kernels")
    run = refused("compile", SPEC, "--arch", "sm_80", "--out", out, "--json", "--no-cache", kind="io", preexec_fn=limit_files(2000), restore_signals=False)
    assert "cannot be written" in run.err, str(run)
    left = [name for _, _, names in os.walk(out) for name in names if name.startswith(".")]
    assert not left, left


def test_full_disk_under_the_store():
    need("nvrtc")
    run = flashjit("compile", SPEC, "--arch", "sm_80", "--json", preexec_fn=limit_files(1000), restore_signals=False)
    assert run.line()["ok"] and "note:" in run.err, str(run)


def test_unwritable_out():
    need("nvrtc")
    blocker = write("blocker", b"a file where a folder has to be")
    refused("compile", SPEC, "--arch", "sm_80", "--out", os.path.join(blocker, "x"), "--json", kind="io", says="blocker")


def test_cache_commands():
    need("nvrtc")
    flashjit("compile", SPEC, "fwd fp16 d=64 heads=2", "--arch", "sm_80")
    assert flashjit("cache", "stat", "--json").line()["entries"] == 2
    listing = flashjit("cache", "ls", "--json").lines()
    assert {line["target"] for line in listing} == {"sm_80"} and all(line["sound"] for line in listing), listing
    assert flashjit("cache", "verify", "--json").line()["entries"] == 2
    entry = next(path for path in glob.glob(scratch("store") + "/**/*", recursive=True) if os.path.isfile(path) and os.path.getsize(path) > 5000)
    data = bytearray(read(entry))
    data[len(data) // 2] ^= 1
    with open(entry, "wb") as file:
        file.write(data)
    refused("cache", "verify", "--json", kind="io", says="damaged")
    assert flashjit("cache", "verify", "--json").line()["entries"] == 1, "the damaged entry should be gone"
    flashjit("cache", "clear")
    assert flashjit("cache", "stat", "--json").line()["entries"] == 0


def test_cache_prune():
    need("nvrtc")
    old, new = (flashjit("compile", spec, "--arch", "sm_80", "--json").line()["key"] for spec in [SPEC, "fwd fp16 d=64 heads=2"])
    os.utime(glob.glob(scratch("store") + f"/v1/{old[:2]}/{old[2:]}")[0], (0, 10**9))
    stat = flashjit("cache", "stat", "--json").line()
    assert stat["oldest_use"] == 10**9 < stat["newest_use"] and stat["max_bytes"] == 2 << 30, stat
    assert "2001-09-09" in flashjit("cache", "stat").out
    line = flashjit("cache", "prune", "--json").line()
    assert line["removed"] == 0 and line["entries"] == 2 and line["bytes"] == stat["bytes"], line
    line = flashjit("cache", "prune", "--older-than", "365", "--json").line()
    assert line["removed"] == 1 and 0 < line["removed_bytes"] < stat["bytes"], line
    assert [entry["key"] for entry in flashjit("cache", "ls", "--json").lines()] == [new]
    assert "1 kernel removed" in flashjit("cache", "prune", "--max-bytes", "0").out
    assert flashjit("cache", "stat", "--json").line()["oldest_use"] is None
    for wrong in [["--max-bytes", "-1"], ["--max-bytes", "2G"], ["--max-bytes", "99999999999999999999"], ["--older-than", "-1"], ["--older-than", "nan"]]:
        refused("cache", "prune", *wrong, code=2)


def test_cache_layers():
    need("nvrtc")
    flashjit("compile", SPEC, "--arch", "sm_80", env={"FLASHJIT_CACHE_DIR": scratch("site")})
    os.mkdir(scratch("open"))
    os.chmod(scratch("open"), 0o777)
    env = {"FLASHJIT_CACHE_DIR": ":".join(scratch(name) for name in ["store", "site", "open"])}
    run = flashjit("compile", SPEC, "fwd fp16 d=64 heads=2", "--arch", "sm_80", "--json", env=env)
    assert [line["source"] for line in run.lines()] == ["disk", "compiled"], str(run)
    assert "passed over" in run.err and "chmod go-w" in run.err, str(run)
    run = flashjit("cache", "stat", "--json", env=env)
    assert [(line["directory"], line["shared"], line["entries"]) for line in run.lines()] == [(scratch("store"), False, 1), (scratch("site"), True, 1)], str(run)
    assert "passed over" in run.err, str(run)
    assert {line["directory"] for line in flashjit("cache", "ls", "--json", env=env).lines()} == {scratch("store"), scratch("site")}
    line = flashjit("doctor", "--json", env=env).line()["store"]
    assert line["found"] and [layer["used"] for layer in line["layers"]] == [True, False], line
    assert "only read" in flashjit("doctor", env=env).out
    # Damage in a layer is told and left to its owner.
    entry = next(path for path in glob.glob(scratch("site") + "/v1/*/*"))
    with open(entry, "ab") as file:
        file.write(b"x")
    refused("cache", "verify", "--json", env=env, kind="io", says=["shared", scratch("site")])
    assert os.path.exists(entry)
    flashjit("cache", "clear", env=env)
    assert os.path.exists(entry) and not glob.glob(scratch("store") + "/v1/*/*")


def test_trusted_list():
    need("nvrtc")
    site, other = scratch("site"), "fwd fp16 d=64 heads=2"
    flashjit("compile", SPEC, other, "--arch", "sm_80", env={"FLASHJIT_CACHE_DIR": site})
    entries = sorted(glob.glob(site + "/v1/*/*"))
    listed = {"FLASHJIT_CACHE_DIR": scratch("store") + ":" + site, "FLASHJIT_TRUSTED_LIST": scratch("list")}
    write("list", f"{hashlib.sha256(read(entries[0])).hexdigest()}  {entries[0]}\n".encode())
    sources = [line["source"] for line in flashjit("compile", SPEC, other, "--arch", "sm_80", "--json", env=listed).lines()]
    assert sorted(sources) == ["compiled", "disk"], sources
    run = flashjit("cache", "explain", SPEC if sources[0] == "compiled" else other, "--arch", "sm_80", env={**listed, "FLASHJIT_CACHE_DIR": scratch("empty") + ":" + site})
    assert "not on the list of trusted files" in run.out, str(run)
    write("list", b"not a digest\n")
    commands = [("compile", SPEC, "--arch", "sm_80"), ("cache", "explain", SPEC, "--arch", "sm_80")]
    for command in [*commands, ("run", SPEC, "--shape", "q=4")] if harness.has("host") or harness.has("gpu") else commands:
        run = refused(*command, "--json", env=listed, kind="invalid", says=["list:1", "sha256sum", "unset"])
        assert run.lines()[-1]["error"]["message"].startswith("FLASHJIT_TRUSTED_LIST: "), str(run)


def test_cache_directory_names():
    odd = scratch("a:b")
    os.mkdir(odd)
    refused("cache", "stat", "--json", env={"FLASHJIT_CACHE_DIR": odd}, kind="invalid", says=["a:b", "rename"])
    refused("cache", "stat", "--json", "--dir", scratch("x") + ":", kind="invalid", says="empty name")
    assert flashjit("doctor", "--json", env={"FLASHJIT_CACHE_DIR": odd}).line()["store"]["found"] is False


def test_explain():
    run = flashjit("explain", 'fwd bf16 d=128 heads=32/8 mask="causal"', "--arch", "sm_90a", "--shape", "b=1,q=4096,k=4096", "--json")
    line = run.line()
    roofline = line["roofline"]
    # By hand: K and V of 8 heads of 128 in 2 bytes; half of the scores (and the diagonal) are visible.
    assert roofline["kv_cache_bytes_per_token"] == 2 * 8 * 128 * 2
    assert abs(roofline["visible"] - 4097 / 8192) < 0.03  # a sample of tiles
    assert abs(roofline["flops"] / (4 * 128 * 32 * 4096 * 4096 * roofline["visible"]) - 1) < 0.01
    assert abs(roofline["fused_bytes"] - 4096 * 128 * 2 * (32 + 8 + 8 + 32)) <= 0.02 * roofline["fused_bytes"]
    assert roofline["textbook_bytes"] > 10 * roofline["fused_bytes"]
    tiles = line["tiles"]
    assert tiles["empty"] > 0 and tiles["mixed"] > 0 and tiles["full"] > 0
    assert tiles["map"][0][-1] == "." and tiles["map"][-1][0] == "#", tiles["map"]
    assert line["candidates"] and line["candidates"][0]["why_illegal"] is None
    # Sums of dQ in fp32 and two numbers a row, 32 heads of 4096 queries.
    run = flashjit("explain", "bwd bf16 d=128 heads=32/8", "--arch", "sm_80", "--shape", "b=1,q=4096,k=4096", "--json")
    line = run.line()
    assert len(line["launches"]) == 3
    assert 32 * 4096 * (128 * 4 + 8) <= line["workspace_bytes"] <= 1.01 * 32 * 4096 * (128 * 4 + 8)
    text = flashjit("explain", SPEC, "--arch", "sm_80,sm_90a,x86-64-v3", "--all").out
    for word in ["schedule", "memory traffic", "KV cache", "balance", "candidates", "tiles"]:
        assert word in text, f"explain does not mention {word}"


def test_explain_of_a_call_that_quantises_has_its_shape():
    text = flashjit("explain", "fwd bf16 d=128 heads=16 compute=e4m3", "--arch", "sm_90a", "--shape", "b=3,q=512,k=2048", "--all").out
    shown = [line.split(" at ")[1] for line in text.splitlines() if line.startswith("what it costs at ")]
    assert shown == ["b=3,q=512", "b=3,q=2048", "b=3,q=2048", "b=3,q=512,k=2048"], shown


def test_explain_has_one_shape():
    """What is predicted above is what the list says of the same schedule, and the list is in its own order."""
    for spec, arch, *shape in [(SPEC, "sm_90a", "b=1,q=300"), ('fwd bf16 d=128 heads=32/8 mask="causal"', "sm_90a", "b=16,q=1,k=8192"),
                               ("fwd bf16 d=128 heads=32/8", "sm_90a"), ("fwd fp32 d=64 heads=8", "x86-64-v3", "b=1,q=512")]:
        args = ("explain", spec, "--arch", arch, *(["--shape", *shape] if shape else []))
        line = flashjit(*args, "--json").line()
        legal = [c for c in line["candidates"] if c["why_illegal"] is None]
        predicted = [c["predicted_us"] for c in legal]
        assert predicted == sorted(predicted), (args, predicted[:10])
        assert [c["predicted_us"] for c in legal if c["schedule"] == line["schedule"]] == [line["roofline"]["predicted_us"]], args
        text = flashjit(*args, "--all").out
        sizes = "b={b},q={q},k={k}".format(**line["shape"])
        assert f"what it costs at {sizes}\n" in text and f"candidates (predicted time at {sizes};" in text, text
        assert re.search(rf"{line['roofline']['predicted_us']:.1f} us \* {re.escape(line['schedule'])}\n", text), text
        is_first = legal[0]["schedule"] == line["schedule"]
        assert ("* is not the first: where prepare is told no sizes" in text) is not is_first, text


def test_explain_says_how_it_counts_lengths_that_differ():
    args = ("explain", 'fwd bf16 d=128 heads=32/8 layout=packed/paged(16) mask="causal"', "--arch", "sm_90a", "--shape")
    text = flashjit(*args, "q=512+1+1+1,k=512+4000+300+9000").out
    assert "figures count each of 4 sequences as the longest: 2048 queries for 515, 36000 keys for 13812\n" in text, text
    assert "as the longest" not in flashjit(*args, "b=4,q=512,k=9000").out


def test_explain_draws_masks_that_read_tensors():
    numpy = harness.find("numpy")
    spec = 'fwd bf16 d=64 params="end: i32[2]" mask="document(doc) & (causal | k < end[b, q])"'
    doc, end = numpy.zeros((1, 600), "i4"), numpy.zeros((1, 600), "i4")
    doc[:, 200:], end[:, 200:] = 1, 250
    for name, values in (("doc", doc), ("end", end), ("short", doc[:, :599])):
        numpy.save(scratch(f"{name}.npy"), values)
    args = ("explain", spec, "--arch", "sm_80", "--shape", "q=600", "--schedule", "family=sync,tile_q=64,tile_kv=64,warps=4",
            "--param", f"doc={scratch('doc.npy')}")
    both = (*args, "--param", f"end={scratch('end.npy')}")
    tiles = flashjit(*both, "--json").line()["tiles"]
    at = numpy.arange(600)
    seen = (doc[0][:, None] == doc[0]) & ((at <= at[:, None]) | (at < end[0][:, None]))
    cells = [[seen[q:q + 64, k:k + 64] for k in range(0, 600, 64)] for q in range(0, 600, 64)]
    assert tiles["map"] == ["".join("#" if c.all() else "+" if c.any() else "." for c in row) for row in cells], tiles
    drawn = "".join(tiles["map"])
    assert [tiles["empty"], tiles["mixed"], tiles["full"]] == [drawn.count(kind) for kind in ".+#"], tiles
    assert tiles["visible"] == seen.mean(), tiles
    text = flashjit(*both, "--all").out
    for says in ("tiles in which nothing is seen", f"; {seen.mean() * 100:.3g} % of the scores are seen\n", "whatever --param says)"):
        assert says in text, text
    refused(*both, "--param", "doc=1", says="doc is given twice")
    refused(*both, "--param", "left=3", says=["left", "nothing that mask or score"])
    refused(*args, says="end is not given; write end=FILE.npy")
    numpy.save(scratch("long.npy"), end.astype("i8"))
    refused(*args, "--param", f"end={scratch('long.npy')}", says=["long.npy", "holds int64, and i32 of the spec is int32 there"])
    refused(*args, "--param", f"end={scratch('short.npy')}", says=["end", "has 599 there"])


def test_explain_names_what_it_counts_as_zero():
    half = "one half were seen of what depends on "
    for params, mask, names, counted in [
            ("left: i32", "k >= qpos - left", "left", "`left`, which the mask reads, were 0"),
            ("doc: i32[1]", "k >= doc[b]", "doc", "`doc`, which the mask reads, hid nothing"),
            ("doc: i32[2]", "document(doc) & causal", "doc", half + "`doc`, which the mask reads"),
            ("left: i32", "document(doc) & k >= qpos - left", "doc and left", f"`left` were 0, and {half}`doc`, which the mask reads"),
            ("end: i32[2]", "document(doc) & (causal | k < end[b, q])", "doc and end", half + "`doc` and `end`, which the mask reads")]:
        text = flashjit("explain", f'fwd bf16 d=64 params="{params}" mask="{mask}"', "--arch", "sm_80", "--shape", "q=64", "--all").out
        assert f"(counted as if {counted})" in text, text
        assert f"the mask depends on {names}, whose" in text, text
    assert "counted as if" not in flashjit("explain", SPEC, "--arch", "sm_80", "--shape", "q=64", "--all").out


def test_explain_families():
    spec = 'fwd bf16 d=128 heads=32/8 mask="causal"'
    lines = {family: flashjit("explain", spec, "--arch", "sm_90a", "--shape", "q=4096", "--schedule", f"family={family}", "--json").line()
             for family in families("sm_90a")}
    for family, line in lines.items():
        assert line["family"] == family and f"family={family}," in line["program"]
    # Of the same memory, but of matrix instructions of another rate.
    assert lines["hopper"]["roofline"]["balance_point"] > 1.3 * lines["sync"]["roofline"]["balance_point"]
    text = flashjit("explain", spec, "--arch", "sm_90a", "--schedule", "family=hopper,warpgroups=2,stages=2,reference=tile,grid=persistent", "--all").out
    for words in ["2 K and V tiles in flight", "maximum up to each tile", "a block per SM", "at the rate of WGMMA"]:
        assert words in text, f"explain does not say {words}"
    assert "60 %" not in text
    # Without pins the best of every family is listed.
    for family in families("sm_90a"):
        assert re.search(rf" us [ *] family={family},", flashjit("explain", spec, "--arch", "sm_90a", "--all").out)
    # A tile of the map is what the queries of a block visit together; grouped heads make it lower.
    def cell(schedule):
        words = flashjit("explain", "fwd bf16 d=64 heads=8/2", "--arch", "sm_90a", "--shape", "q=256,k=256", "--schedule", schedule, "--all").out
        return words.split("one character is ")[1].split(")")[0]
    assert cell("family=hopper,warpgroups=1,tile_kv=64") == "64 queries by 64 keys"
    assert cell("family=hopper,warpgroups=1,tile_kv=64,head_tiles=grouped") == "16 queries by 64 keys"


def test_explain_says_what_a_hint_changes():
    spec, words = "fwd fp32 d=16 heads=2", "where prepare is told this shape"
    args = [spec, "--arch", "x86-64-v3"]
    line = flashjit("explain", *args, "--shape", "q=16", "--json").line()
    assert line["hinted_schedule"] not in (None, line["schedule"]), line
    assert f"{words}: {line['hinted_schedule']}" in flashjit("explain", *args, "--shape", "q=16").out
    if harness.has("host"):
        ran = flashjit("run", spec, "--target", "host", "--shape", "q=16", "--json").line()
        assert ran["schedule"] == flashjit("explain", spec, "--arch", ran["target"], "--shape", "q=16", "--json").line()["hinted_schedule"], ran
    for more in [[], ["--shape", "q=16", "--schedule", "tile_q=64"], ["--shape", "q=0"], ["--shape", "b=8,q=4096"]]:
        same = flashjit("explain", *args, *more, "--json").line()
        assert same["hinted_schedule"] is None and words not in flashjit("explain", *args, *more).out, more


def test_explain_is_short():
    for spec, arch in [('fwd bf16 d=128 heads=32/8 mask="causal"', "sm_90a"), ("bwd fp16 d=64 heads=8", "sm_80"), ("fwd fp32 d=64 heads=8", "x86-64-v3"),
                       ('fwd bf16 d=128 heads=32/8 kv=e4m3 layout=packed/paged(64) mask="causal" append', "sm_90a"), ("fwd e4m3 d=128 heads=8", "sm_90a")]:
        run = flashjit("explain", spec, "--arch", arch)
        lines = run.out.splitlines()
        assert len(lines) <= 25 and lines[-1].startswith("--all says the rest"), f"{len(lines)} lines\n{run}"
        assert len(flashjit("explain", spec, "--arch", arch, "--all").out.splitlines()) > 2 * len(lines), run


def test_explain_names_the_device():
    spec = "fwd bf16 d=128 heads=32/8 q_len=1"
    for arch, target, title, sms, tbs in [("sm_90a", "sm_90a", "H200", 132, 4.54), ("h200", "sm_90a", "H200", 132, 4.54), ("h100", "sm_90a", "H100 SXM", 132, 3.17),
                                          ("b200", "sm_100a", "B200", 148, 7.2), ("sm_80", "sm_80", "A100 SXM 80 GB", 108, 1.75)]:
        line = flashjit("explain", spec, "--arch", arch, "--json").line()
        assert line["target"] == target and line["device"] == {"name": title, "sms": sms, "memory_tbs": tbs}, line["device"]
        assert f"for {target}, {title}: {sms} SMs, {tbs} TB/s\n" in flashjit("explain", spec, "--arch", arch).out
    h100, h200 = (flashjit("explain", spec, "--arch", arch, "--json").line() for arch in ("h100", "h200"))
    assert h100["schedule"] == h200["schedule"] and h100["roofline"]["predicted_us"] > h200["roofline"]["predicted_us"]
    refused("explain", spec, "--arch", "h20", "--json", kind="invalid", says="did you mean `h200`?")


def test_explain_is_of_this_machine():
    if harness.has("gpu"):
        target = next(d["target"] for d in harness._doctor["gpu"]["devices"] if d["target"])
    else:
        need("host")
        target = harness._doctor["host"]["target"]
    spec = "fwd fp32 d=64 heads=8"
    device, text = flashjit("explain", spec, "--json").line()["device"], flashjit("explain", spec).out
    assert f"for {target}" in text, text
    if not harness.has("gpu"):  # times are those of the cores that schedules are chosen for, whatever is here
        assert f"counted with {device['cores']} cores ({device['usable_cores']} here)" in text, text
    assert "counted with 8 cores, " in flashjit("explain", spec, "--arch", "x86-64-v3").out


def test_explain_adds_up_and_shows_what_differs():
    for spec, arch in [('fwd bf16 d=128 heads=32/8 mask="causal"', "sm_90a"), ("fwd bf16 d=128 heads=32/8 q_len=1", "sm_80"), ("fwd fp32 d=64 heads=8", "x86-64-v3")]:
        text = flashjit("explain", spec, "--arch", arch).out
        whole, part, rest = map(float, re.search(r"predicted +(\S+) us = (\S+) us of .* \+ (\S+) us to begin", text).groups())
        assert abs(whole - part - rest) < 0.01, text
        schedule = flashjit("explain", spec, "--arch", arch, "--json").line()["schedule"].split(",")
        others = re.findall(r"^ +\S+ us   (\S+)$", text, re.M)
        assert others, text
        for other in others:
            assert other.startswith("family=") or not set(other.split(",")) & set(schedule), (other, schedule)


def test_compile_says_why_registers_are_not_those_of_the_plan():
    need("nvrtc")
    text = flashjit("compile", 'fwd bf16 d=64 heads=2 mask="causal"', "--arch", "h100").out
    launched, computing = map(int, re.search(r"(\d+) registers are those of the launch.*compute have (\d+)\n", text).groups())
    assert launched < computing and f" {launched} registers, " in text and "target    sm_90a" in text, text
    assert "of the launch" not in flashjit("compile", "fwd bf16 d=64 heads=2", "--arch", "sm_80").out


def test_explain_sizes():
    for shape in ["q=0", "q=1,k=0", "b=0,q=5", "q=1073741823,k=1073741823", "b=1,q=1,k=1000000"]:
        flashjit("explain", SPEC, "--arch", "sm_80", "--shape", shape, "--json")
    for shape in ["q=-1", "q=2147483648", "q=4096,k", "x=1", "q=1+2", "q=1,q=2", "b=1+1,q=1", "q=99999999999999999999", "q=1e3", "="]:
        refused("explain", SPEC, "--arch", "sm_80", "--shape", shape, "--json", kind="invalid", says="--shape")


if __name__ == "__main__":
    harness.main(globals())

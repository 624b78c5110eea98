"""flashjit build, bundle, --record and --bundle."""

import hashlib
import os

import harness
from harness import flashjit, need, read, refused, scratch, write

SPEC = 'fwd bf16 d=64 heads=4/2 mask="causal"'
PLAIN = "fwd fp16 d=64 heads=2"
FIELDS = {"spec", "target", "schedule", "ok", "error", "pins", "source", "compile_ms", "registers", "spill_bytes", "smem_bytes", "cubin_bytes", "family", "key"}
MANIFEST = f"# two specs\n{SPEC}\n\n{PLAIN} ;; schedule=family=sync ;; arch=sm_90a\n{SPEC}\n".encode()


def build(name="x.fjb", text=MANIFEST, archs="sm_80,sm_90a", *args, **options):
    return flashjit("build", write("m.txt", text), "--arch", archs, "-o", scratch(name), "--json", *args, **options).lines()


def kernels(name):
    return [(line["target"], line["spec"], line["pins"]) for line in flashjit("bundle", "ls", scratch(name), "--json").lines()]


def test_build_and_ls():
    need("nvrtc")
    *lines, total = build()
    asked = [("sm_80", SPEC, ""), ("sm_90a", SPEC, ""), ("sm_90a", PLAIN, "family=sync")]
    assert [(line["target"], line["spec"], line["pins"]) for line in lines] == asked, lines
    for line in lines:
        assert FIELDS <= set(line) and line["ok"] and line["cubin_bytes"] > 0, line
    assert total["kernels"] == 3 and total["code_bytes"] == sum(line["cubin_bytes"] for line in lines), total
    assert total["bytes"] == os.path.getsize(scratch("x.fjb")) <= total["code_bytes"] / 2, total
    assert kernels("x.fjb") == sorted(asked)
    line = flashjit("bundle", "verify", scratch("x.fjb"), "--json").line()
    assert line["ok"] and line["kernels"] == 3 and line["usable"], line
    for command in ["ls", "verify"]:
        assert flashjit("bundle", command, scratch("x.fjb")).out


def test_reproducible():
    need("nvrtc")
    build("x.fjb")
    backwards = b"\n".join(reversed(MANIFEST.split(b"\n")))
    os.makedirs(scratch("home"))
    build("y.fjb", backwards, "sm_90a,sm_80", "--jobs", "1", "--no-cache", cwd=scratch("home"), env={"LC_ALL": "de_DE.UTF-8", "HOME": scratch("home")})
    assert read(scratch("x.fjb")) == read(scratch("y.fjb"))


def test_one_bad_line_and_nothing_is_written():
    need("nvrtc")
    write("x.fjb", b"as it was")
    text = f"{PLAIN}\nfwd bf16 d=63 heads=4\nfwd bf16 d=64 heads=4 ;; schedule=tile_q=77\n".encode()
    run = refused("build", write("m.txt", text), "--arch", "sm_80", "-o", scratch("x.fjb"), "--json", kind="invalid",
                  says=["m.txt:2: d: 63", "m.txt:3:", "x.fjb was not written: 2 of 3"])
    assert [line["ok"] for line in run.lines()] == [True, False, False, False], str(run)
    assert read(scratch("x.fjb")) == b"as it was" and not [name for name in os.listdir(scratch("")) if "part" in name]


def test_refused_manifests():
    for text, says in [(b"", "no specs"), (b"fwd bf16 d=64 heads=4 ;; colour=red", "m.txt:1:"), (b"# nothing\n", "no specs")]:
        refused("build", write("m.txt", text), "--arch", "sm_80", "-o", "x.fjb", "--json", kind="invalid", says=says)
    refused("build", "none.txt", "--arch", "sm_80", "-o", "x.fjb", "--json", kind="not_found", says="none.txt")
    os.mkfifo(scratch("fifo"))  # which nobody writes
    refused("build", scratch("fifo"), "--arch", "sm_80", "-o", "x.fjb", "--json", kind="invalid", says="no file but a pipe")
    refused("build", scratch(""), "--arch", "sm_80", "-o", "x.fjb", "--json", kind="invalid", says="no file but a folder")
    good = write("m.txt", MANIFEST)
    refused("build", good, "--arch", "x86-64-v3", "-o", "x.fjb", "--json", kind="invalid", says="bundles hold kernels for GPUs")
    refused("build", good, "--arch", "sm_1", "-o", "x.fjb", "--json", says="sm_80")
    refused("build", good, "--arch", "sm_80", "-o", "x.fjb", "--json", env={"FLASHJIT_JIT": "off"}, kind="invalid", says="FLASHJIT_JIT")
    refused("build", good, "--arch", "sm_80", "-o", "x.fjb", "--json", "--no-cache", env={"FLASHJIT_NVRTC": "/nonexistent"}, kind="not_found")


def test_a_place_that_cannot_be_written():
    need("nvrtc")
    refused("build", write("m.txt", PLAIN.encode()), "--arch", "sm_80", "-o", "/dev/full/x.fjb", "--json", kind="io", says="/dev/full")


def test_the_mode_of_a_bundle():
    need("nvrtc")
    build("x.fjb", PLAIN.encode(), "sm_80", preexec_fn=lambda: os.umask(0))
    assert os.stat(scratch("x.fjb")).st_mode & 0o022 == 0


def test_merge():
    need("nvrtc")
    build("a.fjb", SPEC.encode(), "sm_80")
    build("b.fjb", f"{PLAIN}\n{SPEC}".encode(), "sm_80")
    build("both.fjb", f"{SPEC}\n{PLAIN}".encode(), "sm_80")
    line = flashjit("bundle", "merge", scratch("a.fjb"), scratch("b.fjb"), "-o", scratch("c.fjb"), "--json").line()
    assert line["kernels"] == 2 and line["twice"] == 1, line
    assert read(scratch("c.fjb")) == read(scratch("both.fjb"))


def test_damage_is_found():
    need("nvrtc")
    build("x.fjb", PLAIN.encode(), "sm_80")
    whole = read(scratch("x.fjb"))
    for bad, says in [(whole[:-1], "bytes"), (whole[:20], "header"), (whole[:-9] + b"?" + whole[-8:], "code"), (whole[:40] + b"?" + whole[41:], "index"),
                      (b"", "no bundle"), (b"\x7fELF" + whole, "no bundle")]:
        path = write("bad.fjb", bad)
        refused("bundle", "verify", path, "--json", says=["bad.fjb", says])
        refused("bundle", "merge", path, scratch("x.fjb"), "-o", scratch("y.fjb"), "--json", says="bad.fjb")
    assert not os.path.exists(scratch("y.fjb"))
    refused("bundle", "ls", "none.fjb", "--json", kind="not_found", says="none.fjb")


def test_a_bundle_that_cannot_be_written_is_no_work():
    need("nvrtc")
    manifest = write("kernels.txt", PLAIN.encode())
    for out in (scratch(""), manifest + "/x.fjb"):
        run = refused("build", manifest, "--arch", "sm_80", "-o", out, "--json", says=manifest if out.startswith(manifest) else out)
        assert len(run.lines()) == 1, run


def test_a_spec_forges_no_row():
    need("nvrtc")
    build("x.fjb", PLAIN.encode(), "sm_80")
    whole = read(scratch("x.fjb"))
    head = 32 + int.from_bytes(whole[24:32], "little")
    forged = whole[:head].replace(PLAIN.encode(), PLAIN.replace(" ", "\n").encode())
    assert forged != whole[:head]
    write("forged.fjb", forged + hashlib.sha256(forged).digest() + whole[head + 32:])
    rows = flashjit("bundle", "ls", scratch("forged.fjb")).out
    assert rows.count("\n") == 1 and "\\x0a" in rows, rows
    refused("bundle", "verify", scratch("forged.fjb"), "--json", says="not sound: 1 of 1 kernel;")


def test_record_then_build():
    need("host")
    need("nvrtc")
    for _ in range(2):
        flashjit("run", PLAIN, "--shape", "q=16", "--target", "host", "--record", scratch("r.txt"))
        flashjit("bench", SPEC, PLAIN, "--shape", "q=16", "--target", "host", "--seconds", "0.05", "--record", scratch("r.txt"))
    assert read(scratch("r.txt")).decode() == f"{PLAIN}\n{SPEC}\n"
    flashjit("build", scratch("r.txt"), "--arch", "sm_80", "-o", scratch("r.fjb"))
    assert kernels("r.fjb") == sorted([("sm_80", PLAIN, ""), ("sm_80", SPEC, "")])
    flashjit("run", PLAIN, "--shape", "q=16", "--target", "host", "--record", scratch("new/folders/r.txt"))
    assert read(scratch("new/folders/r.txt")).decode() == f"{PLAIN}\n"
    for target in ("host", "auto"):
        run = refused("run", PLAIN, "--shape", "q=16", "--target", target, "--json", "--record", scratch("r.txt/r.txt"), kind="io", says="can be written")
        assert run.lines()[-1]["error"]["message"].startswith("--record: "), str(run)


def test_sealed_host_is_refused():
    refused("run", PLAIN, "--shape", "q=16", "--target", "host", "--json", env={"FLASHJIT_JIT": "off"}, kind="invalid", says="FLASHJIT_JIT=off")


def test_record_build_sealed_run_on_gpu():
    need("gpu")
    need("nvrtc")
    run = ["--shape", "b=2,q=300", "--target", "gpu", "--check", "--json"]
    record = ["--record", scratch("r.txt")]
    first = flashjit("run", SPEC, *run, *record, "--o", scratch("jit.npy")).line()
    pinned = flashjit("run", SPEC, *run, *record, "--schedule", "family=sync").line()
    target = first["target"]
    assert read(scratch("r.txt")).decode() == f"{SPEC}\n{SPEC} ;; schedule=family=sync\n"
    sealed = {"FLASHJIT_JIT": "off", "FLASHJIT_NVRTC": "/nonexistent"}
    refused("run", SPEC, *run, env=sealed, kind="not_found", says=["no bundle was given", f"--arch {target}"])
    flashjit("build", scratch("r.txt"), "--arch", "sm_80,sm_90a," + target, "-o", scratch("r.fjb"))
    bundle = ["--bundle", scratch("r.fjb")]
    line = flashjit("run", SPEC, *run, *bundle, "--o", scratch("sealed.npy"), env=sealed).line()
    assert line["ok"] and line["source"] == "bundle" and line["schedule"] == first["schedule"] and line["key"] == first["key"], line
    assert read(scratch("sealed.npy")) == read(scratch("jit.npy"))
    assert flashjit("run", SPEC, *run, *bundle, "--schedule", "family=sync", env=sealed).line()["schedule"] == pinned["schedule"]
    assert flashjit("bench", SPEC, "--shape", "q=300", "--target", "gpu", "--json", *bundle, env=sealed).line()["ok"]
    refused("run", PLAIN, *run, *bundle, env=sealed, kind="not_found", says=[PLAIN, "flashjit build -", f"2 kernels for {target}", SPEC])
    # With a compiler, what the bundle lacks is compiled; without a kernel for this target the bundle says so.
    assert flashjit("run", PLAIN, *run, *bundle).line()["source"] == "compiled"
    other = "sm_80" if target != "sm_80" else "sm_90a"
    flashjit("build", scratch("r.txt"), "--arch", other, "-o", scratch("other.fjb"))
    refused("run", SPEC, *run, "--bundle", scratch("other.fjb"), env=sealed, kind="not_found", says=["other.fjb", f"kernels for {other}", target])


if __name__ == "__main__":
    harness.main(globals())

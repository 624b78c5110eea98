"""What the command writes, where, and what it says of what it cannot write; that no text of a user reaches a terminal as a command to it."""

import json
import os
import stat
import threading

import harness
from harness import Skip, flashjit, need, read, refused, scratch, write

SPEC = "fwd fp32 d=32 heads=2"
HOST = ["--shape", "q=8", "--target", "host"]
ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202edesrever"


def outputs():
    """Every option that names a file to write, with a call that writes it; what needs a part of the machine that is not here is left out."""
    calls = {"--export": ["tune", "--export"]}
    if harness.has("host"):
        spec = SPEC + " lse=ln max_logit"
        calls.update({option: ["run", spec, *HOST, option] for option in ("--o", "--lse", "--max-logit")})
        tune = ["tune", SPEC, *HOST, "--budget", "500ms"]
        calls.update({option: [*tune, option] for option in ("--report", "--report-json")})
        calls["--record"] = ["run", SPEC, *HOST, "--record"]
    if harness.has("nvrtc"):
        manifest = write("manifest.txt", b"fwd fp16 d=64 heads=1\n")
        calls["build"] = ["build", manifest, "--arch", "sm_80", "-o"]
        flashjit(*calls["build"], "one.fjb")
        calls["merge"] = ["bundle", "merge", "one.fjb", "-o"]
    return calls


def test_two_outputs_in_one_file():
    need("host")
    path = scratch("x.npy")
    refused("run", "fwd fp32 d=8 lse=ln", *HOST, "--o", path, "--lse", os.path.join(scratch("."), "x.npy"), "--json", kind="invalid", says=["--lse", "--o"])
    assert not os.path.exists(path)
    flashjit("run", "fwd fp32 d=8 lse=ln", *HOST, "--o", "/dev/null", "--lse", "/dev/null")
    page, link = write("page", b"old"), scratch("link")
    os.symlink(page, link)
    for other in (page, link):
        refused("tune", "fwd fp32 d=8", *HOST, "--budget", "300ms", "--report", page, "--report-json", other, "--json", kind="invalid", says=["--report-json", "--report"])
    assert read(page) == b"old"


def test_an_output_in_the_file_of_an_input():
    need("host")
    flashjit("run", "fwd fp32 d=8", *HOST, "--o", scratch("x.npy"))
    manifest = write("manifest.txt", b"fwd fp16 d=64 heads=1\n")
    for says, call in ((["--o:", "--q"], ["run", "fwd fp32 d=8", *HOST, "--q", scratch("x.npy"), "--o", "x.npy"]),
                       (["--o:", "--param"], ["run", 'fwd fp32 d=8 params="t: fp32[4]" score="s + t[b, q, h, k]"', *HOST, "--param", "t=x.npy", "--o", "x.npy"]),
                       (["--out", "the manifest"], ["build", manifest, "--arch", "sm_80", "-o", manifest]),
                       (["--report", "--sweep"], ["tune", "--sweep", manifest, *HOST, "--budget", "300ms", "--report", manifest])):
        before = read(scratch("x.npy")), read(manifest)
        refused(*call, "--json", kind="invalid", says=[*says, "name another one"])
        assert before == (read(scratch("x.npy")), read(manifest)), call


def test_outputs_to_devices():
    for name, call in outputs().items():
        device = scratch(f"null{name}")
        try:
            os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError:
            raise Skip("needs the right to make a device")
        os.chmod(device, 0o666)
        flashjit(*call, device)
        assert os.stat(device).st_mode == stat.S_IFCHR | 0o666, f"{name}: {oct(os.stat(device).st_mode)}"


def test_outputs_to_pipes():
    for name, call in outputs().items():
        fifo = scratch(f"fifo{name}")
        os.mkfifo(fifo)
        got = []
        reader = threading.Thread(target=lambda: got.append(read(fifo)), daemon=True)
        reader.start()
        reader.join(0.2)  # --record does not wait for a reader
        flashjit(*call, fifo)
        reader.join(20)
        assert got and got[0], f"{name}: nothing came out of the pipe"
        assert stat.S_ISFIFO(os.stat(fifo).st_mode), name


def test_outputs_keep_mode_owner_and_links():
    for name, call in outputs().items():
        file, link = write(f"file{name}", b""), scratch(f"link{name}")
        mode = 0o604 if name in ("build", "merge") else 0o642
        os.chmod(file, mode)
        if os.geteuid() == 0:
            os.chown(file, 65534, 65534)
        before = os.stat(file)
        os.symlink(file, link)
        flashjit(*call, link)
        after = os.stat(file)
        assert os.path.islink(link) and after.st_size > 0, name
        assert (after.st_mode & 0o7777, after.st_uid, after.st_gid) == (mode, before.st_uid, before.st_gid), f"{name}: {after}"


def test_standard_output_as_a_file():
    need("host")
    with open(scratch("both"), "wb") as both:
        flashjit("run", SPEC, *HOST, "--o", "/dev/stdout", stdout=both)
    assert read(scratch("both")), "the file that was open is another one now"
    assert flashjit("run", SPEC, *HOST, "--o", "/dev/stdout", "--json").out.startswith("\ufffdNUMPY")


def printable(run):
    for stream in (run.out, run.err):
        bad = [c for c in stream if (ord(c) < 0x20 and c not in "\n\t") or 0x7f <= ord(c) < 0xa0 or c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"]
        assert not bad, f"{bad}\n{run}"


def test_hostile_text_is_shown_and_not_obeyed():
    manifest = write("manifest.txt", f"fwd {ESCAPE}\nfwd fp16 d=64 heads=1 ;; {ESCAPE}=1\n".encode())
    calls = [["run", SPEC, "--shape", ESCAPE], ["run", SPEC, *HOST, "--param", f"t={ESCAPE}"], ["run", SPEC, *HOST, "--param", f"{ESCAPE}=1"],
             ["run", SPEC, *HOST, "--q", f"{ESCAPE}.npy"], ["run", SPEC, *HOST, "--o", f"/dev/null/{ESCAPE}"],
             ["build", manifest, "--arch", "sm_80", "-o", "x.fjb"], ["build", ESCAPE, "--arch", "sm_80", "-o", "x.fjb"], ["bundle", "ls", ESCAPE],
             ["explain", f"fwd {ESCAPE}", "--arch", "sm_80"], ["explain", SPEC, "--arch", ESCAPE], ["explain", SPEC, "--arch", "sm_80", "--schedule", ESCAPE],
             ["tune", "--merge", ESCAPE], ["tune", "--sweep", ESCAPE], ["tune", SPEC, *HOST, "--budget", ESCAPE], ["cache", "stat", "--dir", f"/dev/null/{ESCAPE}"],
             [ESCAPE], ["cache", ESCAPE], ["run", SPEC, "--shape", "q=8", "--seed", ESCAPE], ["run", SPEC, f"--{ESCAPE}"]]
    for call in calls:
        for more in ([], ["--json"]):
            run = flashjit(*call, *more, expect=None)
            assert run.code != 0, run
            printable(run)
    # It is still there for who looks.
    assert "\\x1b]0;owned\\x07" in flashjit("bundle", "ls", ESCAPE, expect=1).err
    assert json.loads(flashjit("bundle", "ls", ESCAPE, "--json", expect=1).out)["bundle"] == ESCAPE
    # What is no UTF-8, and what is.
    assert "\\xff\\x80" in flashjit("bundle", "ls", b"\xff\x80", expect=1).err
    assert "größe.fjb" in flashjit("bundle", "ls", "größe.fjb", expect=1).err


def test_an_unwritable_log_is_said_once():
    need("host")
    for log, why in ((scratch("absent/log"), "No such file"), (scratch(""), "Is a directory")):
        text = flashjit("run", SPEC, *HOST, env={"FLASHJIT_LOG": log}).out
        assert text.count("FLASHJIT_LOG") == 1 and log in text and why in text and "unset it" in text, text


def test_an_unwritable_dump_folder_is_said_once():
    need("nvrtc")
    for folder in (write("file", b""), "/dev/null/dump", "/proc/dump"):
        run = flashjit("compile", SPEC.replace("fp32", "fp16"), "fwd bf16 d=64 heads=1", "--arch", "sm_80,sm_90a", "--json", env={"FLASHJIT_DUMP_DIR": folder})
        said = [note for line in run.lines() for note in line["notes"] if "FLASHJIT_DUMP_DIR" in note]
        assert len(said) == 1 and folder in said[0] and "unset it" in said[0], run


def test_dumps_follow_no_link():
    need("nvrtc")
    spec, victim = "fwd fp16 d=64 heads=1", write("victim", b"precious")
    key = flashjit("compile", spec, "--arch", "sm_80", "--json").line()["key"][:16]
    folder = scratch(f"dump/{key}")
    os.makedirs(folder)
    os.symlink(victim, folder + "/spec.txt")
    run = flashjit("compile", spec, "--arch", "sm_80", "--json", env={"FLASHJIT_DUMP_DIR": scratch("dump")})
    assert read(victim) == b"precious" and b"fwd fp16 d=64" in read(folder + "/spec.txt"), run


def test_files_that_are_no_records():
    garbage = write("garbage", b"\x00\x01 nothing\nof the kind\n")
    refused("tune", "--merge", garbage, "--json", kind="invalid", says=[garbage, "--export"])
    refused("tune", "--export", "x", "--records", garbage, kind="invalid", says=[garbage, "none of its 2 lines"])
    assert read(garbage).startswith(b"\x00\x01"), "somebody's file was written over"
    flashjit("tune", "--export", "records.txt")
    flashjit("tune", "--merge", "records.txt")
    with open(scratch("records.txt"), "a") as file:
        file.write("spec=cut off\n")
    run = flashjit("tune", "--merge", "records.txt")
    assert "note: records.txt: passed over 1 line without a tuning record" in run.err, run


def test_emit_what_the_target_has_not():
    refused("compile", "fwd fp16 d=64 heads=1", "--arch", "sm_80", "--emit", "llvm", "--json", kind="invalid", says=["--emit llvm", "sm_80", "GPU"])


def test_a_store_that_does_not_exist_yet():
    for name in ("absent", "empty"):
        env = {"FLASHJIT_CACHE_DIR": scratch(name)}
        if name == "empty":
            os.mkdir(scratch(name), 0o700)
        assert "does not exist yet" in flashjit("cache", "stat", env=env).out
        assert flashjit("cache", "stat", "--json", env=env).line()["entries"] == 0
        assert flashjit("cache", "ls", env=env).out == ""
        assert flashjit("cache", "verify", "--json", env=env).line()["entries"] == 0
        assert flashjit("cache", "prune", "--json", env=env).line()["removed"] == 0
        assert flashjit("cache", "clear", "--json", env=env).line()["removed"] == 0
    assert not os.path.exists(scratch("absent")), "looking creates nothing"
    refused("cache", "stat", "--dir", write("file", b"") + "/below", says="Not a directory")


def test_no_directory_says_which_homes_are_none():
    for home in ("/", None, "/a:b", "relative"):
        env = {"HOME": home, "FLASHJIT_CACHE_DIR": None, "XDG_CACHE_HOME": None}
        refused("cache", "stat", "--json", env=env, kind="not_found", says=["HOME is not set, is '/'", "FLASHJIT_CACHE_DIR", "--dir"])
        assert "is '/'" in flashjit("doctor", env=env).out


def test_unknown_subcommands_are_named():
    refused("complie", "x", code=2, says=["`complie`", "did you mean `compile`", "doctor"])
    refused("explain", "x", "--arhc", "sm_80", code=2, says=["`--arhc`", "did you mean `--arch`"])
    refused("tune", "x", "--bugdet=3s", code=2, says=["`--bugdet`", "did you mean `--budget`"])
    refused("compile", "x", "--arhc", "sm_80", code=2, says="did you mean `--arch`")  # and not that --arch is missing
    refused("--json", "explain", "x", code=2, says=["--json: is an option of explain", "flashjit explain --json"])
    refused("cache", "stat", "--jsn", code=2, says="did you mean `--json`")
    refused("--versio", code=2, says="did you mean `--version`")
    refused("cache", "sats", code=2, says=["`sats`", "did you mean `stat`", "prune"])
    refused("bundle", "frobnicate", code=2, says=["`frobnicate`", "merge"])
    refused("cache", "--jsonn", code=2, says="subcommand is required")


def test_help_of_nested_commands():
    for group, names in {"cache": ["stat", "ls", "verify", "prune", "clear", "explain"], "bundle": ["ls", "verify", "merge"]}.items():
        for name in names:
            examples = [line for line in flashjit(group, name, "--help").out.splitlines() if line.startswith("  ") and f"flashjit {group}" in line]
            assert examples and all(f"flashjit {group} {name}" in line for line in examples), (group, name, examples)


def test_a_tensor_with_an_index_that_is_a_scalar():
    need("host")
    spec = 'fwd fp32 d=32 heads=2 params="t: fp32[1], n: i32" mask="t[n] > 0"'
    flashjit("run", spec, *HOST, "--param", "n=3", "--check")
    refused("run", spec, *HOST, "--param", "n=2000000000", "--json", says="--param t=FILE.npy")
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (8,), }".ljust(117) + b"\n"
    write("t.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\x00\x00\x80\x3f" * 8)
    flashjit("run", spec, *HOST, "--param", "n=3", "--param", "t=t.npy", "--check")


def test_empty_names_are_refused():
    for call, option in [(["run", SPEC, *HOST, "--o", ""], "--o"), (["run", SPEC, *HOST, "--bundle", ""], "--bundle"), (["compile", SPEC, "--arch", "sm_80", "--out", ""], "--out"),
                         (["run", SPEC, *HOST, "--q", ""], "--q"), (["build", "", "--arch", "sm_80", "-o", "x.fjb"], "manifest"), (["bundle", "ls", ""], "bundle"),
                         (["tune", "--merge", ""], "--merge"), (["tune", "--export", ""], "--export"), (["cache", "stat", "--dir", ""], "--dir"),
                         (["compile", SPEC, "--arch", "sm_80", "--override", ""], "--override")]:
        refused(*call, code=2, says=[option, "the name is empty"])


if __name__ == "__main__":
    harness.main(globals())

"""What every subcommand owes: help, exit codes, JSON, no crash on odd arguments."""

import os
import re
import signal
import subprocess

import harness
from harness import flashjit, need, read, refused, scratch, source, write

SUBCOMMANDS = ["compile", "explain", "run", "bench", "doctor", "cache", "build", "bundle"]
SPEC = 'fwd bf16 d=64 heads=4 mask="causal"'


def test_version():
    assert flashjit("--version").out.startswith("flashjit "), "no version"


def test_help_has_examples():
    assert "Exit codes" in flashjit("--help").out
    for name in SUBCOMMANDS:
        assert f"flashjit {name}" in flashjit(name, "--help").out, f"{name} --help has no example"


def test_wrong_usage_is_two():
    for args in [[], ["nothing"], ["compile"], ["compile", SPEC], ["compile", "--arch", "sm_80"], ["run", SPEC], ["cache"],
                 ["compile", SPEC, "--arch", "sm_80", "--emit", "sass"], ["compile", SPEC, "--arch", "sm_80", "--jobs", "0"],
                 ["bench", SPEC, "--shape", "q=1", "--against", "torch"], ["doctor", "--jsonn"], ["run", SPEC, "--shape", "q=1", "--seed", "x"],
                 ["run", SPEC, "--shape", "q=1", "--device", "-1"], ["bench", SPEC, "--shape", "q=1", "--seconds", "nan"], ["build"], ["build", "m.txt", "-o", "x.fjb"],
                 ["build", "m.txt", "--arch", "sm_80"], ["bundle"], ["bundle", "ls"], ["bundle", "merge", "x.fjb"]]:
        refused(*args, code=2)


def test_bad_specs():
    for spec, says in [("fwd bf16 d=264 heads=1", ["d", "264", "256"]), ("fwd bf16 d=63 heads=1", ["d", "63"]), ("", []), ("fwd", ["d"]),
                       ("fwd bf16 d=64 heads=3/2", ["heads"]), ("fwd bf16 d=64 heads=4 colour=red", ["colour"]),
                       ('fwd bf16 d=64 heads=4 mask="q <"', ["^"]), ("fwd bf16 d=64 heads=4 " * 2000, []),
                       ('fwd bf16 d=64 heads=4 mask="' + "(" * 3000 + '"', []), ("fwd bf16 d=99999999999999999999 heads=1", ["d"])]:
        for command in [["explain", spec, "--arch", "sm_80"], ["run", spec, "--shape", "q=16"], ["bench", spec, "--shape", "q=16"],
                        ["compile", spec, "--arch", "sm_80"]]:
            refused(*command, "--json", says=[] if command[0] in ("run", "bench") and not harness.has("host") else says)


def test_later_features_are_unsupported():
    for spec, field in [("bwd e4m3 d=64 heads=4", "e4m3"), ("fwd bf16 d=64 heads=4 append dropout=0.1", "dropout")]:
        refused("compile", spec, "--arch", "sm_90a", "--json", kind="unsupported", says=field)


def test_not_utf8():
    refused("explain", b"fwd bf16 d=64 heads=4 mask=\"\xff\xfe\"", "--arch", "sm_80", "--json")


def test_closed_output_is_an_error():
    with open("/dev/full", "wb") as full:
        run = flashjit("doctor", "--json", stdout=full, expect=1)
    assert "standard output" in run.err, str(run)


def test_bad_environment():
    for name, value in [("FLASHJIT_THREADS", "many"), ("FLASHJIT_JIT", "perhaps")]:
        refused("compile", SPEC, "--arch", "sm_80", "--json", env={name: value}, kind="invalid", says=name)


def test_a_reader_that_has_gone_ends_it_in_silence():
    command = [os.path.join(harness.ARGS.build, "bin", "flashjit"), "explain", SPEC, "--arch", "sm_80,sm_90a"]
    for json in ([], ["--json"]):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run([*command, *json], stdout=writer, stderr=subprocess.PIPE, timeout=60)  # Python resets SIGPIPE for it
        assert done.returncode == -signal.SIGPIPE and done.stderr == b"", done
        # Where it was ignored, that was somebody's wish: the error says it.
        done = subprocess.run([*command, *json], stdout=writer, stderr=subprocess.PIPE, timeout=60, restore_signals=False)
        os.close(writer)
        assert done.returncode == 1 and b"closed pipe" in done.stderr, done


def fields_of_page():
    """The table of tools/README.md: the words of each command, of which a row goes on where the next has no name."""
    rows = read(source("tools", "README.md")).decode().partition("| command | fields of its JSON |")[2].partition("\n\n")[0]
    fields, name = {}, None
    for first, text in re.findall(r"^\| (.*?) ?\| (.*) \|$", rows, re.M):
        name = first.strip("`") or name
        words = {word.strip(",") for part in re.findall(r"`([^`]+)`", text) for word in part.split()}
        fields.setdefault(name, set()).update(word for word in words if not word.startswith("-"))
    fields["build"] |= fields["compile"]  # The page says so in words.
    fields["run"] |= fields["compile"]
    return fields


def shown(name, *runs):
    """The fields of all lines that the command gives when it is run in these ways, which the page must have."""
    page = fields_of_page()
    lines = [line for args in runs for line in flashjit(name, *args, "--json").lines()]
    for line in lines:
        unknown = set(line) - page[name] - page["every one"]
        assert not unknown, f"tools/README.md has no {unknown} of flashjit {name}"
    seen = {field for line in lines for field in line} | {field for line in lines for field in line.get("tiles", ())}
    return seen, page[name]


def test_the_page_has_the_fields_of_explain():
    seen, page = shown("explain", [SPEC, "--arch", "sm_90a", "--shape", "q=100"], ["fwd e4m3 d=64", "--arch", "sm_90a"],
                       ["fwd fp32 d=64", "--arch", "x86-64-v3"], ["fwd bf16 d=64 compute=e4m3", "--arch", "sm_90a"])
    assert page <= seen, f"tools/README.md has {page - seen}, which flashjit explain does not write"


def test_the_page_has_the_fields_of_kernels():
    need("host")
    spec, sizes = "fwd fp32 d=64 heads=2", ["--shape", "q=50", "--target", "host"]
    seen, page = shown("compile", [spec, "--arch", "x86-64-v3", "--emit", "llvm", "--dump-after", "all"],
                       [spec, "--arch", "x86-64-v3", "--out", scratch("fields")])
    assert page <= seen, f"tools/README.md has {page - seen}, which flashjit compile does not write"
    seen, page = shown("run", [spec, *sizes], ["fwd fp32 d=64 compute=e4m3", *sizes, "--check"])
    assert page - seen <= {"dumps", "files", "folder", "compile"}, f"tools/README.md has {page - seen}, which flashjit run does not write"
    shown("bench", [spec, *sizes, "--seconds", "0.05"])
    seen, page = shown("tune", [spec + " b=1 q_len=32 k_len=32", "--target", "host", "--budget", "1s"])
    assert page <= seen, f"tools/README.md has {page - seen}, which flashjit tune does not write"
    seen, page = shown("cache", ["stat"], ["ls"], ["verify"], ["prune", "--max-bytes", "1000000000"], ["explain", spec, "--arch", "x86-64-v3"],
                       ["explain", "fwd fp32 d=72", "--arch", "x86-64-v3"])
    assert page <= seen, f"tools/README.md has {page - seen}, which flashjit cache does not write"


def test_the_page_has_the_fields_of_bundles():
    need("nvrtc")
    manifest = write("fields.txt", b"fwd bf16 d=64 ;; schedule=family=sync\n")
    seen, page = shown("build", [manifest, "--arch", "sm_80", "--out", scratch("fields.fjb")])
    assert page - seen <= {"dumps", "files", "folder", "compile"}, f"tools/README.md has {page - seen}, which flashjit build does not write"
    seen, page = shown("bundle", ["ls", scratch("fields.fjb")], ["verify", scratch("fields.fjb")])
    assert page <= seen, f"tools/README.md has {page - seen}, which flashjit bundle does not write"


def test_the_page_has_the_fields_of_doctor():
    run = flashjit("doctor", "--json", expect=None)  # It is refused where something is missing.
    assert set(run.line()) - fields_of_page()["every one"] == fields_of_page()["doctor"]


if __name__ == "__main__":
    harness.main(globals())

"""Completion in shells and the manual page hold all that the help of the command names, and nothing else."""

import fcntl
import functools
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import termios
import time

import harness
from harness import Skip, flashjit, read, scratch, source, write

SPEC = 'fwd bf16 d=64 heads=4 mask="causal"'


def program(name):
    path = shutil.which(name)
    if not path:
        raise Skip(f"no {name} on this machine")
    return path


def accepted(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=scratch(""), **options)
    assert done.returncode == 0 and not done.stderr, f"$ {' '.join(command)}\nexit code {done.returncode}\n{done.stdout[-1000:]}{done.stderr}"
    return done.stdout


def script(shell):
    return write(f"script.{shell}", flashjit("completion", shell).out.encode())


@functools.cache
def commands():
    """What help says: the subcommands and the options of every command, by its path."""
    found = {}
    waiting = [()]
    while waiting:
        path = waiting.pop()
        text = flashjit(*path, "--help").out
        below = re.search(r"^Subcommands:\n((?:  .*\n)+)", text, re.M)
        names = re.findall(r"^  (\S+)", below.group(1), re.M) if below else []
        options = [name for names in re.findall(r"^  (-\S+)", text, re.M) for name in names.split(",")]
        found[path] = (names, options)
        waiting += [(*path, name) for name in names]
    assert len(found) > 15 and "explain" in found[()][0] and "--emit" in found[("compile",)][1], found
    return found


def completed_by_bash(*lines):
    """For each line, as its words, what stands in COMPREPLY after bash asked for its last word."""
    calls = [f"COMP_WORDS=(flashjit {' '.join(map(shlex.quote, line))}); COMP_CWORD={len(line)}; COMPREPLY=(); _flashjit; echo \"${{COMPREPLY[*]}}\"" for line in lines]
    out = accepted(program("bash"), "--norc", "-c", "\n".join([f"source {script('bash')}", *calls]))
    return [line.split() for line in out.split("\n")[:len(lines)]]


def test_scripts_are_accepted_by_bash():
    accepted(program("bash"), "-n", script("bash"))


def test_scripts_are_accepted_by_zsh():
    accepted(program("zsh"), "-n", script("zsh"))


def test_scripts_are_accepted_by_fish():
    accepted(program("fish"), "-n", script("fish"))


def completed_by_fish(*lines):
    """For each line, what fish offers for its last word, in the order of the alphabet."""
    asked = "; echo ==; ".join(f"complete -C {shlex.quote(line)}" for line in lines)
    out = accepted(program("fish"), "-c", f"source {script('fish')}; {asked}")
    return [sorted({line.split("\t")[0] for line in part.splitlines()}) for part in out.split("==\n")]


def test_fish_completes_all_that_help_names():
    rows = [(f"flashjit {' '.join((*path, start))}", sorted(names)) for path, (below, options) in commands().items() for start, names in (("", below), ("-", options)) if names]
    for (line, names), offered in zip(rows, completed_by_fish(*[line for line, _ in rows]), strict=True):
        assert offered == names, f"{line}: fish offers {offered}, help names {names}"


def test_fish_completes_what_was_begun():
    rows = {"expl": ["explain"], "compile --em": ["--emit"], "compile --emit cu": ["cubin", "cuda"], "compile --emit=cu": ["--emit=cubin", "--emit=cuda"],
            "compile --emit spec,cu": ["spec,cubin", "spec,cuda"], "explain --arch h1": ["h100"], "run --target ho": ["host"], "run --data w": ["wide("],
            "cache pru": ["prune"], "cache --json ver": ["verify"], "compile --jobs ": [], "completion f": ["fish"]}
    for line, offered in zip(rows, completed_by_fish(*["flashjit " + line for line in rows]), strict=True):
        assert offered == rows[line], f"{line}: fish offers {offered}, and not {rows[line]}"


def test_zsh_completes_what_was_begun():
    """zsh completes only for somebody who types: each row is a line, and what it has become after a tab."""
    zsh, folder = program("zsh"), scratch("functions")
    os.makedirs(folder, exist_ok=True)
    write(os.path.join("functions", "_flashjit"), flashjit("completion", "zsh").out.encode())
    child, terminal = pty.fork()
    if child == 0:
        os.execve(zsh, [zsh, "-f", "-i"], dict(os.environ, TERM="dumb", HOME=scratch(""), fpath_added=folder))
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))

    def typed(text, wanted):
        os.write(terminal, text.encode())
        out, until = "", time.monotonic() + 60
        while wanted not in out:
            assert time.monotonic() < until, f"{text!r}: zsh shows {out!r}, and not {wanted!r}"
            if select.select([terminal], [], [], 0.1)[0]:
                out += os.read(terminal, 65536).decode(errors="replace")

    try:
        typed("fpath=($fpath_added $fpath); autoload -Uz compinit; compinit -u -D; echo rea''dy\n", "ready")
        for line, became in {"expl": "explain ", "compile --em": "--emit=", "cache pru": "prune ", "run --target ho": "host ", "run --data wi": "wide\\(",
                             "compile --emit spec,cub": "spec,cubin", "explain --arch h1": "h100", "completion f": "fish "}.items():
            typed(f"flashjit {line}\t", became)
            typed("\x15echo don''e\n", "done")  # The line is taken back.
    finally:
        os.close(terminal)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_bash_completes_all_that_help_names():
    lines = [((*path, start), names) for path, (below, options) in commands().items() for start, names in (("", below), ("-", options)) if names]
    for (line, names), offered in zip(lines, completed_by_bash(*[line for line, _ in lines])):
        assert offered == names, f"{line}: bash offers {offered}, help names {names}"


def test_bash_completes_what_was_begun():
    for name in ("a.npy", "b.txt"):
        write(name, b"")
    os.mkdir(scratch("folder"))
    rows = {("expl",): ["explain"], ("compile", "--em"): ["--emit"], ("compile", "--emit", "cu"): ["cuda", "cubin"], ("compile", "--emit", "=", "cu"): ["cuda", "cubin"],
            ("compile", "--emit=cu",): ["--emit=cuda", "--emit=cubin"], ("compile", "--emit", "spec,cu"): ["spec,cuda", "spec,cubin"],
            ("compile", SPEC, "--arch", "sm_80,sm_9"): ["sm_80,sm_90a"], ("explain", "--arch", "h1"): ["h100"], ("run", "--target", "ho"): ["host"],
            ("run", "--data", "w"): ["wide\\("], ("bench", "--against", ""): ["naive", "quick", "unhinted"], ("run", "--q", ""): ["a.npy", "folder"],
            ("run", "--grad", "t", "=", "a"): ["a.npy"], ("completion", "f"): ["fish"], ("cache", "explain", "--arch", "x86-64-v4+a"): ["x86-64-v4+amx"],
            ("compile", "--jobs", ""): [], ("compile", "--dump-after", "analyse"): ["analyse_mask"], ("cache", "--json", "ver"): ["verify"],
            ("compile", "--json", "--emi"): ["--emit"], ("nothing", "doc"): ["doctor"]}
    for line, offered in zip(rows, completed_by_bash(*rows)):
        assert offered == rows[line], f"{line}: bash offers {offered}, and not {rows[line]}"


def test_offered_values_are_accepted():
    targets, kinds, data = completed_by_bash(("explain", "--arch", ""), ("compile", "--emit", ""), ("run", "--data", ""))
    assert len(targets) > 15 and len(kinds) > 5 and len(data) > 5, (targets, kinds, data)
    flashjit("explain", SPEC, "--arch", ",".join(targets), "--json")
    if harness.has("host"):
        for kind in data:
            kind = kind.replace("\\(", "(1)")
            flashjit("run", "fwd fp32 d=8", "--shape", "q=8", "--target", "host", "--data", kind)


def test_a_shell_that_is_not_known():
    run = harness.refused("completion", "powershell", code=2, says=["shell", "powershell"])
    assert all(shell in run.err for shell in ("bash", "fish", "zsh")), run


def sections(page):
    """The lines of a manual page below each title, as a reader sees them."""
    text = page.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("\\(aq", "'").replace("\\(dq", '"')
    parts = re.split(r"^\.S[HS] (.*)\n", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def test_the_manual_page_is_accepted():
    page = write("flashjit.1", flashjit("man").out.encode())
    checked = []
    if shutil.which("groff"):
        checked.append(accepted("groff", "-man", "-ww", "-Tascii", page))
    if shutil.which("man"):
        checked.append(accepted("man", "-l", "--warnings=w", page, env=dict(os.environ, MANPAGER="cat", LC_ALL="C.UTF-8")))
    if not checked:
        raise Skip("neither groff nor man on this machine")
    assert all("SYNOPSIS" in re.sub(".\x08", "", text) for text in checked), checked


def test_the_manual_page_has_all_that_help_names():
    page = sections(flashjit("man").out)
    for path, (names, options) in commands().items():
        text = page["flashjit " + " ".join(path) if path else "OPTIONS"]
        tags = [re.findall(r"(?<!\S)--?[a-z][^\s,]*", re.split(" Excludes| Needs", tag)[0]) for tag in re.findall(r"^\.TP\n(-.*)$", text, re.M)]
        assert [name for tag in tags for name in tag] == options, (path, tags, options)
        if not names:
            assert "flashjit " + " ".join(path) + " [OPTIONS]" in page["SYNOPSIS"], path
            assert "flashjit " + " ".join(path) in text, f"no example of {path}"


def test_the_manual_page_has_the_environment_and_exit_codes():
    page = sections(flashjit("man").out)
    with open(source("runtime", "OBSERVE.md"), encoding="utf-8") as file:
        known = re.findall(r"^\| `(FLASHJIT_\w+)", file.read(), re.M)
    named = re.findall(r"^\.TP\n(\w+)$", page["ENVIRONMENT"], re.M)
    assert known and [name for name in named if name.startswith("FLASHJIT_")] == known, (known, named)
    assert re.findall(r"^\.TP\n(\w+)$", page["EXIT STATUS"], re.M) == ["0", "1", "2"], page["EXIT STATUS"]
    help_text = " ".join(flashjit("--help").out.split())
    assert all(name in help_text for name in named), help_text


def test_pages_are_installed():
    place = scratch("prefix")
    accepted(program("cmake"), "--install", harness.ARGS.build, "--component", "pages", "--prefix", place)
    for path, command in {"share/bash-completion/completions/flashjit": ["completion", "bash"], "share/zsh/site-functions/_flashjit": ["completion", "zsh"],
                          "share/fish/vendor_completions.d/flashjit.fish": ["completion", "fish"], "share/man/man1/flashjit.1": ["man"]}.items():
        assert read(os.path.join(place, path)).decode() == flashjit(*command).out, path


def test_help_fits_the_terminal():
    for columns in (60, 100, 200):
        for path in commands():
            out = flashjit(*path, "--help", env={"COLUMNS": str(columns)}).out
            wide = [line for line in out.splitlines() if len(line) > columns and not re.match(r"  (\w+=\S+ )?flashjit |  source |  'fwd", line)]
            assert not wide, f"{columns} columns: {path}: {wide}"
    assert flashjit("run", "--help", env={"COLUMNS": None}).out == flashjit("run", "--help", env={"COLUMNS": "100"}).out
    assert flashjit("run", "--help", env={"COLUMNS": "-3x"}).out == flashjit("run", "--help", env={"COLUMNS": "100"}).out


def on_terminal(columns, **env):
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    flashjit("doctor", "--help", stdout=follower, env={"COLUMNS": None, "TERM": "xterm", "NO_COLOR": None, **env})
    os.close(follower)
    out = b""
    while True:
        try:
            out += os.read(leader, 65536)
        except OSError:  # all is read, and nobody has it open for writing
            os.close(leader)
            return out.decode().replace("\r\n", "\n")


def test_headings_are_bold_on_a_terminal():
    plain = flashjit("doctor", "--help", env={"COLUMNS": "57"}).out
    assert on_terminal(57) == plain.replace("Options:", "\x1b[1mOptions:\x1b[0m").replace("Examples:", "\x1b[1mExamples:\x1b[0m")
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": None}):
        assert on_terminal(57, **env) == plain, env
    assert "\x1b" not in plain


def test_without_a_subcommand_there_is_a_list():
    for path, (names, _) in commands().items():
        if names:
            run = harness.refused(*path, code=2, says="A subcommand is required", env={"COLUMNS": "100"})
            assert re.findall(r"^  (\S+)  +\S.*$", run.err, re.M) == names and not run.out, run


if __name__ == "__main__":
    harness.main(globals())

"""Runs one test function of a *_test.py file. Only the standard library: a fresh machine has nothing else."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import traceback

ARGS = None
SKIP_CODE = 77


class Skip(Exception):
    pass


class Run:
    """What one call of the command gave back."""

    def __init__(self, args, process):
        self.args, self.code = args, process.returncode
        self.out = process.stdout.decode("utf-8", "replace")
        self.err = process.stderr.decode("utf-8", "replace")

    def lines(self):
        return [json.loads(line) for line in self.out.splitlines()]

    def line(self):
        lines = self.lines()
        assert len(lines) == 1, f"expected one JSON line, got {len(lines)}:\n{self}"
        return lines[0]

    def __str__(self):
        return f"$ flashjit {' '.join(map(repr, self.args))}\nexit code {self.code}\nstdout: {self.out}\nstderr: {self.err}"


def flashjit(*args, env=None, expect=0, **popen):
    """Runs build/bin/flashjit with a store of its own and checks the exit code (None: any, but never a crash)."""
    command = os.path.join(ARGS.build, "bin", "flashjit")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FLASHJIT_") or k == "FLASHJIT_NVRTC"}
    environment["FLASHJIT_CACHE_DIR"] = os.path.join(ARGS.scratch, "store")
    for name, value in (env or {}).items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    popen.setdefault("stdout", subprocess.PIPE)
    popen.setdefault("cwd", ARGS.scratch)
    process = subprocess.run([command, *args], env=environment, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=240, **popen)
    if process.stdout is None:
        process.stdout = b""
    run = Run(args, process)
    assert run.code in ((0, 1, 2) if expect is None else (expect,)), f"expected exit code {expect}\n{run}"
    return run


def refused(*args, kind=None, says=(), code=1, **options):
    """The command must fail with `code`, name the trouble on stderr, and with --json give a complete error line."""
    run = flashjit(*args, expect=code, **options)
    assert run.err.strip(), f"nothing on stderr\n{run}"
    for text in [says] if isinstance(says, str) else says:
        assert text in run.err, f"stderr does not say '{text}'\n{run}"
    if "--json" in args and code == 1:
        line = run.lines()[-1]
        assert line["ok"] is False and set(line) >= {"spec", "target", "schedule", "ok", "error"}, str(run)
        assert line["error"]["message"], str(run)
        assert kind is None or line["error"]["kind"] == kind, f"expected kind {kind}\n{run}"
    return run


def scratch(name):
    return os.path.join(ARGS.scratch, name)


def write(name, data):
    path = scratch(name)
    with open(path, "wb") as file:
        file.write(data)
    return path


def read(path):
    with open(path, "rb") as file:
        return file.read()


_doctor = None


def has(part):
    """Is there an nvrtc, host or gpu? The command says so itself."""
    global _doctor
    if _doctor is None:
        _doctor = flashjit("doctor", "--json").line()
    return _doctor[part]["found"]


def need(part):
    if not has(part):
        reasons = {"nvrtc": "no NVRTC on this machine", "host": "built without the host backend (LLVM 19)", "gpu": "no GPU on this machine"}
        raise Skip(reasons[part])


def source(*path):
    return os.path.join(ARGS.source, *path)


def fetched():
    """The folder of Python packages that tools/check fetched."""
    return os.path.join(ARGS.build, "python")


def find(name):
    """A module of this Python, or, where it has none of its own, what tools/check fetched."""
    if fetched() not in sys.path:
        sys.path.append(fetched())
    try:
        return __import__(name)
    except ImportError as error:
        raise Skip(f"no {name} ({error})") from None


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("test")
    parser.add_argument("--source", required=True)
    parser.add_argument("--build", required=True)
    return parser.parse_args()


def main(tests):
    global ARGS
    ARGS = arguments()
    # The file that was started is __main__; what it imports is this module, whose ARGS the helpers read.
    with tempfile.TemporaryDirectory(prefix="flashjit-test-") as ARGS.scratch:
        try:
            tests[ARGS.test]()
        except Skip as skip:
            print(f"skipped: {skip}")
            sys.exit(SKIP_CODE)
        except Exception:
            traceback.print_exc()
            sys.exit(1)

"""The command line can be used from Python: it shows texts, and its measurements come back as values. Modules that only
this needs are imported where they are used: they would be most of the time that `import flashjit` takes."""

from __future__ import annotations

import os
from typing import Any, Iterable, Sequence

from flashjit.capi import FlashJitError, InvalidError, Library, MissingError, UnsupportedError, library
from flashjit.specs import checked
from flashjit.values import c_string, shown

_KINDS: dict[str, type[FlashJitError]] = {"invalid": InvalidError, "unsupported": UnsupportedError, "not_found": MissingError}


class Text(str):
    """A terminal and Jupyter show this text as it is, and not quoted."""

    def __repr__(self) -> str:
        return str(self)


class Tuning(dict[str, Any]):
    """A tuning found this: `default_us`, `best_us`, `best_schedule`, `tried` and more, as `flashjit tune --json` prints
    it."""

    page: bytes = b""

    def report(self, path: str | os.PathLike[str]) -> None:
        """Writes a page with plots of everything that was measured."""
        with open(path, "wb") as file:
            file.write(self.page)


def path_of_command(of: Library | None = None) -> str:
    """Returns the path of the program `flashjit` beside the library, or else of the one in PATH."""
    import shutil
    path = (of or library()).command
    found = path if os.path.exists(path) else shutil.which("flashjit")
    if not found:
        raise MissingError(f"there is no {path}; build it with tools/try, or put `flashjit` on the path")
    return found


def run(arguments: Sequence[str], of: Library | None = None) -> str:
    """Returns the command's output. A failure is an exception with its words."""
    import json
    import subprocess
    for argument in arguments:
        c_string("an argument", argument)
    done = subprocess.run([path_of_command(of), *arguments], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    out, message = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace").strip().removeprefix("error: ")
    if done.returncode == 0:
        return out
    if "--json" in arguments and out.strip():
        error = json.loads(out.splitlines()[-1]).get("error") or {}
        kind = error.get("kind", "internal")
        raise _KINDS.get(kind, FlashJitError)(error.get("message", message), kind)
    raise InvalidError(message or f"`flashjit {arguments[0]}` ended with {done.returncode}")


def _options(**options: object) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None]


def explain(spec: str, arch: str | None = None, *, schedule: str | None = None, shape: str | None = None, all: bool = False,  # noqa: A002
            html: str | os.PathLike[str] | None = None, of: Library | None = None) -> Text:
    """Explains the plan for a spec, why, and what limits it; without `arch`, on this machine. It needs neither GPU nor compiler. `all`: everything,
    and not the 25 lines that say most. `html`: a file for a page with pictures.

    >>> import flashjit
    >>> flashjit.explain('fwd bf16 d=128 mask="causal"', "sm_90a").splitlines()[1]
    'for sm_90a, H200: 132 SMs, 4.54 TB/s'
    """
    options = _options(arch=arch, schedule=schedule, shape=shape, html=html and os.fspath(html))
    return Text(run(["explain", checked(spec), *options, *(["--all"] if all else [])], of))


def compile(specs: str | Sequence[str], arch: str, *, schedule: str | None = None, out: str | os.PathLike[str] | None = None,  # noqa: A001
            emit: str | None = None, of: Library | None = None) -> list[dict[str, Any]]:
    """Compiles for one or more targets ("sm_80,sm_90a"), without a GPU, and returns a dict of facts for each kernel:
    `registers`, `spill_bytes`, `smem_bytes`, `compile_ms` and more. `out` is a folder for sources and machine code,
    and `emit` selects among them."""
    import json
    if not isinstance(specs, Iterable):
        raise InvalidError(f"specs: {shown(specs)} is neither a spec nor a list of them")
    specs = [checked(spec) for spec in ([specs] if isinstance(specs, str) else specs)]
    text = run(["compile", *specs, "--json", *_options(arch=arch, schedule=schedule, out=out and os.fspath(out), emit=emit)], of)
    return [json.loads(line) for line in text.splitlines()]


def tune(spec: str, shape: str, *, target: str = "auto", budget: str = "10s", schedule: str | None = None,
         of: Library | None = None) -> Tuning:
    """Measures schedules for such sizes for about `budget`, and remembers the fastest for every process on such a
    device. `.report("tuned.html")` writes the measurements as a page."""
    import json
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        page = os.path.join(folder, "report.html")
        options = _options(shape=shape, target=target, budget=budget, schedule=schedule, report=page)
        text = run(["tune", checked(spec), "--json", *options], of)
        found = Tuning(json.loads(text.splitlines()[-1]))
        with open(page, "rb") as file:
            found.page = file.read()
    return found

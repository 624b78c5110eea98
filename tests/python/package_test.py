"""The package itself: what it imports, types, examples, the command."""

import doctest
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys

import support
from support import Skip, harness, load, source

PACKAGE = os.path.join("runtime", "python")


def python(*arguments, expect=0, **environment):
    paths = [source(PACKAGE)] + ([] if importlib.util.find_spec("mypy") else [harness.fetched()])
    done = subprocess.run([sys.executable, "-B", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240,
                          check=False, cwd=harness.ARGS.scratch, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "FLASHJIT_CACHE_DIR": support.scratch("store"),
                               **environment})
    assert done.returncode == expect, f"exit code {done.returncode}\n{done.stdout}"
    return done.stdout


def test_import_is_light():
    out = python("-c", "import flashjit, sys; print([name for name in ('torch', 'numpy', 'transformers') if name in sys.modules])")
    assert out.strip() == "[]", out


def test_types():
    try:
        python("-c", "import mypy")
    except AssertionError:
        raise Skip("no mypy") from None
    # What is not installed here has no types to check against.
    print(python("-m", "mypy", "--strict", "--python-version", "3.10", "--cache-dir", support.scratch("mypy"),
                 *(f"--config-file={source(PACKAGE, 'pyproject.toml')}",), source(PACKAGE, "flashjit")))


def examples(*names):
    for name in names:
        module = __import__("flashjit." + name, fromlist=[name])
        found = doctest.testmod(module)
        assert found.failed == 0 and found.attempted > 0, f"{name}: {found}"


def test_examples():
    load("numpy")
    examples("calls", "command", "engine")


def test_the_example_of_the_readme():
    load("numpy")
    with open(source("README.md"), encoding="utf-8") as file:
        text = file.read()
    begin = text.index("```python\n") + len("```python\n")
    print(text[begin:text.index("```", begin)])
    exec(compile(text[begin:text.index("```", begin)], "README.md", "exec"), {})  # what a user would paste


def test_calls_are_recorded_and_built_ahead():
    """Nobody who calls attention() makes its engine: the environment says where it records."""
    flashjit, numpy = load("numpy")
    os.environ["FLASHJIT_RECORD"] = support.scratch("kernels.txt")
    q = numpy.ones((1, 8, 2, 64), "float16")
    for mask in ("causal", None, "causal"):
        flashjit.attention(q, q, q, mask=mask)
    specs = [line for line in harness.read(support.scratch("kernels.txt")).decode().splitlines() if not line.startswith("#")]
    assert len(specs) == 2 and ['mask="causal"' in spec for spec in specs] == [True, False], specs
    harness.need("nvrtc")
    harness.flashjit("build", support.scratch("kernels.txt"), "--arch", "sm_90a", "-o", support.scratch("kernels.fjb"))
    assert len(harness.flashjit("bundle", "ls", support.scratch("kernels.fjb"), "--json").lines()) == 2


def test_the_command():
    flashjit, = load()
    version = flashjit.version()
    command = ["-c", f"import flashjit, runpy, sys; flashjit.use_library({flashjit.capi.library().path!r}); "
               "runpy.run_module('flashjit', run_name='__main__')"]
    assert version in python(*command, "--version")
    assert "pad with zeros" in python(*command, "explain", "fwd bf16 d=100", "--arch", "sm_90a", expect=1)


def test_what_a_wheel_has():
    """The package with the component `programs` of what CMake installs, as scikit-build-core puts them together."""
    load()
    wheel = support.scratch("wheel")
    shutil.copytree(source(PACKAGE, "flashjit"), os.path.join(wheel, "flashjit"))
    subprocess.run(["cmake", "--install", harness.ARGS.build, "--component", "programs", "--prefix", os.path.join(wheel, "flashjit")],
                   check=True, stdout=subprocess.PIPE)
    folders = {name for name in os.listdir(os.path.join(wheel, "flashjit")) if os.path.isdir(os.path.join(wheel, "flashjit", name))}
    assert folders - {"__pycache__"} == {"bin", "distributed", "lib", "libexec", "share"}, folders
    notices = os.path.join(wheel, "flashjit", "share", "doc", "flashjit", "notices")
    with open(os.path.join(notices, "components.cdx.json"), encoding="utf-8") as file:
        components = json.load(file)["components"]
    assert {"fmt", "zstd", "CLI11", "nlohmann-json"} <= {one["name"] for one in components}, components
    for one in components:
        assert re.fullmatch(r"\d+(\.\d+)+", one["version"]), one
        with open(os.path.join(notices, one["name"] + ".txt"), encoding="utf-8") as file:
            assert len(file.read()) > 100, one
    out = python("-c", "import flashjit; print(flashjit.Engine('host', disk_cache=False).library.path); "
                 "print(flashjit.explain('fwd bf16 d=64', 'sm_90a'))", PYTHONPATH=wheel)
    assert out.startswith(os.path.join(wheel, "flashjit", "lib")) and "for sm_90a" in out, out


def test_a_library_that_is_not_there():
    says = python("-c", "import flashjit\ntry:\n  flashjit.use_library('/nowhere/libflashjit.so')\nexcept flashjit.MissingError as error:\n  print(error)")
    assert "tools/try" in says, says


if __name__ == "__main__":
    harness.main(globals())

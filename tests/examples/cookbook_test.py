"""The blocks of runtime/COOKBOOK.md: the Python and the C++ ones run here, and every spec has a kernel for sm_90a."""

import os
import re
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from support import Skip, find, harness, load, scratch, source
from harness import flashjit, need
from install_test import run

PAGE = "runtime/COOKBOOK.md"


def text():
    with open(source(PAGE), encoding="utf-8") as file:
        return file.read()


def blocks(kind):
    """The line that each block of this kind begins in, and its text."""
    page = text()
    found = [(page.count("\n", 0, at.start(1)) + 1, at.group(1)) for at in re.finditer(rf"^```{kind}\n(.*?)^```$", page, re.M | re.S)]
    assert len(found) >= 10, f"{PAGE} has only {len(found)} blocks of {kind}"
    return found


def test_python():
    find("numpy"), find("torch")
    load()
    programs = [compile("\n" * (line - 1) + code, PAGE, "exec") for line, code in blocks("python")]
    for program in programs[1:]:
        names = {}
        exec(programs[0], names)  # what the blocks share
        exec(program, names)


def test_cpp():
    need("host")
    if not shutil.which("g++"):
        raise Skip("no g++ on this machine")
    (line, shared), *others = blocks("cpp")
    program = [f'#line {line} "{PAGE}"', shared]
    for line, code in others:
        program += [f"void block_{line}() {{", f'#line {line} "{PAGE}"', code + "}"]
    program += ["int main() {", *(f'  std::puts("block of line {line}"), block_{line}();' for line, _ in others), "}", ""]
    harness.write("blocks.cpp", "\n".join(program).encode())
    build = harness.ARGS.build
    run("g++", "-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", "-I" + os.path.join(build, "include", "public"), scratch("blocks.cpp"), "-o",
        scratch("blocks"), "-L" + os.path.join(build, "lib"), "-lflashjit", "-Wl,-rpath," + os.path.join(build, "lib"))
    said = run(scratch("blocks")).splitlines()
    assert len(said) == len(others), said


def test_specs():
    specs = re.sub(r"\n +", " ", "".join(lines for _, lines in blocks("spec"))).splitlines()
    for spec in specs:
        lines = flashjit("explain", spec, "--arch", "sm_90a", "--json").lines()  # one for each of its kernels
        assert lines and all(line["ok"] for line in lines), lines


def test_sections():
    """Each has its spec, Python and C++, and the contents have each."""
    page = text()
    title = lambda heading: re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
    headings = re.findall(r"^## (.*)$", page, re.M)
    assert re.findall(r"\]\(#([^)]*)\)", page.partition("\n## ")[0]) == [title(heading) for heading in headings]
    for heading, section in zip(headings[1:], re.split(r"^## .*$", page, flags=re.M)[2:]):
        missing = [kind for kind in ("spec", "python", "cpp") if f"\n```{kind}\n" not in section]
        assert not missing, f"{heading}: no {missing}"


if __name__ == "__main__":
    harness.main(globals())

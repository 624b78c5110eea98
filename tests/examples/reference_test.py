"""The reference of the C++ and the C API, as Doxygen makes it of the headers."""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import harness
from harness import Skip, source


def pages():
    """Name -> text of the pages, made anew."""
    if not shutil.which("doxygen"):
        raise Skip("no Doxygen on this machine (Debian: doxygen)")
    with tempfile.TemporaryDirectory() as folder:
        with open(source("runtime", "reference", "Doxyfile.in"), encoding="utf-8") as file:
            text = file.read()
        for name, value in (("PROJECT_VERSION", "1.2.3"), ("PROJECT_SOURCE_DIR", harness.ARGS.source), ("FLASHJIT_REFERENCE_DIR", folder)):
            text = text.replace(f"@{name}@", value)
        settings = os.path.join(folder, "Doxyfile")
        with open(settings, "w", encoding="utf-8") as file:
            file.write(text)
        done = subprocess.run(["doxygen", settings], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0 and not done.stderr, f"exit code {done.returncode}: {done.stdout}{done.stderr}"
        found = {}
        for path in glob.glob(os.path.join(folder, "html", "*.html")):
            with open(path, encoding="utf-8") as file:
                found[os.path.basename(path)] = file.read()
        return found


def test_it_says_what_the_headers_say():
    found = pages()
    engine = re.sub(r"<[^>]+>|\s+", " ", found["classflashjit_1_1Engine.html"])
    assert "each spec is compiled once" in engine, "the comment of prepare() is missing"
    c_api = re.sub(r"<[^>]+>|\s+", " ", found["flashjit_8h.html"])
    for name in ("flashjit_prepare", "flashjit_run", "FLASHJIT_CAPTURE", "Structures begin with their size and only grow"):
        assert name in c_api, f"{name} is missing"
    broken = [f"{page}: {link}" for page, text in found.items() for link in re.findall(r'href="([^":#]+\.html)', text)
              if os.path.basename(link) not in found]
    assert not broken, broken


if __name__ == "__main__":
    harness.main(globals())

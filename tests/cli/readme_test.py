"""Every command that the pages for users show is run as it stands there."""

import os
import re
import subprocess
import tempfile

import harness
from harness import need, source


PAGES = ("README.md", "compiler/SPEC.md", "runtime/OBSERVE.md")
OTHERS = ("compiler/ARCHITECTURE.md", "compiler/GLOSSARY.md", "runtime/COOKBOOK.md", ".github/CONTRIBUTING.md", ".github/SECURITY.md",
          "templates/NOTES.md", "tests/device/FINDINGS.md")


def commands(page):
    with open(source(page), encoding="utf-8") as file:
        blocks = re.findall(r"```sh\n(.*?)```", file.read(), re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("build/bin/flashjit ")]


def test_commands():
    binary = os.path.join(harness.ARGS.build, "bin", "flashjit")
    for page in PAGES:
        found = commands(page)
        assert found, f"{page} shows no command"
        with tempfile.TemporaryDirectory() as folder:  # one for a page: some read what others wrote
            for command in found:
                if any(f" {name} " in command for name in ("compile", "build", "cache explain")):
                    need("nvrtc")
                if " run " in command or " bench " in command:
                    need("host")
                line = command.replace("build/bin/flashjit", f"'{binary}'", 1)
                done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=200,
                                      env=dict(os.environ, FLASHJIT_CACHE_DIR=os.path.join(folder, "store")))
                assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"


def test_paths_exist():
    for page in PAGES + OTHERS:
        with open(source(page), encoding="utf-8") as file:
            text = file.read()
        paths = {path for path in re.findall(r"`([a-z_]+(?:/[a-z_0-9.]+)+/?)`", text) if not path.startswith(("build/", "libexec/"))}
        prose = re.sub(r"```.*?```", "", text, flags=re.S)  # lambdas look like links
        links = {os.path.join(os.path.dirname(page), link) for link in re.findall(r"\]\((?!https?:)([^)#]+)", prose)}
        missing = [path for path in sorted(paths | links) if not os.path.exists(source(path)) and not any(
            os.path.exists(source(folder, path)) for folder in ("compiler", "runtime", "templates", "tests"))]
        assert not missing, f"{page} names {missing}, which do not exist"


def anchors_of(page):
    """Of its headings, as GitHub makes them."""
    with open(source(page), encoding="utf-8") as file:
        headings = re.findall(r"(?m)^#+ (.+)$", file.read())
    return {re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_headings():
    for page in PAGES + OTHERS:
        with open(source(page), encoding="utf-8") as file:
            links = re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", file.read())
        lost = [f"{other}#{anchor}" for other, anchor in links
                if anchor not in anchors_of(os.path.normpath(os.path.join(os.path.dirname(page), other)) if other else page)]
        assert not lost, f"{page} links to {lost}, and there are no such headings"


if __name__ == "__main__":
    harness.main(globals())

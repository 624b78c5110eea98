"""Every command that the pages for users show is run as it stands there."""

import glob
import os
import re
import subprocess
import tempfile

import harness
from harness import need, source


PAGES = ("README.md", "compiler/SPEC.md", "compiler/PROGRAM.md", "runtime/OBSERVE.md", "tools/RANKS.md")
FOLDERS = (".github", "autotune", "codegen", "compiler", "runtime", "templates", "tests", "tools")  # of pages, beside the root


def pages():
    """All pages of the tree, and none of what was built in it."""
    found = {os.path.relpath(os.path.join(folder, name), source(".")) for top in FOLDERS
             for folder, _, names in os.walk(source(top)) for name in names if name.endswith(".md")}
    return sorted(found | {name for name in os.listdir(source(".")) if name.endswith(".md")})


def commands(page):
    """Those in blocks of a shell, and those that stand in indented lines."""
    with open(source(page), encoding="utf-8") as file:
        text = file.read().replace("\\\n", " ")
    lines = "".join(re.findall(r"```sh\n(.*?)```", text, re.S)).splitlines()
    lines += [line.strip() for line in re.sub(r"```.*?```", "", text, flags=re.S).splitlines() if line.startswith("    ")]
    return [re.sub("^flashjit ", "build/bin/flashjit ", line) for line in lines if re.match("(build/bin/)?flashjit ", line)]


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


def exists(path, page):
    """From the root, the page's folder or one that pages speak of; a table may name a header and its source by their stem."""
    folders = (".", os.path.dirname(page), "codegen/host", "compiler", "compiler/families", "runtime", "runtime/python/flashjit", "templates", "tests")
    return any(glob.glob(glob.escape(source(folder, path.rstrip("/"))) + end) for folder in folders for end in ("", ".*"))


def test_paths_exist():
    for page in pages():
        with open(source(page), encoding="utf-8") as file:
            text = file.read()
        prose = re.sub(r"```.*?```", "", text, flags=re.S)  # lambdas look like links
        paths = {path for path in re.findall(r"`([a-z_]+(?:/[a-z_0-9.]+)+/?)`", prose) if not path.startswith(("bin/", "build/", "libexec/"))}
        paths |= {path for path in re.findall(r"\]\((?!https?:)([^)#]+)", prose)}
        missing = [path for path in sorted(paths) if not exists(path, page)]
        assert not missing, f"{page} names {missing}, which do not exist"


def anchors_of(page):
    """Of its headings, as GitHub makes them."""
    with open(source(page), encoding="utf-8") as file:
        headings = re.findall(r"(?m)^#+ (.+)$", file.read())
    return {re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_headings():
    for page in pages():
        with open(source(page), encoding="utf-8") as file:
            links = re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", file.read())
        lost = [f"{other}#{anchor}" for other, anchor in links
                if anchor not in anchors_of(os.path.normpath(os.path.join(os.path.dirname(page), other)) if other else page)]
        assert not lost, f"{page} links to {lost}, and there are no such headings"


if __name__ == "__main__":
    harness.main(globals())

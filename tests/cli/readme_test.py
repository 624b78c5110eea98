"""Every command that the README shows is run as it stands there."""

import os
import re
import subprocess
import tempfile

import harness
from harness import need, source


def commands():
    with open(source("README.md"), encoding="utf-8") as file:
        blocks = re.findall(r"```sh\n(.*?)```", file.read(), re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("build/bin/flashjit ")]


def test_commands():
    found = commands()
    assert len(found) >= 4, f"the README shows only {found}"
    binary = os.path.join(harness.ARGS.build, "bin", "flashjit")
    with tempfile.TemporaryDirectory() as folder:  # one for all: some read what others wrote
        for command in found:
            if " compile " in command or " build " in command:
                need("nvrtc")
            if " run " in command or " bench " in command:
                need("host")
            line = command.replace("build/bin/flashjit", f"'{binary}'", 1)
            done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=200,
                                  env=dict(os.environ, FLASHJIT_CACHE_DIR=os.path.join(folder, "store")))
            assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"


def test_paths_exist():
    with open(source("README.md"), encoding="utf-8") as file:
        text = file.read()
    for path in set(re.findall(r"`([a-z_]+(?:/[a-z_0-9.]+)+/?)`", text)):
        if path.startswith("build/"):
            continue
        assert os.path.exists(source(path)), f"README.md names {path}, which does not exist"


if __name__ == "__main__":
    harness.main(globals())

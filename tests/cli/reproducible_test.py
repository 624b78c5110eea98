"""The same spec gives the same files, bit by bit, whatever process, folder, locale, home or temporary folder."""

import os

import harness
from harness import flashjit, need, read, scratch

SPECS = ['fwd bf16 d=128 heads=32/8 mask="causal"', 'fwd fp16 d=72 heads=4 mask="window(100, 3)" score="softcap(30) * 1.5" lse=ln']


def tree(folder):
    files = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            files[os.path.relpath(path, folder)] = read(path)
    return files


def compile_in(name, args, env):
    for folder in ["", "home", "tmp"]:
        os.makedirs(scratch(os.path.join(name, folder)), exist_ok=True)
    env = dict(env, HOME=scratch(name + "/home"), TMPDIR=scratch(name + "/tmp"), FLASHJIT_CACHE_DIR=scratch(name + "/store"))
    flashjit("compile", *SPECS, *args, "--out", "out", env=env, cwd=scratch(name))
    return tree(scratch(name + "/out"))


def compare(args):
    first = compile_in("a", args, {"LC_ALL": "C", "LANG": "C"})
    second = compile_in("b/deeper", args + ["--jobs", "1"], {"LC_ALL": "de_DE.UTF-8", "LANG": "tr_TR.UTF-8", "TZ": "Asia/Tokyo", "FLASHJIT_THREADS": "1"})
    assert first and first.keys() == second.keys(), (sorted(first), sorted(second))
    for name in first:
        assert first[name] == second[name], f"{name} differs"


def test_source_and_cubin():
    need("nvrtc")
    compare(["--arch", "sm_80,sm_90a", "--emit", "spec,ir,cuda,ptx,cubin,facts"])


def test_host_code():
    need("host")
    compare(["--arch", "x86-64-v3", "--emit", "spec,ir,llvm"])


if __name__ == "__main__":
    harness.main(globals())

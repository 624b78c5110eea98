"""The blocks of runtime/DISTRIBUTED.md: the program as torchrun starts it, and the calls on two ranks."""

import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from distributed_support import processes
from support import find, harness, load, scratch, source

PAGE = "runtime/DISTRIBUTED.md"


def blocks():
    with open(source(PAGE), encoding="utf-8") as file:
        return re.findall(r"^```python\n(.*?)^```$", file.read(), re.M | re.S)


def test_the_program():
    torch = find("torch")
    load()
    library = os.path.join(harness.ARGS.build, "lib", "libflashjit.so")
    program = harness.write("ring.py", f"import flashjit; flashjit.use_library({library!r})\n{blocks()[0]}".encode())
    places = [source("runtime", "python"), os.path.dirname(os.path.dirname(torch.__file__))]
    done = subprocess.run([sys.executable, "-B", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200, check=False, cwd=harness.ARGS.scratch,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "FLASHJIT_CACHE_DIR": scratch("store"), "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stdout
    assert all(f"rank {rank} of 2: as one process alone" in done.stdout for rank in range(2)), done.stdout


def calls(rank):
    torch = find("torch")
    import flashjit.distributed as fd
    q, k, v = (fd.shard(torch.randn(1, 1024, heads, 16)) for heads in (4, 2, 2))
    k_cache, v_cache = torch.randn(2, 3, 100, 2, 16)
    names = {"fd": fd, "torch": torch, "q": q, "k": k, "v": v, "sink": torch.randn(4), "k_cache": k_cache, "v_cache": v_cache, "lens": torch.tensor([200, 3, 77], dtype=torch.int32)}
    masked, cached = blocks()[1:]
    exec(masked, names)
    assert names["o"].shape == q.shape
    exec(cached, names | {"q": torch.randn(3, 1, 4, 16)})


def test_the_calls():
    processes(2, calls)


if __name__ == "__main__":
    harness.main(globals())

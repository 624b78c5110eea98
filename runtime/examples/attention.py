"""This program uses FlashJIT from Python.

    attention.py libflashjit.so torch    on a GPU, with PyTorch: against its own attention, and in a CUDA graph
    attention.py libflashjit.so host     on the processor, with NumPy

Exit code 77: something is missing, and the last line says what."""
import sys

import flashjit


def skip(reason):
    print("skipped:", reason)
    sys.exit(77)


def on_torch():
    try:
        import torch
    except ImportError:
        skip("no PyTorch on this machine")
    if not torch.cuda.is_available():
        skip("no GPU that PyTorch can use")
    make = lambda heads: torch.randn(2, 300, heads, 128, device="cuda", dtype=torch.bfloat16)
    q, k, v = make(8), make(2), make(2)
    eager = flashjit.attention(q, k, v, mask="causal")
    wide = lambda t: t.transpose(1, 2).float().repeat_interleave(8 // t.shape[2], dim=1)
    expected = torch.nn.functional.scaled_dot_product_attention(wide(q), wide(k), wide(v), is_causal=True).transpose(1, 2)
    error = (eager.float() - expected).abs().max().item()

    graph = torch.cuda.CUDAGraph()  # The call above prepared the kernel.
    with torch.cuda.graph(graph):
        o = flashjit.attention(q, k, v, mask="causal")
    graph.replay()
    torch.cuda.synchronize()
    same = torch.equal(o, eager)
    print(f"largest error {error:.4f}, replay has the same bits: {same}")
    return error < 0.03 and same


def on_host():
    try:
        import numpy
    except ImportError:
        skip("no NumPy on this machine")
    q, k, v = numpy.random.default_rng(1).standard_normal((3, 1, 5, 2, 32), "float32")
    o = flashjit.attention(q, k, v, mask="causal")
    print(f"o[0] = {o[0, 0, 0, 0]}")
    return numpy.allclose(o[:, 0], v[:, 0])  # The first token sees itself alone.


if __name__ == "__main__":
    flashjit.use_library(sys.argv[1])
    sys.exit(0 if {"torch": on_torch, "host": on_host}[sys.argv[2]]() else 1)

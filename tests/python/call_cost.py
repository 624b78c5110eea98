#!/usr/bin/env python3
"""What a call of flashjit.attention costs the CPU, on PyTorch's tensors: beside a launch that is bound to its tensors, and PyTorch's own.

    call_cost.py [cuda|cpu]

Medians of rounds, in microseconds, and of differences within a round. A launch takes its time on the device beside that, so the tensors are tiny."""

import itertools
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "runtime", "python"))
import flashjit
import torch


def costs(functions, on_gpu, calls=200, rounds=61):
    """They take turns, so that what else the machine does hits all alike."""
    times = [[] for _ in functions]
    for _ in range(rounds):
        for function, found in zip(functions, times):
            if on_gpu:
                torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(calls):
                function()
            found.append((time.perf_counter() - begin) / calls * 1e6)
    return times


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu = device == "cuda"
    dtype, word = (torch.bfloat16, "bf16") if on_gpu else (torch.float32, "fp32")
    q, k, v = torch.randn(3, 1, 16, 1, 64, device=device, dtype=dtype)
    o = torch.empty_like(q)
    engine = flashjit.Engine("gpu" if on_gpu else "host", torch.cuda.current_device() if on_gpu else 0)
    stream = torch.cuda.current_stream().cuda_stream if on_gpu else None
    leaf = q.clone().requires_grad_()
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    theirs = [x.transpose(1, 2).contiguous().requires_grad_() for x in (q, k, v)]
    by_heads = [x.transpose(1, 2) for x in (q, k, v)]
    lengths = itertools.cycle(range(16, 2016))  # more than are kept
    keys = torch.randn(1, 2016, 1, 64, device=device, dtype=dtype)

    def new_sizes():
        length = next(lengths)
        flashjit.attention(q, keys[:, :length], keys[:, :length], mask="causal")

    bound = engine.prepare(f'fwd {word} d=64 mask="causal"').bind({"q": q, "k": k, "v": v, "o": o}, stream=stream)
    rows = {
        "the C API: a launch bound to its tensors": bound,
        "flashjit.attention": lambda: flashjit.attention(q, k, v, mask="causal"),
        "the same with out=": lambda: flashjit.attention(q, k, v, mask="causal", out=o),
        "the same with a scalar": lambda: flashjit.attention(q, k, v, mask="k < n", n=9),
        "the same, keys of other lengths in every call": new_sizes,
        "the same with requires_grad": lambda: flashjit.attention(leaf, k, v, mask="causal"),
        "the same and its gradients": lambda: torch.autograd.grad(flashjit.attention(*leaves, mask="causal"), leaves, o),
        "PyTorch's, and its gradients": lambda: torch.autograd.grad(
            torch.nn.functional.scaled_dot_product_attention(*theirs, is_causal=True), theirs, o.transpose(1, 2)),
        "PyTorch's scaled_dot_product_attention": lambda: torch.nn.functional.scaled_dot_product_attention(*by_heads, is_causal=True),
        "torch.empty_like": lambda: torch.empty_like(q),
    }
    for function in rows.values():
        function()
    first, *_ = found = costs(list(rows.values()), on_gpu)
    print("      us  over the first")
    for name, times in zip(rows, found):
        print(f"{statistics.median(times):8.2f} {statistics.median(a - b for a, b in zip(times, first)):8.2f}  {name}", flush=True)


if __name__ == "__main__":
    main()

"""Attention to a part of the keys, its gradients, and their sums."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch
from torch import Tensor

from flashjit import calls, tensors
from flashjit.distributed.steps import Pair, Problem
from flashjit.distributed.texts import Placed, reads
from flashjit.engine import Kernel
from flashjit.torch_calls import MOST_KINDS, current_stream


def tokens(x: Tensor, low: int, count: int) -> Tensor:
    return x if low == 0 and count == x.shape[1] else x.narrow(1, low, count)


def _read_by(words: Placed, values: Mapping[str, Any]) -> dict[str, Any]:
    used = reads(words.mask) | reads(words.score)
    return {name: value for name, value in values.items() if name in used}


def _options(problem: Problem, words: Placed, out: str = "out=fp32") -> tuple[Any, ...]:
    """As calls.words_of takes them. Parts of O and all gradients are fp32: they are summed before they are rounded."""
    spec = " ".join(filter(None, (problem.spec, words.bounds, out)))
    return words.mask, words.score, True, "bshd", problem.scale, None, spec


class Sums:
    """O and the LSE of this rank's queries over the keys so far, in fp32."""

    def __init__(self, q: Tensor, columns: int) -> None:
        self.q, self.columns = q, columns
        self.o: Tensor | None = None
        self.lse: Tensor | None = None

    def add(self, pair: Pair, o: Tensor, lse: Tensor) -> None:
        if self.o is None and pair.q.size == self.q.shape[1]:
            self.o, self.lse = o, lse
            return
        of_all, lse_of_all = self.results()
        merge(tokens(of_all, pair.q.at, pair.q.size), lse_of_all.narrow(2, pair.q.at, pair.q.size), o, lse)

    def results(self) -> tuple[Tensor, Tensor]:
        if self.o is None or self.lse is None:  # nothing is seen yet
            batch, length, heads, _ = self.q.shape
            self.o = torch.zeros((batch, length, heads, self.columns), dtype=torch.float32, device=self.q.device)
            self.lse = torch.full((batch, heads, length), -torch.inf, dtype=torch.float32, device=self.q.device)
        return self.o, self.lse


def merge(o: Tensor, lse: Tensor, o_more: Tensor, lse_more: Tensor) -> None:
    """Adds a part to what earlier ones gave, in place."""
    weight = torch.sigmoid(lse_more - lse).masked_fill_(lse_more == -torch.inf, 0)
    o.lerp_(o_more, weight.transpose(1, 2).unsqueeze(-1))
    lse.copy_(torch.logaddexp(lse, lse_more))


def forward(problem: Problem, pair: Pair, q: Tensor, k: Tensor, v: Tensor, params: Mapping[str, Any],
            out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """O and LSE of a call's queries over its keys. `q`, `k`, `v`: the shares that the pair's places are of. `out`: where O is written to; else
    it is fp32."""
    words = problem.words(pair)
    mask, score, lse, layout, scale, align, spec = _options(problem, words, "" if out is not None else "out=fp32")
    given = _read_by(words, {**params, **problem.scalars, **words.scalars})
    with torch.no_grad():
        o, of_rows = calls.attention(tokens(q, pair.q.at, pair.q.size), tokens(k, pair.k.at, pair.k.size), tokens(v, pair.k.at, pair.k.size),
                                     mask, score, lse=lse, layout=layout, scale=scale, align=align, spec=spec, out=out, **given)
    return o, of_rows


class Total:
    """An fp32 gradient of all tokens of a share, of what calls give for some of them, [batch, tokens, ...]; or one of a parameter."""

    def __init__(self, shape: Sequence[int], device: torch.device) -> None:
        self.shape, self.device = tuple(shape), device
        self.sum: Tensor | None = None

    def add(self, at: int, gradient: Tensor) -> None:
        if gradient.shape == self.shape:
            self.sum = gradient if self.sum is None else self.sum.add_(gradient)
        elif gradient.numel():
            tokens(self.result(), at, gradient.shape[1]).add_(gradient)

    def result(self) -> Tensor:
        if self.sum is None:
            self.sum = torch.zeros(self.shape, dtype=torch.float32, device=self.device)
        return self.sum


_kernels: dict[tuple[tuple[int, int], str], Kernel] = {}


def kernel_of(like: Tensor, spec: str) -> tuple[Kernel, int | None]:
    """The kernel, and the stream that it is called on."""
    stream = current_stream(like.device.index) if like.is_cuda else None
    key = tensors.torch_device(like.device), spec
    if key not in _kernels:
        if len(_kernels) >= MOST_KINDS:
            _kernels.clear()
        _kernels[key] = calls.prepare(key[0], spec, stream)
    return _kernels[key], stream


def backward(problem: Problem, pair: Pair, named: Mapping[str, Tensor], k: Tensor, v: Tensor, params: Mapping[str, Any],
             grads: Sequence[str]) -> dict[str, Tensor]:
    """fp32 gradients of a call's queries and keys, and of the parameters in `grads` that it reads. `named`: q, o, do, lse and maybe dlse of
    all queries of this rank, over all keys."""
    words = problem.words(pair)
    given = _read_by(words, {**params, **problem.scalars, **words.scalars})
    of_call = {name: x.narrow(2 if name in ("lse", "dlse") else 1, pair.q.at, pair.q.size) for name, x in named.items()}
    of_call |= {"k": tokens(k, pair.k.at, pair.k.size), "v": tokens(v, pair.k.at, pair.k.size)}
    of_call |= {name: value.detach() for name, value in given.items() if isinstance(value, Tensor)}
    scalars = {name: value for name, value in given.items() if not isinstance(value, Tensor)}
    grads = [name for name in grads if name in given and name in reads(words.score)]
    made = {"d" + name: torch.empty(of_call[name].shape, dtype=torch.float32, device=k.device) for name in ("q", "k", "v", *grads)}
    if "dlse" in of_call:  # one set of strides serves both
        of_call |= {name: of_call[name].contiguous().view(-1).view(of_call[name].shape) for name in ("lse", "dlse")}
    of_call = {name: x.resolve_neg() for name, x in of_call.items()}
    views = {name: tensors.view(x, name) for name, x in {**of_call, **made}.items()}
    spec = calls.spec_of("bwd", calls.words_of(*_options(problem, words)), views, scalars, grads)
    kernel, stream = kernel_of(k, spec)
    with torch.no_grad():
        kernel.bind({**views, **scalars}, stream=stream, like=k)()
    return made


def add_sink(o: Tensor, lse: Tensor, sink: Tensor) -> None:
    """One more key of each row, without V, in place. So it counts once, however many ranks there are."""
    before = lse.clone()
    lse.copy_(torch.logaddexp(lse, sink.detach().float().view(1, -1, 1)))
    weight = torch.exp(before - lse).masked_fill_(before == -torch.inf, 0)
    o.mul_(weight.transpose(1, 2).unsqueeze(-1))


def gradient_of_sink(sink: Tensor, o: Tensor, do_: Tensor, lse: Tensor, dlse: Tensor | None) -> Tensor:
    """For the queries of this rank: the sum over ranks is that of all."""
    rest = (do_.float() * o.float()).sum(-1).transpose(1, 2)
    if dlse is not None:
        rest = rest - dlse
    weight = torch.exp(sink.float().view(1, -1, 1) - lse).masked_fill_(lse == -torch.inf, 0)
    return -(weight * rest).sum((0, 2))

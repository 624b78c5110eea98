"""Attention to a part of the keys, its gradients, and their sums."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch
from torch import Tensor

from flashjit import calls, tensors
from flashjit.distributed.launches import kernel_if_taken, kernel_of, launch
from flashjit.distributed.steps import Pair, Problem
from flashjit.distributed.texts import Placed, reads
from flashjit.engine import Kernel


def tokens(x: Tensor, low: int, count: int) -> Tensor:
    return x if low == 0 and count == x.shape[1] else x.narrow(1, low, count)


def _read_by(words: Placed, values: Mapping[str, Any]) -> dict[str, Any]:
    used = reads(words.mask) | reads(words.score)
    return {name: value for name, value in values.items() if name in used}


def _words(problem: Problem, words: Placed, more: str) -> str:
    """What a call's spec says beside its tensors."""
    spec = " ".join(filter(None, (problem.spec, words.bounds, more)))
    return calls.words_of(words.mask, words.score, True, "bshd", problem.scale, None, spec)


class Sums:
    """O and the LSE of this rank's queries over the keys so far, in fp32."""

    def __init__(self, problem: Problem, q: Tensor, columns: int) -> None:
        self.problem, self.q, self.columns = problem, q, columns
        self.made: tuple[Tensor, Tensor] | None = None

    def add(self, pair: Pair, k: Tensor, v: Tensor, params: Mapping[str, Any], sms: int) -> None:
        """The first call of all queries writes; others go on from what there is."""
        if self.made is None and pair.q.size == self.q.shape[1]:
            self.made = _room(self.q, pair.q.size, self.columns)
            forward(self.problem, pair, self.q, k, v, params, *self.made, sms)
            return
        o, lse = self.results()
        go_on(self.problem, pair, self.q, k, v, params, tokens(o, pair.q.at, pair.q.size), lse.narrow(2, pair.q.at, pair.q.size), sms)

    def results(self) -> tuple[Tensor, Tensor]:
        if self.made is None:  # nothing is seen yet
            o, lse = _room(self.q, self.q.shape[1], self.columns)
            self.made = o.zero_(), lse.fill_(-torch.inf)
        return self.made


def _room(q: Tensor, length: int, columns: int) -> tuple[Tensor, Tensor]:
    batch, _, heads, _ = q.shape
    return (torch.empty((batch, length, heads, columns), dtype=torch.float32, device=q.device),
            torch.empty((batch, heads, length), dtype=torch.float32, device=q.device))


def merge(o: Tensor, lse: Tensor, o_more: Tensor, lse_more: Tensor) -> None:
    """Adds a part to what earlier ones gave, in place. Kernels that go on do that by themselves."""
    weight = torch.sigmoid(lse_more - lse).masked_fill_(lse_more == -torch.inf, 0)
    o.lerp_(o_more, weight.transpose(1, 2).unsqueeze(-1))
    lse.copy_(torch.logaddexp(lse, lse_more))


class _Forward:
    """A call's queries over its keys. `q`, `k`, `v`: the shares that the pair's places are of."""

    def __init__(self, problem: Problem, pair: Pair, q: Tensor, k: Tensor, v: Tensor, params: Mapping[str, Any]) -> None:
        self.problem, self.words = problem, problem.words(pair)
        given = _read_by(self.words, {**params, **problem.scalars, **self.words.scalars})
        self.tensors = {"q": tokens(q, pair.q.at, pair.q.size), "k": tokens(k, pair.k.at, pair.k.size), "v": tokens(v, pair.k.at, pair.k.size)}
        self.tensors |= {name: value for name, value in given.items() if isinstance(value, Tensor)}
        self.tensors = {name: x.detach().resolve_neg() for name, x in self.tensors.items()}
        self.scalars = {name: value for name, value in given.items() if not isinstance(value, Tensor)}
        self.views = {name: tensors.view(x, name) for name, x in self.tensors.items()}

    def spec(self, o: Tensor, lse: Tensor, more: str) -> str:
        self.views |= {"o": tensors.view(o, "o"), "lse": tensors.view(lse, "lse")}
        return calls.spec_of("fwd", _words(self.problem, self.words, "out=fp32" if o.dtype == torch.float32 else "") + more, self.views, self.scalars)

    def run(self, kernel: Kernel, sms: int) -> None:
        launch(kernel, self.tensors["q"], {**self.views, **self.scalars}, sms)


def forward(problem: Problem, pair: Pair, q: Tensor, k: Tensor, v: Tensor, params: Mapping[str, Any], o: Tensor, lse: Tensor, sms: int) -> None:
    """Writes O, in fp32 or the dtype of q, and the LSE of the call's queries."""
    call = _Forward(problem, pair, q, k, v, params)
    call.run(kernel_of(q, call.spec(o, lse, "")), sms)


def go_on(problem: Problem, pair: Pair, q: Tensor, k: Tensor, v: Tensor, params: Mapping[str, Any], o: Tensor, lse: Tensor, sms: int) -> None:
    """The same onto what earlier calls gave, in place. One query has kernels that split its keys: they do not go on, and are faster than those
    that do."""
    call = _Forward(problem, pair, q, k, v, params)
    kernel = kernel_if_taken(q, call.spec(o, lse, " accumulate")) if pair.q.size > 1 else None
    if kernel is not None:
        call.run(kernel, sms)
        return
    more = _room(q, pair.q.size, o.shape[-1])
    call.run(kernel_of(q, call.spec(*more, "")), sms)
    merge(o, lse, *more)


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


def backward(problem: Problem, pair: Pair, named: Mapping[str, Tensor], k: Tensor, v: Tensor, params: Mapping[str, Any], grads: Sequence[str],
             totals: Mapping[str, Total], sms: int) -> None:
    """Adds fp32 gradients of a call's queries and keys to `totals`, and those of the parameters in `grads` that it reads. `named`: q, o, do, lse
    and maybe dlse of all queries of this rank, over all keys."""
    words = problem.words(pair)
    given = _read_by(words, {**params, **problem.scalars, **words.scalars})
    of_call = {name: x.narrow(2 if name in ("lse", "dlse") else 1, pair.q.at, pair.q.size) for name, x in named.items()}
    of_call |= {"k": tokens(k, pair.k.at, pair.k.size), "v": tokens(v, pair.k.at, pair.k.size)}
    of_call |= {name: value.detach() for name, value in given.items() if isinstance(value, Tensor)}
    scalars = {name: value for name, value in given.items() if not isinstance(value, Tensor)}
    grads = [name for name in grads if name in given and name in reads(words.score)]
    if "dlse" in of_call:  # one set of strides serves both
        of_call |= {name: of_call[name].contiguous().view(-1).view(of_call[name].shape) for name in ("lse", "dlse")}
    of_call = {name: x.resolve_neg() for name, x in of_call.items()}
    views = {name: tensors.view(x, name) for name, x in of_call.items()}
    places = {"dq": pair.q, "dk": pair.k, "dv": pair.k}

    def spec_for(made: Mapping[str, Tensor], more: str) -> str:
        views.update((name, tensors.view(x, name)) for name, x in made.items())
        return calls.spec_of("bwd", _words(problem, words, "out=fp32") + more, views, scalars, grads)

    is_first = all(totals[name].sum is None and totals[name].shape[1] == run.size for name, run in places.items())
    if not grads and not is_first:  # those of parameters are written, and never added to
        spec = spec_for({name: tokens(totals[name].result(), run.at, run.size) for name, run in places.items()}, " accumulate")
        kernel = kernel_if_taken(k, spec)
        if kernel is not None:
            launch(kernel, k, {**views, **scalars}, sms)
            return
    made = {"d" + name: torch.empty(of_call[name].shape, dtype=torch.float32, device=k.device) for name in ("q", "k", "v", *grads)}
    launch(kernel_of(k, spec_for(made, "")), k, {**views, **scalars}, sms)
    for name, gradient in made.items():
        totals[name].add(places[name].at if name in places else 0, gradient)


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

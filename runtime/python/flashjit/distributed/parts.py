"""This computes attention to a part of the keys, its gradients, and their sums."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch
from torch import Tensor

from flashjit import calls, tensors
from flashjit.distributed import lists
from flashjit.distributed.launches import Bound, kernel_if_taken, kernel_of, launch
from flashjit.distributed.steps import Pair, Problem
from flashjit.distributed.texts import Placed, reads
from flashjit.engine import Kernel


def tokens(x: Tensor, low: int, count: int) -> Tensor:
    return x if low == 0 and count == x.shape[1] else x.narrow(1, low, count)


def _read_by(problem: Problem, words: Placed, values: Mapping[str, Any]) -> dict[str, Any]:
    used = reads(words.mask) | reads(words.score)
    if problem.drops:
        used |= {"seed", "offset", *calls.PLACES}
    if problem.lists is not None:
        used |= {*lists.NAMES}
    return {name: value for name, value in values.items() if name in used}


def _given(problem: Problem, pair: Pair, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors of a call, with its own part of lists of blocks."""
    if problem.lists is None:
        return given
    return given | problem.lists.of_call(given, problem.heads_begin or (0, 0), (given["q"].shape[2], given["k"].shape[2]), pair.q, pair.k)


def _words(problem: Problem, pair: Pair, words: Placed, given: Mapping[str, Tensor], more: str) -> str:
    """Returns the words of a call's spec beside its tensors."""
    blocks = "" if problem.lists is None else problem.lists.words(pair.q, pair.k, given["block_count"].shape[1])
    spec = " ".join(filter(None, (problem.spec, words.bounds, blocks, more)))
    return calls.words_of(words.mask, words.score, True, "bshd", problem.scale, None, spec)


class Sums:
    """These are O and the LSE of this rank's queries over the keys so far, in fp32."""

    def __init__(self, problem: Problem, q: Tensor, columns: int) -> None:
        self.problem, self.q, self.columns = problem, q, columns
        self.made: tuple[Tensor, Tensor] | None = None

    def add(self, pair: Pair, k: Tensor, v: Tensor, params: Mapping[str, Any], sms: int) -> None:
        """Adds keys. The first call of all queries writes; others go on from earlier results."""
        if self.made is None and pair.q.size == self.q.shape[1]:
            self.made = _room(self.q, pair.q.size, self.columns)
            forward(self.problem, pair, self.q, k, v, params, *self.made, sms)
            return
        o, lse = self.results()
        go_on(self.problem, pair, self.q, k, v, params, tokens(o, pair.q.at, pair.q.size), lse.narrow(2, pair.q.at, pair.q.size), sms)

    def results(self) -> tuple[Tensor, Tensor]:
        if self.made is None:  # Nothing is seen yet.
            o, lse = _room(self.q, self.q.shape[1], self.columns)
            self.made = o.zero_(), lse.fill_(-torch.inf)
        return self.made


def _room(q: Tensor, length: int, columns: int) -> tuple[Tensor, Tensor]:
    batch, _, heads, _ = q.shape
    return (torch.empty((batch, length, heads, columns), dtype=torch.float32, device=q.device),
            torch.empty((batch, heads, length), dtype=torch.float32, device=q.device))


def merge(o: Tensor, lse: Tensor, o_more: Tensor, lse_more: Tensor) -> None:
    """Adds a part to earlier results, in place. Kernels that go on do that by themselves."""
    weight = torch.sigmoid(lse_more - lse).masked_fill_(lse_more == -torch.inf, 0)
    o.lerp_(o_more, weight.transpose(1, 2).unsqueeze(-1))
    lse.copy_(torch.logaddexp(lse, lse_more))


class _Forward:
    """This is a call of queries over keys. `given` has q, k and v, of which the pair selects a part, O and the LSE of
    that part, and the parameters."""

    def __init__(self, problem: Problem, pair: Pair, given: Mapping[str, Tensor], more: str) -> None:
        words = problem.words(pair)
        read = _read_by(problem, words, {**given, **problem.scalars, **words.scalars})
        self.scalars = {name: value for name, value in read.items() if not isinstance(value, Tensor)}
        tensors_read = {name: value for name, value in read.items() if isinstance(value, Tensor)}
        tensors_read |= {"q": tokens(given["q"], pair.q.at, pair.q.size), **{name: tokens(given[name], pair.k.at, pair.k.size) for name in ("k", "v")}}
        self.kept = {name: x.detach().resolve_neg() for name, x in tensors_read.items()} | {"o": given["o"], "lse": given["lse"]}
        self.views = {name: tensors.view(x, name) for name, x in self.kept.items()}
        self.spec = calls.spec_of("fwd", _words(problem, pair, words, given, "out=fp32" if given["o"].dtype == torch.float32 else "") + more, self.views, self.scalars)

    def bound(self, kernel: Kernel) -> Bound:
        return Bound(kernel, {**self.views, **self.scalars})


def forward(problem: Problem, pair: Pair, q: Tensor, k: Tensor, v: Tensor, params: Mapping[str, Any], o: Tensor, lse: Tensor, sms: int) -> None:
    """Writes O, in fp32 or the dtype of q, and the LSE of the call's queries."""
    given = _given(problem, pair, {"q": q, "k": k, "v": v, "o": o, "lse": lse, **params})

    def bound() -> Bound:
        call = _Forward(problem, pair, given, "")
        return call.bound(kernel_of(q, call.spec))

    launch((problem, pair), given, q, sms, bound)


def go_on(problem: Problem, pair: Pair, q: Tensor, k: Tensor, v: Tensor, params: Mapping[str, Any], o: Tensor, lse: Tensor, sms: int) -> None:
    """Adds a call's keys to the results of earlier calls, in place."""
    given = _given(problem, pair, {"q": q, "k": k, "v": v, "o": o, "lse": lse, **params})

    def bound() -> Bound | None:
        call = _Forward(problem, pair, given, " accumulate")
        kernel = kernel_if_taken(q, call.spec)
        return None if kernel is None else call.bound(kernel)

    if not launch((problem, pair, "accumulate"), given, q, sms, bound):
        more = _room(q, pair.q.size, o.shape[-1])
        forward(problem, pair, q, k, v, params, *more, sms)
        merge(o, lse, *more)


class Total:
    """This is an fp32 gradient of all tokens of a share, summed over calls for some of them, [batch, tokens, ...], or
    one of a parameter."""

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


class _Backward:
    """These are gradients of a call's queries and keys. `given` has q, o, do, lse and maybe dlse, k and v, of which the
    pair selects a part, the gradients of that part, which it writes, and the parameters. `grads` names the
    parameters that have gradients."""

    def __init__(self, problem: Problem, pair: Pair, given: Mapping[str, Tensor], grads: Sequence[str], more: str) -> None:
        words = problem.words(pair)
        read = _read_by(problem, words, {**given, **problem.scalars, **words.scalars})
        self.scalars = {name: value for name, value in read.items() if not isinstance(value, Tensor)}
        parts = {name: value.detach() for name, value in read.items() if isinstance(value, Tensor)}
        for name in ("q", "o", "do", "k", "v"):
            run = pair.k if name in ("k", "v") else pair.q
            parts[name] = tokens(given[name], run.at, run.size)
        for name in ("lse", "dlse"):
            if name in given:
                parts[name] = given[name].narrow(2, pair.q.at, pair.q.size)
        made = {name: given[name] for name in ("dq", "dk", "dv", *("d" + name for name in grads))}
        self.kept = {name: x.resolve_neg() for name, x in parts.items()} | made
        self.views = {name: tensors.view(x, name) for name, x in self.kept.items()}
        self.spec = calls.spec_of("bwd", _words(problem, pair, words, given, "out=fp32") + more, self.views, self.scalars, list(grads))

    def bound(self, kernel: Kernel) -> Bound:
        return Bound(kernel, {**self.views, **self.scalars})


def backward(problem: Problem, pair: Pair, named: Mapping[str, Tensor], k: Tensor, v: Tensor, params: Mapping[str, Any], grads: Sequence[str],
             totals: Mapping[str, Total], sms: int) -> None:
    """Adds fp32 gradients of a call's queries and keys to `totals`, and those of the parameters in `grads` that it
    reads. `named` has q, o, do, lse and maybe dlse of all queries of this rank, over all keys."""
    grads = [name for name in grads if name in reads(problem.score)]
    given = _given(problem, pair, {**named, "k": k, "v": v, **params})
    places = {"dq": pair.q, "dk": pair.k, "dv": pair.k}
    is_first = all(totals[name].sum is None and totals[name].shape[1] == run.size for name, run in places.items())
    # Gradients of parameters are written, and never added to.
    if not grads and not is_first:
        sums = {name: tokens(totals[name].result(), run.at, run.size) for name, run in places.items()}

        def going_on() -> Bound | None:
            call = _Backward(problem, pair, {**given, **sums}, (), " accumulate")
            kernel = kernel_if_taken(k, call.spec)
            return None if kernel is None else call.bound(kernel)

        if launch((problem, pair, "accumulate"), {**given, **sums}, k, sms, going_on):
            return
    shapes = {name: (*totals[name].shape[:1], run.size, *totals[name].shape[2:]) for name, run in places.items()}
    shapes |= {"d" + name: totals["d" + name].shape for name in grads}
    made = {name: torch.empty(shape, dtype=torch.float32, device=k.device) for name, shape in shapes.items()}

    def bound() -> Bound:
        call = _Backward(problem, pair, {**given, **made}, grads, "")
        return call.bound(kernel_of(k, call.spec))

    launch((problem, pair, tuple(grads)), {**given, **made}, k, sms, bound)
    for name, gradient in made.items():
        totals[name].add(places[name].at if name in places else 0, gradient)


def add_sink(o: Tensor, lse: Tensor, sink: Tensor) -> None:
    """Adds one more key to each row, without V, in place. So it counts once, however many ranks there are."""
    before = lse.clone()
    lse.copy_(torch.logaddexp(lse, sink.detach().float().view(1, -1, 1)))
    weight = torch.exp(before - lse).masked_fill_(before == -torch.inf, 0)
    o.mul_(weight.transpose(1, 2).unsqueeze(-1))


def gradient_of_sink(sink: Tensor, o: Tensor, do_: Tensor, lse: Tensor, dlse: Tensor | None) -> Tensor:
    """Returns the gradient for the queries of this rank. The sum over ranks is that of all queries."""
    rest = (do_.float() * o.float()).sum(-1).transpose(1, 2)
    if dlse is not None:
        rest = rest - dlse
    weight = torch.exp(sink.float().view(1, -1, 1) - lse).masked_fill_(lse == -torch.inf, 0)
    return -(weight * rest).sum((0, 2))

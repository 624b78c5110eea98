"""All-gather: each rank has all keys and values for a while, a few of their heads at a time, while the next heads are on their way."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, NamedTuple, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from flashjit.distributed import parts
from flashjit.distributed.exchange import Sum, Transfer, Travel, gather
from flashjit.distributed.places import arranged, restored
from flashjit.distributed.steps import Problem

_PIECES = 4  # of the KV heads, at most: the first one is not hidden behind anything


class _Heads(NamedTuple):
    q: slice
    kv: slice


class Gather:
    def __init__(self, problem: Problem, group: Any, sms: int) -> None:
        """`sms`: of launches beside an exchange."""
        self.problem, self.group, self.sms = problem, group, sms
        self.ranks, self.rank = int(group.size()), int(dist.get_rank(group))
        self.pairs = problem.pairs(self.ranks, self.rank, None)

    def _pieces(self, heads: int, kv_heads: int) -> list[_Heads]:
        count = max(count for count in range(1, _PIECES + 1) if kv_heads % count == 0)
        of_q, of_kv = heads // count, kv_heads // count
        return [_Heads(slice(at * of_q, (at + 1) * of_q), slice(at * of_kv, (at + 1) * of_kv)) for at in range(count)]

    def _keys(self, heads: int, k: Tensor, v: Tensor) -> Iterator[tuple[_Heads, Problem, Tensor, Tensor, bool]]:
        """For each piece: its heads, the problem for them, all keys and values, and whether others are on their way."""
        pieces = self._pieces(heads, k.shape[2])
        waiting: list[tuple[Travel, Transfer]] = []

        def start(piece: _Heads) -> None:
            travel = Travel(self.problem.travel, k[:, :, piece.kv], v[:, :, piece.kv])
            waiting.append((travel, gather("keys and values of all ranks", self.group, travel.parts)))

        start(pieces[0])
        for at, piece in enumerate(pieces):
            if at + 1 < len(pieces):
                start(pieces[at + 1])
            travel, transfer = waiting.pop(0)
            shares = travel.read(transfer.wait())
            for share, own in zip(shares, (k, v)):
                if travel.rounded:  # our own keys are as they were, as in a ring
                    share[self.rank] = own[:, :, piece.kv]
            whole_k, whole_v = (restored(share, self.problem.order, 1) for share in shares)
            yield piece, self.problem.of_heads(piece.q.start, piece.kv.start), whole_k, whole_v, bool(waiting)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, params: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Each query has one call, which writes its row of O as it stays, or in fp32 where a sink is to come."""
        batch, length, heads, _ = q.shape
        whole = sum(pair.q.size for pair in self.pairs) == length
        o = (torch.empty if whole else torch.zeros)((batch, length, heads, v.shape[-1]), dtype=torch.float32 if "sink" in params else q.dtype,
                                                    device=q.device)
        lse = torch.full((batch, heads, length), -torch.inf, dtype=torch.float32, device=q.device)
        for piece, problem, all_k, all_v, is_beside in self._keys(heads, k, v):
            for pair in self.pairs:
                of_o, of_lse = parts.tokens(o, pair.q.at, pair.q.size)[:, :, piece.q], lse.narrow(2, pair.q.at, pair.q.size)[:, piece.q]
                parts.forward(problem, pair, q[:, :, piece.q], all_k, all_v, params, of_o, of_lse, self.sms if is_beside else 0)
        return o, lse

    def backward(self, named: Mapping[str, Tensor], k: Tensor, v: Tensor, params: Mapping[str, Any],
                 grads: Sequence[str]) -> dict[str, Tensor]:
        """Gradients of a piece are summed over ranks while the next piece computes."""
        made = {name: torch.empty(x.shape, dtype=x.dtype, device=k.device) for name, x in (("dq", named["q"]), ("dk", k), ("dv", v))}
        of_params = {"d" + name: parts.Total(params[name].shape, k.device) for name in grads}
        waiting: tuple[_Heads, Sum] | None = None
        for piece, problem, all_k, all_v, is_beside in self._keys(named["q"].shape[2], k, v):
            of_piece = {name: x[:, piece.q] if name in ("lse", "dlse") else x[:, :, piece.q] for name, x in named.items()}
            totals = {"d" + name: parts.Total(x.shape, k.device) for name, x in (("q", of_piece["q"]), ("k", all_k), ("v", all_v))}
            for pair in self.pairs:
                parts.backward(problem, pair, of_piece, all_k, all_v, params, grads, of_params | totals,
                               self.sms if is_beside or waiting is not None else 0)
            made["dq"][:, :, piece.q] = totals["dq"].result()
            self._receive(waiting, made)
            waiting = piece, Sum("gradients of keys and values of all ranks", self.group,
                                 [arranged(totals[name].result(), self.problem.order, self.ranks, 1) for name in ("dk", "dv")])
        self._receive(waiting, made)
        return made | {name: total.result() for name, total in of_params.items()}

    def _receive(self, waiting: tuple[_Heads, Sum] | None, made: Mapping[str, Tensor]) -> None:
        if waiting is None:
            return
        piece, total = waiting
        for name, gradient in zip(("dk", "dv"), total.wait()):
            made[name][:, :, piece.kv] = gradient

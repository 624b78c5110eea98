"""In an all-gather each rank has all keys and values for a while, a few of their heads at a time, while the next heads
are on their way."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from flashjit.distributed import parts
from flashjit.distributed.board import Board, board_of
from flashjit.distributed.exchange import Sum, Transfer, Travel, gather
from flashjit.distributed.launches import Lanes
from flashjit.distributed.places import arranged, restored, runs_of
from flashjit.distributed.steps import Problem

# The KV heads go in at most this many pieces. The first one is not hidden behind anything.
_PIECES = 4


class _Heads(NamedTuple):
    q: slice
    kv: slice


class _Piece(NamedTuple):
    """A piece has heads, the problem for them, and all of their keys and values. These are here after the event
    `ready`. If it is None, they are here for the current stream, and `is_beside` tells whether kernels of an
    exchange want SMs meanwhile."""

    heads: _Heads
    problem: Problem
    k: Tensor
    v: Tensor
    ready: torch.cuda.Event | None
    is_beside: bool


def _pieces(sizes: Sequence[int], heads_of_one: int) -> list[_Heads]:
    """Makes pieces from their numbers of KV heads."""
    begins = [sum(sizes[:at]) for at in range(len(sizes))]
    return [_Heads(slice(begin * heads_of_one, (begin + size) * heads_of_one), slice(begin, begin + size)) for begin, size in zip(begins, sizes)]


def _whole(kv_heads: int) -> list[int]:
    return [kv_heads]


def _equal(kv_heads: int) -> list[int]:
    count = max(count for count in range(1, _PIECES + 1) if kv_heads % count == 0)
    return [kv_heads // count] * count


def _growing(kv_heads: int) -> list[int]:
    """Makes each piece twice as large as the one before, and the last with the rest: a piece is copied twice as fast as
    it is computed, or faster, and few launches are better than many."""
    sizes: list[int] = []
    while (rest := kv_heads - sum(sizes)) > 0:
        size = 2 ** len(sizes)
        sizes.append(rest if rest < 2 * size else size)
    return sizes


class Gather:
    def __init__(self, problem: Problem, group: Any, sms: int) -> None:
        """`sms` is for launches beside an exchange."""
        self.problem, self.group, self.sms = problem, group, sms
        self.ranks, self.rank = int(group.size()), int(dist.get_rank(group))
        self.pairs = problem.pairs(self.ranks, self.rank, None)

    def _keys(self, heads: int, k: Tensor, v: Tensor) -> Iterator[_Piece]:
        board = board_of(self.group, k.device) if self.problem.travel is None else None
        heads_of_one = heads // k.shape[2]
        divide = _whole if self.problem.drops else _equal if board is None else _growing
        pieces = _pieces(divide(k.shape[2]), heads_of_one)
        return self._sent(pieces, k, v) if board is None else self._read(board, pieces, k, v)

    def _sent(self, pieces: Sequence[_Heads], k: Tensor, v: Tensor) -> Iterator[_Piece]:
        """Fetches pieces by the group's all-gather."""
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
                if travel.rounded:  # Our own keys are as they were, as in a ring.
                    share[self.rank] = own[:, :, piece.kv]
            whole_k, whole_v = (restored(share, self.problem.order, 1) for share in shares)
            yield _Piece(piece, self._problem_of(piece), whole_k, whole_v, None, bool(waiting))

    def _read(self, board: Board, pieces: Sequence[_Heads], k: Tensor, v: Tensor) -> Iterator[_Piece]:
        """Reads pieces from the memory of the others, if they are on one host. A row has K and V of a token for all
        sequences, so that runs of tokens are one copy."""
        def parted(rows: Tensor, piece: _Heads) -> tuple[Tensor, Tensor]:
            heads = piece.kv.stop - piece.kv.start
            of_k = rows[:, :k.shape[0] * heads * k.shape[3]].view(-1, k.shape[0], heads, k.shape[3])
            return of_k, rows[:, of_k[0].numel():].view(-1, v.shape[0], heads, v.shape[3])

        widths = [k.shape[0] * (piece.kv.stop - piece.kv.start) * (k.shape[3] + v.shape[3]) for piece in pieces]
        wholes = [torch.empty((self.problem.lengths[1], width), dtype=k.dtype, device=k.device) for width in widths]
        shown = board.room(tuple((k.shape[1], width) for width in widths), k.dtype)
        for piece, rows in zip(pieces, shown[self.rank]):
            for x, room in zip((k, v), parted(rows, piece)):
                room.copy_(x[:, :, piece.kv].transpose(0, 1))
        board.show("keys and values of all ranks")
        low, high = min((pair.k.begin for pair in self.pairs), default=0), max((pair.k.last for pair in self.pairs), default=-1)
        # Ranks begin with different sources.
        runs = [(source, run.part(low, high)) for source in (*range(self.rank, self.ranks), *range(self.rank))
                for run in runs_of(self.problem.order, self.ranks, source, self.problem.lengths[1])]
        events = []
        with board.copying():
            for at, whole in enumerate(wholes):
                for source, run in runs:
                    if run.size:
                        whole[run.begin:run.last + 1:run.step].copy_(shown[source][at][run.at:run.at + run.size])
                events.append(board.copied())
        for piece, whole, ready in zip(pieces, wholes, events):
            of_k, of_v = parted(whole, piece)
            yield _Piece(piece, self._problem_of(piece), of_k.transpose(0, 1), of_v.transpose(0, 1), ready, False)

    def _problem_of(self, piece: _Heads) -> Problem:
        return self.problem.of_heads(piece.q.start, piece.kv.start)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, params: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Makes one call for each query, which writes its row of O as it stays, or in fp32 if a sink is to come."""
        batch, length, heads, _ = q.shape
        whole = sum(pair.q.size for pair in self.pairs) == length
        o = (torch.empty if whole else torch.zeros)((batch, length, heads, v.shape[-1]), dtype=torch.float32 if "sink" in params else q.dtype,
                                                    device=q.device)
        lse = torch.full((batch, heads, length), -torch.inf, dtype=torch.float32, device=q.device)
        lanes = Lanes(q.device) if q.is_cuda else None
        for piece in self._keys(heads, k, v):
            for pair in self.pairs:
                of_o = parts.tokens(o, pair.q.at, pair.q.size)[:, :, piece.heads.q]
                of_lse = lse.narrow(2, pair.q.at, pair.q.size)[:, piece.heads.q]
                with lanes.turn(piece.ready) if lanes and piece.ready else contextlib.nullcontext():
                    parts.forward(piece.problem, pair, q[:, :, piece.heads.q], piece.k, piece.v, params, of_o, of_lse,
                                  self.sms if piece.is_beside else 0)
        if lanes:
            lanes.join()
        return o, lse

    def backward(self, named: Mapping[str, Tensor], k: Tensor, v: Tensor, params: Mapping[str, Any],
                 grads: Sequence[str]) -> dict[str, Tensor]:
        """Sums gradients of a piece over ranks while the next piece computes."""
        made = {name: torch.empty(x.shape, dtype=x.dtype, device=k.device) for name, x in (("dq", named["q"]), ("dk", k), ("dv", v))}
        of_params = {"d" + name: parts.Total(params[name].shape, k.device) for name in grads}
        waiting: tuple[_Heads, Sum] | None = None
        for piece in self._keys(named["q"].shape[2], k, v):
            heads = piece.heads
            if piece.ready:
                torch.cuda.current_stream(k.device).wait_event(piece.ready)
            of_piece = {name: x[:, heads.q] if name in ("lse", "dlse") else x[:, :, heads.q] for name, x in named.items()}
            totals = {"d" + name: parts.Total(x.shape, k.device) for name, x in (("q", of_piece["q"]), ("k", piece.k), ("v", piece.v))}
            for pair in self.pairs:
                parts.backward(piece.problem, pair, of_piece, piece.k, piece.v, params, grads, of_params | totals,
                               self.sms if piece.is_beside or waiting is not None else 0)
            made["dq"][:, :, heads.q] = totals["dq"].result()
            self._receive(waiting, made)
            waiting = heads, Sum("gradients of keys and values of all ranks", self.group,
                                 [arranged(totals[name].result(), self.problem.order, self.ranks, 1) for name in ("dk", "dv")])
        self._receive(waiting, made)
        return made | {name: total.result() for name, total in of_params.items()}

    def _receive(self, waiting: tuple[_Heads, Sum] | None, made: Mapping[str, Tensor]) -> None:
        if waiting is None:
            return
        heads, total = waiting
        for name, gradient in zip(("dk", "dv"), total.wait()):
            made[name][:, :, heads.kv] = gradient

"""Heads are exchanged for tokens: after an all-to-all each rank has all tokens of some heads, and another one goes
back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flashjit.capi import UnsupportedError
from flashjit.distributed.exchange import turn
from flashjit.distributed.places import arranged, restored, unflattened


def check_heads(heads: int, kv_heads: int, ranks: int) -> None:
    if heads % ranks:
        raise UnsupportedError(f"q: {heads} heads cannot be divided among {ranks} ranks; use how=\"ring\" or \"gather\", or a mesh whose inner "
                               "dimension divides them")
    if kv_heads % ranks and ranks % kv_heads:
        raise UnsupportedError(f"k: {kv_heads} heads and {ranks} ranks, of which neither is a multiple of the other; use how=\"ring\" or \"gather\", "
                               "or repeat the heads of k and v")


def first_kv_head(rank: int, kv_heads: int, ranks: int) -> int:
    return rank * kv_heads // ranks


def _sent(x: Tensor, ranks: int) -> Tensor:
    """Returns [ranks, batch, tokens, heads of a rank, d]. If there are more ranks than heads, several get the same one."""
    if x.shape[2] < ranks:
        x = x.repeat_interleave(ranks // x.shape[2], 2)
    return unflattened(x, 2, (ranks, -1)).movedim(2, 0).contiguous()


class _Divided(torch.autograd.Function):
    """Turns shares with all heads into q, k and v with all tokens of this rank's heads, in the order of the sequence."""

    @staticmethod
    def forward(ctx: Any, group: Any, order: str, *given: Tensor) -> tuple[Tensor, ...]:
        ctx.rest = group, order, [x.shape[2] for x in given]
        received = turn("heads of q, k and v for tokens", group, [_sent(x, group.size()) for x in given]).wait()
        return tuple(restored(x, order, 1) for x in received)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        group, order, heads = ctx.rest
        sent = [arranged(x, order, group.size(), 1) for x in gradients]
        received = turn("gradients of heads for those of tokens", group, sent).wait()
        return None, None, *(_of_heads(x, count) for x, count in zip(received, heads))


def _of_heads(x: Tensor, heads: int) -> Tensor:
    """Returns all heads of [ranks, batch, tokens, heads of a rank, d]. Heads that several ranks have are summed in
    fp32."""
    x = x.movedim(0, 2)
    if x.shape[2] > heads:
        return unflattened(x, 2, (heads, -1)).float().sum(3).squeeze(3).to(x.dtype)
    return x.flatten(2, 3)


class _Rejoined(torch.autograd.Function):
    """This is the way back, for O and the LSE."""

    @staticmethod
    def forward(ctx: Any, group: Any, order: str, *given: Tensor) -> tuple[Tensor, ...]:
        ctx.rest = group, order
        received = turn("tokens of O for heads", group, [arranged(x, order, group.size(), 1) for x in given]).wait()
        return tuple(x.movedim(0, 2).flatten(2, 3) for x in received)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        group, order = ctx.rest
        received = turn("gradients of tokens of O for those of heads", group, [_sent(x, group.size()) for x in gradients]).wait()
        return None, None, *(restored(x, order, 1) for x in received)


divided: Any = _Divided.apply
rejoined: Any = _Rejoined.apply

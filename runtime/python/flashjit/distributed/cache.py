"""Ranks share a cache and decode over it: each attends to its keys, and one exchange puts the parts together."""

from __future__ import annotations

import functools
import math
from typing import Any, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from flashjit import calls
from flashjit.capi import InvalidError, UnsupportedError
from flashjit.distributed.call import outside_of_graphs
from flashjit.distributed.exchange import told
from flashjit.distributed.launches import Bound, kernel_of, launch
from flashjit.distributed.places import Group, check_device, groups_of
from flashjit.distributed.texts import PLACES, reads, tokens_of, written_out
from flashjit.torch_calls import DTYPES
from flashjit.values import flag, shown

_WORDS = {dtype: word for word, dtype in DTYPES.items()}
_REACH = 2**30 - 1


@functools.lru_cache(256)
def _placed(text: str | None, order: str, ranks: int) -> str | None:
    """Rewrites a text of the whole sequence for the keys of one rank. Queries are the newest tokens, at the end of the
    keys."""
    if text is None or not reads(text) & PLACES:
        return text
    begin = f"min(max(k_begin, 0), {_REACH})"
    length = f"min(max(cache_lens[b], 0), {_REACH})"
    instead = {"k": f"(k * {ranks} + {begin})" if order == "striped" and ranks > 1 else f"(k + {begin})",
               "k_len": length, "qpos": f"(q + {length} - q_len)"}
    return " ".join(instead.get(token, token) for token in written_out(text))


def _own_lens(lens: Tensor, room: int, order: str, ranks: int, rank: int) -> Tensor:
    """Returns how many of each sequence's keys lie here."""
    if order == "striped":
        return ((lens - rank + ranks - 1) // ranks).clamp_(0, room)
    return (lens - rank * room).clamp_(0, room)


def merged(o_parts: Tensor, lse_parts: Tensor, layout: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Merges fp32 parts [parts, ...] to O and LSE."""
    heads = o_parts.shape[2 if layout == "bhsd" else 3]
    spec = f"merge fp32 out={_WORDS[dtype]} d={o_parts.shape[-1]} heads={heads} lse=ln" + (" layout=bhsd" if layout == "bhsd" else "")
    o = torch.empty(o_parts.shape[1:], dtype=dtype, device=o_parts.device)
    lse = torch.empty(lse_parts.shape[1:], dtype=torch.float32, device=o_parts.device)
    given = {"o_parts": o_parts, "lse_parts": lse_parts, "o": o, "lse": lse}
    launch(spec, given, o, 0, lambda: Bound(kernel_of(o, spec), given))
    return o, lse


def _check(q: Any, k: Any, v: Any, cache_lens: Any, layout: str, order: object, params: Mapping[str, Any]) -> None:
    if order not in ("contiguous", "striped"):
        raise InvalidError(f'order: {shown(order)} is neither "contiguous" nor "striped", in which caches grow; zigzag is for whole sequences')
    if not isinstance(layout, str) or layout not in ("bshd", "bhsd") and not layout.startswith("paged("):
        raise UnsupportedError(f"layout: {shown(layout)} is none of bshd, bhsd and paged(N)")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise InvalidError(f"{name}: {shown(x)} is no tensor of PyTorch")
        if torch.is_grad_enabled() and x.requires_grad:
            raise UnsupportedError(f"{name}: has requires_grad, and decoding has no gradients; call under torch.no_grad()")
    if cache_lens is not None and (not isinstance(cache_lens, Tensor) or cache_lens.dtype != torch.int32 or cache_lens.shape != q.shape[:1]):
        raise InvalidError(f"cache_lens: {shown(cache_lens)} is no tensor int32 [batch] of how many keys each sequence has, on all ranks together")
    for name in params:
        if name in ("k_lens", "k_begin") or name in calls.OPERANDS and name not in ("sink", "block_table", "scale_k", "scale_v"):
            raise UnsupportedError(f"{name}: is no word of decode; give cache_lens for the lengths, and new tokens' rows to the rank that owns them")


def decode(q: Tensor, k: Tensor, v: Tensor, mask: str | None = None, score: str | None = None, *, cache_lens: Tensor | None = None,
           group: Group = None, order: str = "contiguous", layout: str = "bshd", scale: float | None = None, lse: bool = False, spec: str = "",
           **params: Any) -> Any:
    """Computes attention of new tokens over a cache of which each rank of `group` holds a part of the keys. q, [batch,
    tokens, heads, d], is equal on all ranks, and so is the result. The newest key belongs to the last token of q. k
    and v are this rank's keys: `order="contiguous"` gives rank r the keys from r times its room on, "striped" every
    ranks-th, from the r-th on. `cache_lens` (int32 [batch], on the device) has the number of each sequence's keys on
    all ranks; without it, all rows count. layout="paged(N)" takes `block_table` for this rank's pages. Tensors that
    mask and score read are whole on every rank, as in attention(). O and the LSE of all ranks go in one all-gather
    of fp32, and are merged; `sink` counts once. Nothing waits for the host, so that the call can be part of a CUDA
    graph, once it was made before.

    >>> import torch, torch.distributed, flashjit.distributed as fd
    >>> if not torch.distributed.is_initialized():
    ...     torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    >>> fd.decode(torch.randn(2, 1, 8, 64), *torch.randn(2, 2, 100, 2, 64)).shape
    torch.Size([2, 1, 8, 64])
    """
    return outside_of_graphs(_decode)(q, k, v, mask, score, cache_lens, group, order, layout, scale, lse, spec, params)


def _decode(q: Tensor, k: Tensor, v: Tensor, mask: str | None, score: str | None, cache_lens: Tensor | None, group: Group, order: str, layout: str,
            scale: float | None, lse: bool, spec: str, params: Mapping[str, Any]) -> Any:
    groups = groups_of(group)
    if groups.inner is not None:
        raise UnsupportedError("group: of two dimensions, and a cache lies over one; name it")
    _check(q, k, v, cache_lens, layout, order, params)
    check_device(groups, q.device)
    ranks, rank = int(groups.outer.size()), int(dist.get_rank(groups.outer))
    words: dict[str, Any] = {name: value for name, value in params.items() if value is not None}
    sink = words.pop("sink", None)
    paged = layout.startswith("paged(")
    room = words["block_table"].shape[-1] * k.shape[1] if paged and "block_table" in words else k.shape[2 if layout == "bhsd" else 1]
    if cache_lens is None and (paged or reads(mask) & PLACES or reads(score) & PLACES):
        cache_lens = torch.full(q.shape[:1], room * ranks, dtype=torch.int32, device=q.device)
    used = {name for text in (_placed(mask, order, ranks), _placed(score, order, ranks)) if text is not None for name in tokens_of(text)}
    if cache_lens is not None:
        words["k_lens"] = _own_lens(cache_lens, room, order, ranks, rank)
        if "cache_lens" in used:
            words["cache_lens"] = cache_lens
    if "k_begin" in used:
        words["k_begin"] = rank if order == "striped" else rank * room
    # Ints need no 64 bits with this bound.
    bound = f"k_len<={2**20}" if order == "striped" and "k_begin" in used and room <= 2**20 else ""
    dtype = q.dtype if q.dtype in (torch.float16, torch.bfloat16, torch.float32) else torch.bfloat16
    with torch.no_grad():
        every, own, o, of_rows = _room(q, v, layout, ranks, sink is not None)
        _, found = calls.attention(q, k, v, _placed(mask, order, ranks), _placed(score, order, ranks), lse=True, layout=layout, scale=scale,
                                   spec=" ".join(filter(None, (spec, bound))), out=o, **words)
        of_rows.copy_(found)
        if ranks > 1:
            with told("parts of O and the LSE of all ranks"):
                dist.all_gather_into_tensor(every[:ranks].view(-1), own, group=groups.outer)
        if sink is not None:
            every[ranks, :o.numel()].zero_()
            every[ranks, o.numel():o.numel() + found.numel()].view(found.shape).copy_(sink.detach().view(1, -1, 1).expand(found.shape))
        o_parts, lse_parts = every[:, :o.numel()].view(-1, *o.shape), every[:, o.numel():o.numel() + found.numel()].view(-1, *found.shape)
        made, rows = merged(o_parts, lse_parts, layout, dtype)
    return (made, rows) if flag("lse", lse) else made


def _room(q: Tensor, v: Tensor, layout: str, ranks: int, with_sink: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the room for what all ranks give, a row each, for what this one gives, and in that for O and the LSE, one
    after the other, so that there is one exchange. The sink is a row of its own, whose O is 0."""
    shape = (*q.shape[:-1], v.shape[-1])
    batch, heads, length = q.shape[0], *((q.shape[1], q.shape[2]) if layout == "bhsd" else (q.shape[2], q.shape[1]))
    of_o, of_lse = math.prod(shape), batch * heads * length
    row = -(-(of_o + of_lse) // 4) * 4  # Rows begin at multiples of 16 bytes.
    every = torch.empty((ranks + with_sink, row), dtype=torch.float32, device=q.device)
    own = every[0] if ranks == 1 else torch.empty(row, dtype=torch.float32, device=q.device)
    return every, own, own[:of_o].view(shape), own[of_o:of_o + of_lse].view(batch, heads, length)

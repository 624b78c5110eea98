"""This does what torch.distributed.tensor.experimental.context_parallel does, through FlashJIT: in a block the given
buffers are shares of themselves, and PyTorch's scaled_dot_product_attention computes over all ranks."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Iterator

import torch
from torch import Tensor

from flashjit.capi import InvalidError, UnsupportedError
from flashjit.distributed.call import attention
from flashjit.distributed.places import shard, unshard
from flashjit.torch_fit import fit
from flashjit.values import shown

_ways = {"allgather": "gather", "alltoall": "ring"}
_chosen = {"how": "auto"}


def set_rotate_method(rotate_method: str) -> None:
    """Sets the method as in PyTorch: "allgather", or "alltoall", which goes from rank to rank. Before it is called,
    how="auto" chooses."""
    if rotate_method not in _ways:
        raise InvalidError(f'rotate_method: {shown(rotate_method)} is neither "allgather" nor "alltoall"')
    _chosen["how"] = _ways[rotate_method]


def _over_ranks(mesh: Any, order: str, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
                is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Tensor:
    """Computes scaled_dot_product_attention on shares: [batch, heads, tokens, d]."""
    if attn_mask is not None:
        raise UnsupportedError("attn_mask: is of the whole sequence, and calls in context_parallel have shares of it; use is_causal, or mask= of "
                               "flashjit.distributed.attention")
    if dropout_p:
        raise UnsupportedError(f"dropout_p: {dropout_p} would drop other weights on other ranks; leave it out")
    if not enable_gqa and query.dim() == key.dim() == 4 and query.shape[1] != key.shape[1]:
        raise InvalidError(f"key: has {key.shape[1]} heads, and query has {query.shape[1]}; give enable_gqa=True")
    fitted = fit(query, key, value, None, scale, enable_gqa)
    made = attention(fitted.query, fitted.key, fitted.value, "causal" if is_causal else None, layout="bhsd", align="top_left", group=mesh, order=order,
                     how=_chosen["how"] if mesh.ndim == 1 else "mesh", scale=fitted.scale)
    return fitted.result(made)


@contextlib.contextmanager
def context_parallel(mesh: Any, *, buffers: list[Tensor] | None = None, buffer_seq_dims: list[int] | None = None,
                     no_restore_buffers: set[Tensor] | None = None, order: str = "zigzag") -> Iterator[None]:
    """Makes a block in which each of `buffers` is this rank's share of itself along its dimension in `buffer_seq_dims`,
    in place, and torch.nn.functional.scaled_dot_product_attention is attention over the ranks of `mesh`. After it
    buffers are whole again, except for those in `no_restore_buffers`. PyTorch has no `order`; its own is "zigzag",
    as here."""
    buffers = [] if buffers is None else buffers
    dims = [] if buffer_seq_dims is None else buffer_seq_dims
    kept = set() if no_restore_buffers is None else no_restore_buffers
    if len(buffers) != len(dims):
        raise InvalidError(f"buffer_seq_dims: {len(dims)} dimensions of {len(buffers)} buffers; give one for each")
    if not all(any(one is buffer for buffer in buffers) for one in kept):
        raise InvalidError("no_restore_buffers: holds a tensor that is none of buffers")
    with torch.no_grad():
        before = [None if any(buffer is one for one in kept) else buffer.clone() for buffer in buffers]
        for buffer, share in zip(buffers, [shard(buffer, mesh, order, dim) for buffer, dim in zip(buffers, dims)]):
            buffer.resize_(share.shape)
            buffer.copy_(share)
    function = torch.nn.functional.scaled_dot_product_attention
    torch.nn.functional.scaled_dot_product_attention = functools.partial(_over_ranks, mesh, order)
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = function
        with torch.no_grad():
            for buffer, whole in zip(buffers, before):
                if whole is not None:
                    buffer.resize_(whole.shape)
                    buffer.copy_(whole)


def context_parallel_unshard(mesh: Any, buffers: list[Tensor], seq_dims: list[int], load_balancer: Any = None, *,
                             order: str = "zigzag") -> list[Tensor]:
    """Returns the whole tensors, on every rank, of shares such as outputs of a block of context_parallel."""
    if load_balancer is not None:
        raise UnsupportedError("load_balancer: PyTorch's are for its own shards; give order=, which says how tokens lie on ranks")
    if len(buffers) != len(seq_dims):
        raise InvalidError(f"seq_dims: {len(seq_dims)} dimensions of {len(buffers)} buffers; give one for each")
    return [unshard(buffer, mesh, order, dim) for buffer, dim in zip(buffers, seq_dims)]

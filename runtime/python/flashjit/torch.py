"""For PyTorch: drop-ins for scaled_dot_product_attention and flex_attention, and for the models of transformers.

All are flashjit.attention, which is PyTorch's too: it has gradients, runs on the current stream, and in CUDA graphs."""

from __future__ import annotations

from typing import Any, Callable, Mapping

import torch
from torch import Tensor

from flashjit.calls import attention
from flashjit.capi import InvalidError, UnsupportedError
from flashjit.flex import leave_graph, trace

__all__ = ["flex_attention", "register_with_transformers", "scaled_dot_product_attention", "trace"]


def _cast_by_autocast(*given: Any) -> tuple[Any, ...]:
    """As PyTorch does with its own where autocast is on."""
    device = next(tensor.device.type for tensor in given if tensor is not None)
    if not torch.is_autocast_enabled(device):
        return given
    dtype = torch.get_autocast_dtype(device)
    return tuple(tensor.to(dtype) if tensor is not None and tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor
                 for tensor in given)


def _check_heads(query: Tensor, key: Tensor, enable_gqa: bool) -> None:
    if not enable_gqa and query.dim() == key.dim() == 4 and query.shape[1] != key.shape[1]:
        raise InvalidError(f"key: has {key.shape[1]} heads, and query has {query.shape[1]}; give enable_gqa=True")


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
                                 is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, on [batch, heads, tokens, d], or without batch or heads. Rows whose
    keys are all hidden are 0, and dropout_p counts in steps of 1/256.

    >>> import torch, flashjit.torch
    >>> q, k, v = torch.randn(3, 2, 4, 100, 64)
    >>> ours = flashjit.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> bool(torch.allclose(ours, torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True), atol=1e-5))
    True
    """
    query, key, value, attn_mask = _cast_by_autocast(query, key, value, attn_mask)
    rank = query.dim()
    if rank not in (2, 3, 4) or key.dim() != rank or value.dim() != rank:
        raise InvalidError(f"query, key, value: have {query.dim()}, {key.dim()} and {value.dim()} dimensions; all must have 4 "
                           "(or 3, or 2); reshape them")
    if rank < 4:  # of 3, the first are as good as batches, of one head
        query, key, value = (tensor.unsqueeze(-3) if rank == 3 else tensor[None, None] for tensor in (query, key, value))
        if attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask.unsqueeze(-3)
    _check_heads(query, key, enable_gqa)
    words: dict[str, Any] = {}
    if attn_mask is not None:
        words = _masked(attn_mask, query, key)
    if is_causal:
        if attn_mask is not None:
            raise InvalidError("is_causal: given beside attn_mask; leave one of them out")
        words = {"mask": "causal", "align": "top_left"}
    o: Tensor = attention(query, key, value, layout="bhsd", scale=scale, **words, **_dropped(dropout_p, query))
    return o if rank == 4 else o.squeeze(-3) if rank == 3 else o[0, 0]


def _masked(attn_mask: Tensor, query: Tensor, key: Tensor) -> dict[str, Any]:
    """A mask of bools says what is seen, one of floats is added; one head may stand for all, and so on."""
    shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    try:
        mask = attn_mask.expand(shape)
    except RuntimeError:
        raise InvalidError(f"attn_mask: {tuple(attn_mask.shape)} does not go with {shape}, [batch, heads, queries, keys]") from None
    if mask.dtype == torch.bool:
        return {"mask": "attn_mask[b, h, q, k] != 0", "attn_mask": mask}
    if mask.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise InvalidError(f"attn_mask: {mask.dtype} is neither bool nor a float of up to 32 bits; convert it")
    return {"score": "s + attn_mask[b, h, q, k]", "attn_mask": mask}


def _dropped(dropout: float, query: Tensor) -> dict[str, Any]:
    """Other weights in every call, by the random numbers of PyTorch, so that torch.manual_seed makes them the same again."""
    if not dropout:
        return {}
    state = torch.randint(2**53, (2,), dtype=torch.int64, device=query.device)
    return {"spec": f"dropout={float(dropout)!r}", "seed": state[:1], "offset": state[1:]}


def flex_attention(query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Any] | None = None, block_mask: Any = None,
                   scale: float | None = None, enable_gqa: bool = False, return_lse: bool = False,
                   kernel_options: Mapping[str, Any] | None = None, *, return_aux: Any = None) -> Any:
    """torch.nn.attention.flex_attention, on [batch, heads, tokens, d]. `block_mask` is a BlockMask, or the function that one is
    made of, which is enough: what can be skipped is derived from it. The functions run at every call, to write down what they
    do; under torch.compile once for each graph. trace() and attention() do that once and for all. `kernel_options` say how
    PyTorch's kernels run, which changes no result; they are looked at for their names alone.

    >>> import torch, flashjit.torch
    >>> q, k, v = torch.randn(3, 2, 4, 100, 64)
    >>> o = flashjit.torch.flex_attention(q, k, v, score_mod=lambda s, b, h, q, k: 20 * torch.tanh(s / 20),
    ...                                   block_mask=lambda b, h, q, k: q >= k)
    >>> o.shape
    torch.Size([2, 4, 100, 64])
    """
    _check_heads(query, key, enable_gqa)
    if kernel_options:
        _check_options(kernel_options)
    lse = return_lse if return_aux is None else _lse_of(return_aux, return_lse)
    mask_mod = block_mask
    if block_mask is not None and hasattr(block_mask, "mask_mod"):
        mask_mod = _function_of(block_mask, query, key)
    # A graph serves other lengths, too.
    lengths = None if torch.compiler.is_dynamo_compiling() else (*query.shape[:3], key.shape[2])
    found = attention(query, key, value, layout="bhsd", scale=scale, lse=lse, align="top_left",
                      **trace(mask_mod, score_mod, device=query.device, lengths=lengths))
    if return_aux is None:
        return found
    from torch.nn.attention.flex_attention import AuxOutput
    return (found[0], AuxOutput(lse=found[1])) if lse else (found, AuxOutput())


def _check_options(options: Mapping[str, Any]) -> None:
    from torch.nn.attention.flex_attention import FlexKernelOptions
    known = FlexKernelOptions.__annotations__
    for name in options:
        if name.removeprefix("fwd_").removeprefix("bwd_") not in known:
            raise InvalidError(f"kernel_options: PyTorch has no {name}; there are {', '.join(sorted(known))}")


def _lse_of(aux: Any, return_lse: bool) -> bool:
    if return_lse:
        raise InvalidError("return_lse: given beside return_aux, which has lse=; leave return_lse out")
    if aux.max_scores:
        raise UnsupportedError("return_aux: max_scores is not written by flashjit.attention; leave it out, or prepare a kernel with max_logit "
                               "by flashjit.Engine")
    return bool(aux.lse)


def _function_of(block_mask: Any, query: Tensor, key: Tensor) -> Callable[..., Any] | None:
    """The function of a BlockMask, whose blocks must be those that follow from it. That is looked at once."""
    from torch.nn.attention.flex_attention import create_block_mask, noop_mask
    mask_mod: Callable[..., Any] = block_mask.mask_mod
    lengths = query.shape[2], key.shape[2]
    if tuple(block_mask.seq_lengths) != lengths:
        raise InvalidError(f"block_mask: is for {tuple(block_mask.seq_lengths)} queries and keys, and there are {lengths}")
    if not getattr(block_mask, "_flashjit_looked_at", False):
        leave_graph("block_mask: is new, and its blocks must be looked at; give its function, block_mask.mask_mod, which is enough, or call "
                    "flex_attention with it once outside of torch.compile")
        batch, heads = block_mask.shape[:2]
        again = create_block_mask(mask_mod, batch, heads, *lengths, device=block_mask.kv_num_blocks.device, BLOCK_SIZE=block_mask.BLOCK_SIZE)
        if not torch.equal(again.to_dense(), block_mask.to_dense()):
            raise UnsupportedError("block_mask: its blocks are not those of its mask_mod; write what they hide into the function")
        block_mask._flashjit_looked_at = True
    return None if mask_mod is noop_mask else mask_mod


def _transformers_attention(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
                            scaling: float | None = None, is_causal: bool | None = None, softcap: float | None = None,
                            s_aux: Tensor | None = None, **rest: Any) -> tuple[Tensor, None]:
    for name in ("position_bias", "head_mask", "cache"):
        if rest.get(name) is not None:
            raise UnsupportedError(f"{name}: is not understood by flashjit's attention of transformers; use attn_implementation=\"sdpa\"")
    words: dict[str, Any] = {}
    queries = query.shape[2]
    if attention_mask is not None:
        words = _masked(attention_mask, query, key)
    elif queries > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        words = {"mask": "causal", "align": "top_left"}  # as PyTorch's; a filled cache comes with a mask
    if softcap is not None:
        words["score"] = "; ".join(filter(None, [f"softcap({float(softcap)!r})", words.get("score")]))
    if s_aux is not None:
        words["sink"] = s_aux.float()
    o: Tensor = attention(query, key, value, layout="bhsd", scale=scaling, **words, **_dropped(dropout, query))
    return o.transpose(1, 2).contiguous(), None


def register_with_transformers(name: str = "jit_attention") -> None:
    """Models of transformers then take attn_implementation="jit_attention", with masks as for "sdpa". A name with `flash` in it is
    one of FlashAttention to them."""
    if "flash" in name:
        raise InvalidError(f'name: transformers takes "{name}", as all with `flash` in them, for FlashAttention; use another')
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask
    AttentionInterface.register(name, _transformers_attention)
    AttentionMaskInterface.register(name, sdpa_mask)

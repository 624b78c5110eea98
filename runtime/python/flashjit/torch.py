"""For PyTorch there are drop-ins for scaled_dot_product_attention and flex_attention, and for the models of
transformers.

All of them are flashjit.attention, which is PyTorch's, too: it has gradients, runs on the current stream, and in
CUDA graphs."""

from __future__ import annotations

from typing import Any, Callable, Mapping

import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias, CausalVariant

from flashjit.calls import attention, plan_of
from flashjit.capi import InvalidError, UnsupportedError
from flashjit.command import Text
from flashjit.flex import leave_graph, trace
from flashjit.torch_fit import Fitted, fit, fit_as_before

__all__ = ["explain", "flex_attention", "register_with_transformers", "scaled_dot_product_attention", "trace"]


def _check_heads(query: Tensor, key: Tensor, enable_gqa: bool) -> None:
    if not enable_gqa and query.dim() == key.dim() == 4 and query.shape[1] != key.shape[1]:
        raise InvalidError(f"key: has {key.shape[1]} heads, and query has {query.shape[1]}; give enable_gqa=True")


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
                                 is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Tensor:
    """This is torch.nn.functional.scaled_dot_product_attention, on [batch, heads, tokens, d], without batch or heads,
    or with more dimensions of batches. Rows whose keys are all hidden are 0, and dropout_p counts in steps of 1/256.
    If d is no multiple of 8, the last dimension is not contiguous, or a batch or head is broadcast, tensors are
    copied first: explain() tells what that costs. On processors float64 is computed in float32.

    >>> import torch, flashjit.torch
    >>> q, k, v = torch.randn(3, 2, 4, 100, 64)
    >>> ours = flashjit.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> bool(torch.allclose(ours, torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True), atol=1e-5))
    True
    """
    if attn_mask is None and not dropout_p and fit_as_before(query, key, value, enable_gqa):
        mask, align = ("causal", "top_left") if is_causal else (None, None)
        return attention(query, key, value, mask, layout="bhsd", scale=scale, align=align)
    fitted, words = _fitted(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    return fitted.result(attention(fitted.query, fitted.key, fitted.value, layout="bhsd", scale=fitted.scale, **words,
                                   **_dropped(dropout_p, query)))


def explain(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
            scale: float | None = None, enable_gqa: bool = False) -> Text:
    """Lists the copies that scaled_dot_product_attention makes of such arguments for the kernel, and the kernel's plan.

    >>> import torch, flashjit.torch
    >>> q, k, v = torch.randn(3, 2, 4, 100, 60)
    >>> flashjit.torch.explain(q, k, v).splitlines()[0]
    'query: d=60 is padded with zeros to 64, which copies 204800 bytes'
    """
    lines: list[str] = []
    fitted, words = _fitted(query, key, value, attn_mask, is_causal, scale, enable_gqa, lines)
    if fitted.is_double or fitted.query.shape[-1] != query.shape[-1] or fitted.value.shape[-1] != value.shape[-1]:
        lines.append("result: is a part of what the kernel writes, or converted from it")
    plan = plan_of(fitted.query, fitted.key, fitted.value, layout="bhsd", scale=fitted.scale, **words, **_dropped(dropout_p, query))
    return Text("\n".join(lines or ["nothing is copied"]) + "\n\n" + plan)


def _fitted(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float | None, enable_gqa: bool,
            lines: list[str] | None = None) -> tuple[Fitted, dict[str, Any]]:
    """Returns the tensors for flashjit.attention, and its words."""
    words: dict[str, Any] = {}
    if attn_mask is not None and is_causal:
        raise InvalidError("is_causal: given beside attn_mask; leave one of them out")
    if is_causal:
        words = {"mask": "causal", "align": "top_left"}
    # Its memory is never written, so only its sizes and its kind count.
    if isinstance(attn_mask, CausalBias):
        sizes = attn_mask.seq_len_q, attn_mask.seq_len_kv
        if sizes != (query.shape[-2], key.shape[-2]):
            raise InvalidError(f"attn_mask: is for {sizes} queries and keys, and there are {(query.shape[-2], key.shape[-2])}")
        words = {"mask": "causal", "align": "top_left" if attn_mask.variant == CausalVariant.UPPER_LEFT else "bottom_right"}
        attn_mask = None
    fitted = fit(query, key, value, attn_mask, scale, enable_gqa, lines)
    if fitted.attn_mask is not None:
        words = _masked(fitted.attn_mask, fitted.query, fitted.key)
    return fitted, words


def _expanded(name: str, tensor: Tensor, query: Tensor, key: Tensor) -> Tensor:
    shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    try:
        return tensor.expand(shape)
    except RuntimeError:
        raise InvalidError(f"{name}: {tuple(tensor.shape)} does not go with {shape}, [batch, heads, queries, keys]") from None


def _masked(attn_mask: Tensor, query: Tensor, key: Tensor) -> dict[str, Any]:
    """A mask of bools shows keys, and one of floats is added. One head may stand for all, and so on."""
    mask = _expanded("attn_mask", attn_mask, query, key)
    if mask.dtype == torch.bool:
        # Heads that share a mask share what is found out about it.
        batch, head = (name if mask.shape[i] > 1 and mask.stride(i) else "0" for i, name in enumerate("bh"))
        return {"mask": f"attn_mask[{batch}, {head}, q, k] != 0", "attn_mask": mask}
    if mask.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise InvalidError(f"attn_mask: {mask.dtype} is neither bool nor a float of up to 32 bits; convert it")
    return {"score": "s + attn_mask[b, h, q, k]", "attn_mask": mask}


def _dropped(dropout: float, query: Tensor) -> dict[str, Any]:
    """Drops other weights in every call, by PyTorch's random numbers, so that torch.manual_seed repeats them."""
    if not dropout:
        return {}
    state = torch.randint(2**53, (2,), dtype=torch.int64, device=query.device)
    return {"spec": f"dropout={float(dropout)!r}", "seed": state[:1], "offset": state[1:]}


def flex_attention(query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Any] | None = None, block_mask: Any = None,
                   scale: float | None = None, enable_gqa: bool = False, return_lse: bool = False,
                   kernel_options: Mapping[str, Any] | None = None, *, return_aux: Any = None) -> Any:
    """This is torch.nn.attention.flex_attention, on [batch, heads, tokens, d]. `block_mask` is a BlockMask, or the
    function that one is made of, which is enough: the keys that can be skipped are derived from it. If a BlockMask
    has other blocks than its function, they count. The functions run at every call, to write down what they do;
    under torch.compile they run once for each graph. trace() and attention() do that once and for all.
    `kernel_options` tell PyTorch's kernels how to run, which changes no result; only their names are checked.

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
    mask_mod, states = block_mask, None
    if block_mask is not None and hasattr(block_mask, "mask_mod"):
        mask_mod, states = _function_and_blocks(block_mask, query, key)
    # A graph serves other lengths, too.
    lengths = None if torch.compiler.is_dynamo_compiling() else (*query.shape[:3], key.shape[2])
    words = trace(mask_mod, score_mod, device=query.device, lengths=lengths)
    if states is not None:
        words = _in_blocks(words, states, block_mask.BLOCK_SIZE)
    found = attention(query, key, value, layout="bhsd", scale=scale, lse=lse, align="top_left", **words)
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


def _function_and_blocks(block_mask: Any, query: Tensor, key: Tensor) -> tuple[Callable[..., Any] | None, Tensor | None]:
    """Returns the function of a BlockMask, and the state of each of its blocks, if they do not follow from the
    function."""
    from torch.nn.attention.flex_attention import noop_mask
    mask_mod: Callable[..., Any] = block_mask.mask_mod
    lengths = query.shape[2], key.shape[2]
    if tuple(block_mask.seq_lengths) != lengths:
        raise InvalidError(f"block_mask: is for {tuple(block_mask.seq_lengths)} queries and keys, and there are {lengths}")
    if not getattr(block_mask, "_flashjit_looked_at", False):
        leave_graph("block_mask: is new, and its blocks must be looked at; give its function, block_mask.mask_mod, which is enough, or call "
                    "flex_attention with it once outside of torch.compile")
        block_mask._flashjit_states = _own_states(block_mask)
        block_mask._flashjit_looked_at = True
    return None if mask_mod is noop_mask else mask_mod, block_mask._flashjit_states


def _own_states(block_mask: Any) -> Tensor | None:
    """Returns [batch, heads, blocks of queries, blocks of keys]: 0 for a block that is left out, 1 if the function
    decides what is seen, 2 if everything is seen. Returns None if the function says the same."""
    from torch.nn.attention.flex_attention import create_block_mask
    batch, heads = block_mask.shape[:2]
    q_len, k_len = block_mask.seq_lengths
    columns = -(-k_len // block_mask.BLOCK_SIZE[1])

    def listed(counts: Tensor, indices: Tensor) -> Tensor:
        given = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
        # Other indices go to a column of their own.
        seen = torch.where(given & (indices >= 0) & (indices < columns), indices, columns).long()
        return torch.zeros(*seen.shape[:-1], columns + 1, dtype=torch.uint8, device=indices.device).scatter_(-1, seen, 1)[..., :columns]

    def states_of(mask: Any) -> Tensor:
        states = listed(mask.kv_num_blocks, mask.kv_indices)
        if mask.full_kv_num_blocks is not None:
            states = torch.where(listed(mask.full_kv_num_blocks, mask.full_kv_indices) > 0, 2, states)
        return states.to(torch.uint8)

    own = states_of(block_mask)
    derived = states_of(create_block_mask(block_mask.mask_mod, batch, heads, q_len, k_len, device=own.device,
                                          BLOCK_SIZE=block_mask.BLOCK_SIZE))
    # A block that its function leaves to be asked, or all of which it lets through, may be listed as either.
    same = (own == derived) | ((own == 1) & (derived == 2))
    return None if bool(same.all()) else own


def _in_blocks(words: dict[str, Any], states: Tensor, sizes: tuple[int, int]) -> dict[str, Any]:
    """Limits the words to blocks, whose states a mask reads. One batch index or head may stand for all."""
    name = "block_states"
    while name in words:
        name += "_"
    indices = ["b" if states.shape[0] > 1 else "0", "h" if states.shape[1] > 1 else "0", f"q / {sizes[0]}", f"k / {sizes[1]}"]
    state = f"{name}[{', '.join(indices)}]"
    mask = f"{state} == 2 | {state} == 1 & ({words['mask']})" if words["mask"] else f"{state} != 0"
    return {**words, "mask": mask, name: states}


def register_with_transformers(name: str = "jit_attention") -> None:
    """Models of transformers then take attn_implementation="jit_attention", with masks as for "sdpa". They take a name
    with `flash` in it for FlashAttention. Models with attention of their own are refused when they ask for a mask."""
    if "flash" in name:
        raise InvalidError(f'name: transformers takes "{name}", as all with `flash` in them, for FlashAttention; use another')
    from flashjit.models import register
    register(name)

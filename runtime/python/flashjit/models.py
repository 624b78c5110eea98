"""The models of transformers call attention through this module, and ask it for masks. An argument of a model that this
attention does not honour is refused, where PyTorch's at times ignores it silently."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from typing import Any, Iterator, get_args

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask
from transformers.utils.output_capturing import _active_collector

from flashjit.calls import attention
from flashjit.capi import UnsupportedError
from flashjit.torch import _dropped, _expanded, _masked

_collector: Any = _active_collector

# A class of models that sets none of these has attention of its own.
_FLAGS = "_supports_sdpa", "_supports_flash_attn", "_supports_flex_attn", "_supports_attention_backend"

# Models hand these down to attention, but they do not affect its result: they are for other layers, for the loss, or
# went into mask and rope.
_OF_OTHERS = {"cache_position", "deterministic", "max_length_k", "max_length_q", "num_items_in_batch", "output_hidden_states",
              "output_router_logits", "position_ids", "return_dict", "use_cache"}

# These are refused for reasons that say more than their name.
_REASONS = {"cu_seq_lens_q": "packed sequences are told apart by position_ids, from which masks are made; leave cu_seq_lens_* out",
            "cu_seq_lens_k": "packed sequences are told apart by position_ids, from which masks are made; leave cu_seq_lens_* out",
            "output_attentions": "the weights are never in memory; leave it out, or use attn_implementation=\"eager\""}


def _attention(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
               scaling: float | Tensor | None = None, is_causal: bool | None = None, softcap: float | None = None, s_aux: Tensor | None = None,
               position_bias: Tensor | None = None, sliding_window: int | None = None, **rest: Any) -> tuple[Tensor, None]:
    _check_rest(rest)
    if attention_mask is None and sliding_window is not None and key.shape[2] > sliding_window:
        raise UnsupportedError(f"sliding_window: is {sliding_window}, there are {key.shape[2]} keys, and no attention_mask hides the others; give one")
    words: dict[str, Any] = {}
    if attention_mask is not None:
        words = _masked(attention_mask, query, key)
    elif query.shape[2] > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        words = {"mask": "causal", "align": "top_left"}  # This is as PyTorch does it; a filled cache comes with a mask.
    scores = [words.pop("score", None)]
    if softcap is not None:
        scores.insert(0, f"softcap({float(softcap)!r})")
    if position_bias is not None:
        scores.append("s + position_bias[b, h, q, k]")
        words["position_bias"] = _expanded("position_bias", position_bias, query, key)
    if any(scores):
        words["score"] = "; ".join(filter(None, scores))
    if s_aux is not None:
        words["sink"] = s_aux.float()
    if isinstance(scaling, Tensor):  # There may be a gradient of it.
        query, scaling = query * scaling, 1.0
    o: Tensor = attention(query, key, value, layout="bhsd", scale=scaling, **words, **_dropped(dropout, query))
    return o.transpose(1, 2).contiguous(), None


def _check_rest(rest: dict[str, Any]) -> None:
    given = [name for name, value in rest.items() if name not in _OF_OTHERS and value is not None and value is not False]
    # A model may keep the word to itself, and collect what attention returns.
    if not torch.compiler.is_dynamo_compiling():
        given += ["output_attentions" for name in _collector.get() or () if name.endswith("attentions")]
    for name in given:
        raise UnsupportedError(f"{name}: {_REASONS.get(name, 'is not known to this attention of transformers; use attn_implementation=' + repr('sdpa'))}")


def _mask(config: Any, **words: Any) -> Tensor | None:
    """Makes the mask of "sdpa", if the model hands it to the attention that is registered. A model that adds it to
    scores would add 0 and 1."""
    for why in _refusals_once(type(config).__module__, type(config).__name__):
        raise UnsupportedError(f"attn_implementation={config._attn_implementation!r}: {why}; use attn_implementation=\"eager\"")
    mask: Tensor | None = sdpa_mask(config=config, **words)
    return mask


def _refusals(module: str, name: str) -> tuple[str, ...]:
    """Explains why models of this class of configurations are refused. A model may name a union of classes."""
    return tuple(why for model in _classes(PreTrainedModel) for kind in get_args(model.config_class) or (model.config_class,)
                 if kind is not None and (kind.__module__, kind.__name__) == (module, name) for why in _looked_at(model))


_compiler: Any = torch.compiler
# torch.compile asks it, by texts, and traces nothing of it.
_refusals_once: Any = _compiler.assume_constant_result(_refusals)


def _classes(base: Any) -> Iterator[Any]:
    for found in base.__subclasses__():
        yield found
        yield from _classes(found)


@functools.lru_cache(maxsize=None)
def _looked_at(model: Any) -> tuple[str, ...]:
    """Explains why models of this class do not take the registered attention. Their flags tell it, or for old ones
    their code."""
    if not any(getattr(model, flag, False) for flag in _FLAGS):
        return f"{model.__name__} has attention of its own: it sets none of {', '.join(_FLAGS)}",
    try:
        code = inspect.getsource(sys.modules[model.__module__])
    except (KeyError, OSError, TypeError):  # The model was typed in.
        return ()
    own = re.search(r"^class (\w*Attention\w*)\((?:torch\.)?nn\.Module\):", code, re.MULTILINE)
    if own is None or "ALL_ATTENTION_FUNCTIONS" in code:
        return ()
    return f"{model.__name__} has attention of its own: {own[1]} never asks for what is registered",


def register(name: str) -> None:
    AttentionInterface.register(name, _attention)
    AttentionMaskInterface.register(name, _mask)

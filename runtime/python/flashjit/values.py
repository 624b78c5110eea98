"""Values of Python go to the C API. A number or a text that would lose something on the way is an error, which names
it."""

from __future__ import annotations

import difflib
import operator
import os
import re
import sys
from typing import Any, Sequence

from flashjit.capi import InvalidError
from flashjit.tensors import NAMES

_EXACT = 2**53  # Numbers go as doubles, which have all whole numbers up to it.
_LARGEST_FP32 = 3.4028235677973366e38  # Smaller numbers are rounded to a finite one.


def shown(value: object) -> str:
    """Returns a value as messages show it, because an array would be printed whole."""
    if value is None or isinstance(value, (str, int, float)):
        text = repr(value)
        return text if len(text) <= 80 else text[:77] + "..."
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" + (f" of {len(shape)} dimensions" if isinstance(shape, tuple) else "")


def c_string(name: str, value: Any) -> bytes:
    """Returns a string of C, which a zero byte would cut short."""
    try:
        found = os.fsencode(value)
    except (TypeError, UnicodeEncodeError):
        raise InvalidError(f"{name}: {shown(value)} is no text that can be written as UTF-8; give another") from None
    if b"\0" in found:
        raise InvalidError(f"{name}: {value!r} has a zero byte in it, where C's strings end; leave it out")
    return found


def encoded(name: str, value: Any) -> bytes | None:
    """Returns such a string, or null."""
    return None if value is None else c_string(name, value)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, int) or value not in (0, 1):
        raise InvalidError(f"{name}: {shown(value)} is neither True nor False")
    return bool(value)


def integer(name: str, value: Any, low: int = 0, high: int = 2**63 - 1) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidError(f"{name}: {shown(value)} is no whole number; give an int from {low} to {high}") from None
    if not low <= number <= high:
        raise InvalidError(f"{name}: {shown(number)} is outside {low}..{high}")
    return number


def address(name: str, value: Any) -> int | None:
    """Returns a stream of CUDA as a number."""
    return None if value is None else integer(name, value, 0, 2**64 - 1)


def milliseconds(name: str, seconds: Any) -> int:
    """Returns whole milliseconds. 0 means none, so less than one becomes one."""
    if not isinstance(seconds, (int, float)) or seconds != seconds:
        raise InvalidError(f"{name}: {shown(seconds)} is no number of seconds")
    if not 0 <= seconds <= 1e15:
        raise InvalidError(f"{name}: {shown(seconds)} seconds are outside 0..1e15; 0 stands for none")
    return max(1, round(seconds * 1000)) if seconds else 0


class Byte(int):
    """This is a whole number whose type tells that it is one of 0 to 255, as NumPy's uint8 does. Kernels then need no
    64 bits beside it."""


def number(name: str, value: Any) -> Any:
    """Returns a number that masks and scores read, as Python's. Any other value is returned as it is."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        value = Byte(value) if isinstance(value, numpy.uint8) else value.item()
    if isinstance(value, float):
        if _LARGEST_FP32 <= abs(value) < float("inf"):
            raise InvalidError(f"{name}: {value!r} is beyond fp32, as which kernels read it; give inf, or a smaller number")
    elif isinstance(value, int) and abs(value) > _EXACT:
        raise InvalidError(f"{name}: {shown(value)} is beyond 2^53, up to which whole numbers are exact here; give a tensor of one element")
    return value


# Other libraries have these names for arguments that attention() has under another name, or in another form.
ELSEWHERE = {
    "is_causal": 'mask="causal"', "causal": 'mask="causal"', "attn_mask": 'score="s + bias[b, h, q, k]" with bias=, or '
    'flashjit.torch.scaled_dot_product_attention', "dropout_p": 'spec="dropout=0.1"', "dropout": 'spec="dropout=0.1"',
    "softmax_scale": "scale=", "window_size": 'mask="window(left, right)"', "softcap": 'score="softcap(50)"',
    "alibi_slopes": 'score="alibi" with slope=', "cu_seqlens_q": "offsets_q=", "cu_seqlens_k": "offsets_k=",
    "cu_seqlens": 'offsets_q= and offsets_k=, with layout="packed"', "max_seqlen_q": "max_q_len=", "max_seqlen_k": "max_k_len=",
    "seed": 'spec="dropout=0.1", which reads it', "offset": 'spec="dropout=0.1", which reads it',
    "sms": "that of Kernel.bind, of a kernel of flashjit.Engine.prepare",
    "window": 'mask="window(left, right)"', "document": 'mask="document(doc)" with doc=', "alibi": 'score="alibi" with slope=',
    "return_lse": "lse=True", "enable_gqa": "nothing: k and v may have fewer heads",
    **dict.fromkeys(("score_mod", "mask_mod", "block_mask"), "flashjit.torch.flex_attention"),
    **dict.fromkeys(("cache_seqlens", "seqused_k", "kv_lens", "seq_lens_k"), "k_lens="), "page_table": "block_table=", "s_aux": "sink=",
    **dict.fromkeys(("k_scale", "k_descale"), "scale_k="), **dict.fromkeys(("v_scale", "v_descale"), "scale_v="),
    **dict.fromkeys(("q_scale", "q_descale"), "scale_q="), "kv_scale": "scale_k= and scale_v=", "sm_scale": "scale=",
}


def unread(name: str, known: Sequence[str], why: str) -> InvalidError:
    """Makes the error for a name that is no parameter of attention(). `known` has the names that it takes."""
    meant = ELSEWHERE.get(name) or next((word + "=" for word in difflib.get_close_matches(name, known, 1)), None)
    return InvalidError(f"{name}: {why}; " + (f"did you mean {meant}?" if meant else "leave it out"))


def _names_without_values(spec: str) -> list[str]:
    """Returns the names that rows such as document(doc) are given, in a spec that attention() wrote, and that are not declared."""
    texts = dict(re.findall(r'(\w+)="([^"]*)"', spec))
    declared = re.findall(r"(\w+):", texts.get("params", ""))
    given = re.findall(r"[(,]\s*([A-Za-z_]\w*)\s*(?=[,)])", texts.get("mask", "") + " " + texts.get("score", ""))
    return [name for name in given if name not in declared]


def in_words_of_calls(error: InvalidError, known: Sequence[str], spec: str = "") -> InvalidError:
    """Rewords an error of a spec that attention() wrote: parameters are given to it by their names, and not declared."""
    declared = re.match(r"params: (\w+) is declared, but neither mask nor score uses it", error.message)
    if declared:
        name = declared.group(1)
        near = None if name in ELSEWHERE else next(iter(difflib.get_close_matches(name, _names_without_values(spec), 1, 0.5)), None)
        why = "is no word of attention(), and neither mask nor score reads it"
        return InvalidError(f"{name}: {why}; they read `{near}`: give both the same name", error.kind) if near else unread(name, known, why)
    reserved = re.match(r"params: (\w+) is a word of the language", error.message)
    if reserved and reserved.group(1) in ELSEWHERE:
        return unread(reserved.group(1), known, "is no word of attention(), but one of masks and scores")
    other = re.match(r"(?:mask|score): `(\w+)` reads `(\w+)` as (\w+)\[(\d)\], but it is declared as (\w+)(?:\[(\d)\])?", error.message)
    if other:
        reader, name, dtype, rank, given, given_rank = other.groups()
        what = f"pass it as {NAMES[dtype]}" if given_rank == rank else f"pass a tensor of {rank} dimensions"
        return InvalidError(f"{name}: is {given}[{given_rank or 0}], and `{reader}` reads {dtype}[{rank}]; {what}", error.kind)
    unknown = re.match(r"(\w+: unknown name `(\w+)`); declare ", error.message)
    if unknown:
        what, name = unknown.groups()
        return InvalidError(f"{what}; pass {name}=tensor, or a number", error.kind, error.detail)
    return error

"""Masks and scores of the whole sequence are rewritten for the tokens that one call has. The language is that of
compiler/SPEC.md; the library reports a text that is not in it when the kernel is made."""

from __future__ import annotations

import functools
import re
from typing import Iterator, Mapping, NamedTuple, Sequence

from flashjit.distributed.places import Run

_TOKEN = re.compile(r"\s*([A-Za-z_]\w*|(?:\d[\w.]*|\.\d\w*)(?:(?<=[eE])[+-]\d+)?|<=|>=|==|!=|.)", re.S)
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
PLACES = frozenset(("q", "k", "qpos", "q_len", "k_len"))
HEADS = frozenset(("h", "hk"))

# These named rows read positions or heads. They are written out as in SPEC.md; $1, $2 are their arguments.
_ROWS = {
    "causal": "k <= qpos",
    "causal_top_left": "k <= q",
    "causal_bottom_right": "k <= q + k_len - q_len",
    "window": "($1 < 0 | k >= qpos - $1) & ($2 < 0 | k <= qpos + $2)",
    "chunk": "k >= qpos / $1 * $1 & k < qpos / $1 * $1 + $1",
    "prefix": "k < $1 | k <= qpos",
    "document": "$1[b, max(qpos, 0)] == $1[b, k]",
    "tree": "k < k_len - q_len | bit($1[b, q, max(k + q_len - k_len, 0) / 64], max(k + q_len - k_len, 0) % 64)",
    "alibi": "s + slope[h] * (k - qpos)",
    "bias": "s + $1[h, q, k]",
    "bias_b": "s + $1[b, h, q, k]",
}
_READS_OF_ROWS = {"alibi": {"slope"}}  # They read these beside their arguments.

# A call brings these numbers for the texts below. Parameters of the user cannot have such names.
SCALARS = ("q_begin", "k_begin", "q_tokens", "k_tokens", "h_begin", "hk_begin", "nearest", "farthest")
_REACH = 2**30 - 1  # the longest sequence that there is; with this limit, ints need no 64 bits


def tokens_of(text: str) -> list[str]:
    return [found.group(1) for found in _TOKEN.finditer(text) if found.group(1).strip()]


def _closing(tokens: Sequence[str], at: int) -> int:
    """Returns the index behind the parenthesis that closes the one at `at`, or the end."""
    depth = 0
    for end in range(at, len(tokens)):
        depth += (tokens[end] in "([") - (tokens[end] in ")]")
        if depth == 0:
            return end + 1
    return len(tokens)


def split(tokens: Sequence[str], by: str) -> list[list[str]]:
    """Returns the parts between operators that stand in no parentheses."""
    parts: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token in "([") - (token in ")]")
        if token == by and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _written_out(tokens: Sequence[str]) -> Iterator[str]:
    at = 0
    while at < len(tokens):
        row = _ROWS.get(tokens[at])
        if row is None or tokens[at + 1:at + 2] == ["["]:
            yield tokens[at]
            at += 1
            continue
        at += 1
        arguments: list[list[str]] = []
        if tokens[at:at + 1] == ["("]:
            end = _closing(tokens, at)
            arguments = [list(_written_out(part)) for part in split(tokens[at + 1:end - 1], ",")]
            at = end
        yield "("
        for token in re.findall(r"\$\d|[^$]+", row):
            if token[0] != "$":
                yield from tokens_of(token)
                continue
            argument = arguments[int(token[1]) - 1] if int(token[1]) <= len(arguments) else []
            yield from argument if len(argument) == 1 else ("(", *argument, ")")
        yield ")"


@functools.lru_cache(1024)
def written_out(text: str) -> tuple[str, ...]:
    return tuple(_written_out(tokens_of(text)))


@functools.lru_cache(1024)
def reads(text: str | None) -> frozenset[str]:
    """Returns all names in the text: variables, parameters, and functions."""
    if text is None:
        return frozenset()
    names = {token for token in (*written_out(text), *tokens_of(text)) if _NAME.match(token)}
    return frozenset(names.union(*(_READS_OF_ROWS.get(name, ()) for name in names)))


def _ranged(name: str, low: int = 0, high: int = _REACH) -> str:
    return f"min(max({name}, {low}), {high})"


class Placed(NamedTuple):
    """These are texts for one call, and the numbers that they read. `bounds` are fields of the spec that spare its ints
    64 bits."""

    mask: str | None
    score: str | None
    scalars: Mapping[str, int]
    bounds: str = ""


@functools.lru_cache(4096)
def placed(mask: str | None, score: str | None, q: Run, k: Run, lengths: tuple[int, int], top_left: bool, h_begin: int | None,
           hk_begin: int | None) -> Placed:
    """Turns texts of the whole sequence into texts of a call. `lengths` are those of the whole sequence, of queries and
    keys. `h_begin` is the first query head of the call, or None if it has all."""
    def position(name: str, run: Run) -> str:
        local = name if run.step == 1 else f"{name} * {run.step}"
        return f"({local} + {_ranged(name + '_begin')})"

    shift = f"{_ranged('k_tokens')} - {_ranged('q_tokens')}"
    instead = {"q": position("q", q), "k": position("k", k), "q_len": _ranged("q_tokens"), "k_len": _ranged("k_tokens")}
    instead["qpos"] = instead["q"] if top_left or lengths[0] == lengths[1] else f"({instead['q']} + {shift})"
    values = {"q_begin": q.begin, "k_begin": k.begin, "q_tokens": lengths[0], "k_tokens": lengths[1]}
    if h_begin is not None and hk_begin is not None:
        instead |= {"h": f"(h + {_ranged('h_begin', 0, 65535)})", "hk": f"(hk + {_ranged('hk_begin', 0, 65535)})"}
        values |= {"h_begin": h_begin, "hk_begin": hk_begin}
    # A text stays as it was written if nothing in it changes, because it then gives the same kernel as other calls.
    texts = [text if text is None or instead.keys().isdisjoint(written_out(text)) else
             " ".join(instead.get(token, token) for token in written_out(text)) for text in (mask, score)]
    used = {name for text in texts if text is not None for name in tokens_of(text)}
    bounds = ""
    if max(q.step, k.step) > 1 and max(q.size, k.size) <= 2**20:
        bounds = f"q_len<={2**20} k_len<={2**20}"
    return Placed(texts[0], texts[1], {name: value for name, value in values.items() if name in used}, bounds)


def banded(low: int | None, high: int | None) -> Placed:
    """Returns the mask low <= k - q <= high of a call's own queries and keys. A width is part of the text: it is the
    user's, equal in all calls, and decides which kernels are chosen."""
    if high is None:
        return Placed(None, None, {}) if low is None else Placed(f"k >= q + {_ranged('nearest', -_REACH)}", None, {"nearest": low})
    last = f"q + {_ranged('farthest', -_REACH)}"
    return Placed(f"k <= {last}" if low is None else f"k <= {last} & k >= {last} - {high - low}", None, {"farthest": high})

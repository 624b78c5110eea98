"""A mask names positions, which limit the keys that a share of queries needs. If a mask says more than that, or
something that is not known here, queries see fewer keys than this module says, never more, and the kernel finds that
out."""

from __future__ import annotations

import bisect
import re
from typing import Mapping, NamedTuple, Sequence, Union

from flashjit.distributed.lists import Lists
from flashjit.distributed.places import Run
from flashjit.distributed.texts import split, tokens_of

_FAR = 2**40  # beyond any position


class Band(NamedTuple):
    """A band is low <= key - query <= high."""

    low: int
    high: int

    def keys(self, first: int, last: int) -> tuple[int, int]:
        """Returns limits of the keys that queries first..last see."""
        return first + self.low, last + self.high

    def queries(self, first: int, last: int) -> tuple[int, int]:
        return first - self.high, last - self.low


class Sequences(NamedTuple):
    """Queries see keys of their own piece of the sequence. `shift` leads from a query's position to its position among
    the keys."""

    begins: tuple[int, ...]  # begins of pieces, from 0 on, and the end of the last one
    shift: int

    def _piece(self, first: int, last: int) -> tuple[int, int]:
        low, high = bisect.bisect_right(self.begins, first) - 1, bisect.bisect_right(self.begins, last)
        return (self.begins[low] if low >= 0 else -_FAR), (self.begins[high] - 1 if high < len(self.begins) else _FAR)

    def keys(self, first: int, last: int) -> tuple[int, int]:
        return self._piece(max(first + self.shift, 0), max(last + self.shift, 0))

    def queries(self, first: int, last: int) -> tuple[int, int]:
        low, high = self._piece(first, last)
        return (low - self.shift if low > 0 else -_FAR), high - self.shift


class Blocks(NamedTuple):
    """Queries see keys of their own piece of `size` positions."""

    size: int
    shift: int

    def keys(self, first: int, last: int) -> tuple[int, int]:
        return (first + self.shift) // self.size * self.size, (last + self.shift) // self.size * self.size + self.size - 1

    def queries(self, first: int, last: int) -> tuple[int, int]:
        return first // self.size * self.size - self.shift, last // self.size * self.size + self.size - 1 - self.shift


Limit = Union[Band, Sequences, Blocks]


class Sight(NamedTuple):
    """`whole` means that the limits, which are then all bands, are the whole mask. `lists` of blocks limit it further."""

    limits: tuple[Limit, ...]
    whole: bool
    lists: Lists | None = None

    def band(self) -> Band:
        bands = [limit for limit in self.limits if isinstance(limit, Band)]
        return Band(max([-_FAR, *(band.low for band in bands)]), min([_FAR, *(band.high for band in bands)]))

    def cut(self, q: Run, k: Run) -> tuple[Run, Run]:
        """Removes queries and keys that certainly see, or are seen by, none of the others."""
        if self.lists is not None and self.lists.seen is not None and q.size and k.size:
            q, k = self.lists.seen.cut(q, k)
        for _ in range(2):  # Keys that are gone may take queries with them.
            for limit in self._limits_of_all():
                if q.size and k.size:
                    k = k.part(*limit.keys(q.begin, q.last))
                if q.size and k.size:
                    q = q.part(*limit.queries(k.begin, k.last))
        return q, k

    def _limits_of_all(self) -> tuple[Limit, ...]:
        """Returns the limits of all keys. A mask does not apply to blocks that are listed as full."""
        return () if self.lists is not None and self.lists.has_full else self.limits

    def sees_all(self, q: Run, k: Run) -> bool:
        band = self.band()
        return self.whole and k.last - q.begin <= band.high and k.begin - q.last >= band.low

    def is_near(self) -> bool:
        """Returns whether far tokens see nothing of each other on both sides."""
        if self.lists is not None and self.lists.seen is not None and self.lists.seen.is_sparse():
            return True
        limits = Sight(self._limits_of_all(), False)
        return any(not isinstance(limit, Band) for limit in limits.limits) or max(-limits.band().low, 0) < _FAR > limits.band().high


_KNOWN = {"k<=q": 0, "q>=k": 0, "k<q": -1, "q>k": -1}
_OF_QPOS = {"k<=qpos": 0, "qpos>=k": 0, "k<qpos": -1, "qpos>k": -1}


def _number(tokens: Sequence[str], scalars: Mapping[str, float]) -> int | None:
    """Returns an argument that is a whole number, or a parameter of the call that is one."""
    text = "".join(tokens)
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    value = scalars.get(text)
    return value if isinstance(value, int) else None


def _limit_of(part: Sequence[str], shift: int, lengths: tuple[int, int], scalars: Mapping[str, float]) -> Limit | None:
    text = "".join(part)
    if text in _KNOWN or text == "causal_top_left":
        return Band(-_FAR, _KNOWN.get(text, 0))
    if text in _OF_QPOS or text == "causal":
        return Band(-_FAR, shift + _OF_QPOS.get(text, 0))
    if text == "causal_bottom_right":
        return Band(-_FAR, lengths[1] - lengths[0])
    if part[0] not in ("window", "chunk") or part[1:2] != ["("] or part[-1] != ")":
        return None
    numbers = [_number(argument, scalars) for argument in split(part[2:-1], ",")]
    left, right = (*numbers, None, None)[:2]
    if part[0] == "window" and len(numbers) == 2 and left is not None and right is not None:
        return Band(shift - left if left >= 0 else -_FAR, shift + right if right >= 0 else _FAR)
    return Blocks(left, shift) if part[0] == "chunk" and len(numbers) == 1 and left is not None and left > 0 else None


def sight_of(mask: str | None, lengths: tuple[int, int], top_left: bool, scalars: Mapping[str, float],
             begins: Sequence[int] | None = None) -> Sight:
    """`begins` are those of documents, if the host knows them. Their mask is part of the text."""
    shift = 0 if top_left else lengths[1] - lengths[0]
    limits: list[Limit] = [] if begins is None else [Sequences(tuple(begins), shift)]
    whole = begins is None
    tokens = [] if mask is None else tokens_of(mask)
    if len(split(tokens, "|")) > 1:
        return Sight(tuple(limits), False)
    for part in split(tokens, "&") if tokens else []:
        while part[:1] == ["("] and _is_one(part):
            part = part[1:-1]
        limit = _limit_of(part, shift, lengths, scalars) if part else None
        whole = whole and isinstance(limit, Band)
        if limit is not None:
            limits.append(limit)
    return Sight(tuple(limits), whole)


def _is_one(part: Sequence[str]) -> bool:
    """Returns whether the first parenthesis is closed by the last."""
    depth = 0
    for at, token in enumerate(part):
        depth += (token in "([") - (token in ")]")
        if depth == 0:
            return at == len(part) - 1
    return False

"""Ranks share a problem, which takes several calls: some queries of one rank meet some keys of another, with their own
texts."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Mapping, NamedTuple

from flashjit.distributed.lists import Lists
from flashjit.distributed.places import Run, runs_of
from flashjit.distributed.sights import Sight
from flashjit.distributed.texts import HEADS, PLACES, Placed, banded, placed, reads


DRAWN_TOGETHER = 32  # dropout draws for this many neighbouring tokens together


class Pair(NamedTuple):
    """These are the queries and keys of one call. `fused` means that they are several runs: then everything is seen, or
    everything that is not behind the query."""

    q: Run
    k: Run
    is_full: bool
    fused: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """This is the request of a call of attention() on tensors of the whole sequence. `lengths` are its queries and
    keys."""

    mask: str | None
    score: str | None
    scale: float | None
    top_left: bool
    spec: str
    lengths: tuple[int, int]
    order: str
    sight: Sight  # It has the lists of blocks, if there are any.
    scalars: Mapping[str, float]
    travel: str | None = None
    # These are the first query head and KV head here, if a rank has only some.
    heads_begin: tuple[int, int] | None = None

    @property
    def lists(self) -> Lists | None:
        return self.sight.lists

    @functools.cached_property
    def score_has_places(self) -> bool:
        return bool(reads(self.score) & PLACES)

    @functools.cached_property
    def drops(self) -> bool:
        """Returns whether weights are dropped, which depends on their positions in the sequence and their head: kernels
        get places, and calls have all heads."""
        return any(field.partition("=")[0] == "dropout" for field in self.spec.split())

    @functools.cached_property
    def reads_heads(self) -> bool:
        return bool((reads(self.mask) | reads(self.score)) & HEADS)

    @functools.lru_cache(1024)
    def of_heads(self, q_head: int, kv_head: int) -> Problem:
        """Returns the problem for a call with heads from these on, counted from those that this one has."""
        begin = self.heads_begin or (0, 0)
        return dataclasses.replace(self, heads_begin=(begin[0] + q_head, begin[1] + kv_head))

    @functools.lru_cache(65536)
    def pairs(self, ranks: int, rank: int, source: int | None) -> list[Pair]:
        """Returns the calls for queries of `rank` over keys of `source`, or over all keys in the order of the sequence."""
        own = rank == source and self.lengths[0] == self.lengths[1]
        blocks = self.lists.sizes if self.lists is not None else (DRAWN_TOGETHER, DRAWN_TOGETHER) if self.drops else (1, 1)
        have_places = self.score_has_places or self.drops or self.lists is not None
        keys = (Run(0, 1, self.lengths[1], 0),) if source is None else runs_of(self.order, ranks, source, self.lengths[1])
        return pairs_of(self.sight, have_places, runs_of(self.order, ranks, rank, self.lengths[0]), keys, own, blocks)

    @functools.lru_cache(65536)
    def needed(self, ranks: int, rank: int, source: int) -> slice:
        """Returns the keys in the share of `source` that `rank` reads, or an empty slice if there are none."""
        pairs = self.pairs(ranks, rank, source)
        if not pairs:
            return slice(0, 0)
        return slice(min(pair.k.at for pair in pairs), max(pair.k.at + pair.k.size for pair in pairs))

    @functools.lru_cache(65536)
    def words(self, pair: Pair) -> Placed:
        """Returns the texts of a call, which counts its queries and keys from 0 on."""
        if self.drops:
            return _told(self, pair)
        h, hk = self.heads_begin if self.heads_begin and self.reads_heads else (None, None)
        in_own_places = pair.is_full or self.sight.whole and (pair.fused or pair.q.step == pair.k.step)
        if self.score_has_places or not in_own_places:
            return placed(None if pair.is_full else self.mask, self.score, pair.q, pair.k, self.lengths, self.top_left, h, hk)
        of_score = placed(None, self.score, pair.q, pair.k, self.lengths, self.top_left, h, hk) if h is not None else Placed(None, self.score, {})
        of_mask = Placed(None if pair.is_full else "causal_top_left", None, {}) if pair.is_full or pair.fused else _in_own_places(self.sight, pair)
        return Placed(of_mask.mask, of_score.score, {**of_mask.scalars, **of_score.scalars})


def _told(problem: Problem, pair: Pair) -> Placed:
    """Returns texts of the whole sequence, for a kernel that takes places."""
    numbers = {f"{rows}_{name}": number for rows, run, length in (("q", pair.q, problem.lengths[0]), ("k", pair.k, problem.lengths[1]))
               for name, number in (("begin", run.begin), ("step", run.step), ("total", length))}
    words = "places align=top_left" if problem.top_left else "places"
    return Placed(None if pair.is_full else problem.mask, problem.score, numbers, words)


def _in_own_places(sight: Sight, pair: Pair) -> Placed:
    """Returns a band, whose text limits by how many tokens of the call a key may be away from its query."""
    q, k = pair.q, pair.k
    band, away = sight.band(), q.begin - k.begin
    low, high = -((-band.low - away) // q.step), (band.high + away) // q.step
    bounded_below, bounded_above = low > -(q.size - 1), high < k.size - 1
    if bounded_above:
        # These have names, so that kernels of all ranks and of one process alone are equal.
        for name, at in (("causal_top_left", 0), ("causal_bottom_right", k.size - q.size)):
            if high == at and not bounded_below:
                return Placed(name, None, {})
    return banded(low if bounded_below else None, high if bounded_above else None)


def pairs_of(sight: Sight, have_places: bool, q_runs: tuple[Run, ...], k_runs: tuple[Run, ...], own: bool,
             blocks: tuple[int, int] = (1, 1)) -> list[Pair]:
    """`own` means that both are the same tokens. `have_places` means that each run is told its own position. Parts of
    runs, of queries and of keys, begin with a block of this many tokens of the sequence, as the runs do."""
    band = sight.band()
    if own and sight.whole and not have_places and len(q_runs) > 1 and band.high == 0 and band.low <= q_runs[0].begin - q_runs[-1].last:
        # A share has its tokens in the order of the sequence.
        whole = q_runs[0]._replace(size=sum(run.size for run in q_runs))
        return [Pair(whole, whole, False, True)]
    found = []
    for q in q_runs:
        for k in k_runs:
            seeing, seen = (part.back_to(block) for part, block in zip(sight.cut(q, k), blocks))
            if seeing.size and seen.size:
                found.append(Pair(seeing, seen, sight.sees_all(seeing, seen)))
    return found if have_places else _fused(_fused(found, "q", "k"), "k", "q")


def _fused(pairs: list[Pair], same: str, other: str) -> list[Pair]:
    """Joins full calls with equal queries, or keys, if the others are neighbours in their share."""
    made: list[Pair] = []
    waiting: dict[Any, int] = {}
    for pair in pairs:
        common: Run = getattr(pair, same)
        next_to: Run = getattr(pair, other)
        key = common.at, common.size, next_to.at
        at = waiting.pop(key, None) if pair.is_full else None
        if at is None:
            at = len(made)
            made.append(pair)
        else:
            before: Run = getattr(made[at], other)
            both = before._replace(size=before.size + next_to.size)
            made[at] = Pair(both, common, True, True) if other == "q" else Pair(common, both, True, True)
        if pair.is_full:
            whole: Run = getattr(made[at], other)
            waiting[(common.at, common.size, whole.at + whole.size)] = at
    return made

"""Lists of blocks work over ranks. Numbers in the whole sequence name the blocks of keys that a block of queries sees,
and every rank has all lists. A call reads those of its own queries, with numbers from its own first key on. Numbers
outside of a call's blocks mean nothing to a kernel."""

from __future__ import annotations

import array
import zlib
from typing import Any, Mapping, NamedTuple

import torch
from torch import Tensor

from flashjit.capi import InvalidError, UnsupportedError
from flashjit.distributed.places import Run
from flashjit.values import integer, shown

NAMES = ("block_count", "block_index", "full_count", "full_index")
_UNIT = 64  # tokens; kernels take blocks of a multiple of it


class Seen(NamedTuple):
    """This describes what lists name, by the chunks that shares are made of. `chunks` are the tokens of a chunk, of
    queries and of keys; `sizes` those of a block. For chunks of queries, and of keys for each of them, `table` has
    the first and the last block of keys that is named, and of queries that name one: ints, the first above the last
    if there are none. It is bytes, because these know their hash."""

    chunks: tuple[int, int]
    sizes: tuple[int, int]
    chunk_count: int
    table: bytes

    def cut(self, q: Run, k: Run) -> tuple[Run, Run]:
        """Cuts queries and keys to those that name, or are named by, one of the others, from the first to the last."""
        table = memoryview(self.table).cast("i")
        found = [table[at:at + 4] for row in range(q.begin // self.chunks[0], q.last // self.chunks[0] + 1)
                 for column in range(k.begin // self.chunks[1], k.last // self.chunks[1] + 1)
                 for at in (4 * (row * self.chunk_count + column),) if table[at] <= table[at + 1]]
        if not found:
            return q._replace(size=0), k._replace(size=0)
        of_q, of_k = self.sizes
        low, high, first, last = (min(one[0] for one in found), max(one[1] for one in found), min(one[2] for one in found),
                                  max(one[3] for one in found))
        return q.part(first * of_q, last * of_q + of_q - 1), k.part(low * of_k, high * of_k + of_k - 1)

    def is_sparse(self) -> bool:
        """Returns whether half of the chunks, or more, see nothing of each other."""
        table = memoryview(self.table).cast("i")
        return 2 * sum(table[at] > table[at + 1] for at in range(0, len(table), 4)) >= self.chunk_count**2


class Lists(NamedTuple):
    """`sizes` are the tokens of a block, of queries and of keys. `heads` have lists of their own, `of_heads` are those
    of q and of k. `seen` is what the host knows."""

    sizes: tuple[int, int]
    heads: int
    of_heads: tuple[int, int]
    has_full: bool
    seen: Seen | None = None

    def told(self) -> str:
        """Returns the text that ranks compare. Only kernels look at lists that lie on a GPU."""
        return f"{self.sizes}, {self.heads} heads, {self.has_full}, {None if self.seen is None else zlib.crc32(self.seen.table)}"

    def words(self, q: Run, k: Run, heads: int) -> str:
        return f"blocks={self.sizes[0] // q.step}/{self.sizes[1] // k.step}/{heads}"

    def of_some(self, given: Mapping[str, Any], begin: tuple[int, int], heads: tuple[int, int]) -> dict[str, Tensor]:
        """Returns the lists of a call's heads: `heads` of q and of k, from `begin` on."""
        first, count = (0, 1) if self.heads == 1 else (begin[0], heads[0]) if self.heads == self.of_heads[0] else (begin[1], heads[1])
        return {name: given[name].narrow(1, first, count) for name in NAMES if name in given}

    def of_call(self, given: Mapping[str, Any], begin: tuple[int, int], heads: tuple[int, int], q: Run, k: Run) -> dict[str, Tensor]:
        """Returns the lists of a call's queries, with numbers from its first key on. Both begin with a block."""
        row, before = q.begin // self.sizes[0], k.begin // self.sizes[1]
        rows = -(-q.size * q.step // self.sizes[0])
        made = {name: x.narrow(2, row, rows) for name, x in self.of_some(given, begin, heads).items()}
        return {name: x - before if before and name.endswith("index") else x for name, x in made.items()}


def _check_shapes(given: Mapping[str, Tensor], sizes: tuple[int, int], queries: int, batch: int, of_heads: tuple[int, int]) -> None:
    rows, heads = -(-queries // sizes[0]), max(x.shape[1] for x in given.values())
    for name, x in given.items():
        if x.dtype != torch.int32:
            raise InvalidError(f"{name}: is {x.dtype}, and lists are int32; convert it")
        shape = x.shape if name.endswith("count") else x.shape[:-1]
        if shape[2:] != (rows,):
            raise InvalidError(f"{name}: is {tuple(x.shape)}, and the whole sequence has {rows} blocks of {sizes[0]} queries; every rank gives the lists "
                               "of all of them")
        if shape[0] not in (1, batch):
            raise InvalidError(f"{name}: is {tuple(x.shape)}, and the batch is {batch}; give lists for 1 or for {batch}")
        if shape[1] not in (1, *of_heads) or shape[1] not in (1, heads):
            raise InvalidError(f"{name}: has lists for {shape[1]} heads, and there are {of_heads[0]} query heads and {of_heads[1]} KV heads; give as many of "
                               "either kind, or 1")
        other = given[name.replace("index", "count")].shape
        if shape != other:
            raise InvalidError(f"{name}: is {tuple(x.shape)}, and its counts are {tuple(other)}; give an index for each count")


def _with_dimensions(name: str, x: Tensor) -> Tensor:
    """Returns [batch, heads, rows] and maybe room, of which the first ones may be left out in `x`."""
    rank = 3 if name.endswith("count") else 4
    if not rank - 2 <= x.dim() <= rank:
        raise InvalidError(f"{name}: has {x.dim()} dimensions, and lists have {rank}: batch, heads, blocks of queries{', room' if rank == 4 else ''}")
    return x.view((1,) * (rank - x.dim()) + tuple(x.shape))


def taken(blocks: Any, given: dict[str, Tensor], batch: int, queries: int, of_heads: tuple[int, int]) -> Lists | None:
    """Returns the lists of a call, and gives them a batch and heads if these are left out."""
    named = [name for name in NAMES if name in given]
    if blocks is None:
        if named:
            raise InvalidError(f"{named[0]}: given, and blocks= is not; say the tokens of a block, as in blocks=128")
        return None
    pair = [blocks, blocks] if isinstance(blocks, int) else blocks
    if isinstance(pair, str) or not isinstance(pair, (list, tuple)) or len(pair) != 2:
        raise InvalidError(f"blocks: {shown(blocks)} is neither a number of tokens nor two, those of queries and of keys, as in (64, 128)")
    sizes = integer("blocks", pair[0]), integer("blocks", pair[1])
    for size in sizes:
        if size < _UNIT or size % _UNIT or size > 2**16:
            raise InvalidError(f"blocks: {size} tokens are no multiple of {_UNIT} from {_UNIT} to {2**16}")
    for name, needed in zip(NAMES, (True, True, "full_index" in given, "full_count" in given)):
        if needed and name not in given:
            raise InvalidError(f"{name}: missing; lists are numbers of blocks, and how many of them count")
    given.update({name: _with_dimensions(name, given[name]) for name in named})
    lists = {name: given[name] for name in named}
    _check_shapes(lists, sizes, queries, batch, of_heads)
    heads = max(x.shape[1] for x in lists.values())
    given.update({name: x.expand(-1, heads, *x.shape[2:]) for name, x in lists.items()})
    return Lists(sizes, heads, of_heads, "full_count" in given)


def _misfit(size: int, length: int, ranks: int, order: str) -> str | None:
    """Explains why shares of this many tokens in all are not made of blocks of this size, and what helps."""
    if order == "striped":
        whole = _UNIT * ranks
        return None if size % whole == 0 else (f"order=\"striped\" divides a block among {ranks} ranks, of which each has no multiple of {_UNIT}; use blocks "
                                               f"of a multiple of {whole}, or another order")
    chunks = ranks * (2 if order == "zigzag" else 1)
    return None if length // chunks % size == 0 else (f"order=\"{order}\" has chunks of {length // chunks}; pad the sequence to a multiple of "
                                                      f"{chunks * size} tokens")


def misfit(lists: Lists, way: str, lengths: tuple[int, int], ranks: int, order: str) -> str | None:
    """Explains why a way cannot take the lists, if so. A gather has keys in the order of the sequence, and ulysses
    queries, too."""
    for at, what in enumerate({"ulysses": (), "gather": ("queries",)}.get(way, ("queries", "keys")) if ranks > 1 else ()):
        why = _misfit(lists.sizes[at], lengths[at], ranks, order)
        if why is not None:
            return f"blocks: of {lists.sizes[at]} {what}, and {why}"
    return None


def check_fit(lists: Lists, way: str, lengths: tuple[int, int], ranks: int, order: str) -> None:
    why = misfit(lists, way, lengths, ranks, order)
    if why is not None:
        raise UnsupportedError(why + ("" if way == "mesh" else ", or use how=\"ulysses\""))


def known(lists: Lists, given: Mapping[str, Tensor], lengths: tuple[int, int], ranks: int, order: str) -> Lists:
    """Adds what the host can see of the lists, if that leaves anything out: in shares whose tokens are neighbours, for
    lists on the processor."""
    on_host = all(given[name].device.type == "cpu" for name in NAMES if name in given)
    if not on_host or order == "striped" or ranks == 1 or misfit(lists, "ring", lengths, ranks, order) is not None:
        return lists
    count = ranks * (2 if order == "zigzag" else 1)
    chunks = lengths[0] // count, lengths[1] // count
    if not all(chunks):
        return lists
    rows, columns = chunks[0] // lists.sizes[0], chunks[1] // lists.sizes[1]
    seen = _named(given, count * rows, count * columns).view(count, rows, count, columns)
    of_k, of_q = seen.any(1), seen.any(3).transpose(1, 2)  # [chunk of queries, chunk of keys, block]
    table = torch.stack((*_ends(of_k, True), *_ends(of_q, False)), -1)
    return lists._replace(seen=Seen(chunks, lists.sizes, count, array.array("i", table.flatten().tolist()).tobytes()))


def _named(given: Mapping[str, Tensor], rows: int, columns: int) -> Tensor:
    """Returns which blocks of keys any list of a block of queries names, [rows, columns]."""
    seen = torch.zeros(rows, columns, dtype=torch.bool)
    for count, index in ((given[name + "_count"], given[name + "_index"]) for name in ("block", "full") if name + "_count" in given):
        counts = (torch.arange(index.shape[3]) < count.unsqueeze(3)) & (index >= 0) & (index < columns)
        row = torch.arange(rows).view(-1, 1).expand(index.shape)
        seen[row[counts], index[counts].long()] = True
    return seen


def _ends(named: Tensor, is_of_keys: bool) -> tuple[Tensor, Tensor]:
    """Returns the first and last of [chunk of queries, chunk of keys, block], counted from the sequence's first block."""
    blocks = named.shape[2]
    at = torch.arange(blocks)
    first, last = torch.where(named, at, blocks).amin(2), torch.where(named, at, -1).amax(2)
    chunk = torch.arange(named.shape[0]) * blocks
    begin = chunk.view(1, -1) if is_of_keys else chunk.view(-1, 1)
    return begin + first, begin + last

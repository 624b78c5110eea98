"""Tensors may be read in steps, as in bias[b][q], and functions may compute with rows of them."""

from __future__ import annotations

import itertools
from typing import Any, Callable, Sequence

import torch
from torch import Tensor

from flashjit.flex_numbers import add, mul
from flashjit.flex_values import INTS, StandIn, Value, Writer, refuse

MOST = 512  # A mask or score has at most this many operations.


class Rows(StandIn):
    """This stands in for a tensor of some numbers for each query and key. `at` returns the number at given indices."""

    def __init__(self, writer: Writer, shape: Sequence[int], dtype: torch.dtype, at: Callable[[Sequence[Any]], Value]) -> None:
        super().__init__(writer)
        self.shape, self.dtype, self.at = torch.Size(shape), dtype, at

    @property
    def ndim(self) -> int:
        return len(self.shape)


def has_rows(value: Any) -> bool:
    return isinstance(value, Rows) or (isinstance(value, Tensor) and value.dim() > 0)


def rows_of(writer: Writer, value: Any) -> Rows:
    if isinstance(value, Rows):
        return value
    if isinstance(value, Tensor) and value.dim():
        return Rows(writer, value.shape, value.dtype, lambda entry: writer.element(value, entry))
    number = writer.lift(value)
    return Rows(writer, (), number.dtype, lambda entry: number)


def collapsed(rows: Rows) -> Any:
    """Returns a value if no dimension is left."""
    return rows if rows.ndim else rows.at(())


def _fixed_index(writer: Writer, at: Any, count: int) -> Any:
    """Returns an index, from the front if it is known."""
    if isinstance(at, Value) and at.constant is not None:
        at = at.constant
    if isinstance(at, bool) or not isinstance(at, (int, Value)):
        at = writer.lift(at)
    if isinstance(at, Value):
        if at.kind != "int":
            raise refuse(f"an index must be an int, and this is of {at.dtype}")
        return at
    if not -count <= at < count:
        raise refuse(f"the index {at} is outside of a dimension of {count}")
    return at + count if at < 0 else at


def getitem(writer: Writer, base: Any, index: Any) -> Any:
    rows = rows_of(writer, base)
    entries = list(index) if isinstance(index, tuple) else [index]
    given = sum(at is not None and at is not Ellipsis for at in entries)
    if given > rows.ndim:
        raise refuse(f"{given} indices of a tensor of {rows.ndim} dimensions")
    if isinstance(base, Tensor) and base.dim() == 0:
        return writer.element(base, (0,))
    dots = [at for at, entry in enumerate(entries) if entry is Ellipsis]
    where = dots[0] if dots else len(entries)
    entries[where:where + 1] = [slice(None)] * (rows.ndim - given)
    # Each dimension of rows has an entry here, or is kept.
    fixed: list[Any] = []
    shape: list[int] = []
    # These are the dimension of rows, start and step of each dimension in `shape`, or -1 for a new one.
    kept: list[tuple[int, int, int]] = []
    for entry in entries:
        if entry is None:
            shape.append(1)
            kept.append((-1, 0, 0))
        elif isinstance(entry, slice):
            if any(isinstance(end, StandIn) for end in (entry.start, entry.stop, entry.step)):
                raise refuse("a slice must have numbers of Python for ends, and not one of Python's is here; read single elements")
            start, stop, step = entry.indices(rows.shape[len(fixed)])
            shape.append(len(range(start, stop, step)))
            kept.append((len(fixed), start, step))
            fixed.append(None)
        else:
            if isinstance(entry, Rows) or (isinstance(entry, Tensor) and entry.dim()):
                raise refuse("an index has several numbers; read one element at a time")
            fixed.append(_fixed_index(writer, entry, rows.shape[len(fixed)]))

    def at(outer: Sequence[Any]) -> Value:
        inner = list(fixed)
        for number, (dimension, start, step) in zip(outer, kept):
            if dimension < 0:
                continue
            if isinstance(number, Value) and (start, step) != (0, 1):
                number = add(writer, mul(writer, number, step), start)
            elif not isinstance(number, Value):
                number = start + step * number
            inner[dimension] = number
        return rows.at(inner)

    return collapsed(Rows(writer, shape, rows.dtype, at))


def each(writer: Writer, handler: Callable[..., Value], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Does an operation on numbers for each element of rows that PyTorch puts side by side."""
    sides = {key: rows_of(writer, value) for key, value in [*enumerate(args), *kwargs.items()]
             if has_rows(value)}
    try:
        shape = torch.broadcast_shapes(*[rows.shape for rows in sides.values()])  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise refuse(str(error)) from None

    def at(entry: Sequence[Any]) -> Value:
        def number(key: Any, value: Any) -> Any:
            rows = sides.get(key)
            if rows is None:
                return value
            inner = entry[len(entry) - rows.ndim:]
            return rows.at([0 if count == 1 else i for i, count in zip(inner, rows.shape)])
        return handler(writer, *[number(key, value) for key, value in enumerate(args)], **{key: number(key, value) for key, value in kwargs.items()})

    if not all(shape):
        raise refuse("a tensor without elements is read")
    return Rows(writer, shape, at([0] * len(shape)).dtype, at)


def reduced(writer: Writer, name: str, both: Callable[[Value, Value], Value], value: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Combines the elements along some dimensions by `both`."""
    rows = rows_of(writer, value)
    given = range(rows.ndim) if dim is None else dim if isinstance(dim, (tuple, list)) else [dim]
    dims = [d % max(rows.ndim, 1) for d in given] if rows.ndim else []
    count = 1
    for d in dims:
        count *= rows.shape[d]
    if not 1 <= count <= MOST:
        raise refuse(f"{name}: puts {count} elements together, and the spec's language takes from 1 to {MOST} operations")

    def at(entry: Sequence[Any]) -> Value:
        left = iter(entry)
        outer = [None if d in dims else next(left) for d in range(rows.ndim)]
        if keepdim:
            outer = list(entry)
        result: Value | None = None
        for inner in itertools.product(*[range(rows.shape[d]) for d in dims]):
            for d, i in zip(dims, inner):
                outer[d] = i
            one = rows.at(list(outer))
            result = one if result is None else both(result, one)
        assert result is not None
        return result

    shape = [1 if d in dims else n for d, n in enumerate(rows.shape) if keepdim or d not in dims]
    return collapsed(Rows(writer, shape, rows.dtype, at))


def unsqueeze(writer: Writer, value: Any, dim: int) -> Any:
    rows = rows_of(writer, value)
    entries: list[Any] = [slice(None)] * rows.ndim
    entries.insert(dim if dim >= 0 else dim + rows.ndim + 1, None)
    return getitem(writer, rows, tuple(entries))


def squeeze(writer: Writer, value: Any, dim: int | None = None) -> Any:
    rows = rows_of(writer, value)
    gone = [d for d, n in enumerate(rows.shape) if n == 1 and (dim is None or d == dim % rows.ndim)]
    return getitem(writer, rows, tuple([0 if d in gone else slice(None) for d in range(rows.ndim)])) if gone else value


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.int64 if dtype in INTS or dtype == torch.bool else torch.float32

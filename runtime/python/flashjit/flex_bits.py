"""Operations on the bits of ints use what the spec's language has: division, which rounds down, and bit()."""

from __future__ import annotations

from typing import Any

import torch

from flashjit.flex_values import INTS, PRODUCT, SUM, Value, Writer, common, refuse

# A bit of a value comes from these sources: it is set if one of these bits of other values is.
Sources = tuple[tuple[Value, int], ...]


def _same(a: tuple[Value, int], b: tuple[Value, int]) -> bool:
    return a[0].text == b[0].text and a[1] == b[1]


def _bits_of(value: Value, count: int) -> list[Sources]:
    """Returns the lowest bits. A negative int has ones above."""
    if value.constant is not None:
        constant: list[Sources] = [((value, i),) if value.constant >> i & 1 else () for i in range(count)]
        return constant
    if value.bits is not None:
        return [*value.bits[:count], *([()] * (count - len(value.bits)))]
    known = count if value.range[0] < 0 else value.range[1].bit_length()
    return [((value, i),) if i < known else () for i in range(count)]


def _width(*values: Value) -> int:
    """Returns how many bits these need beside a sign."""
    ends: list[int] = [end if end >= 0 else -end - 1 for value in values for end in value.range]
    return max(ends).bit_length()


def _plus(writer: Writer, terms: list[Value], dtype: torch.dtype, range: tuple[int, int], bits: Any = None) -> Value:
    if not terms:
        return writer.strong(0, dtype)
    pieces: list[Any] = [(terms[0], SUM)]
    for term in terms[1:]:
        pieces += [" + ", (term, PRODUCT)]
    level = terms[0].level if len(terms) == 1 else SUM
    return writer.compose(dtype, level, pieces, range, bits)


def _run(writer: Writer, source: Value, first: int, count: int, to: int) -> Value:
    """Returns bits of one value, side by side, moved to bit `to`."""
    value, high = source, source.range[1] >> first
    if first:
        value = writer.binary(value, "/", writer.lift(1 << first), PRODUCT, torch.int64)
    if source.range[0] < 0 or high >= 1 << count:
        value = writer.binary(value, "%", writer.lift(1 << count), PRODUCT, torch.int64)
    return writer.binary(value, "*", writer.lift(1 << to), PRODUCT, torch.int64) if to else value


def _of_bits(writer: Writer, bits: list[Sources], dtype: torch.dtype) -> Value:
    terms: list[Value] = []
    constant = at = 0
    while at < len(bits):
        sources = bits[at]
        count = 1
        if any(source.constant is not None for source, _ in sources):
            constant |= 1 << at
        elif len(sources) == 1:
            source, first = sources[0]
            while at + count < len(bits) and len(bits[at + count]) == 1 and _same(bits[at + count][0], (source, first + count)):
                count += 1
            terms.append(_run(writer, source, first, count, at))
        elif sources:
            seen = _bit(writer, *sources[0])
            for more in sources[1:]:
                seen = writer.logic("|", seen, _bit(writer, *more))
            terms.append(writer.function("where", (seen, writer.lift(1 << at), writer.lift(0)), torch.int64))
        at += count
    if constant:
        terms.append(writer.lift(constant))
    high = sum(1 << at for at, sources in enumerate(bits) if sources)
    return _plus(writer, terms, dtype, (0 if not constant else constant, high), bits)


def _bit(writer: Writer, value: Value, at: int) -> Value:
    return writer.function("bit", (value, writer.lift(at)), torch.bool)


def _ints(writer: Writer, name: str, a: Any, b: Any) -> tuple[Value, Value, torch.dtype]:
    a, b = writer.number(a), writer.number(b)
    if "float" in (a.kind, b.kind):
        raise refuse(f"{name}: floats have no bits here")
    dtype = common(a, b)
    return writer.convert(a, dtype), writer.convert(b, dtype), dtype


def bit_and(writer: Writer, a: Any, b: Any) -> Value:
    a, b, dtype = _ints(writer, "&", a, b)
    if a.constant is not None:
        a, b = b, a
    if a.constant is not None and b.constant is not None:
        return writer.strong(a.constant & b.constant, dtype)
    if b.constant is not None and b.constant >= 0:
        kept = _bits_of(a, b.constant.bit_length())
        return _of_bits(writer, [sources if b.constant >> i & 1 else () for i, sources in enumerate(kept)], dtype)
    if b.constant is not None:  # This keeps all but some low bits.
        low = bit_and(writer, a, writer.lift(~b.constant))
        return writer.binary(a, "-", low, SUM, dtype, (a.range[0] & b.constant if a.range[0] < 0 else 0, a.range[1]))
    return _bit_by_bit(writer, a, b, dtype)


def _bit_by_bit(writer: Writer, a: Value, b: Value, dtype: torch.dtype) -> Value:
    """Returns the bits that both have."""
    signed = a.range[0] < 0 and b.range[0] < 0
    count = _width(a, b) if signed else min(_width(value) for value in (a, b) if value.range[0] >= 0)
    terms = []
    for at in range(count + signed):
        both = writer.logic("&", _bit(writer, a, at), _bit(writer, b, at))
        weight = 1 << at if at < count else -(1 << at)
        terms.append(writer.function("where", (both, writer.lift(weight), writer.lift(0)), torch.int64))
    return _plus(writer, terms, dtype, (-(1 << count) if signed else 0, (1 << count) - 1))


def bit_or(writer: Writer, a: Any, b: Any) -> Value:
    a, b, dtype = _ints(writer, "|", a, b)
    if a.range[0] >= 0 and b.range[0] >= 0:
        count = _width(a, b)
        merged = [x + tuple([one for one in y if not any(_same(one, other) for other in x)])
                  for x, y in zip(_bits_of(a, count), _bits_of(b, count))]
        return _of_bits(writer, merged, dtype)
    return _less(writer, a, b, bit_and(writer, a, b), 1, dtype)


def bit_xor(writer: Writer, a: Any, b: Any) -> Value:
    a, b, dtype = _ints(writer, "^", a, b)
    return _less(writer, a, b, bit_and(writer, a, b), 2, dtype)


def _less(writer: Writer, a: Value, b: Value, both: Value, times: int, dtype: torch.dtype) -> Value:
    """Returns a + b - times * both."""
    limit = 1 << _width(a, b)
    if times > 1:
        both = writer.binary(writer.lift(times), "*", both, PRODUCT, dtype)
    low = 0 if a.range and b.range and a.range[0] >= 0 and b.range[0] >= 0 else -limit
    return writer.binary(writer.binary(a, "+", b, SUM, dtype), "-", both, SUM, dtype, (low, limit - 1))


def bit_not(writer: Writer, a: Value) -> Value:
    """Returns the complement: an unsigned int is subtracted from its largest value, and any other becomes one less than
    its negative."""
    top = INTS[a.dtype][1] if a.dtype == torch.uint8 else -1
    return writer.binary(writer.lift(top), "-", a, SUM, a.dtype, (top - a.range[1], top - a.range[0]))


def shift(writer: Writer, name: str, a: Any, by: Any) -> Value:
    a, by, dtype = _ints(writer, name, a, by)
    size = INTS[dtype][1].bit_length() + (dtype != torch.uint8)
    if by.constant is None or not 0 <= by.constant < size:
        raise refuse(f"{name}: ints can be shifted by a number of Python from 0 to {size - 1} alone")
    count = by.constant
    if name == ">>":
        if a.range[0] >= 0:
            return _of_bits(writer, _bits_of(a, _width(a))[count:], dtype)
        return writer.binary(a, "/", writer.lift(1 << count), PRODUCT, dtype, (a.range[0] >> count, a.range[1] >> count))
    if a.range[0] >= 0 and a.constant is None and a.range[1] << count <= INTS[dtype][1]:
        return _of_bits(writer, [*([()] * count), *_bits_of(a, _width(a))], dtype)
    product = writer.binary(a, "*", writer.lift(1 << count), PRODUCT, torch.int64, (a.range[0] << count, a.range[1] << count))
    return writer.convert(product, dtype)

"""PyTorch's arithmetic, comparisons and choices of numbers become texts of the spec's language with equal results."""

from __future__ import annotations

import math
from typing import Any, Callable

import torch
from torch import Tensor

from flashjit import flex_bits
from flashjit.flex_table import METHODS, NUMBERS, Handler, known
from flashjit.flex_values import COMPARISON, INTS, PRODUCT, SIGN, SUM, Value, Writer, common, refuse

# These do arithmetic.

def _arithmetic(w: Writer, operator: str, a: Any, b: Any) -> Value:
    a, b = w.number(a), w.number(b)
    dtype, level = common(a, b), PRODUCT if operator == "*" else SUM
    if dtype not in INTS:
        return w.binary(a, operator, b, level, dtype)
    ends = [{"+": x + y, "-": x - y, "*": x * y}[operator] for x in a.range for y in (b.range if operator != "-" else b.range)]
    if a.constant is not None and b.constant is not None:
        return w.wrapped(w.convert(w.lift(ends[0]), torch.int64), dtype) if a.weak and b.weak else w.strong(ends[0], dtype)
    if min(ends) < INTS[torch.int64][0] or max(ends) > INTS[torch.int64][1]:
        result = w.convert(_in_halves(w, operator, a, b), dtype)
        result.bounded = _bounded(w, operator, a, b, level)
        return result
    return w.wrapped(w.binary(a, operator, b, level, torch.int64, (min(ends), max(ends))), dtype)


def _bounded(w: Writer, operator: str, a: Value, b: Value, level: int) -> Value | None:
    """Returns the text for an index. The limits differ, so that two numbers beyond them do not make one that looks
    right."""
    if operator == "*" and a.constant is not None:
        a, b = b, a
    if operator == "*" and not b.constant:
        return None
    limit = (1 << 62) // (abs(b.constant or 1) if operator == "*" else 2)
    sides = [value if -most <= value.range[0] and value.range[1] <= most else
             w.function("min", (w.function("max", (value, w.lift(-most)), value.dtype), w.lift(most)), value.dtype, (-most, most))
             for value, most in ((a.inside, limit), (b.inside, limit // 2 if operator != "*" else 1 << 62))]
    return w.binary(sides[0], operator, sides[1], level, torch.int64, (-(1 << 62), 1 << 62))


def _in_halves(w: Writer, operator: str, a: Value, b: Value) -> Value:
    """Computes the upper and the lower 32 bits apart, if a result may leave 64 bits and must wrap around."""
    half = 1 << 32
    if operator == "*":
        if max(abs(end) for end in b.range) > max(abs(end) for end in a.range):
            a, b = b, a
        if max(abs(end) for end in b.range) > 1 << 30:
            raise refuse("mul: the product can leave 64 bits; make one factor less than 2^30 for sure, or use int32")
        low, high = mul(w, mod(w, a, half), b), mul(w, floordiv(w, a, half), b)
    else:
        low, high = (_arithmetic(w, operator, function(w, a, half), function(w, b, half)) for function in (mod, floordiv))
    high = w.wrapped(add(w, high, floordiv(w, low, half)), torch.int32)
    result = add(w, mul(w, w.convert(high, torch.int64), half), mod(w, low, half))
    result.range = INTS[torch.int64]
    return result


@known(NUMBERS, "add")
def add(w: Writer, a: Any, b: Any, alpha: Any = 1) -> Value:
    a, b = w.lift(a), w.lift(b)
    if a.kind == b.kind == "bool" and alpha == 1:
        return logical(w, "|", a, b)
    return _arithmetic(w, "+", a, b if alpha == 1 else mul(w, b, alpha))


@known(NUMBERS, "sub", "subtract")
def sub(w: Writer, a: Any, b: Any, alpha: Any = 1) -> Value:
    a, b = w.lift(a), w.lift(b)
    if "bool" in (a.kind, b.kind):
        raise refuse("sub: PyTorch subtracts no bools; write ^ or ~")
    return _arithmetic(w, "-", a, b if alpha == 1 else mul(w, b, alpha))


@known(NUMBERS, "rsub")
def rsub(w: Writer, a: Any, b: Any, alpha: Any = 1) -> Value:
    return sub(w, b, a, alpha)


@known(NUMBERS, "mul", "multiply")
def mul(w: Writer, a: Any, b: Any) -> Value:
    a, b = w.lift(a), w.lift(b)
    return logical(w, "&", a, b) if a.kind == b.kind == "bool" else _arithmetic(w, "*", a, b)


@known(NUMBERS, "truediv", "true_divide")
def truediv(w: Writer, a: Any, b: Any) -> Value:
    return w.binary(w.real(a), "/", w.real(b), PRODUCT, torch.float32)


@known(NUMBERS, "div", "divide")
def div(w: Writer, a: Any, b: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return truediv(w, a, b)
    return floordiv(w, a, b) if rounding_mode == "floor" else _quotient(w, "div", a, b)


def _two_ints(w: Writer, name: str, a: Any, b: Any) -> tuple[Value, Value, torch.dtype]:
    a, b = w.lift(a), w.lift(b)
    dtype = common(a, b)
    if dtype not in INTS:
        raise refuse(f"{name}: takes two ints, and no floats or bools, in the spec's language")
    low, high = INTS[dtype]
    for value in (a, b):
        if value.constant is not None and not low <= value.constant <= high:
            raise refuse(f"{name}: {value.constant} is no {dtype}")
    return w.number(a), w.number(b), dtype


@known(NUMBERS, "floordiv", "floor_divide")
def floordiv(w: Writer, a: Any, b: Any) -> Value:
    a, b, dtype = _two_ints(w, "//", a, b)
    if b.range[1] < 0:
        a, b = neg(w, w.convert(a, torch.int64)), neg(w, w.convert(b, torch.int64))
    ends = [x // y for x in a.range for y in b.range if y > 0] or [*a.range]
    return w.wrapped(w.binary(a, "/", b, PRODUCT, torch.int64, (min(ends), max(ends))), dtype)


@known(NUMBERS, "mod", "remainder")
def mod(w: Writer, a: Any, b: Any) -> Value:
    a, b, dtype = _two_ints(w, "%", a, b)
    if b.range[1] < 0:
        return neg(w, mod(w, neg(w, w.convert(a, torch.int64)), neg(w, w.convert(b, torch.int64))))
    return w.binary(a, "%", b, PRODUCT, dtype, (0, max(b.range[1] - 1, 0)))


def _quotient(w: Writer, name: str, a: Any, b: Any) -> Value:
    """Rounds towards 0."""
    a, b, dtype = _two_ints(w, name, a, b)
    if a.range[0] >= 0 and b.range[0] > 0:
        return floordiv(w, a, b)
    if b.range[0] <= 0:
        raise refuse(f"{name}: rounds towards 0, which needs a divisor that is positive for sure; use // or clamp it")
    return w.where(w.binary(a, ">=", w.lift(0), COMPARISON, torch.bool), floordiv(w, a, b), neg(w, floordiv(w, neg(w, a), b)), dtype)


@known(NUMBERS, "fmod")
def fmod(w: Writer, a: Any, b: Any) -> Value:
    return sub(w, a, mul(w, _quotient(w, "fmod", a, b), b))


@known(NUMBERS, "neg", "negative")
def neg(w: Writer, a: Any) -> Value:
    a = w.lift(a)
    if a.kind == "bool":
        raise refuse("neg: PyTorch negates no bools; write ~")
    if a.constant is not None:
        return sub(w, 0, a)
    if a.range and -a.range[0] > INTS[torch.int64][1]:
        return sub(w, 0, a)
    range = (-a.range[1], -a.range[0]) if a.range else None
    value = w.compose(a.dtype, SIGN, ("-", (a, SIGN)), range)
    return w.wrapped(value, a.dtype) if a.dtype in INTS else value


@known(NUMBERS, "pos", "positive")
def positive(w: Writer, a: Any) -> Value:
    return w.lift(a)


@known(NUMBERS, "abs", "absolute")
def absolute(w: Writer, a: Any) -> Value:
    a = w.lift(a)
    if a.kind == "bool":
        raise refuse("abs: PyTorch has none of bools")
    if a.range and -a.range[0] > INTS[torch.int64][1]:
        return w.where(w.binary(a, "<", w.lift(0), COMPARISON, torch.bool), sub(w, 0, a), a, a.dtype)
    ends = (max(a.range[0], -a.range[1], 0), max(-a.range[0], a.range[1])) if a.range else None
    value = w.function("abs", (a,), a.dtype, ends)
    return w.wrapped(value, a.dtype) if a.dtype in INTS else value


@known(NUMBERS, "pow")
def power(w: Writer, a: Any, exponent: Any) -> Value:
    if isinstance(exponent, (Tensor, Value)):
        base = w.lift(a)
        if base.weak and base.kind != "bool" and float(base.text) > 0:
            if w.lift(exponent).kind != "float" and base.kind == "int":
                raise refuse("pow: an int to a power that differs for each query and key has no counterpart; make one of them a float")
            return w.function("exp", (mul(w, w.real(exponent), math.log(float(base.text))),), torch.float32)
        raise refuse("pow: the exponent must be a number of Python, or the base a positive one")
    if isinstance(exponent, bool) or not isinstance(exponent, (int, float)):
        raise refuse("pow: the exponent must be a number of Python, or the base a positive one")
    a = w.real(a) if isinstance(exponent, float) else w.number(a)
    if exponent > 64:
        raise refuse(f"pow: {exponent} is above 64, the largest exponent here")
    if exponent == 0:
        return w.strong(1, a.dtype)
    if exponent < 0:
        if a.kind == "int":
            raise refuse("pow: PyTorch takes no int to a negative power")
        return truediv(w, 1.0, power(w, a, -exponent))
    whole, rest = divmod(exponent, 1)
    if rest not in (0, 0.5):
        if exponent < 1:
            return w.function("exp", (mul(w, w.function("log", (a,), torch.float32), exponent),), torch.float32)
        # If the base is 0, the power and its derivative are 0, and not 0 times infinity.
        zero = w.binary(a, "==", w.lift(0.0), COMPARISON, torch.bool)
        safe = w.where(zero, w.lift(1.0), a, torch.float32)
        other = w.function("exp", (mul(w, w.function("log", (safe,), torch.float32), float(exponent)),), torch.float32)
        return w.where(zero, w.lift(0.0), other, torch.float32)
    result: Value | None = w.function("sqrt", (w.real(a),), torch.float32) if rest else None
    for _ in range(int(whole)):
        result = a if result is None else mul(w, result, a)
    assert result is not None
    return result


@known(NUMBERS, "square")
def square(w: Writer, a: Any) -> Value:
    return mul(w, w.number(a), a)


@known(NUMBERS, "addcmul")
def addcmul(w: Writer, a: Any, b: Any, c: Any, value: Any = 1) -> Value:
    return add(w, a, mul(w, b if value == 1 else mul(w, value, b), c))


@known(NUMBERS, "lerp")
def lerp(w: Writer, a: Any, b: Any, weight: Any) -> Value:
    return add(w, a, mul(w, weight, sub(w, b, a)))


# These are comparisons and logic.

def _comparison(operator: str) -> Handler:
    return lambda w, a, b: w.binary(w.number(a), operator, w.number(b), COMPARISON, torch.bool)


for _names, _operator in ((("lt", "less"), "<"), (("le", "less_equal"), "<="), (("gt", "greater"), ">"), (("ge", "greater_equal"), ">="),
                          (("eq",), "=="), (("ne", "not_equal"), "!=")):
    known(NUMBERS, *_names)(_comparison(_operator))


def logical(w: Writer, operator: str, a: Any, b: Any) -> Value:
    a, b = w.condition(a), w.condition(b)
    constants = {"true": True, "false": False}
    for one, other in ((a, b), (b, a)):
        if one.text in constants:
            rest = Value(w, torch.bool, other.text, other.level, None, other.depth, False, False, other.reads)
            return rest if constants[one.text] == (operator == "&") else one
    return w.logic(operator, a, b)


def _bool_xor(w: Writer, a: Any, b: Any) -> Value:
    return w.binary(w.number(w.condition(a)), "!=", w.number(w.condition(b)), COMPARISON, torch.bool)


def _bits(operator: str, of_bools: Callable[[Writer, Any, Any], Value], of_ints: Callable[[Writer, Any, Any], Value]) -> Handler:
    def handler(w: Writer, a: Any, b: Any) -> Value:
        a, b = w.lift(a), w.lift(b)
        return of_bools(w, a, b) if a.kind == b.kind == "bool" else of_ints(w, a, b)
    return handler


known(NUMBERS, "and", "bitwise_and")(_bits("&", lambda w, a, b: logical(w, "&", a, b), flex_bits.bit_and))
known(NUMBERS, "or", "bitwise_or")(_bits("|", lambda w, a, b: logical(w, "|", a, b), flex_bits.bit_or))
known(NUMBERS, "xor", "bitwise_xor")(_bits("^", _bool_xor, flex_bits.bit_xor))
known(NUMBERS, "logical_and")(lambda w, a, b: logical(w, "&", a, b))
known(NUMBERS, "logical_or")(lambda w, a, b: logical(w, "|", a, b))
known(NUMBERS, "logical_xor")(_bool_xor)
known(NUMBERS, "lshift", "bitwise_left_shift")(lambda w, a, b: flex_bits.shift(w, "<<", a, b))
known(NUMBERS, "rshift", "bitwise_right_shift")(lambda w, a, b: flex_bits.shift(w, ">>", a, b))


@known(NUMBERS, "logical_not")
def logical_not(w: Writer, a: Any) -> Value:
    return w.negation(w.condition(a))


@known(NUMBERS, "invert", "bitwise_not")
def invert(w: Writer, a: Any) -> Value:
    a = w.lift(a)
    if a.kind == "float":
        raise refuse("~: floats have no bits here")
    return w.negation(a) if a.kind == "bool" else flex_bits.bit_not(w, a)


@known(NUMBERS, "where")
def where(w: Writer, condition: Any, a: Any, b: Any) -> Value:
    a, b, condition = w.lift(a), w.lift(b), w.lift(condition)
    if condition.kind != "bool":
        raise refuse(f"where: the condition must be a bool, and this is of {condition.dtype}")
    dtype = common(a, b)
    return w.where(condition, cast(w, "where", a, dtype), cast(w, "where", b, dtype), dtype)


known(METHODS, "where")(lambda w, a, condition, b: where(w, condition, a, b))


def cast(w: Writer, name: str, value: Value, dtype: torch.dtype) -> Value:
    """Converts a value. A number of Python must fit."""
    if dtype in INTS and value.weak and value.constant is not None and not INTS[dtype][0] <= value.constant <= INTS[dtype][1]:
        raise refuse(f"{name}: {value.constant} is no {dtype}")
    return w.convert(value, dtype)


@known(NUMBERS, "masked_fill")
def masked_fill(w: Writer, a: Any, mask: Any, value: Any) -> Value:
    a, mask, value = w.lift(a), w.lift(mask), w.lift(value)
    if mask.kind != "bool":
        raise refuse(f"masked_fill: the mask must be a bool, and this is of {mask.dtype}")
    return w.where(mask, cast(w, "masked_fill", value, a.dtype), a, a.dtype)


# These find the least and the largest, and round.

def extreme(w: Writer, name: str, a: Any, b: Any) -> Value:
    """Returns PyTorch's minimum or maximum, which is NaN if one is; the language leaves NaN out."""
    a, b = w.lift(a), w.lift(b)
    dtype = common(a, b)
    if dtype == torch.bool:
        return logical(w, "&" if name == "min" else "|", a, b)
    a, b = cast(w, name, a, dtype), cast(w, name, b, dtype)
    if dtype in INTS:
        pick = min if name == "min" else max
        return w.function(name, (a, b), dtype, (pick(a.range[0], b.range[0]), pick(a.range[1], b.range[1])))
    nans = logical(w, "|", w.is_nan(a), w.is_nan(b))
    return w.where(nans, w.lift(math.nan), w.function(name, (a, b), dtype), dtype)


@known(NUMBERS, "minimum")
def minimum(w: Writer, a: Any, b: Any) -> Value:
    return extreme(w, "min", a, b)


@known(NUMBERS, "maximum")
def maximum(w: Writer, a: Any, b: Any) -> Value:
    return extreme(w, "max", a, b)


@known(NUMBERS, "clamp", "clip")
def clamp(w: Writer, a: Any, min: Any = None, max: Any = None) -> Value:
    value = w.lift(a)
    if value.kind == "bool":
        value = w.number(value)
    for bound, name, operator in ((min, "max", "<"), (max, "min", ">")):
        if bound is None:
            continue
        bound = w.lift(bound)
        dtype = common(value, bound)
        value, bound = cast(w, "clamp", value, dtype), cast(w, "clamp", bound, dtype)
        if dtype in INTS:
            value = extreme(w, name, value, bound)
        # If both are equal, PyTorch's gradient is all that of the value. NaN stays.
        else:
            value = w.where(w.binary(value, operator, bound, COMPARISON, torch.bool), bound, value, dtype)
    return value


known(NUMBERS, "clamp_min")(lambda w, a, min: clamp(w, a, min, None))
known(NUMBERS, "clamp_max")(lambda w, a, max: clamp(w, a, None, max))


def _rounding(name: str) -> Handler:
    def handler(w: Writer, a: Any) -> Value:
        value = w.lift(a)
        if value.kind == "float":
            raise refuse(f"{name}: a float cannot be rounded in the spec's language; of ints, // rounds down")
        return value
    return handler


for _name in ("floor", "ceil", "round", "trunc"):
    known(NUMBERS, _name)(_rounding(_name))


@known(NUMBERS, "sign")
def sign(w: Writer, a: Any) -> Value:
    a = w.number(a)
    dtype, zero = a.dtype, w.convert(w.lift(0), a.dtype)
    up, down = (w.binary(a, operator, zero, COMPARISON, torch.bool) for operator in (">", "<"))
    return w.where(up, w.convert(w.lift(1), dtype), w.where(down, w.convert(w.lift(-1), dtype), zero, dtype), dtype)

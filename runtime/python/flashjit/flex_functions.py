"""This module has PyTorch's functions of floats, its conversions, its operations on whole tensors, and the names of
functions."""

from __future__ import annotations

import inspect
import math
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from flashjit import flex_rows
from flashjit.flex_numbers import add, cast, extreme, logical, maximum, minimum, mul, neg, power, sub, truediv, where
from flashjit.flex_table import METHODS, NUMBERS, ROWS, Handler, known
from flashjit.flex_values import COMPARISON, Value, Writer, refuse

# Functions of floats.

for _name in ("exp", "log", "sqrt", "tanh", "sigmoid"):
    known(NUMBERS, _name)(lambda w, a, _name=_name: w.function(_name, (w.real(a),), torch.float32))
known(NUMBERS, "exp2")(lambda w, a: w.function("exp", (mul(w, w.real(a), math.log(2)),), torch.float32))
known(NUMBERS, "log2")(lambda w, a: mul(w, NUMBERS["log"](w, a), 1 / math.log(2)))
known(NUMBERS, "log10")(lambda w, a: mul(w, NUMBERS["log"](w, a), 1 / math.log(10)))
known(NUMBERS, "log1p")(lambda w, a: NUMBERS["log"](w, add(w, 1.0, w.real(a))))
known(NUMBERS, "expm1")(lambda w, a: sub(w, NUMBERS["exp"](w, a), 1.0))
known(NUMBERS, "rsqrt")(lambda w, a: truediv(w, 1.0, NUMBERS["sqrt"](w, a)))
known(NUMBERS, "reciprocal")(lambda w, a: truediv(w, 1.0, a))
known(NUMBERS, "isnan")(lambda w, a: w.is_nan(w.number(a)))
known(NUMBERS, "isinf")(lambda w, a: NUMBERS["eq"](w, w.function("abs", (w.real(a),), torch.float32), math.inf))
known(NUMBERS, "isfinite")(lambda w, a: NUMBERS["lt"](w, w.function("abs", (w.real(a),), torch.float32), math.inf))


def _floating(w: Writer, name: str, a: Any) -> Value:
    value = w.lift(a)
    if value.kind != "float":
        raise refuse(f"{name}: takes a float, and this is of {value.dtype}")
    return value


@known(NUMBERS, "relu")
def relu(w: Writer, a: Any) -> Value:
    a = w.number(a)
    if a.kind == "int":
        return extreme(w, "max", a, 0)
    # NaN stays.
    return w.where(w.binary(a, "<=", w.lift(0.0), COMPARISON, torch.bool), w.lift(0.0), a, torch.float32)


@known(NUMBERS, "leaky_relu")
def leaky_relu(w: Writer, a: Any, negative_slope: Any = 0.01) -> Value:
    a = _floating(w, "leaky_relu", a)
    return where(w, NUMBERS["gt"](w, a, 0.0), a, mul(w, a, negative_slope))


@known(NUMBERS, "silu")
def silu(w: Writer, a: Any) -> Value:
    a = _floating(w, "silu", a)
    return mul(w, a, NUMBERS["sigmoid"](w, a))


@known(NUMBERS, "elu")
def elu(w: Writer, a: Any, alpha: Any = 1.0) -> Value:
    a = _floating(w, "elu", a)
    return where(w, NUMBERS["gt"](w, a, 0.0), a, mul(w, alpha, sub(w, NUMBERS["exp"](w, a), 1.0)))


@known(NUMBERS, "softplus")
def softplus(w: Writer, a: Any, beta: Any = 1.0, threshold: Any = 20.0) -> Value:
    a = _floating(w, "softplus", a)
    scaled = a if beta == 1 else mul(w, a, beta)
    bent = NUMBERS["log1p"](w, NUMBERS["exp"](w, scaled))
    return where(w, NUMBERS["gt"](w, scaled, threshold), a, bent if beta == 1 else truediv(w, bent, beta))


known(NUMBERS, "logsigmoid")(lambda w, a: neg(w, softplus(w, neg(w, _floating(w, "logsigmoid", a)))))
known(NUMBERS, "tanhshrink")(lambda w, a: sub(w, a, NUMBERS["tanh"](w, a)))


@known(NUMBERS, "gelu")
def gelu(w: Writer, a: Any, approximate: str = "none") -> Value:
    a = _floating(w, "gelu", a)
    if approximate != "tanh":
        raise refuse('gelu: erf has no counterpart in the spec\'s language; use approximate="tanh"')
    inner = mul(w, math.sqrt(2 / math.pi), add(w, a, mul(w, 0.044715, power(w, a, 3))))
    return mul(w, mul(w, 0.5, a), add(w, 1.0, NUMBERS["tanh"](w, inner)))


# These convert to other dtypes, and to other numbers.

@known(NUMBERS, "detach")
def detach(w: Writer, a: Any) -> Value:
    value = w.lift(a)
    if value.moves and w.gradients:
        raise refuse("detach: the spec's language has no counterpart, and its derivatives are of all that is computed; detach a tensor before it "
                     "is read")
    return value


known(NUMBERS, "contiguous")(lambda w, a: w.lift(a))


@known(NUMBERS, "clone")
def clone(w: Writer, a: Any) -> Value:
    a = w.lift(a)
    return Value(w, a.dtype, a.text).become(a)


for _name, _dtype in (("float", torch.float32), ("int", torch.int32), ("long", torch.int64), ("bool", torch.bool), ("short", torch.int16),
                      ("char", torch.int8), ("byte", torch.uint8)):
    known(METHODS, _name)(lambda w, a, _dtype=_dtype: w.convert(w.lift(a), _dtype))


def _other_dtype(w: Writer, name: str, a: Value, dtype: torch.dtype) -> Value:
    if dtype.is_floating_point and dtype != torch.float32:
        raise refuse(f"{name}: scores are fp32, and positions ints; there is no {dtype}")
    return w.convert(a, dtype)


@known(METHODS, "to", "type")
def to(w: Writer, a: Value, *what: Any, dtype: Any = None, device: Any = None, copy: bool = False, non_blocking: bool = False) -> Value:
    for one in (*what, dtype, device):
        if isinstance(one, (Value, Tensor)):
            one = one.dtype
        if isinstance(one, torch.dtype):
            a = _other_dtype(w, "to", a, one)
        elif one is not None and torch.device(one) != device_of(w):
            raise refuse(f"to: {one!r} is neither a dtype nor the device of the scores")
    return clone(w, a) if copy else a


known(METHODS, "type_as")(lambda w, a, other: _other_dtype(w, "type_as", a, other.dtype))


def device_of(w: Writer) -> torch.device:
    return w.device if w.device is not None else torch.get_default_device()


def _full(w: Writer, a: Any, number: Any, dtype: Any, device: Any, like: bool = True) -> Value:
    if device is not None and torch.device(device) != device_of(w):
        raise refuse(f"{device} is not the device of the scores, {device_of(w)}")
    return cast(w, "full", w.lift(number), dtype or w.lift(a).dtype)


def _strong(w: Writer, value: Value) -> Value:
    return clone(w, value)


known(NUMBERS, "zeros_like")(lambda w, a, dtype=None, device=None: _strong(w, _full(w, a, 0, dtype, device)))
known(NUMBERS, "ones_like")(lambda w, a, dtype=None, device=None: _strong(w, _full(w, a, 1, dtype, device)))
known(NUMBERS, "full_like")(lambda w, a, fill_value, dtype=None, device=None: _strong(w, _full(w, a, fill_value, dtype, device)))


def _new(w: Writer, a: Any, size: Any, number: Any, dtype: Any, device: Any) -> Any:
    value = _strong(w, _full(w, a, number, dtype, device))
    shape = size if isinstance(size, (tuple, list)) else (size,)
    return flex_rows.collapsed(flex_rows.Rows(w, shape, value.dtype, lambda indices: value))


known(ROWS, "new_zeros")(lambda w, a, size, dtype=None, device=None: _new(w, a, size, 0, dtype, device))
known(ROWS, "new_ones")(lambda w, a, size, dtype=None, device=None: _new(w, a, size, 1, dtype, device))
known(ROWS, "new_full")(lambda w, a, size, fill_value, dtype=None, device=None: _new(w, a, size, fill_value, dtype, device))


@known(ROWS, "new_tensor")
def new_tensor(w: Writer, a: Any, data: Any, dtype: Any = None, device: Any = None) -> Any:
    value = w.lift(data)
    return _new(w, a, (), data, dtype or (torch.float32 if value.kind == "float" else value.dtype), device)


# These treat tensors as a whole.

known(ROWS, "getitem")(flex_rows.getitem)
known(ROWS, "unsqueeze")(flex_rows.unsqueeze)
known(ROWS, "squeeze")(flex_rows.squeeze)
known(ROWS, "dim", "ndimension")(lambda w, a: a.ndim)
known(ROWS, "size")(lambda w, a, dim=None: a.shape if dim is None else a.shape[dim])
known(ROWS, "numel", "nelement")(lambda w, a: a.shape.numel())
known(ROWS, "is_floating_point")(lambda w, a: a.dtype.is_floating_point)
known(ROWS, "is_complex")(lambda w, a: False)


def _reduction(name: str, both: Callable[[Writer, Any, Any], Value], first: Callable[[Writer, Any], Any]) -> Handler:
    def handler(w: Writer, a: Any, dim: Any = None, keepdim: bool = False) -> Any:
        rows = flex_rows.rows_of(w, a)
        each = flex_rows.Rows(w, rows.shape, rows.dtype, lambda indices: first(w, rows.at(indices)))
        return flex_rows.reduced(w, name, lambda x, y: both(w, x, y), each, dim, keepdim)
    return handler


def _addend(w: Writer, a: Value) -> Value:
    return w.convert(a, flex_rows.sum_dtype(a.dtype))


known(ROWS, "any")(_reduction("any", lambda w, a, b: logical(w, "|", a, b), lambda w, a: w.condition(a)))
known(ROWS, "all")(_reduction("all", lambda w, a, b: logical(w, "&", a, b), lambda w, a: w.condition(a)))
known(ROWS, "sum")(_reduction("sum", add, _addend))
known(ROWS, "prod")(_reduction("prod", mul, _addend))
known(ROWS, "amax")(_reduction("amax", maximum, lambda w, a: a))
known(ROWS, "amin")(_reduction("amin", minimum, lambda w, a: a))


def _one_or_two(name: str, two: Handler) -> Handler:
    def handler(w: Writer, a: Any, other: Any = None) -> Any:
        if isinstance(other, int):
            raise refuse(f"{name}: along a dimension it gives indices, too; use a{name}")
        return ROWS["a" + name](w, a) if other is None else flex_rows.collapsed(flex_rows.each(w, two, (a, other), {}))
    return handler


known(ROWS, "max")(_one_or_two("max", maximum))
known(ROWS, "min")(_one_or_two("min", minimum))


@known(ROWS, "mean")
def mean(w: Writer, a: Any, dim: Any = None, keepdim: bool = False) -> Any:
    rows, total = flex_rows.rows_of(w, a), ROWS["sum"](w, a, dim, keepdim)
    if not rows.dtype.is_floating_point:
        raise refuse(f"mean: takes floats, and this is of {rows.dtype}")
    count = rows.shape.numel() // flex_rows.rows_of(w, total).shape.numel()
    return flex_rows.collapsed(flex_rows.each(w, truediv, (total, count), {}))


@known(ROWS, "dot", "inner", "matmul")
def dot(w: Writer, a: Any, b: Any) -> Any:
    a, b = flex_rows.rows_of(w, a), flex_rows.rows_of(w, b)
    if a.ndim != 1 or a.shape != b.shape:
        raise refuse(f"dot: takes two rows of one length, and these are of {tuple(a.shape)} and {tuple(b.shape)}")
    return ROWS["sum"](w, flex_rows.each(w, mul, (a, b), {}))


def _arguments(handler: Handler) -> tuple[int, tuple[str, ...]]:
    """Returns how many arguments can be given by position, and the names of all. The first is the writer."""
    parameters = list(inspect.signature(handler).parameters.values())[1:]
    names = tuple(p.name for p in parameters if not p.name.startswith("_"))
    return 1000 if any(p.kind == p.VAR_POSITIONAL for p in parameters) else len(names), names


ARGUMENTS = {id(handler): _arguments(handler) for table in (NUMBERS, ROWS, METHODS) for handler in table.values()}
# PyTorch's functions have these names for arguments that are called otherwise here.
RENAMED = {"input": 0, "self": 0, "other": 1, "exponent": 1, "tensor": 0}


def _functions() -> dict[Any, str]:
    """Finds functions by themselves, so that another one with an equal name is not taken for them."""
    found: dict[Any, str] = {}
    for name in (*NUMBERS, *ROWS, *METHODS):
        for owner in (torch, F, torch.special, Tensor):
            for spelled in (name, f"__{name}__", name + "_", f"__i{name}__") if owner is Tensor else (name, name + "_"):
                if owner is Tensor and spelled == "__and__" or hasattr(owner, spelled):
                    function = getattr(owner, spelled)
                    if name in METHODS and owner is not Tensor and name not in NUMBERS:
                        continue
                    written = "." + name if owner is Tensor and name in METHODS else name
                    changes = spelled in (name + "_", f"__i{name}__")
                    found.setdefault(function, written + "_" if changes else written)
    reflected = {"__radd__": "radd", "__rsub__": "rsub", "__rmul__": "rmul", "__rdiv__": "rtruediv", "__rtruediv__": "rtruediv",
                 "__rfloordiv__": "rfloordiv", "__rmod__": "rmod", "__rpow__": "rpow", "__rand__": "rand", "__ror__": "ror", "__rxor__": "rxor"}
    for spelled, name in reflected.items():
        if hasattr(Tensor, spelled):
            found.setdefault(getattr(Tensor, spelled), name)
    return found


for _name in ("add", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"):
    known(NUMBERS, "r" + _name)(lambda w, a, b, _name=_name: NUMBERS[_name](w, b, a))
    ARGUMENTS[id(NUMBERS["r" + _name])] = (2, ("a", "b"))
FUNCTIONS = _functions()

"""FlexAttention's mask_mod and score_mod as texts of the spec's language: the functions run once, on stand-ins that write down what
is done with them."""

from __future__ import annotations

import linecache
import math
import os
import sys
from typing import Any, Callable

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from flashjit.capi import UnsupportedError

_OURS = (os.path.dirname(__file__), os.path.dirname(torch.__file__))


def leave_graph(why: str) -> None:
    """Where torch.compile follows: the end of its graph, so that the call is made as without it; with fullgraph=True, its error,
    which has these words and the line."""
    if torch.compiler.is_dynamo_compiling():
        torch._dynamo.graph_break(msg=why)


def _refuse(why: str) -> UnsupportedError:
    """An exception that names the line of the user's function."""
    leave_graph(why)
    frame: Any = sys._getframe(1)
    while frame and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    if frame is None:
        return UnsupportedError(why)
    path, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(path, line).strip()
    return UnsupportedError(f"{path}:{line}: {why}" + (f"\n    {text}" if text else ""))


class Value:
    """A stand-in: a text of the language, and its type there, "bool", "int" or "float"."""

    def __init__(self, trace: _Trace, text: str, kind: str) -> None:
        self.trace, self.text, self.kind = trace, text, kind

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in (*args, *(kwargs or {}).values()):
            if isinstance(value, Value):
                return value.trace.call(function.__name__, args, kwargs or {})
        return NotImplemented

    @property
    def dtype(self) -> torch.dtype:
        return {"bool": torch.bool, "int": torch.int32, "float": torch.float32}[self.kind]

    def __bool__(self) -> bool:
        raise _refuse("whether this is true is known for each query and key alone; write torch.where, & and | for if, and and or")

    def __int__(self) -> int:
        raise _refuse("this is a number for each query and key, not one of Python's; leave int(), float() and range() out")

    def __float__(self) -> float:
        return self.__int__()

    def __index__(self) -> int:
        return self.__int__()

    def __iter__(self) -> Any:
        raise _refuse("a position is one number, and cannot be iterated over")

    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self.trace.call(name, (self, *args), kwargs)


def _method(name: str, swapped: bool) -> Callable[..., Any]:
    def method(self: Value, *others: Any) -> Any:
        return self.trace.call(name, (*others, self) if swapped else (self, *others), {})
    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
    setattr(Value, f"__{_name}__", _method(_name, False))
    setattr(Value, f"__r{_name}__", _method(_name, True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "abs", "invert"):
    setattr(Value, f"__{_name}__", _method(_name, False))

_COMPARISONS = {"lt": "<", "less": "<", "le": "<=", "less_equal": "<=", "gt": ">", "greater": ">", "ge": ">=", "greater_equal": ">=",
                "eq": "==", "ne": "!=", "not_equal": "!="}
_ARITHMETIC = {"add": "+", "sub": "-", "subtract": "-", "mul": "*", "multiply": "*"}
_FUNCTIONS = ("exp", "log", "sqrt", "tanh", "sigmoid")
_CASTS = {"float": "float", "int": "int", "long": "int", "bool": "bool"}
_LOGIC = {"and": "&", "logical_and": "&", "bitwise_and": "&", "or": "|", "logical_or": "|", "bitwise_or": "|"}


class _Trace(TorchFunctionMode):
    """What the functions of one call read: tensors, by the names that they have in the texts."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[str, Tensor] = {}
        self.read: list[Tensor] = []  # what has these names, in their order

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        flat = [inner for value in (*args, *kwargs.values()) for inner in (value if isinstance(value, (tuple, list)) else (value,))]
        if any(isinstance(value, Value) for value in flat):
            return self.call(function.__name__, args, kwargs)
        return function(*args, **kwargs)

    def name_of(self, tensor: Tensor) -> str:
        for at, known in enumerate(self.read):
            if known is tensor:
                return f"tensor{at}"
        name = f"tensor{len(self.read)}"
        self.read.append(tensor)
        self.tensors[name] = tensor if tensor.dim() else tensor.reshape(1)
        return name

    def lift(self, value: Any) -> Value:
        if isinstance(value, Value):
            return value
        if isinstance(value, bool):
            return Value(self, "true" if value else "false", "bool")
        if isinstance(value, (int, float)):
            value = {value}.pop()  # which is a constant to torch.compile from here on, and another value another graph
        if isinstance(value, int):
            return Value(self, str(value) if value >= 0 else f"({value})", "int")
        if isinstance(value, float):
            text = repr(value)
            return Value(self, text if value >= 0 or math.isnan(value) else f"({text})", "float")
        if isinstance(value, Tensor):
            if value.dim() != 0:
                raise _refuse(f"a tensor of {value.dim()} dimensions is used as a number; read one element of it, as in t[h, q_idx]")
            return self.element(value, (0,))
        raise _refuse(f"{type(value).__name__} is no number")

    def element(self, tensor: Tensor, index: tuple[Any, ...]) -> Value:
        if len(index) != max(tensor.dim(), 1) or any(at is Ellipsis for at in index):
            raise _refuse(f"{len(index)} indices of a tensor of {tensor.dim()} dimensions; give one for each")
        texts = []
        for at in index:
            at = self.lift(at)
            if at.kind != "int":
                raise _refuse("an index must be an int")
            texts.append(at.text)
        kinds = {torch.bool: "bool", torch.int32: "int", torch.int64: "int", torch.uint8: "int", torch.float32: "float",
                 torch.float16: "float", torch.bfloat16: "float"}
        if tensor.dtype not in kinds:
            raise _refuse(f"a tensor of {tensor.dtype} cannot be read here; convert it to float32 or int32")
        text = f"{self.name_of(tensor)}[{', '.join(texts)}]"
        kind = kinds[tensor.dtype]
        return Value(self, f"({text} != 0)" if kind == "bool" else text, kind)

    def number(self, value: Any) -> Value:
        value = self.lift(value)
        return Value(self, f"where({value.text}, 1, 0)", "int") if value.kind == "bool" else value

    def condition(self, value: Any) -> Value:
        value = self.lift(value)
        return value if value.kind == "bool" else Value(self, f"({value.text} != 0)", "bool")

    def real(self, value: Any) -> Value:
        value = self.number(value)
        return value if value.kind == "float" else Value(self, f"float({value.text})", "float")

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the function of torch or operator of this name gives."""
        name = name.strip("_")
        if name == "getitem":
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if isinstance(args[0], Value):
                raise _refuse("a position is one number, and cannot be indexed")
            return self.element(args[0], index)
        if name in ("rsub", "rtruediv", "rdiv", "rfloordiv", "rmod", "rpow", "rmul", "radd") and len(args) == 2:
            name, args = name[1:], (args[1], args[0])
        if kwargs and name not in ("clamp", "clip", "to", "where", "div"):
            raise _refuse(f"{name}: {', '.join(kwargs)}= has no counterpart; leave it out")
        if name in _CASTS or name in ("to", "type", "contiguous", "clone", "detach"):
            return self.cast(name, args, kwargs)
        handler = getattr(self, "do_" + name, None)
        if handler is not None:
            return handler(*args, **kwargs)
        if len(args) == 2 and name in _COMPARISONS:
            a, b = self.number(args[0]), self.number(args[1])
            return Value(self, f"({a.text} {_COMPARISONS[name]} {b.text})", "bool")
        if len(args) == 2 and name in _ARITHMETIC:
            a, b = self.number(args[0]), self.number(args[1])
            return Value(self, f"({a.text} {_ARITHMETIC[name]} {b.text})", "float" if "float" in (a.kind, b.kind) else "int")
        if len(args) == 2 and name in _LOGIC:
            return self.logic(name, *args)
        if len(args) == 1 and name in _FUNCTIONS:
            return Value(self, f"{name}({self.real(args[0]).text})", "float")
        raise _refuse(f"{name}: the spec's language has no counterpart (compiler/SPEC.md, masks and scores)")

    def logic(self, name: str, a: Any, b: Any) -> Value:
        a, b = self.lift(a), self.lift(b)
        if not name.startswith("logical") and (a.kind != "bool" or b.kind != "bool"):
            raise _refuse(f"{name}: there are no operations on the bits of numbers; compare first")
        return Value(self, f"({self.condition(a).text} {_LOGIC[name]} {self.condition(b).text})", "bool")

    def cast(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
        value = self.lift(args[0])
        if name in ("contiguous", "clone", "detach"):
            return value
        to = kwargs.get("dtype", args[1] if len(args) > 1 else None)
        kinds: dict[Any, str] = {torch.float32: "float", torch.int32: "int", torch.int64: "int", torch.bool: "bool"}
        kind = _CASTS.get(name) or kinds.get(to)
        if kind is None:
            raise _refuse(f"{name}: scores are fp32, and positions ints; there is no {to}")
        if kind == "float":
            return self.real(value)
        if kind == "bool":
            return self.condition(value)
        if value.kind == "float":
            raise _refuse(f"{name}: a float cannot become an int")
        return self.number(value)

    def do_truediv(self, a: Any, b: Any) -> Value:
        return Value(self, f"({self.real(a).text} / {self.real(b).text})", "float")

    def do_div(self, a: Any, b: Any, rounding_mode: str | None = None) -> Value:
        if rounding_mode == "trunc":
            raise _refuse("div: ints are rounded down here; use //")
        return self.do_truediv(a, b) if rounding_mode is None else self.do_floordiv(a, b)

    do_true_divide = do_divide = do_div

    def ints(self, name: str, a: Any, b: Any) -> tuple[str, str]:
        a, b = self.number(a), self.number(b)
        if "float" in (a.kind, b.kind):
            raise _refuse(f"{name}: takes two ints")
        return a.text, b.text

    def do_floordiv(self, a: Any, b: Any) -> Value:
        return Value(self, "({} / {})".format(*self.ints("//", a, b)), "int")

    do_floor_divide = do_floordiv

    def do_mod(self, a: Any, b: Any) -> Value:
        return Value(self, "({} % {})".format(*self.ints("%", a, b)), "int")

    do_remainder = do_mod

    def do_pow(self, a: Any, power: Any) -> Value:
        if power == 0.5:
            return Value(self, f"sqrt({self.real(a).text})", "float")
        if not isinstance(power, (int, float)) or isinstance(power, bool) or power not in (1, 2, 3, 4):
            raise _refuse("pow: the exponent must be 0.5 or a number from 1 to 4")
        a = self.number(a)
        kind = "float" if isinstance(power, float) else a.kind
        return Value(self, "(" + " * ".join([self.real(a).text if kind == "float" else a.text] * int(power)) + ")", kind)

    def do_square(self, a: Any) -> Value:
        return self.do_pow(a, 2)

    def do_neg(self, a: Any) -> Value:
        a = self.number(a)
        return Value(self, f"(-{a.text})", a.kind)

    do_negative = do_neg

    def do_abs(self, a: Any) -> Value:
        a = self.number(a)
        return Value(self, f"abs({a.text})", a.kind)

    do_absolute = do_abs

    def do_invert(self, a: Any) -> Value:
        a = self.lift(a)
        if a.kind != "bool":
            raise _refuse("~: there are no operations on the bits of numbers; compare first")
        return Value(self, f"(!{a.text})", "bool")

    do_bitwise_not = do_invert

    def do_logical_not(self, a: Any) -> Value:
        return Value(self, f"(!{self.condition(a).text})", "bool")

    def do_xor(self, a: Any, b: Any) -> Value:
        a, b = self.lift(a), self.lift(b)
        if a.kind != "bool" or b.kind != "bool":
            raise _refuse("^: there are no operations on the bits of numbers; compare first")
        return Value(self, f"({a.text} & !{b.text} | !{a.text} & {b.text})", "bool")

    do_bitwise_xor = do_logical_xor = do_xor

    def do_where(self, condition: Any, a: Any, b: Any) -> Value:
        c, a, b = self.condition(condition), self.lift(a), self.lift(b)
        if a.kind != b.kind:
            a, b = self.number(a), self.number(b)
        kind = a.kind if a.kind == b.kind else "float"
        return Value(self, f"where({c.text}, {a.text}, {b.text})", kind)

    def extreme(self, name: str, a: Any, b: Any) -> Value:
        """PyTorch's give NaN where one is, and the language's leave it out."""
        a, b = self.number(a), self.number(b)
        if "float" not in (a.kind, b.kind):
            return Value(self, f"{name}({a.text}, {b.text})", "int")
        return Value(self, f"where({a.text} != {a.text} | {b.text} != {b.text}, nan, {name}({a.text}, {b.text}))", "float")

    def do_minimum(self, a: Any, b: Any) -> Value:
        return self.extreme("min", a, b)

    def do_maximum(self, a: Any, b: Any) -> Value:
        return self.extreme("max", a, b)

    do_min, do_max = do_minimum, do_maximum

    def do_clamp(self, a: Any, min: Any = None, max: Any = None) -> Value:  # noqa: A002
        value = self.number(a)
        if min is not None:
            value = self.extreme("max", value, min)
        return value if max is None else self.extreme("min", value, max)

    do_clip = do_clamp

    def do_relu(self, a: Any) -> Value:
        return self.extreme("max", a, 0)

    def do_reciprocal(self, a: Any) -> Value:
        return self.do_truediv(1.0, a)

    def do_rsqrt(self, a: Any) -> Value:
        return Value(self, f"(1.0 / sqrt({self.real(a).text}))", "float")


def trace(mask_mod: Callable[..., Any] | None = None, score_mod: Callable[..., Any] | None = None) -> dict[str, Any]:
    """What flashjit.attention takes for these functions: `mask`, `score`, and the tensors that they read. The functions
    run now: what they compute from tensors alone, and what they read of Python, is taken as it is now.

    >>> import flashjit.torch
    >>> flashjit.torch.trace(mask_mod=lambda b, h, q, k: (q >= k) & (q - k < 128))
    {'mask': '((q >= k) & ((q - k) < 128))', 'score': None}
    """
    traced = _Trace()
    positions = [Value(traced, name, "int") for name in ("b", "h", "q", "k")]
    mask = score = None
    with traced:
        if mask_mod is not None:
            mask = traced.condition(mask_mod(*positions)).text
        if score_mod is not None:
            score = traced.real(score_mod(Value(traced, "s", "float"), *positions)).text
    return {"mask": mask, "score": score, **traced.tensors}

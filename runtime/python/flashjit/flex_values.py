"""These stand in for the tensors that FlexAttention's functions compute with: each is a text of the spec's language,
and has PyTorch's dtype."""

from __future__ import annotations

import linecache
import os
import sys
from typing import Any, Callable, Sequence

import torch
from torch import Tensor

from flashjit.capi import UnsupportedError
from flashjit.flex_types import names_in

_OURS = (os.path.dirname(__file__), os.path.dirname(torch.__file__))
_LIBRARY = os.path.dirname(os.__file__)
LIMIT = 4096  # The spec's language takes this many bytes of a mask or score.
# The language takes 64 levels of nesting. This leaves a few for what encloses a text.
DEPTH = 60
TENSORS = 8  # A mask and a score may read this many run-time parameters.
LONGEST = 2**30 - 1  # No batch and no sequence is longer.

# This is how strongly the operators of the language bind, from the weakest. Operands that bind less get parentheses.
OR, AND, NOT, COMPARISON, SUM, PRODUCT, SIGN, WHOLE = range(8)

INTS = {torch.uint8: (0, 2**8 - 1), torch.int8: (-2**7, 2**7 - 1), torch.int16: (-2**15, 2**15 - 1), torch.int32: (-2**31, 2**31 - 1),
        torch.int64: (-2**63, 2**63 - 1)}
_FROM_NARROW = (torch.bool, *INTS)  # in the order in which PyTorch promotes, except for uint8 beside int8
# A kernel reads a tensor of the first dtype as one of the second.
READABLE = {torch.bool: torch.bool, torch.uint8: torch.uint8, torch.int8: torch.int32, torch.int16: torch.int32, torch.int32: torch.int32,
            torch.int64: torch.int64, torch.float32: torch.float32, torch.float16: torch.float16, torch.bfloat16: torch.bfloat16}


def leave_graph(why: str) -> None:
    """If torch.compile follows, ends its graph, so that the call is made as without it. With fullgraph=True it raises
    its error, which has these words and the line."""
    if torch.compiler.is_dynamo_compiling():
        torch._dynamo.graph_break(msg=why)


def at_line(why: str, path: str, line: int) -> UnsupportedError:
    text = linecache.getline(path, line).strip()
    return UnsupportedError(f"{path}:{line}: {why}" + (f"\n    {text}" if text else ""))


def is_of_user(path: str) -> bool:
    return not path.startswith(_OURS)


# PyTorch's code in C would read the memory of a stand-in that says it is a tensor.
ASKED = "{}: what stands in for a number here is no tensor, and cannot say that it is; leave the question out"


def is_of_python(path: str) -> bool:
    return path.startswith(_LIBRARY) and "-packages" not in path


def refuse(why: str) -> UnsupportedError:
    """Makes an exception that names the line of the user's function."""
    leave_graph(why)
    frame: Any = sys._getframe(1)
    while frame and not is_of_user(frame.f_code.co_filename):
        frame = frame.f_back
    return UnsupportedError(why) if frame is None else at_line(why, frame.f_code.co_filename, frame.f_lineno)


_IS_TENSOR = torch.is_tensor.__code__


class StandIn:
    """Functions are called with this in place of tensors. It asks its writer for everything that is done with it."""

    __array_ufunc__ = None  # NumPy's numbers then leave operators to this class.
    __hash__ = object.__hash__

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return writer_of(args, kwargs or {}).call(function, args, kwargs or {})

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """isinstance looks this up if the type is none of those it asks for, and so does PyTorch where it would take a
        number."""
        code = sys._getframe(1).f_code
        path = code.co_filename
        if code is _IS_TENSOR or is_of_user(path) and not is_of_python(path) and "isinstance" in names_in(code):
            raise refuse(ASKED.format("isinstance"))
        return type(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.writer.attribute(self, name)

    def __getitem__(self, index: Any) -> Any:
        return self.writer.named("getitem", (self, index), {})

    def __bool__(self) -> bool:
        raise refuse("whether this is true is known for each query and key alone; write torch.where, & and | for if, and and or")

    def __int__(self) -> int:
        raise refuse("this is a number for each query and key, not one of Python's; leave int(), float() and range() out")

    def __float__(self) -> float:
        return self.__int__()

    def __index__(self) -> int:
        return self.__int__()

    def __complex__(self) -> complex:
        return self.__int__()

    def __iter__(self) -> Any:
        raise refuse("a number for each query and key cannot be iterated over")

    def __contains__(self, item: Any) -> bool:
        raise refuse("`in` asks something of each query and key; write ==, and | between several")

    def __setitem__(self, index: Any, value: Any) -> None:
        raise refuse("an element cannot be set; write torch.where")


def _method(name: str, swapped: bool = False) -> Callable[..., Any]:
    def method(self: StandIn, *others: Any) -> Any:
        return self.writer.named(name, (*others, self) if swapped else (self, *others), {})
    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift", "matmul"):
    setattr(StandIn, f"__{_name}__", _method(_name))
    setattr(StandIn, f"__r{_name}__", _method(_name, True))
    # PyTorch's `x += y` changes x, also under its other names.
    setattr(StandIn, f"__i{_name}__", _method(_name + "_"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "abs", "invert", "pos", "round", "floor", "ceil", "trunc", "divmod", "len"):
    setattr(StandIn, f"__{_name}__", _method(_name))


class Value(StandIn):
    """This stands in for a tensor of one number. `range` limits an int. `weak` means that it is a number of Python,
    which takes the dtype of the other operand. `moves` means that it has a gradient, and `reads` that it reads a
    tensor. `bits` tells where its bits come from, if it was put together of bits of others. If an int may leave 64
    bits and wraps around, `bounded` is an equal number in a text that does not, provided that everything it is made
    of is below 2^60."""

    def __init__(self, writer: Any, dtype: torch.dtype, text: str, level: int = WHOLE, range: Any = None,
                 depth: int = 0, weak: bool = False, moves: bool = False, reads: bool = False, bits: Any = None) -> None:
        super().__init__(writer)
        self.dtype, self.text, self.level, self.depth = dtype, text, level, depth
        self.range: Any = range  # the least and the largest, for ints only
        self.weak, self.moves, self.reads, self.bits = weak, moves, reads, bits
        self.bounded: Value | None = None

    @property
    def kind(self) -> str:
        return "bool" if self.dtype == torch.bool else "int" if self.dtype in INTS else "float"

    @property
    def ndim(self) -> int:
        return 0

    @property
    def shape(self) -> torch.Size:
        return torch.Size([])

    @property
    def constant(self) -> int | None:
        """Returns the int that it is, if it is known."""
        return self.range[0] if self.range and self.range[0] == self.range[1] else None

    @property
    def inside(self) -> Value:
        """Returns the text for an index."""
        return self if self.bounded is None else self.bounded

    def become(self, other: Value) -> Value:
        """Replaces the value for all who have it."""
        self.dtype, self.text, self.level, self.range, self.depth = other.dtype, other.text, other.level, other.range, other.depth
        self.weak, self.moves, self.reads, self.bits, self.bounded = False, other.moves, other.reads, other.bits, other.bounded
        return self


def flat(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    return [inner for value in (*args, *kwargs.values()) for inner in (value if isinstance(value, (tuple, list)) else (value,))]


def writer_of(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return next(value.writer for value in flat(args, kwargs) if isinstance(value, StandIn))


def wider(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """Returns the dtype that PyTorch makes of both, where floats are fp32."""
    if a not in _FROM_NARROW or b not in _FROM_NARROW:
        return torch.float32
    if {a, b} == {torch.uint8, torch.int8}:
        return torch.int16
    return a if _FROM_NARROW.index(a) >= _FROM_NARROW.index(b) else b


def common(a: Value, b: Value) -> torch.dtype:
    """Returns the dtype in which PyTorch computes with both."""
    if a.weak == b.weak:
        return wider(a.dtype, b.dtype)
    weak, strong = (a, b) if a.weak else (b, a)
    order = ("bool", "int", "float")
    return weak.dtype if order.index(weak.kind) > order.index(strong.kind) else strong.dtype


class Writer:
    """This writes texts, and knows the tensors that they read."""

    def __init__(self, device: Any, lengths: Sequence[int] | None) -> None:
        self.device = device
        self.lengths = lengths  # lengths of batch, heads, queries and keys
        self.gradients = torch.is_grad_enabled()
        self.tensors: dict[str, Tensor] = {}  # by the names that they have in the texts
        self.read: list[Tensor] = []  # tensors as the functions read them, in the same order
        self.made: list[tuple[Tensor, Any]] = []  # tensors of one number that the functions made of a number of Python

    def compose(self, dtype: torch.dtype, level: int, pieces: Sequence[Any], range: tuple[int, int] | None = None,
                bits: Any = None) -> Value:
        """Makes a text of texts and values. Each value has the least level beside it that needs no parentheses there."""
        value = self._composed(dtype, level, pieces, range, bits)
        if any([not isinstance(piece, str) and piece[0].bounded is not None for piece in pieces]):
            bounded = [piece if isinstance(piece, str) else (piece[0].inside, piece[1]) for piece in pieces]
            value.bounded = self._composed(dtype, level, bounded, range, bits)
        return value

    def _composed(self, dtype: torch.dtype, level: int, pieces: Sequence[Any], range: tuple[int, int] | None, bits: Any) -> Value:
        """Computes the length of the text before it is made, so that a loop cannot fill the memory."""
        size, depth, moves, reads = 0, 0, False, False
        for piece in pieces:
            if isinstance(piece, str):
                size += len(piece)
            else:
                size += len(piece[0].text) + 2 * (piece[0].level < piece[1])
                depth = max(depth, piece[0].depth + (piece[1] in (OR, NOT, SIGN) or piece[0].level < piece[1]))
                moves, reads = moves or piece[0].moves, reads or piece[0].reads
        if size > LIMIT:
            raise refuse(f"the text would have {size} bytes here, and the spec's language takes {LIMIT}; write what is used several times into a "
                         "tensor, or leave some of it out")
        if depth > DEPTH:
            raise refuse(f"this is nested {depth} levels deep, and the spec's language takes {DEPTH} from here; use fewer steps")
        moves = moves and dtype not in _FROM_NARROW
        if moves and self.gradients and not torch.is_grad_enabled():
            raise refuse("torch.no_grad: the spec's language has no counterpart; its derivatives are of all that is computed")
        text = "".join([piece if isinstance(piece, str) else f"({piece[0].text})" if piece[0].level < piece[1] else piece[0].text
                        for piece in pieces])
        return Value(self, dtype, text, level, range, depth, False, moves, reads, bits)

    def binary(self, a: Value, operator: str, b: Value, level: int, dtype: torch.dtype, range: tuple[int, int] | None = None) -> Value:
        return self.compose(dtype, level, ((a, SUM if level == COMPARISON else level), f" {operator} ", (b, level + 1)), range)

    def function(self, name: str, args: Sequence[Value], dtype: torch.dtype, range: tuple[int, int] | None = None) -> Value:
        pieces: list[Any] = [f"{name}("]
        for at, value in enumerate(args):
            pieces += [", ", (value, OR)] if at else [(value, OR)]
        return self.compose(dtype, WHOLE, [*pieces, ")"], range)

    def lift(self, value: Any) -> Value:
        if isinstance(value, Value):
            return value
        if not isinstance(value, (bool, int, float, Tensor)) and hasattr(value, "item") and getattr(value, "ndim", None) == 0:
            value = value.item()  # This is a number of NumPy.
        if isinstance(value, bool):
            return Value(self, torch.bool, "true" if value else "false", weak=True)
        if isinstance(value, (int, float)):
            # torch.compile takes it for a constant from here on, and makes another graph for another value.
            value = {value}.pop()
        if isinstance(value, int):
            return Value(self, torch.int64, str(int(value)), WHOLE if value >= 0 else SIGN, (int(value), int(value)), weak=True)
        if isinstance(value, float):
            text = float.__repr__(value)
            return Value(self, torch.float32, text, SIGN if text.startswith("-") else WHOLE, weak=True)
        if isinstance(value, Tensor):
            for tensor, number in self.made:
                if tensor is value:
                    return self.strong(number, tensor.dtype)
            return self.element(value, (0,))
        raise refuse(f"{type(value).__name__} is no number")

    def strong(self, number: Any, dtype: torch.dtype) -> Value:
        """Returns a number of Python as a tensor has it."""
        value = self.convert(self.lift(number), dtype)
        return Value(self, value.dtype, value.text, value.level, value.range, value.depth)

    def name_of(self, tensor: Tensor) -> str:
        for at, known in enumerate(self.read):
            if known is tensor:
                return f"tensor{at}"
        if tensor.dtype not in READABLE:
            raise refuse(f"a tensor of {tensor.dtype} cannot be read here; convert it to float32 or int32")
        if len(self.read) == TENSORS:
            raise refuse(f"this is tensor {TENSORS + 1} that the functions read, and a kernel takes {TENSORS}; put several into one")
        name = f"tensor{len(self.read)}"
        self.read.append(tensor)
        known = tensor.to(READABLE[tensor.dtype]) if tensor.dtype != READABLE[tensor.dtype] else tensor
        if known.dim() == 0:
            known = known.reshape(1)
            # PyTorch allows another device for one number.
            if self.device is not None and known.device != self.device:
                known = known.to(self.device)
        self.tensors[name] = known
        return name

    def index(self, at: Any, count: int) -> Value:
        """Returns an index along a dimension of `count`. PyTorch counts negative ones from the end."""
        given = self.lift(at)
        if given.kind != "int":
            raise refuse(f"an index must be an int, and this is of {given.dtype}")
        if given.dtype == torch.uint8:
            raise refuse("an index of uint8 is a mask to PyTorch; convert it to int32")
        value: Value = given.inside
        if value.range[0] >= 0 or not (value.reads or self.lengths) or not count:
            return value
        # An index outside stays outside, so the call is refused. If nothing is negative, the language sees the range as
        # it is.
        from_start = self.binary(value, "%", self.lift(count), PRODUCT, torch.int64)
        from_end = self.binary(self.function("min", (value, self.lift(-1)), torch.int64), "+", self.lift(count), SUM, torch.int64)
        return self.function("max", (self.function("min", (from_start, from_end), torch.int64), value), torch.int64)

    def element(self, tensor: Tensor, index: Sequence[Any]) -> Value:
        """`index` has a number for each dimension."""
        pieces: list[Any] = []
        for i, count in zip(index, tensor.shape or (1,)):
            pieces += [", ", (self.index(i, count), OR)] if pieces else [(self.index(i, count), OR)]
        name = self.name_of(tensor)
        if tensor.dtype == torch.bool:
            value = self._composed(torch.bool, COMPARISON, (f"{name}[", *pieces, "] != 0"), None, None)
        elif tensor.dtype in INTS:
            value = self._composed(tensor.dtype, WHOLE, (f"{name}[", *pieces, "]"), INTS[tensor.dtype], None)
        else:
            value = self._composed(torch.float32, WHOLE, (f"{name}[", *pieces, "]"), None, None)
        value.moves, value.reads = tensor.requires_grad, True
        return value

    def convert(self, value: Value, dtype: torch.dtype) -> Value:
        """Converts as PyTorch does: ints wrap around."""
        kind = "bool" if dtype == torch.bool else "int" if dtype in INTS else "float"
        if dtype not in READABLE:
            raise refuse(f"there is no {dtype} in the spec's language; use torch.float32, or torch.int64 for ints")
        if value.kind == "bool" and kind != "bool" and value.text in ("true", "false"):
            one_or_zero = int(value.text == "true")
            return self.convert(Value(self, torch.int64, str(one_or_zero), range=(one_or_zero, one_or_zero), weak=value.weak), dtype)
        if value.kind == "bool" and kind != "bool":
            one, zero = ("1", "0") if kind == "int" else ("1.0", "0.0")
            return self.compose(dtype, WHOLE, ("where(", (value, OR), f", {one}, {zero})"), (0, 1) if kind == "int" else None)
        if kind == "bool" and value.constant is not None:
            return Value(self, dtype, "true" if value.constant else "false", reads=value.reads)
        if kind == "bool":
            return value if value.kind == "bool" else self.compose(dtype, COMPARISON, ((value, SUM), " != 0"))
        if kind == "float" and value.constant is not None:
            number = self.lift(float(value.constant))
            return Value(self, dtype, number.text, number.level, weak=value.weak)
        if kind == "float":
            return value if value.kind == "float" else self.function("float", (value,), torch.float32)
        if value.kind == "float":
            raise refuse("a float cannot become an int in the spec's language")
        if value.dtype == dtype and not value.weak:
            return value
        return self.wrapped(value, dtype)

    def wrapped(self, value: Value, dtype: torch.dtype) -> Value:
        """Returns an int of any size, as this dtype holds it."""
        low, high = INTS[dtype]
        inside = low <= value.range[0] and value.range[1] <= high
        if inside or dtype == torch.int64:  # The language refuses numbers beyond 64 bits.
            same = Value(self, dtype, value.text, value.level, value.range, value.depth, value.weak, False, value.reads, value.bits)
            same.bounded = value.bounded
            return same
        if value.constant is not None:
            constant = (value.constant - low) % (high - low + 1) + low
            return Value(self, dtype, str(constant), WHOLE if constant >= 0 else SIGN, (constant, constant))
        moved = self.compose(torch.int64, SUM, ((value, SUM), f" + {-low}")) if low else value
        back = f" - {-low}" if low else ""
        return self.compose(dtype, SUM if low else PRODUCT, ((moved, PRODUCT), f" % {high - low + 1}{back}"), (low, high))

    def logic(self, operator: str, a: Value, b: Value) -> Value:
        level = AND if operator == "&" else OR
        return self.compose(torch.bool, level, ((a, level), f" {operator} ", (b, level + 1)))

    def negation(self, a: Value) -> Value:
        return self.compose(torch.bool, NOT, ("!", (a, NOT)))

    def number(self, value: Any) -> Value:
        value = self.lift(value)
        return self.convert(value, torch.int64) if value.kind == "bool" else value

    def condition(self, value: Any) -> Value:
        return self.convert(self.lift(value), torch.bool)

    def real(self, value: Any) -> Value:
        return self.convert(self.lift(value), torch.float32)

    def where(self, condition: Value, a: Value, b: Value, dtype: torch.dtype) -> Value:
        """`a` and `b` have the dtype already."""
        range = (min(a.range[0], b.range[0]), max(a.range[1], b.range[1])) if a.range and b.range else None
        return self.function("where", (condition, a, b), dtype, range)

    def is_nan(self, value: Value) -> Value:
        return self.binary(value, "!=", value, COMPARISON, torch.bool)

"""FlexAttention's mask_mod and score_mod become texts of the spec's language: the functions run once, on stand-ins that
write down what is done with them."""

from __future__ import annotations

import traceback
from typing import Any, Callable, Sequence

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from flashjit import flex_rows
from flashjit.capi import InvalidError, UnsupportedError
from flashjit.flex_functions import ARGUMENTS, FUNCTIONS, RENAMED, device_of
from flashjit.flex_table import METHODS, NUMBERS, ROWS
from flashjit.flex_types import asked, asks
from flashjit.flex_values import ASKED, LONGEST, StandIn, Value, Writer, at_line, flat, is_of_user, leave_graph, refuse
from flashjit.values import shown

__all__ = ["leave_graph", "trace"]
_UNKNOWN = "the spec's language has no counterpart (compiler/SPEC.md, masks and scores)"
_MAKERS = (torch.tensor, torch.scalar_tensor)


class _Trace(Writer, TorchFunctionMode):
    """This is one call of the functions."""

    def __init__(self, device: Any, lengths: Sequence[int] | None) -> None:
        TorchFunctionMode.__init__(self)
        Writer.__init__(self, device, lengths)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(isinstance(value, StandIn) for value in flat(args, kwargs)):
            return self.call(function, args, kwargs)
        result = function(*args, **kwargs)
        if function in _MAKERS and args and isinstance(args[0], (int, float)) and not result.requires_grad:
            self.made.append((result, args[0]))
        return result

    def positions(self) -> list[Value]:
        counts = self.lengths or (LONGEST + 1,) * 4
        return [Value(self, torch.int64, name, range=(0, max(count - 1, 0))) for name, count in zip("bhqk", counts)]

    def attribute(self, value: StandIn, name: str) -> Any:
        if name == "device":
            return device_of(self)
        table_name = "." + name if name in METHODS else name
        if hasattr(Tensor, name) and any([name in table or name.removesuffix("_") in table for table in (METHODS, NUMBERS, ROWS)]):
            return lambda *args, **kwargs: self.named(table_name, (value, *args), kwargs)
        raise refuse(f"{name}: {_UNKNOWN}")

    def call(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        name = FUNCTIONS.get(function)
        if name is None:
            name = getattr(function, "__name__", str(function))
            raise refuse(f"{name}: {_UNKNOWN}")
        return self.named(name, args, kwargs)

    def named(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Returns the result of the function or operator of this name."""
        if name.endswith("_"):
            return self.changed(name[:-1], args, kwargs)
        if kwargs and kwargs.pop("inplace", False):
            return self.changed(name, args, kwargs)
        handler = METHODS[name[1:]] if name.startswith(".") else NUMBERS.get(name) or ROWS.get(name)
        if handler is None:
            raise refuse(f"{name}: {_UNKNOWN}")
        most, names = ARGUMENTS[id(handler)]
        if kwargs:
            own = {key: names[RENAMED[key]] for key in kwargs if key in RENAMED and key not in names}
            kwargs = {own.get(key, key): value for key, value in kwargs.items() if value is not None}
        unknown = [f"{key}=" for key in kwargs if key not in names]
        if unknown or len(args) > most:
            raise refuse(f"{name}: {', '.join(unknown) or f'argument {len(args)}'} has no counterpart; leave it out")
        if name in NUMBERS and any([type(value) is not Value and flex_rows.has_rows(value) for value in (*args, *kwargs.values())]):
            return flex_rows.collapsed(flex_rows.each(self, handler, args, kwargs))
        return handler(self, *args, **kwargs)

    def changed(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
        """Computes in place: others who have the value have the result, too."""
        target = args[0]
        if not isinstance(target, Value) or name not in NUMBERS:
            raise refuse(f"{name}_: nothing but a number can be changed in place; leave the `_` out")
        result = self.lift(self.named(name, args, kwargs))
        if ("bool", "int", "float").index(result.kind) > ("bool", "int", "float").index(target.kind):
            raise refuse(f"{name}_: the result is of {result.dtype}, and cannot become {target.dtype}")
        return target.become(self.convert(result, target.dtype))

    def result(self, function: Callable[..., Any], *args: Any) -> Value:
        """Calls the function, whose result must be one number."""
        try:
            found = function(*args)
        # PyTorch raises these if it cannot take a stand-in.
        except (TypeError, RuntimeError) as error:
            lines = [frame for frame in traceback.extract_tb(error.__traceback__) if is_of_user(frame.filename)]
            if isinstance(error, UnsupportedError) or not lines:
                raise
            raise at_line(f"{type(error).__name__}: {error}", lines[-1].filename, lines[-1].lineno or 0) from error
        if isinstance(found, flex_rows.Rows) or (isinstance(found, Tensor) and found.dim()):
            code = getattr(function, "__code__", None)
            why = f"the result has {found.ndim} dimensions {tuple(found.shape)}, and must be one number; read one element of it, as in t[h, q_idx]"
            leave_graph(why)
            raise at_line(why, code.co_filename, code.co_firstlineno) if code else UnsupportedError(why)
        return self.lift(found)


def trace(mask_mod: Callable[..., Any] | None = None, score_mod: Callable[..., Any] | None = None, *, device: Any = None,
          lengths: Sequence[int] | None = None) -> dict[str, Any]:
    """Returns what flashjit.attention takes for these functions: `mask`, `score`, and the tensors that they read. The
    functions run now: what they compute from tensors alone, and what they read of Python, is taken as it is now.
    Positions are int64, scores fp32, and both tensors of one number, as in PyTorch without torch.compile. `device`
    is the device that they report, which is PyTorch's default if it is None. `lengths`, of batch, heads, queries and
    keys, are needed if an index below 0 counts from the end.

    >>> import flashjit.torch
    >>> flashjit.torch.trace(mask_mod=lambda b, h, q, k: (q >= k) & (q - k < 128))
    {'mask': 'q >= k & q - k < 128', 'score': None}
    """
    for name, function in (("block_mask, mask_mod", mask_mod), ("score_mod", score_mod)):
        if function is not None and not callable(function):
            raise InvalidError(f"{name}: {shown(function)} is no function; give one, which may read tensors, or its text to flashjit.attention")
    if asks(mask_mod) or asks(score_mod):
        leave_graph("the function asks what something is, by isinstance, type or torch.is_tensor, and here stand-ins would be no tensors; leave "
                    "the question out")
        found: dict[str, Any] = _traced_by_python(mask_mod, score_mod, device, lengths)
        return found
    return _traced(mask_mod, score_mod, device, lengths)


def _traced(mask_mod: Callable[..., Any] | None, score_mod: Callable[..., Any] | None, device: Any, lengths: Sequence[int] | None) -> dict[str, Any]:
    traced = _Trace(torch.device(device) if device is not None else None, lengths)
    mask = score = None
    with traced:
        if mask_mod is not None:
            mask = traced.condition(traced.result(mask_mod, *traced.positions())).text
        if score_mod is not None:
            s = Value(traced, torch.float32, "s", moves=True)
            score = traced.real(traced.result(score_mod, s, *traced.positions())).text
    texts = f"{mask} {score}"
    return {"mask": mask, "score": score, **{name: tensor for name, tensor in traced.tensors.items() if f"{name}[" in texts}}


def _traced_where_asked(mask_mod: Callable[..., Any] | None, score_mod: Callable[..., Any] | None, device: Any,
                        lengths: Sequence[int] | None) -> dict[str, Any]:
    """Refuses questions that stand-ins do not notice. They notice the others, but only questions about themselves."""
    for function in (mask_mod, score_mod):
        if "type" in (found := asked(function)):
            raise at_line(ASKED.format("type"), *found["type"])
    return _traced(mask_mod, score_mod, device, lengths)


_compiler: Any = torch.compiler
_traced_by_python: Any = _compiler.disable(_traced_where_asked)

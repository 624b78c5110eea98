"""Functions may ask what their arguments are. Stand-ins are no tensors, and cannot say that they are: PyTorch's code in
C would read their memory as a tensor's. So functions that ask are refused."""

from __future__ import annotations

import dis
import functools
import types
from typing import Any, Callable, Iterator

import torch
from torch._dynamo.comptime import comptime

_IS_TENSOR = "is_tensor"
_QUESTIONS: dict[Any, str] = {isinstance: "isinstance", type: "type", torch.is_tensor: _IS_TENSOR}
_BUILTIN = {"isinstance": isinstance, "type": type}


@functools.lru_cache(maxsize=1024)
def names_in(code: types.CodeType) -> dict[str, int]:
    """Returns the names that this code, and the code defined in it, looks up outside of itself, and the questions that
    it looks up as members of others; each with its line."""
    found: dict[str, int] = {}
    line, starts = code.co_firstlineno, {start: number for start, _, number in code.co_lines()}
    for step in dis.get_instructions(code):
        line = starts.get(step.offset) or line
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") or step.argval == _IS_TENSOR:
            found.setdefault(str(step.argval), line)
        elif step.opname == "MATCH_CLASS" or step.argval == "__class__":
            found.setdefault("isinstance", line)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found = {**names_in(inner), **found}
    return found


def written(value: Any) -> Any:
    """Returns the function that runs when this is called, if it is written in Python. torch.compile follows."""
    while isinstance(value, functools.partial):
        value = value.func
    if isinstance(value, types.MethodType):
        return value.__func__
    return value if isinstance(value, types.FunctionType) else getattr(type(value), "__call__", None)


def _held(function: types.FunctionType) -> list[Any]:
    """Returns what its closure holds."""
    found: list[Any] = []
    for cell in function.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:  # The variable has no value yet.
            continue
        found += held if isinstance(held, (list, tuple)) else [held]
    return found


def _question(value: Any) -> str | None:
    return _QUESTIONS.get(value) if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)) else None


def asked(root: Callable[..., Any] | None) -> dict[str, tuple[str, int]]:
    """Returns the questions that the function asks about anything, each with its file and line: its own, those of
    functions in its closure, and those of functions of its package that it calls by their names."""
    found: dict[str, tuple[str, int]] = {}
    seen: set[int] = set()
    left: list[Any] = [root]
    while left:
        function = written(left.pop())
        if not isinstance(function, types.FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        held, package, code = _held(function), function.__module__.partition(".")[0], function.__code__
        left += held
        if package == "torch":
            continue
        named = [(function.__globals__.get(name, _BUILTIN.get(name)), line) for name, line in names_in(code).items()]
        for value, line in [*named, *[(value, code.co_firstlineno) for value in held]]:
            question = _question(value)
            if question:
                found.setdefault(question, (code.co_filename, line))
        if _IS_TENSOR in code.co_names:
            found.setdefault(_IS_TENSOR, (code.co_filename, names_in(code)[_IS_TENSOR]))
        left += [value for value, _ in named if (getattr(written(value), "__module__", None) or "").partition(".")[0] == package]
    return found


_answers: list[bool] = []


def _ask_in_graph(context: Any) -> None:
    """Dynamo calls this, with the variables of asks(). A function that is made in the graph holds values of the graph,
    and is no Python function, but its code is Python's."""
    variable = context.get_local("function")._i_will_not_complain_if_bc_breaks_VariableTracker().realize()
    try:
        function = variable.as_python_constant()
    except Exception:  # Dynamo has several exceptions without a common class.
        code = variable.get_code()
        function = types.FunctionType(code, variable.get_globals(), closure=tuple(types.CellType() for _ in code.co_freevars))
    _answers[:] = [bool(asked(function))]


def _answer() -> bool:
    return _answers[0]


_compiler: Any = torch.compiler
_answer_in_graph: Any = _compiler.assume_constant_result(_answer)


def asks(root: Callable[..., Any] | None) -> bool:
    """Returns whether the function asks anything. torch.compile follows."""
    if not _compiler.is_dynamo_compiling():
        return root is not None and bool(asked(root))
    function = None if root is None else written(root)
    if function is None:
        return False
    comptime(_ask_in_graph)
    return bool(_answer_in_graph())

"""These tables have what is known of PyTorch's functions, by their names. All others are refused."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

Handler = Callable[..., Any]
Registered = TypeVar("Registered", bound=Handler)
NUMBERS: dict[str, Handler] = {}  # functions of numbers; for rows they are done for each element
ROWS: dict[str, Handler] = {}  # functions of tensors as a whole
METHODS: dict[str, Handler] = {}  # methods that take other arguments than the function of their name


def known(table: dict[str, Handler], *names: str) -> Callable[[Registered], Registered]:
    def register(handler: Registered) -> Registered:
        for name in names:
            table[name] = handler
        return handler
    return register

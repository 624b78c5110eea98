"""This package reads some parts of a spec's text."""

from __future__ import annotations

import functools
import re

from flashjit.capi import InvalidError
from flashjit.values import shown

# A field has a value with or without quotes. A flag has none.
_FIELD = re.compile(r'([^\s=<"]+)(?:<?=(?:"([^"]*)"|(\S*)))?')
# Calls write these, and k and v with `append`, and the gradients that `grads` names. The library knows that from
# compiler/spec/operands.h, but its C API cannot be asked for it.
_WRITTEN = {"fwd": ("o", "lse", "max_logit"), "merge": ("o", "lse", "max_logit"), "bwd": ("dq", "dk", "dv"), "quantize": ("y", "scale"),
            "index": ("scores", "key_index", "key_count")}


def checked(spec: object) -> str:
    """Returns a spec for the library, or for the command, which would take a text with a hyphen in front for an option."""
    if not isinstance(spec, str) or spec.lstrip().startswith("-"):
        raise InvalidError(f"spec: {shown(spec)} is no spec; it is a text like 'fwd bf16 d=128 heads=32/8 mask=\"causal\"'")
    return spec


def unquoted(spec: str) -> str:
    """Leaves out masks and scores, which may have any word in them."""
    return re.sub(r'"[^"]*"', "", spec)


@functools.lru_cache(4096)
def written_by(spec: str) -> frozenset[str]:
    """The names of the tensors that calls of such a kernel write. `spec`: one that the library took."""
    fields = {name: quoted or bare for name, quoted, bare in _FIELD.findall(spec)}
    cache = ("k", "v") if "append" in fields else ()
    return frozenset((*_WRITTEN[next(iter(fields))], *cache, *("d" + name for name in re.findall(r"\w+", fields.get("grads", "")))))

"""What the text of a spec says without its library."""

from __future__ import annotations

import functools
import re

# A field, and its value with or without quotes. A flag has none.
_FIELD = re.compile(r'([^\s=<"]+)(?:<?=(?:"([^"]*)"|(\S*)))?')
# What calls write, beside k and v with `append` and the gradients that `grads` names. The library's table is in compiler/spec/operands.h.
_WRITTEN = {"fwd": ("o", "lse", "max_logit"), "merge": ("o", "lse", "max_logit"), "bwd": ("dq", "dk", "dv"), "quantize": ("y", "scale")}


def unquoted(spec: str) -> str:
    """Without masks and scores, which may have any word in them."""
    return re.sub(r'"[^"]*"', "", spec)


@functools.lru_cache(4096)
def written_by(spec: str) -> frozenset[str]:
    """The names of the tensors that calls of such a kernel write. `spec`: one that the library took."""
    fields = {name: quoted or bare for name, quoted, bare in _FIELD.findall(spec)}
    cache = ("k", "v") if "append" in fields else ()
    return frozenset((*_WRITTEN[next(iter(fields))], *cache, *("d" + name for name in re.findall(r"\w+", fields.get("grads", "")))))

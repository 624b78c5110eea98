"""`index` takes tensors of any library, and finds the keys that a query should read. The spec comes from the tensors
and a few words."""

from __future__ import annotations

import sys
from typing import Any, Sequence

from flashjit import tensors
from flashjit.calls import OPERANDS, axes_of, check_lengths, check_rank, declared, flags_of, given_back, is_paged, new_array, prepare, promised, split, words_of
from flashjit.capi import InvalidError
from flashjit.tensors import View
from flashjit.values import address, integer, shown


def _new(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    if not tensors.is_torch(like):
        return new_array(like, shape, dtype)
    torch = sys.modules["torch"]
    return torch.empty(shape, dtype=torch.int32 if dtype == "i32" else torch.float32, device=like.device)


def _spec(words: str, views: dict[str, View], scalars: dict[str, float], best: int | None) -> str:
    q, k, weights = views["q"], views["k"], views["weights"]
    rank, heads, _ = axes_of(words)
    check_rank("q", q, rank, words)
    check_rank("k", k, 4 if is_paged(words) else rank, words)
    check_rank("weights", weights, rank - 1, words)
    for name in ("q", "k"):
        tensors.check_computed(name, views[name].dtype)
    if k.dtype != q.dtype:
        raise InvalidError(f"k: is {k.dtype}, and q is {q.dtype}; convert one of them")
    texts = ["index", q.dtype, f"d={q.shape[-1]}", f"heads={q.shape[heads]}/{k.shape[2 if is_paged(words) else heads]}", words]
    if best is not None:
        texts.append(f"select=keys({best})")
    texts += declared(views, scalars, {*OPERANDS, "q", "k", "weights", "scores", "key_index", "key_count"})
    return " ".join([*texts, *flags_of(words, views), *promised(words, views)])


def _keys(words: str, views: dict[str, View], max_k_len: int) -> int:
    """Returns the number of keys in a row of scores, which is equal for all sequences."""
    k = views["k"].shape
    if is_paged(words):
        table = views.get("block_table")
        return table.shape[-1] * k[1] if table and table.shape else 0
    rank, _, tokens = axes_of(words)
    return max_k_len or k[tokens] if rank == 3 else k[tokens]


def index(q: Any, k: Any, weights: Any, *, best: int | None = None, mask: str | None = None, layout: str = "bshd", align: str | None = None,
          spec: str = "", out: Any = None, stream: int | None = None, max_q_len: int = 0, max_k_len: int = 0, **params: Any) -> Any:
    """Computes scores of keys, sum over heads of weights * relu(q . k), as the indexers of sparse attention do.

    `q`, `k`, `layout`, `mask` and the rest are as in attention(); `weights` is fp32 [batch, tokens, heads], or with
    layout="packed" [tokens, heads]. Elements of 8 bits have `scale_k`, one for each key with spec="token_scales".
    The result is fp32 [batch, tokens, KV heads, keys], with -inf for hidden keys. If `best` is a number, there are
    two results instead: `key_index` has the numbers of the rows with that many largest scores of each query, and
    `key_count` tells how many there are. attention() takes them by these names. Results are written into `out`, if
    it is given: one tensor, or with `best` two. There are no gradients.

    >>> import flashjit, numpy
    >>> q, k = numpy.random.rand(1, 5, 8, 64).astype("float32"), numpy.random.rand(1, 900, 2, 64).astype("float32")
    >>> weights = numpy.random.rand(1, 5, 8).astype("float32")
    >>> flashjit.index(q, k, weights, mask="causal").shape
    (1, 5, 2, 900)
    >>> key_index, key_count = flashjit.index(q, k, weights, best=64, mask="causal")
    >>> key_index.shape, key_count.shape
    ((1, 5, 2, 64), (1, 5, 2))
    >>> flashjit.attention(q, k, k, key_index=key_index, key_count=key_count).shape
    (1, 5, 8, 64)
    """
    words = words_of(mask, None, False, layout, None, align, spec)
    best = None if best is None else integer("best", best)
    check_lengths(words, max_q_len, max_k_len)
    stream = tensors.current_stream(q) if stream is None else address("stream", stream)
    given, scalars = split(params)
    values = {"q": q, "k": k, "weights": weights, **given}
    tensors.refuse_gradients(values)
    views = {name: tensors.view(value, name, stream) for name, value in values.items()}
    text = _spec(words, views, scalars, best)
    rank, _, tokens = axes_of(words)
    queries = views["q"].shape[:1] if rank == 3 else (views["q"].shape[0], views["q"].shape[tokens])
    lists = (*queries, views["k"].shape[2 if is_paged(words) else axes_of(words)[1]])
    if best is None:
        wanted = {"scores": ((*lists, _keys(words, views, integer("max_k_len", max_k_len))), "fp32")}
    else:
        wanted = {"key_index": ((*lists, best), "i32"), "key_count": (lists, "i32")}
    made = _results(q, out, wanted)
    views.update({name: tensors.view(result, "out", stream) for name, result in made.items()})
    device = views["q"].tensor.device
    kernel = prepare((device.device_type, device.device_id), text, stream)
    launch = kernel.bind({**views, **scalars}, max_q_len=max_q_len, max_k_len=max_k_len, stream=stream, like=q)
    launch.notice = tensors.notice_of_changes(made.values())
    launch()
    results = tuple(made.values()) if out is not None else tuple(given_back(result, q) for result in made.values())
    return results[0] if best is None else results


def _results(like: Any, out: Any, wanted: dict[str, tuple[tuple[int, ...], str]]) -> dict[str, Any]:
    if out is None:
        return {name: _new(like, shape, dtype) for name, (shape, dtype) in wanted.items()}
    given = [out] if len(wanted) == 1 else out
    if not isinstance(given, Sequence) or len(given) != len(wanted):
        raise InvalidError(f"out: {shown(out)} is not {' and '.join(wanted)}; give {'one tensor' if len(wanted) == 1 else 'two, as in (key_index, key_count)'}")
    return dict(zip(wanted, given))

"""`attention` takes tensors of any library. The spec comes from the tensors and a few words, and each kind of call is
prepared once."""

from __future__ import annotations

import functools
import re
import sys
import threading
from typing import Any, Literal, Mapping, Sequence, TypeVar, Union, overload

from flashjit import tensors
from flashjit.capi import InvalidError
from flashjit.command import Text
from flashjit.engine import Engine, Kernel
from flashjit.specs import unquoted
from flashjit.tensors import HOST, View
from flashjit.values import ELSEWHERE, Byte, address, in_words_of_calls, integer, number, shown, unread

# These tensors are no parameters of mask and score. Each has the flag that a spec gets when it is given.
OPERANDS = {"sink": "sink", "k_lens": "k_lens", "shared_prefix": "shared_prefix", "k_new": "append", "v_new": "", "cos": "",
            "sin": "", "block_table": "", "key_index": "", "page_index": "", "key_count": "", "q_positions": "", "k_positions": "", "block_count": "", "block_index": "", "full_count": "", "full_index": "",
            "scale_q": "", "scale_k": "", "scale_v": "", "offsets_q": "", "offsets_k": ""}
# `bytes=` promises something about the addresses and strides of these.
ALIGNED = ("q", "k", "v", "o", "do", "dq", "dk", "dv", "k_new", "v_new")
# With `places`, these numbers tell where rows stand in the whole sequence.
PLACES = {f"{rows}_{number}" for rows in "qk" for number in ("begin", "step", "total")}
# A call makes these tensors, or they are for bwd, so no parameter can have such a name here.
RESERVED = ("o", "lse", "max_logit", "do", "dlse", "dq", "dk", "dv", "dsink")
_KEYWORDS = ("mask", "score", "lse", "layout", "scale", "align", "blocks", "spec", "out", "stream", "max_q_len", "max_k_len", "seed", "offset",
             *OPERANDS)
_LEFT_OUT = ('v: there is none; where it is the first columns of k, give these, as k[..., :512], and spec="v_in_k"')
NOT_IN_K = "v: with v_in_k it is the first columns of k where they lie; give k[..., :512], or leave v_in_k out"

Array = TypeVar("Array")  # for example tensors of PyTorch, arrays of NumPy, and others that speak DLPack
Blocks = Union[int, Sequence[int], None]  # One number counts both queries and keys; a pair counts each.

_engines: dict[tuple[int, int], Engine] = {}
# A signal's handler may call attention() while its thread makes an engine, so the lock is reentrant.
_making = threading.RLock()


def engine_of(device: tuple[int, int]) -> Engine:
    """Returns the engine that attention() uses for a device of DLPack's."""
    engine = _engines.get(device)
    if engine is None:
        kind, ordinal = device
        with _making:
            if device not in _engines:
                _engines.setdefault(device, Engine("host") if kind == HOST else Engine("gpu", ordinal))
            engine = _engines[device]
    return engine


# attention() writes these fields of the spec itself, or has no tensor for them.
_NOT_OF_SPEC = {
    "layout": 'give it as an argument of attention(), as in layout="bhsd"',
    "d": "q and v say it; leave it out", "heads": "q and k say it; leave it out",
    "params": "give each by its name, with its value, as in w=tensor",
    "accumulate": "attention() makes the LSE that it would go on from; use flashjit.Engine.prepare and Kernel.run",
    "max_logit": "attention() gives no tensor that it could be written to; leave it out, or use flashjit.Engine.prepare and Kernel.run",
}


def _check_fields(spec: str) -> None:
    for field in "".join(spec.split('"')[::2]).split():
        name = field.partition("=")[0].rstrip("<")
        if name in _NOT_OF_SPEC:
            raise InvalidError(f"spec: {field} is no field that a call can have in its spec; {_NOT_OF_SPEC[name]}")


def words_of(mask: str | None, score: str | None, lse: bool | str, layout: str, scale: float | None, align: str | None, spec: str) -> str:
    """Returns the part of a spec that the arguments beside the tensors give."""
    for name, text in (("layout", layout), ("align", align), ("spec", spec)):
        if text is not None and not isinstance(text, str):
            raise InvalidError(f"{name}: {shown(text)} is no text")
    _check_fields(spec)
    words = [spec, f"layout={layout}"]
    for name, text in (("mask", mask), ("score", score)):
        if text is None:
            continue
        if not isinstance(text, str) or '"' in text:
            read = 'mask="seen[b, q, k] != 0" with seen=' if name == "mask" else 'score="s + bias[h, q, k]" with bias='
            way = f"a tensor is read by its name, as in {read}" if hasattr(text, "__dlpack__") else \
                "FlexAttention's functions go through flashjit.torch.flex_attention"
            raise InvalidError(f"{name}: {shown(text)} is no text of the spec's language; {way}")
        words.append(f'{name}="{text}"')
    scale = number("scale", scale)
    if scale is not None:
        if not isinstance(scale, (int, float)):
            raise InvalidError(f"scale: {shown(scale)} is no number of Python; use .item(), or a parameter of the score")
        words.append(f"scale={float(scale)!r}")
    if align is not None:
        words.append(f"align={align}")
    if not isinstance(lse, (bool, str)) or lse not in (True, False, "ln", "log2"):
        raise InvalidError(f'lse: {shown(lse)} is none of True, False, "ln" and "log2"')
    if lse:
        words.append(f"lse={'ln' if lse is True else lse}")
    return " ".join(filter(None, words))


def dropped_share(dropout: float) -> float:
    """Returns the share that `dropout` of a spec drops, which is a number of 256 weights."""
    return int(256 * dropout + 0.5) / 256


@functools.lru_cache
def word(words: str, name: str) -> str | None:
    """Returns the value of a field whose value has no blanks."""
    found = re.search(rf"(?:^|\s){name}=(\S+)", unquoted(words))
    return found.group(1) if found else None


def _with_blocks(spec: str, blocks: Blocks, params: Mapping[str, Any]) -> str:
    """Returns the spec with `blocks`, and with the number of heads that have lists of their own."""
    sizes = [blocks, blocks] if isinstance(blocks, int) else blocks
    if isinstance(sizes, str) or not isinstance(sizes, Sequence) or len(sizes) != 2:
        raise InvalidError(f"blocks: {shown(blocks)} is neither a number of tokens nor two, those of queries and of keys, as in (64, 128)")
    if not isinstance(spec, str):
        raise InvalidError(f"spec: {shown(spec)} is no text")
    shapes = [tuple(getattr(params.get(name), "shape", ())) for name in ("block_count", "full_count")]
    heads = max([shape[-2] if len(shape) > 1 else 1 for shape in shapes if shape] or [1])  # Dynamo knows max() without a default alone
    return f"{spec} blocks={integer('blocks', sizes[0])}/{integer('blocks', sizes[1])}/{heads}".lstrip()


def axes_of(words: str) -> tuple[int, int, int]:
    """Returns the rank of q, and which of its dimensions are heads and tokens."""
    layout = word(words, "layout") or "bshd"
    if layout.startswith("packed"):
        return 3, 1, 0
    return (4, 1, 2) if layout == "bhsd" else (4, 2, 1)


def is_paged(words: str) -> bool:
    return "paged" in (word(words, "layout") or "")


def in_k(words: str) -> bool:
    """Returns whether V is the first columns of K. A call's v tells how many these are, and the kernel gets no v."""
    return "v_in_k" in unquoted(words).split()


def _steps(view: View) -> list[int]:
    """Returns the strides of dimensions with more than one element."""
    strides = view.tensor.strides[:view.tensor.ndim] if view.tensor.strides else ()
    return [stride for count, stride in zip(view.shape[:-1], strides) if count > 1]


def check_in_k(k: View, v: View) -> None:
    at_k, at_v = ((view.tensor.data or 0) + view.tensor.byte_offset for view in (k, v))
    if at_k != at_v or k.shape[:-1] != v.shape[:-1] or k.shape[-1] < v.shape[-1] or _steps(k) != _steps(v):
        raise InvalidError(NOT_IN_K)


def given_to_kernel(words: str, views: Mapping[str, View]) -> dict[str, View]:
    return {name: view for name, view in views.items() if name != "v" or not in_k(words)}


def columns_of(v_shape: Sequence[int], words: str) -> int:
    """Returns the head dim of V, which may be given as V^T."""
    return v_shape[-2 if "v_transposed" in words.split() else -1]


def out_dtype(words: str, dtype: str) -> str:
    """Returns the dtype of the result: the value of `out=`, else the dtype of q, or 16 bits if q has 8."""
    return word(words, "out") or ("bf16" if dtype in ("e4m3", "e5m2") else dtype)


def lse_shape(words: str, q_shape: tuple[int, ...]) -> tuple[int, ...]:
    rank, heads, tokens = axes_of(words)
    return (q_shape[heads], q_shape[tokens]) if rank == 3 else (q_shape[0], q_shape[heads], q_shape[tokens])


def alignment_of(address: int, shape: Sequence[int], strides: Sequence[int], size: int) -> int:
    """Returns the largest power of two, up to 16 bytes, that divides the address and strides of elements of this size."""
    bits = address | 16
    for count, stride in zip(shape[:-1], strides):
        if count > 1:
            bits |= stride * size
    return bits & -bits


def _alignment_of_view(view: View) -> int:
    tensor = view.tensor
    strides = tensor.strides[:tensor.ndim] if tensor.strides else ()
    return alignment_of((tensor.data or 0) + tensor.byte_offset, view.shape, strides, tensor.dtype.bits // 8)


def check_rank(name: str, view: View, rank: int, words: str) -> None:
    if len(view.shape) != rank:
        raise InvalidError(f"{name}: has {len(view.shape)} dimensions, and layout={word(words, 'layout') or 'bshd'} has {rank}; "
                           "reshape it, or name another layout")


def check_lengths(words: str, max_q_len: Any, max_k_len: Any) -> None:
    """Checks lengths of packed sequences. Other layouts have lengths in their tensors."""
    for name, length in (("max_q_len", max_q_len), ("max_k_len", max_k_len)):
        if integer(name, length) and axes_of(words)[0] != 3:
            raise InvalidError(f"{name}: {length} is for packed sequences, and with layout={word(words, 'layout') or 'bshd'} tensors say how long "
                               "they are; leave it out, or give k_lens")


def scalar_word(value: object) -> str:
    if isinstance(value, float):
        return "fp32"
    if isinstance(value, (bool, Byte)):
        return "u8"
    return "i32" if abs(int(value)) < 2**31 else "i64"  # type: ignore[call-overload]


def declared(views: Mapping[str, View], scalars: Mapping[str, float], others: set[str]) -> list[str]:
    """Returns the declarations of the parameters, which are all tensors and scalars that are no operands."""
    own = []
    for name, view in views.items():
        if name in others:
            continue
        if not view.shape:
            raise tensors.one_number(name, view.dtype)
        own.append(f"{name}: {view.dtype}[{len(view.shape)}]")
    own += [f"{name}: {scalar_word(value)}" for name, value in scalars.items() if name not in others]
    return [f'params="{", ".join(own)}"'] if own else []


def flags_of(words: str, views: Mapping[str, View]) -> list[str]:
    """Returns the flags that go with the operands of a call."""
    return [flag for name, flag in OPERANDS.items() if flag and name in views and flag not in words.split()]


def promised(words: str, views: Mapping[str, View]) -> list[str]:
    """Returns the promise of which number addresses and strides are multiples. It is never less than an element: a
    tensor that is less aligned is refused by its name when the call is made."""
    element = max(2 if "v" in views else 1, views["q"].tensor.dtype.bits // 8)
    aligned = max(element, min(_alignment_of_view(view) for name, view in views.items() if name in ALIGNED))
    return [f"bytes={aligned}"] if aligned < 16 and word(words, "bytes") is None else []


def spec_of(operation: str, words: str, views: Mapping[str, View], scalars: Mapping[str, float], grads: Sequence[str] = ()) -> str:
    """Returns the whole spec of a call. `grads` names parameters, and the sink, whose gradients a bwd computes."""
    q, k, v = views["q"], views["k"], views["v"]
    rank, heads, tokens = axes_of(words)
    paged = is_paged(words)
    check_rank("q", q, rank, words)
    for name in ("k", "v"):
        check_rank(name, views[name], 4 if paged else rank, words)
    for name in ("q", "k", "v"):
        tensors.check_computed(name, views[name].dtype)
    if v.dtype != k.dtype:
        raise InvalidError(f"v: is {v.dtype}, and k is {k.dtype}; convert one of them")
    if in_k(words):
        check_in_k(k, v)
    d, d_v, kv_heads = q.shape[-1], columns_of(v.shape, words), k.shape[2 if paged else heads]
    texts = [operation, q.dtype, f"d={d}" if d == d_v else f"d={d}/{d_v}",
             f"heads={q.shape[heads]}" if q.shape[heads] == kv_heads else f"heads={q.shape[heads]}/{kv_heads}", words]
    stated = word(words, "kv")
    if stated not in (None, k.dtype):
        raise InvalidError(f"kv: {stated} in spec, and k is {k.dtype}; leave it out, k says it, or convert k and v")
    if k.dtype != q.dtype and stated is None:
        texts.append(f"kv={k.dtype}")
    others = {*OPERANDS, *RESERVED, "q", "k", "v", *("d" + name for name in grads)}
    if word(words, "dropout") is not None:
        others |= {"seed", "offset"}
    if "places" in unquoted(words).split():
        others |= PLACES
    texts += declared(views, scalars, others)
    texts += flags_of(words, views)
    if operation == "fwd" and rank == 4 and q.shape[tokens] == 1 and "q_len" not in unquoted(words):
        texts.append("q_len=1")  # Decoding has kernels of its own.
    texts += promised(words, views)
    for name, entries in (("key_index", "keys"), ("page_index", "pages")):
        if name in views and word(words, "select") is None:
            texts.append(f"select={entries}({views[name].shape[-1] if views[name].shape else 0})")
    if "block_table" in views and len(views["block_table"].shape) == 3 and "head_tables" not in unquoted(words).split():
        texts.append("head_tables")
    if grads:
        texts.append(f'grads="{", ".join(grads)}"')
    if "dlse" in views:
        texts.append("dlse")
    return " ".join(texts)


def prepare(device: tuple[int, int], spec: str, stream: int | None) -> Kernel:
    try:
        return engine_of(device).prepare(spec, capturing_stream=stream, workspace=True)
    except InvalidError as error:
        raise in_words_of_calls(error, _KEYWORDS, spec) from None


def split(params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, float]]:
    """Splits parameters into tensors and scalars."""
    for name in params:
        if name in RESERVED:
            raise InvalidError(f"{name}: is no parameter of attention(); the result goes into `out`, `lse=True` gives the LSE too, and "
                               "for the rest there are flashjit.Engine.prepare and Kernel.run")
        if isinstance(params[name], str):
            raise unread(name, _KEYWORDS, f"{shown(params[name])} is a text, and neither a tensor nor a number")
        is_value = isinstance(params[name], (int, float, type(None))) or hasattr(params[name], "__dlpack__")
        if not is_value and name in ELSEWHERE and name not in ("seed", "offset"):
            raise unread(name, _KEYWORDS, "is no word of attention()")
    params = {name: number(name, value) for name, value in params.items()}
    scalars = {name: value for name, value in params.items() if isinstance(value, (int, float))}
    return {name: value for name, value in params.items() if name not in scalars and value is not None}, scalars


@overload
def attention(q: Array, k: Any, v: Any, mask: str | None = None, score: str | None = None, *, lse: Literal[False] = False,
              layout: str = "bshd", scale: float | None = None, align: str | None = None, blocks: Blocks = None,
              spec: str = "", out: Any = None, stream: int | None = None, max_q_len: int = 0, max_k_len: int = 0,
              **params: Any) -> Array: ...


@overload
def attention(q: Array, k: Any, v: Any, mask: str | None = None, score: str | None = None, *, lse: Literal[True, "ln", "log2"],
              layout: str = "bshd", scale: float | None = None, align: str | None = None, blocks: Blocks = None,
              spec: str = "", out: Any = None, stream: int | None = None, max_q_len: int = 0, max_k_len: int = 0,
              **params: Any) -> tuple[Array, Array]: ...


@overload
def attention(q: Array, k: Any, v: Any, mask: str | None = None, score: str | None = None, *, lse: bool | str,
              layout: str = "bshd", scale: float | None = None, align: str | None = None, blocks: Blocks = None,
              spec: str = "", out: Any = None, stream: int | None = None, max_q_len: int = 0, max_k_len: int = 0,
              **params: Any) -> Array | tuple[Array, Array]: ...


def attention(q: Any, k: Any, v: Any, mask: str | None = None, score: str | None = None, *, lse: bool | str = False,
              layout: str = "bshd", scale: float | None = None, align: str | None = None, blocks: Blocks = None,
              spec: str = "", out: Any = None, stream: int | None = None, max_q_len: int = 0, max_k_len: int = 0,
              **params: Any) -> Any:
    """Computes attention of `q` over `k` and `v`, by one kernel that is made once for this kind of call.

    Tensors are PyTorch's (with gradients, on the current stream), NumPy's (on the processor), or anything with
    __dlpack__: [batch, tokens, heads, d] for layout="bshd", [batch, heads, tokens, d] for "bhsd", [tokens, heads, d]
    for "packed". There may be fewer heads of k and v than of q. `mask`, `score`, `scale` and `align` are fields of
    the spec (compiler/SPEC.md), and `spec` has the others, as text. Tensors and numbers that mask and score read are
    given by their names, and so are `sink`, `k_lens`, `block_table`, `offsets_q` and others. `blocks` is a number of
    tokens, or two for queries and keys; lists (`block_count`, `block_index`, `full_count`, `full_index`) then name
    the blocks that are seen. With `key_index` or `page_index`, [batch, tokens, KV heads, N], and `key_count` each
    query sees only the keys or pages of its list, as `select` of the spec defines it, and among keys only those that
    `mask` shows. A `block_table` of [batch, KV heads, pages] has pages for each KV head. If V is the first columns
    of K, as for latents, `v` is these columns, k[..., :512], and spec="v_in_k" has K read once. With `lse` (True,
    "ln", "log2") there are two results. The result is written into `out` if it is given. `stream` is a CUDA stream
    as a number, for libraries other than PyTorch and CuPy.

    >>> import flashjit, numpy
    >>> q = numpy.random.rand(2, 300, 8, 64).astype("float32")
    >>> k, v = numpy.random.rand(2, 2, 300, 2, 64).astype("float32")
    >>> o = flashjit.attention(q, k, v, mask="causal & window(128, 0)")
    >>> o.shape
    (2, 300, 8, 64)
    >>> slopes = 0.5 ** numpy.arange(8, dtype="float32")
    >>> o, lse = flashjit.attention(q, k, v, mask="causal", score="s + w[h] * (k - qpos)", lse=True, w=slopes)
    >>> lse.shape
    (2, 8, 300)
    >>> flashjit.attention(q, k, v, mask="casual")
    Traceback (most recent call last):
    ...
    flashjit.capi.InvalidError: mask: unknown name `casual`; did you mean `causal`?
      casual
      ^
    """
    if stream is not None:
        stream = address("stream", stream)
    if blocks is not None:
        spec = _with_blocks(spec, blocks, params)
    if tensors.is_torch(q):
        try:
            return (_torch_attention or _on_torch())(q, k, v, (mask, score, lse, layout, scale, align, spec), out, stream, max_q_len,
                                                     max_k_len, params)
        # Options such as lists and tensors cannot be keys of a dictionary.
        except (TypeError, ValueError, RuntimeError):
            words_of(mask, score, lse, layout, scale, align, spec)
            integer("max_q_len", max_q_len), integer("max_k_len", max_k_len)
            raise
    words = words_of(mask, score, lse, layout, scale, align, spec)
    return _on_arrays(q, k, v, words, out, stream, max_q_len, max_k_len, params)


def plan_of(q: Any, k: Any, v: Any, mask: str | None = None, score: str | None = None, *, lse: bool | str = False, layout: str = "bshd",
            scale: float | None = None, align: str | None = None, blocks: Blocks = None, spec: str = "", **params: Any) -> Text:
    """Returns the plan of the kernel that attention() takes for these arguments."""
    if blocks is not None:
        spec = _with_blocks(spec, blocks, params)
    words = words_of(mask, score, lse, layout, scale, align, spec)
    given, scalars = split(params)
    views = {name: tensors.view(value, name) for name, value in {"q": q, "k": k, "v": v, **given}.items()}
    device = views["q"].tensor.device
    spec, (rank, _, tokens) = spec_of("fwd", words, views, scalars), axes_of(words)
    of_q, of_k = views["q"].shape, views["k"].shape
    shape = f"b={of_q[0]},q={of_q[tokens]},k={of_k[tokens]}" if rank == 4 and not is_paged(words) else None
    return engine_of((device.device_type, device.device_id)).explain(spec, shape=shape)


_torch_attention: Any = None


def _on_torch() -> Any:
    global _torch_attention
    if _torch_attention is None:
        from flashjit.torch_operator import attention as found
        _torch_attention = found
    return _torch_attention


def new_array(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Makes an array of the kind of `like`, if that can be written to, or else of NumPy's, if that can see its host
    memory."""
    numpy_names = {"fp16": "float16", "fp32": "float32", "i32": "int32"}
    module = type(like).__module__.partition(".")[0]
    if module == "cupy":
        with like.device:
            return sys.modules["cupy"].empty(shape, dtype=numpy_names.get(dtype) or like.dtype)
    if not tensors.is_numpy(like) and like.__dlpack_device__()[0] != HOST:
        raise InvalidError(f"q: {module} has no arrays that can be written to; use PyTorch's or CuPy's, made by their from_dlpack")
    import numpy
    # The dtype may be JAX's, which has bf16 by ml_dtypes, even if the array is NumPy's.
    of_like = getattr(like, "dtype", None)
    if dtype not in numpy_names and not (isinstance(of_like, numpy.dtype) and tensors.DTYPES.get(of_like.name, ("", 0, ""))[2] == dtype):
        raise InvalidError(f"q: NumPy has no {dtype} for the result; use PyTorch, fp16 or fp32")
    return numpy.empty(shape, dtype=numpy_names.get(dtype) or of_like)


def given_back(made: Any, like: Any) -> Any:
    """Converts `made` to the kind of array that `like` is."""
    if type(made) is type(like) or not hasattr(like, "__array_namespace__") or tensors.is_numpy(like):
        return made
    namespace = like.__array_namespace__()
    # NumPy sees types of ml_dtypes in this way, and does not export them.
    if tensors.is_numpy(made) and made.dtype.kind == "V":
        return namespace.asarray(made)
    return namespace.from_dlpack(made)


def _on_arrays(q: Any, k: Any, v: Any, words: str, out: Any, stream: int | None, max_q_len: int, max_k_len: int,
               params: Mapping[str, Any]) -> Any:
    if v is None:
        raise InvalidError(_LEFT_OUT)
    if stream is None:
        stream = tensors.current_stream(q)
    given, scalars = split(params)
    for name, value in (("k", k), ("v", v), ("out", out), *given.items()):
        if tensors.is_torch(value) and value.requires_grad:
            raise InvalidError(f"{name}: has requires_grad, and q is no tensor of PyTorch, so that there would be no gradient; convert q, or use "
                               ".detach()")
    check_lengths(words, max_q_len, max_k_len)
    values = {"q": q, "k": k, "v": v, **given}
    views = {name: tensors.view(value, name, stream) for name, value in values.items()}
    dtype = out_dtype(words, views["q"].dtype)
    rank = axes_of(words)[0]
    check_rank("q", views["q"], rank, words)
    check_rank("v", views["v"], 4 if is_paged(words) else rank, words)
    o = new_array(q, (*views["q"].shape[:-1], columns_of(views["v"].shape, words)), dtype) if out is None else out
    views["o"] = tensors.view(o, "out", stream)
    if not views["o"].writable:
        raise InvalidError("out: is read-only; give an array that can be written to")
    if out is not None and views["o"].dtype != dtype:
        words += f" out={views['o'].dtype}"
    lse = None
    if word(words, "lse") not in (None, "none"):
        lse = new_array(q, lse_shape(words, views["q"].shape), "fp32")
        views["lse"] = tensors.view(lse, "lse", stream)
    device = views["q"].tensor.device
    kernel = prepare((device.device_type, device.device_id), spec_of("fwd", words, views, scalars), stream)
    launch = kernel.bind({**given_to_kernel(words, views), **scalars}, max_q_len=max_q_len, max_k_len=max_k_len, stream=stream, like=q)
    launch.notice = tensors.notice_of_changes((o, k, v) if "k_new" in given else (o,))
    launch()
    o = o if out is not None else given_back(o, q)
    return o if lse is None else (o, given_back(lse, q))

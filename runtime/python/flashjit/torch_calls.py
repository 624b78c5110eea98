"""Calls on PyTorch's tensors go straight to the C API. They are known again by the properties of their tensors."""

from __future__ import annotations

import collections
import functools
import operator
from typing import Any, Callable, Mapping, Sequence

import torch
from torch import Tensor

from flashjit import calls, tensors
from flashjit.calls import scalar_word
from flashjit.capi import InvalidError
from flashjit.engine import Kernel, Launch
from flashjit.values import integer

_empty, _empty_like = torch.empty, torch.empty_like
_is_grad_enabled = torch.is_grad_enabled


def _raw_stream(index: int) -> int:
    return int(torch.cuda.current_stream(index).cuda_stream)


# Inductor and Dynamo use these, which take half of the time of the public functions, or less. Nobody promises them.
_of_dynamo: Any = getattr(torch._C._dynamo, "guards", None)
current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _raw_stream)
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
guards: Any = getattr(_of_dynamo, "TensorGuards", None)


def _empty_on(device: str) -> Any:
    """Returns a function of shape, strides and dtype, for the current device of this kind."""
    return getattr(_of_dynamo, f"_empty_strided_{device}", None) or (
        lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=device))


_empty_on_cpu, _empty_on_gpu = _empty_on("cpu"), _empty_on("cuda")

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
_WORDS = {dtype: word for word, dtype in DTYPES.items()}


class Call:
    """This is a call of some sizes, which lacks only the addresses of its tensors. One thread at a time uses it."""

    __slots__ = ("launch", "run", "handle", "arguments", "error", "q", "k", "v", "more", "scalars", "o", "lse", "o_shape", "o_strides",
                 "o_dtype", "lse_shape", "lse_strides", "needed", "ordinal", "leaves_rows")

    def __init__(self, launch: Launch, given: Mapping[str, Tensor], scalars: Sequence[str], o: Tensor, lse: Tensor | None) -> None:
        self.launch, self.run, self.handle = launch, launch.run, launch.handle
        self.arguments, self.error = launch.references
        # V that is the first columns of K has no tensor of its own: its address, which is K's, is written where K's is.
        self.q, self.k, self.v, *self.more = (launch.tensors.get(name) or launch.tensors["k"] for name in given)
        self.scalars = [launch.scalars[name] for name in scalars]
        self.o, self.lse = launch.tensors["o"], launch.tensors.get("lse")
        # Rows behind the last sequence are not written. If gradients are wanted, for which the LSE is kept, these rows
        # must be numbers: the next layer's gradients are products with them, and 0 times NaN is NaN.
        self.leaves_rows = lse is not None and "offsets_q" in given
        self.make_results_like(o, lse)

    def make_results_like(self, o: Tensor, lse: Tensor | None) -> None:
        self.o_shape, self.o_strides, self.o_dtype, self.ordinal = tuple(o.shape), o.stride(), o.dtype, o.get_device()
        self.lse_shape, self.lse_strides = ((), ()) if lse is None else (tuple(lse.shape), lse.stride())
        self.needed = self.launch.needed

    def fit(self, given: Mapping[str, Tensor], o: Tensor, lse: Tensor | None, max_q_len: int, max_k_len: int) -> None:
        """Makes it a call of these sizes, with the same kernel, dtypes and dimensions."""
        launch = self.launch
        for name, tensor in {**given, "o": o, "lse": lse}.items():
            if tensor is not None and name in launch.tensors:
                tensors.resize(launch.tensors[name], tensor.shape, tensor.stride())
                launch.tensors[name].data = tensor.data_ptr()  # It is looked at, not kept.
        launch.arguments.max_q_len, launch.arguments.max_k_len = integer("max_q_len", max_q_len), integer("max_k_len", max_k_len)
        launch.measure()
        self.make_results_like(o, lse)


class Pool(list[Call]):
    """These are calls of some sizes that are not in use. A call is taken and added in one step, so there is no lock."""

    __slots__ = ("gradients",)

    def __init__(self) -> None:
        # These tell how such calls are differentiated, by what has a gradient (torch_gradients.py).
        self.gradients: dict[Any, Any] = {}


_ready: dict[Any, Pool] = {}  # These are found by everything that the structures of their calls hold.


class _Kind:
    """This is the kernel of calls that differ only in sizes, and the pools in _ready for the sizes it was called with,
    oldest first."""

    __slots__ = ("kernel", "sizes")

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.sizes: collections.deque[tuple[Any, Pool]] = collections.deque()


_kinds: dict[Any, _Kind] = {}
MOST_KINDS = 1024  # Beyond this, all are forgotten.
# Limit on sizes of a kind. Beyond it, the oldest give their call to new ones, because decoding has another length in
# each call.
_MOST_SIZES = 64


class _Same:
    """This is the pool that the last call with some options took. Once it was taken twice, `like` tells whether tensors
    are the same in all but their addresses. One check of Dynamo takes a sixth of the time of making a key of them."""

    __slots__ = ("pool", "gradients", "like", "alignment")

    def __init__(self, pool: Pool, gradients: Any) -> None:
        self.pool, self.gradients, self.alignment = pool, gradients, 0
        self.like: Callable[..., bool] = unlike

    def learn(self, alignment: int, *given: Tensor) -> None:
        self.alignment = alignment
        self.like = guard_of(*given)


def unlike(*given: Tensor) -> bool:
    return False


def guard_of(*given: Tensor) -> Callable[..., bool]:
    """Returns a function that tells whether tensors are like these in all but their addresses."""
    like: Callable[..., bool] = guards(*given, dynamic_dims_sizes=[list(t.shape) for t in given],
                                       dynamic_dims_strides=[list(t.stride()) for t in given]).check
    return like


# The keys are options. `like` sees which tensors require gradients, but not whether gradients are enabled. So there is
# a table for calls without gradients, and two with them, for queries that require none and that do.
same_calls: tuple[dict[Any, _Same], dict[Any, _Same], dict[Any, _Same]] = {}, {}, {}


def remember(options: Any, pool: Pool, gradients: Any, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Remembers that a call with nothing but these tensors took this pool, and has these gradients."""
    if not guards:
        return
    table = same_calls[_is_grad_enabled() and 1 + q.requires_grad]
    same = table.get(options)
    if same is None or same.pool is not pool:
        table[options] = _Same(pool, gradients)
    elif same.like is unlike:
        same.learn((q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15, q, k, v)


def new_outputs(q: Tensor, v: Tensor, words: str) -> tuple[Tensor, Tensor | None]:
    """Makes O and the LSE, as kernels write them."""
    dtype = DTYPES.get(calls.out_dtype(words, _WORDS.get(q.dtype, "")), q.dtype)
    shape = (*q.shape[:-1], calls.columns_of(v.shape, words))
    o = _empty_like(q) if shape == q.shape and dtype == q.dtype else _empty(shape, dtype=dtype, device=q.device)
    if calls.word(words, "lse") in (None, "none"):
        return o, None
    return o, _empty(calls.lse_shape(words, tuple(q.shape)), dtype=torch.float32, device=q.device)


@functools.lru_cache
def _words_of(options: Any) -> str:
    return options if isinstance(options, str) else calls.words_of(*options)


@functools.lru_cache
def _axes(words: str) -> tuple[int, int, int, Any, Any]:
    """Returns the ranks of q and of v, and q's dimension of tokens; and what takes from a shape of q, and of k and v,
    the sizes that specs contain."""
    rank, heads, tokens = calls.axes_of(words)
    in_spec = operator.itemgetter(heads, -1)
    paged = calls.is_paged(words)
    return rank, 4 if paged else rank, tokens, in_spec, operator.itemgetter(1, 2, 3) if paged else in_spec


class _Asked:
    """This is a call of new sizes, with results as kernels write them."""

    def __init__(self, options: Any, given: Mapping[str, Tensor], scalars: Mapping[str, float], out: Tensor | None) -> None:
        self.words, self.given, self.scalars = _words_of(options), given, scalars
        q, k, v = given["q"], given["k"], given["v"]
        rank, rank_of_v, *_ = _axes(self.words)
        if q.dim() != rank or k.dim() != rank_of_v or v.dim() != rank_of_v:
            for name, wanted in (("q", rank), ("k", rank_of_v), ("v", rank_of_v)):
                calls.check_rank(name, tensors.view(given[name], name), wanted, self.words)
        if calls.in_k(self.words):
            calls.check_in_k(tensors.view(k, "k"), tensors.view(v, "v"))
        self.o, self.lse = new_outputs(q, v, self.words)
        if out is not None:
            self.o = out

    def views(self) -> dict[str, tensors.View]:
        views = {name: tensors.view(tensor, name) for name, tensor in self.given.items()}
        views["o"] = tensors.view(self.o, "out")
        if self.lse is not None:
            views["lse"] = tensors.view(self.lse, "lse")
        return views

    def _key(self) -> Any:
        """Returns everything that the spec says, and where the tensors are."""
        _, _, tokens, of_q, of_v = _axes(self.words)
        q, k, v = self.given["q"], self.given["k"], self.given["v"]
        key = [self.words, of_q(q.shape), of_v(k.shape), self.o.shape[-1], q.shape[tokens] == 1, self.o.dtype, self.o.device, self.o.is_neg()]
        aligned = calls.alignment_of(self.o.data_ptr(), self.o.shape, self.o.stride(), self.o.element_size())
        for name, t in self.given.items():
            key += (name, t.dtype, t.device, t.dim(), t.is_neg())
            if name in calls.ALIGNED:
                aligned = min(aligned, calls.alignment_of(t.data_ptr(), t.shape, t.stride(), t.element_size()))
        key.append(aligned)
        if self.scalars:
            key += [(name, scalar_word(value)) for name, value in self.scalars.items()]
        return tuple(key)

    def kind(self, stream: int | None) -> _Kind:
        key = self._key()
        kind = _kinds.get(key)
        if kind is None:
            views, words = self.views(), self.words
            if calls.word(words, "out") is None and views["o"].dtype != calls.out_dtype(words, views["q"].dtype):
                words += f" out={views['o'].dtype}"
            kernel = calls.prepare(tensors.torch_device(self.o.device), calls.spec_of("fwd", words, views, self.scalars), stream)
            if len(_kinds) >= MOST_KINDS:
                _kinds.clear()
                _ready.clear()
                for same in same_calls:
                    same.clear()
            kind = _kinds.setdefault(key, _Kind(kernel))
        return kind

    def call(self, stream: int | None, max_q_len: int, max_k_len: int) -> Call:
        views = calls.given_to_kernel(self.words, self.views())
        launch = Launch(self.kind(stream).kernel, views, self.scalars, max_q_len, max_k_len)
        return Call(launch, self.given, list(self.scalars), self.o, self.lse)


def find_pool(options: Any, q: Tensor, k: Tensor, v: Tensor, more: Mapping[str, Tensor], scalars: Mapping[str, float], out: Tensor | None,
              max_q_len: int, max_k_len: int) -> Pool:
    """`options` are the arguments of calls.words_of, or the words."""
    try:
        key: Any = (options, q.device, q.dtype, q.shape, q.stride(), k.get_device(), k.dtype, k.shape, k.stride(), v.get_device(), v.dtype,
                    v.shape, v.stride(), (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15, q.is_neg() or k.is_neg() or v.is_neg(), max_q_len,
                    max_k_len)
        if more or scalars or out is not None:
            key += tuple([(name, t.dtype, t.device, t.shape, t.stride(), t.data_ptr() & 15, t.is_neg()) for name, t in more.items()])
            key += tuple([(name, scalar_word(value)) for name, value in scalars.items()])
            if out is not None:
                key += (out.dtype, out.device, out.shape, out.stride(), out.data_ptr() & 15, out.is_neg())
    except RuntimeError:  # PyTorch raises this for tensors without memory of their own.
        for name, tensor in (("q", q), ("k", k), ("v", v), *more.items()):
            tensors.view(tensor, name)
        raise
    pool = _ready.get(key)
    if pool is None:
        pool = _new_pool(key, _Asked(options, {"q": q, "k": k, "v": v, **more}, scalars, out), max_q_len, max_k_len)
    return pool


def run_of_pool(pool: Pool, options: Any, q: Tensor, k: Tensor, v: Tensor, more: Mapping[str, Tensor], scalars: Mapping[str, float],
                out: Tensor | None, max_q_len: int, max_k_len: int) -> tuple[Tensor, Tensor | None]:
    """Runs a call for which find_pool gave this pool."""
    ordinal = q.get_device()  # It is negative on the processor.
    stream = current_stream(ordinal) if ordinal >= 0 else None
    try:
        call = pool.pop()
    except IndexError:
        call = _Asked(options, {"q": q, "k": k, "v": v, **more}, scalars, out).call(stream, max_q_len, max_k_len)
    for structure, tensor in zip(call.more, more.values()):
        structure.data = tensor.data_ptr()
    for parameter, value in zip(call.scalars, scalars.values()):
        parameter.scalar = value
    return finish(call, pool, q, ordinal, stream, q.data_ptr(), k.data_ptr(), v.data_ptr(), out)


def new_tensor(ordinal: int, shape: Any, strides: Any, dtype: torch.dtype) -> Tensor:
    if ordinal < 0:
        return _empty_on_cpu(shape, strides, dtype)  # type: ignore[no-any-return]
    if ordinal == _current_device():
        return _empty_on_gpu(shape, strides, dtype)  # type: ignore[no-any-return]
    return torch.empty_strided(shape, strides, dtype=dtype, device=f"cuda:{ordinal}")


def finish(call: Call, pool: Pool, q: Tensor, ordinal: int, stream: int | None, at_q: int, at_k: int, at_v: int,
           out: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Runs a call that was taken from `pool` and lacks these addresses."""
    if call.k is call.v and at_k != at_v:
        pool.append(call)
        raise InvalidError(calls.NOT_IN_K)
    call.q.data, call.k.data, call.v.data = at_q, at_k, at_v
    o = new_tensor(ordinal, call.o_shape, call.o_strides, call.o_dtype) if out is None else out
    call.o.data = o.data_ptr()
    lse = None
    if call.lse is not None:
        lse = new_tensor(ordinal, call.lse_shape, call.lse_strides, torch.float32)
        call.lse.data = lse.data_ptr()
        if call.leaves_rows:
            o.zero_(), lse.zero_()
    run_call(call, q, stream)
    pool.append(call)
    return o, lse


def run_call(call: Any, like: Tensor, stream: int | None) -> None:
    """`call` is a Call, or one that gives gradients. A workspace is memory of the kind of `like`."""
    if call.needed:
        call.launch.set_workspace(*tensors.new_bytes(like, call.needed))
    status = call.run(call.handle, call.arguments, stream, call.error)
    if status:
        raise call.launch.kernel.library.error(status, call.launch.error)
    if call.needed:
        call.launch.set_workspace(0)


def _new_pool(key: Any, asked: _Asked, max_q_len: int, max_k_len: int) -> Pool:
    calls.check_lengths(asked.words, max_q_len, max_k_len)
    kind = asked.kind(current_stream(asked.o.get_device()) if asked.o.is_cuda else None)
    pool = _ready.setdefault(key, Pool())
    kind.sizes.append((key, pool))
    if len(kind.sizes) > _MOST_SIZES:
        oldest, left = kind.sizes.popleft()
        _ready.pop(oldest, None)
        try:
            call = left.pop()
        except IndexError:  # The call is in use.
            return pool
        call.fit(asked.given, asked.o, asked.lse, max_q_len, max_k_len)
        pool.append(call)
    return pool

"""`attention` on PyTorch's tensors. A call that needs no gradient, and that nobody traces, goes straight to the C API; all others
go through autograd or the operator flashjit::attention, which torch.compile knows."""

from __future__ import annotations

import collections
import functools
import operator
from typing import Any, Callable, Mapping, Sequence

import torch
from torch import Tensor

from flashjit import calls, tensors
from flashjit.calls import scalar_word
from flashjit.capi import FlashJitError, InvalidError, UnsupportedError
from flashjit.engine import Kernel, Launch

_is_compiling = torch.compiler.is_dynamo_compiling  # what exports without Dynamo has a mode; and this is one call, not two
_is_grad_enabled = torch.is_grad_enabled
_is_any_autocast: Any = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
_is_tracing = torch._C._is_tracing
_modes = torch._C._len_torch_dispatch_stack
_forward_ad: Any = torch.autograd.forward_ad
_empty, _empty_like = torch.empty, torch.empty_like
_PLAIN = (Tensor, torch.nn.Parameter)

NO_GRADIENT = "none"  # in place of the names of parameters that have one


def _raw_stream(index: int) -> int:
    return int(torch.cuda.current_stream(index).cuda_stream)


_external_stream: Any = torch.cuda.ExternalStream
# What Inductor and Dynamo use takes half of the time of the public ways, or less, and is promised by nobody.
_of_dynamo: Any = getattr(torch._C._dynamo, "guards", None)
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _raw_stream)
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
_checks: Any = getattr(_of_dynamo, "TensorGuards", None)


def _empty_on(device: str) -> Any:
    """A function of shape, strides and dtype, for the current device of this kind."""
    return getattr(_of_dynamo, f"_empty_strided_{device}", None) or (
        lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=device))


_empty_on_cpu, _empty_on_gpu = _empty_on("cpu"), _empty_on("cuda")

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
_WORDS = {dtype: word for word, dtype in DTYPES.items()}


class _Call:
    """A call of some sizes whose tensors lack their addresses alone. In use by one thread at a time."""

    __slots__ = ("launch", "run", "handle", "arguments", "error", "q", "k", "v", "more", "scalars", "o", "lse", "o_shape", "o_strides",
                 "o_dtype", "lse_shape", "needed", "ordinal")

    def __init__(self, launch: Launch, given: Mapping[str, Tensor], scalars: Sequence[str], o: Tensor, lse: Tensor | None) -> None:
        self.launch, self.run, self.handle = launch, launch.run, launch.handle
        self.arguments, self.error = launch.references
        self.q, self.k, self.v, *self.more = (launch.tensors[name] for name in given)
        self.scalars = [launch.scalars[name] for name in scalars]
        self.o, self.lse = launch.tensors["o"], launch.tensors.get("lse")
        self.make_results_like(o, lse)

    def make_results_like(self, o: Tensor, lse: Tensor | None) -> None:
        self.o_shape, self.o_strides, self.o_dtype, self.ordinal = tuple(o.shape), o.stride(), o.dtype, o.get_device()
        self.lse_shape = () if lse is None else lse.shape
        self.needed = self.launch.needed

    def fit(self, given: Mapping[str, Tensor], o: Tensor, lse: Tensor | None, max_q_len: int, max_k_len: int) -> None:
        """Makes it a call of these sizes: of the same kernel, dtypes and dimensions."""
        launch = self.launch
        for name, tensor in {**given, "o": o, "lse": lse}.items():
            if tensor is not None:
                tensors.resize(launch.tensors[name], tensor.shape, tensor.stride())
                launch.tensors[name].data = tensor.data_ptr()  # looked at, not kept
        launch.arguments.max_q_len, launch.arguments.max_k_len = max_q_len, max_k_len
        launch.measure()
        self.make_results_like(o, lse)


# Calls that are not in use, by all that their structures hold. A list is taken from and added to in one step, so no lock.
_ready: dict[Any, list[_Call]] = {}


class _Kind:
    """Of calls that differ in sizes alone: their kernel, and the lists in _ready for the sizes it was called with, oldest first."""

    __slots__ = ("kernel", "sizes")

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.sizes: collections.deque[tuple[Any, list[_Call]]] = collections.deque()


_kinds: dict[Any, _Kind] = {}
_MOST_KINDS = 1024  # beyond, all are forgotten
_MOST_SIZES = 64  # of a kind; beyond, the oldest give their call to new ones: what decodes has another length in each call


class _Same:
    """The calls in the list of _ready that the last call with some options took; `like`, once it was taken twice, says whether
    tensors are the same in all but their addresses. One check that Dynamo has takes a sixth of the time of making a key of them."""

    __slots__ = ("pool", "like", "alignment")

    def __init__(self, pool: list[_Call]) -> None:
        self.pool, self.alignment = pool, 0
        self.like: Callable[..., bool] = _unlike

    def learn(self, alignment: int, *given: Tensor) -> None:
        self.alignment = alignment
        self.like = _checks(*given, dynamic_dims_sizes=[list(t.shape) for t in given],
                            dynamic_dims_strides=[list(t.stride()) for t in given]).check


def _unlike(*given: Tensor) -> bool:
    return False


_same: dict[Any, _Same] = {}  # by options


def _new_outputs(q: Tensor, v: Tensor, words: str) -> tuple[Tensor, Tensor | None]:
    """O and the LSE, as kernels write them."""
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
    """The dimensions of q and of v, and which of q is its tokens; what takes of a shape of q, and of k and v, what specs say."""
    rank, heads, tokens = calls.axes_of(words)
    in_spec = operator.itemgetter(heads, -1)
    paged = calls.is_paged(words)
    return rank, 4 if paged else rank, tokens, in_spec, operator.itemgetter(1, 2, 3) if paged else in_spec


class _Asked:
    """A call of sizes that are new, with results as kernels write them."""

    def __init__(self, options: Any, given: Mapping[str, Tensor], scalars: Mapping[str, float], out: Tensor | None) -> None:
        self.words, self.given, self.scalars = _words_of(options), given, scalars
        q, k, v = given["q"], given["k"], given["v"]
        rank, rank_of_v, *_ = _axes(self.words)
        if q.dim() != rank or k.dim() != rank_of_v or v.dim() != rank_of_v:
            for name, wanted in (("q", rank), ("k", rank_of_v), ("v", rank_of_v)):
                calls.check_rank(name, tensors.view(given[name], name), wanted, self.words)
        self.o, self.lse = _new_outputs(q, v, self.words)
        if out is not None:
            self.o = out

    def views(self) -> dict[str, tensors.View]:
        views = {name: tensors.view(tensor, name) for name, tensor in self.given.items()}
        views["o"] = tensors.view(self.o, "out")
        if self.lse is not None:
            views["lse"] = tensors.view(self.lse, "lse")
        return views

    def _key(self) -> Any:
        """All that the spec says, and where the tensors are."""
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
            if len(_kinds) >= _MOST_KINDS:
                _kinds.clear()
                _ready.clear()
                _same.clear()
            kind = _kinds.setdefault(key, _Kind(kernel))
        return kind

    def call(self, stream: int | None, max_q_len: int, max_k_len: int) -> _Call:
        launch = Launch(self.kind(stream).kernel, self.views(), self.scalars, max_q_len, max_k_len)
        return _Call(launch, self.given, list(self.scalars), self.o, self.lse)


def _launch(options: Any, q: Tensor, k: Tensor, v: Tensor, more: Mapping[str, Tensor], scalars: Mapping[str, float],
            out: Tensor | None, max_q_len: int, max_k_len: int) -> tuple[Tensor, Tensor | None]:
    """`options`: the arguments of calls.words_of, or the words."""
    try:
        at_q, at_k, at_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
        key: Any = (options, q.device, q.dtype, q.shape, q.stride(), k.get_device(), k.dtype, k.shape, k.stride(), v.get_device(), v.dtype,
                    v.shape, v.stride(), (at_q | at_k | at_v) & 15, q.is_neg() or k.is_neg() or v.is_neg(), max_q_len, max_k_len)
        if more or scalars or out is not None:
            key += tuple([(name, t.dtype, t.device, t.shape, t.stride(), t.data_ptr() & 15, t.is_neg()) for name, t in more.items()])
            key += tuple([(name, scalar_word(value)) for name, value in scalars.items()])
            if out is not None:
                key += (out.dtype, out.device, out.shape, out.stride(), out.data_ptr() & 15)
    except RuntimeError:  # PyTorch's word for tensors without memory of their own
        for name, tensor in (("q", q), ("k", k), ("v", v), *more.items()):
            tensors.view(tensor, name)
        raise
    pool = _ready.get(key)
    if pool is None:
        pool = _new_pool(key, _Asked(options, {"q": q, "k": k, "v": v, **more}, scalars, out), max_q_len, max_k_len)
    if _checks and not (more or scalars or out is not None or max_q_len or max_k_len):
        same = _same.get(options)
        if same is None or same.pool is not pool:
            _same[options] = _Same(pool)
        elif same.like is _unlike:
            same.learn((at_q | at_k | at_v) & 15, q, k, v)
    return _run(pool, options, q, k, v, at_q, at_k, at_v, more, scalars, out, max_q_len, max_k_len)


def _run(pool: list[_Call], options: Any, q: Tensor, k: Tensor, v: Tensor, at_q: int, at_k: int, at_v: int, more: Mapping[str, Tensor],
         scalars: Mapping[str, float], out: Tensor | None, max_q_len: int, max_k_len: int) -> tuple[Tensor, Tensor | None]:
    ordinal = q.get_device()  # negative: on the processor
    stream = _current_stream(ordinal) if ordinal >= 0 else None
    try:
        call = pool.pop()
    except IndexError:
        call = _Asked(options, {"q": q, "k": k, "v": v, **more}, scalars, out).call(stream, max_q_len, max_k_len)
    for structure, tensor in zip(call.more, more.values()):
        structure.data = tensor.data_ptr()
    for parameter, value in zip(call.scalars, scalars.values()):
        parameter.scalar = value
    return _finish(call, pool, q, ordinal, stream, at_q, at_k, at_v, out)


def _finish(call: _Call, pool: list[_Call], q: Tensor, ordinal: int, stream: int | None, at_q: int, at_k: int, at_v: int,
            out: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Runs a call that was taken from `pool` and lacks these addresses."""
    call.q.data, call.k.data, call.v.data = at_q, at_k, at_v
    if out is not None:
        o = out
    elif ordinal < 0:
        o = _empty_on_cpu(call.o_shape, call.o_strides, call.o_dtype)
    elif ordinal == _current_device():
        o = _empty_on_gpu(call.o_shape, call.o_strides, call.o_dtype)
    else:
        o = torch.empty_strided(call.o_shape, call.o_strides, dtype=call.o_dtype, device=q.device)
    call.o.data = o.data_ptr()
    lse = None
    if call.lse is not None:
        lse = _empty(call.lse_shape, dtype=torch.float32, device=q.device)
        call.lse.data = lse.data_ptr()
    if call.needed:
        call.launch.set_workspace(*tensors.new_bytes(q, call.needed))
    status = call.run(call.handle, call.arguments, stream, call.error)
    if status:
        raise call.launch.kernel.library.error(status, call.launch.error)
    if call.needed:
        call.launch.set_workspace(0)
    pool.append(call)
    return o, lse


def _new_pool(key: Any, asked: _Asked, max_q_len: int, max_k_len: int) -> list[_Call]:
    kind = asked.kind(_current_stream(asked.o.get_device()) if asked.o.is_cuda else None)
    pool = _ready.setdefault(key, [])
    kind.sizes.append((key, pool))
    if len(kind.sizes) > _MOST_SIZES:
        oldest, left = kind.sizes.popleft()
        _ready.pop(oldest, None)
        try:
            call = left.pop()
        except IndexError:  # in use
            return pool
        call.fit(asked.given, asked.o, asked.lse, max_q_len, max_k_len)
        pool.append(call)
    return pool


def _check_out(out: Any) -> None:
    if not isinstance(out, Tensor):
        raise InvalidError(f"out: {type(out).__name__} is no tensor of PyTorch, and q is one; convert it")
    if out.requires_grad and _is_grad_enabled():
        raise InvalidError("out: has requires_grad, and what is written into it has no gradient; call under torch.no_grad(), or leave it out")


def _written(*changed: Tensor) -> None:
    """Autograd then knows that what it may have kept of these is of before."""
    torch.autograd.graph.increment_version([tensor for tensor in changed if not tensor.is_inference()])


def _cast_by_autocast(q: Tensor, k: Tensor, v: Tensor, params: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """As PyTorch casts for its own attention: models have q and k in fp32 at times, by their rope, and v in 16 bits. What has 8 bits or 64
    stays, and so does a cache that is written to."""
    device = q.device.type
    if "k_new" in params or not torch.is_autocast_enabled(device):
        return q, k, v
    dtype = torch.get_autocast_dtype(device)
    q, k, v = (x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() and 1 < x.element_size() < 8 else x for x in (q, k, v))
    return q, k, v


def attention(q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...], out: Tensor | None, stream: int | None, max_q_len: int,
              max_k_len: int, params: Mapping[str, Any]) -> Any:
    """`options`: the arguments of calls.words_of."""
    if _is_any_autocast():
        q, k, v = _cast_by_autocast(q, k, v, params)
    if not (params or out is not None or stream is not None or max_q_len or max_k_len or _is_compiling() or _modes() or _is_tracing() or
            _forward_ad._current_level >= 0):
        same = _same.get(options)
        if same is not None and same.like(q, k, v):
            at_q, at_k, at_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
            if (at_q | at_k | at_v) & 15 == same.alignment:
                try:
                    call = same.pool.pop()
                except IndexError:  # in use
                    pass
                else:
                    ordinal = call.ordinal
                    o, lse = _finish(call, same.pool, q, ordinal, _current_stream(ordinal) if ordinal >= 0 else None, at_q, at_k, at_v, None)
                    return o if lse is None else (o, lse)
    plain = type(q) in _PLAIN and type(k) in _PLAIN and type(v) in _PLAIN
    more, scalars = calls.split(params) if params else (params, params)
    needs_gradient = q.requires_grad or k.requires_grad or v.requires_grad if plain else False
    if more or not plain:
        every = (q, k, v, *more.values())
        for name, tensor in zip(("q", "k", "v", *more), every):
            if not isinstance(tensor, Tensor):
                raise InvalidError(f"{name}: {type(tensor).__name__} is no tensor of PyTorch, and q is one; convert it")
        plain = all(type(tensor) in _PLAIN for tensor in every)
        needs_gradient = any(tensor.requires_grad for tensor in every)
    needs_gradient = needs_gradient and _is_grad_enabled()
    if _forward_ad._current_level >= 0 and any(_forward_ad.unpack_dual(tensor).tangent is not None for tensor in (q, k, v, *more.values())):
        raise UnsupportedError("q, k, v or a parameter has a tangent, and there are no derivatives in forward mode; use backward(), or PyTorch's attention")
    if stream is not None and q.is_cuda and not needs_gradient:  # what is made here is of the stream on which it is used
        device = q.device
        with torch.cuda.stream(_external_stream(stream, device) if stream else torch.cuda.default_stream(device)):
            return attention(q, k, v, options, out, None, max_q_len, max_k_len, params)
    traced = not plain or _is_compiling() or _modes() or _is_tracing()
    if not traced and not needs_gradient:
        if out is not None:
            _check_out(out)
        o, lse = _launch(options, q, k, v, more, scalars, out, max_q_len, max_k_len)
        if out is not None:
            _written(out)
        if "k_new" in more:
            _written(k, v)
        return o if lse is None else (o, lse)

    why = "the call needs gradients" if needs_gradient else "the call is traced"
    if out is not None:
        raise InvalidError(f"out: given, and {why}; leave it out, or call under torch.no_grad()")
    if stream is not None and q.is_cuda:
        raise InvalidError("stream: given, and the call needs gradients, which run on the current stream; use torch.cuda.stream(...)")
    if "k_new" in more:
        raise UnsupportedError(f"k_new: k and v would be written to, and {why}; call under torch.no_grad(), outside of torch.compile")
    mask, score, wanted, layout, scale, align, spec = options
    words = calls.words_of(mask, score, wanted or needs_gradient, layout, scale, align, spec)
    names = ",".join(more) + ";" + ",".join([f"{name}:{scalar_word(value)}" for name, value in scalars.items()])
    values = [float(value) for value in scalars.values()]
    if needs_gradient:
        grads = ",".join([name for name, tensor in more.items() if tensor.requires_grad])
        every = (q, k, v, *more.values())
        if traced:  # of a tensor that stands there twice, Dynamo takes the gradient of the last place alone
            every = tuple([tensor.view_as(tensor) for tensor in every])
        o, lse = _differentiated(traced, words, names, values, grads, max_q_len, max_k_len, *every)
    else:
        o, lse = torch.ops.flashjit.attention(q, k, v, list(more.values()), words, names, values, NO_GRADIENT, max_q_len, max_k_len)
    return (o, lse) if wanted else o


def _listed(names: str) -> list[str]:
    return names.split(",") if names else []


def _named(names: str, more: Sequence[Tensor], values: Sequence[float]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The tensors and scalars of a call by their names: "table,sink;cap:fp32,n:i32"."""
    of_tensors, _, of_scalars = names.partition(";")
    scalars: dict[str, float] = {}
    for text, value in zip(_listed(of_scalars), values):
        name, _, dtype = text.partition(":")
        scalars[name] = value if dtype == "fp32" else int(value)
    return dict(zip(_listed(of_tensors), more)), scalars


_make_library: Any = torch.library.Library
_library = _make_library("flashjit", "DEF")
_library.define("attention(Tensor q, Tensor k, Tensor v, Tensor[] more, str words, str names, float[] scalars, str grads, "
                "int max_q_len, int max_k_len) -> (Tensor, Tensor)")
_library.define("attention_backward(Tensor do_, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor[] more, "
                "str words, str names, float[] scalars, str grads, int max_q_len, int max_k_len) -> Tensor[]")


def _forward(q: Tensor, k: Tensor, v: Tensor, more: list[Tensor], words: str, names: str, scalars: list[float], grads: str,
             max_q_len: int, max_k_len: int) -> tuple[Tensor, Tensor]:
    given, values = _named(names, more, scalars)
    if grads != NO_GRADIENT:
        _check_backward(q, k, v, given, values, words, grads)
    o, lse = _launch(words, q, k, v, given, values, None, max_q_len, max_k_len)
    return o, _empty(0, dtype=torch.float32, device=q.device) if lse is None else lse


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, more: list[Tensor], words: str, names: str, scalars: list[float], grads: str,
                  max_q_len: int, max_k_len: int) -> tuple[Tensor, Tensor]:
    o, lse = _new_outputs(q, v, words)
    return o, _empty(0, dtype=torch.float32, device=q.device) if lse is None else lse


_with_backward: set[Any] = set()


def _check_backward(q: Tensor, k: Tensor, v: Tensor, more: Mapping[str, Tensor], scalars: Mapping[str, float], words: str, grads: str) -> None:
    """Where there is no backward, the forward call says so."""
    key = (words, grads, q.dtype, k.dtype, v.dtype, q.device, q.shape[-1], v.shape[-1], q.shape[1:3], k.shape[1:3], tuple(more),
           tuple((t.dtype, t.dim()) for t in more.values()), tuple(scalars))
    if key in _with_backward:
        return
    views = {name: tensors.view(t.detach(), name) for name, t in {"q": q, "k": k, "v": v, **more}.items()}
    try:
        calls.prepare(tensors.torch_device(q.device), calls.spec_of("bwd", words, views, scalars, _listed(grads)),
                      _current_stream(q.device.index) if q.is_cuda else None)
    except FlashJitError as error:
        raise type(error)(f"q, k, v or a parameter has requires_grad, and there is no backward: {error.message}; or call under "
                          "torch.no_grad()", error.kind, error.detail) from None
    if calls.word(words, "out") is not None:
        raise UnsupportedError("out=: has no backward; leave it out and convert the result, or call under torch.no_grad()")
    if len(_with_backward) >= _MOST_KINDS:
        _with_backward.clear()
    _with_backward.add(key)


def _gradients(q: Tensor, k: Tensor, v: Tensor, more: Sequence[Tensor], names: str, grads: str) -> list[Tensor]:
    """Of q, k, v, and in fp32 of what `grads` names."""
    named, _ = _named(names, more, [])
    return [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (q, k, v)] + [
        _empty(named[name].shape, dtype=torch.float32, device=q.device) for name in _listed(grads)]


def _backward(do_: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, more: list[Tensor], words: str,
              names: str, scalars: list[float], grads: str, max_q_len: int, max_k_len: int) -> list[Tensor]:
    given, values = _named(names, more, scalars)
    made = _gradients(q, k, v, more, names, grads)
    if calls.axes_of(words)[0] == 3:  # packed: rows before the first and behind the last sequence are none of the call
        for gradient in made[:3]:
            gradient.zero_()
    tensors_of = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "do": do_.contiguous(), **given,
                  **dict(zip(("dq", "dk", "dv", *("d" + name for name in _listed(grads))), made))}
    if dlse is not None:
        tensors_of["dlse"] = dlse.contiguous()
    views = {name: tensors.view(tensor, name) for name, tensor in tensors_of.items()}
    stream = _current_stream(q.device.index) if q.is_cuda else None
    kernel = calls.prepare(tensors.torch_device(q.device), calls.spec_of("bwd", words, views, values, _listed(grads)), stream)
    kernel.bind({**views, **values}, max_q_len=max_q_len, max_k_len=max_k_len, stream=stream, like=q)()
    return made


def _backward_fake(do_: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, more: list[Tensor],
                   words: str, names: str, scalars: list[float], grads: str, max_q_len: int, max_k_len: int) -> list[Tensor]:
    return _gradients(q, k, v, more, names, grads)


def _refuse_gradients(ctx: Any, *gradients: Any) -> Any:
    """_Differentiable differentiates, and calls the operators below autograd."""
    raise UnsupportedError("gradients have no gradients, and the operators none of their own; leave create_graph=True out, or use "
                           "flashjit.attention")


for _name, _real, _fake in (("attention", _forward, _forward_fake), ("attention_backward", _backward, _backward_fake)):
    for _device in ("CPU", "CUDA"):
        _library.impl(_name, _real, _device)
    torch.library.register_fake(f"flashjit::{_name}", _fake, lib=_library)
    torch.library.register_autograd(f"flashjit::{_name}", _refuse_gradients, lib=_library)


class _Differentiable(torch.autograd.Function):
    """`traced`: through the operators; else past them, which is faster."""

    @staticmethod
    def forward(ctx: Any, traced: bool, words: str, names: str, scalars: list[float], grads: str, max_q_len: int, max_k_len: int,
                q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> tuple[Tensor, Tensor]:
        call = torch.ops.flashjit.attention if traced else _forward
        o, lse = call(q, k, v, list(more), words, names, scalars, grads, max_q_len, max_k_len)
        ctx.save_for_backward(q, k, v, o, lse, *more)
        ctx.traced, ctx.rest = traced, (words, names, scalars, grads, max_q_len, max_k_len)
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, do_: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
        if not ctx.traced and _is_grad_enabled():
            raise UnsupportedError("gradients have no gradients; leave create_graph=True out, or use PyTorch's attention")
        q, k, v, o, lse, *more = ctx.saved_tensors
        _, names, _, grads, _, _ = ctx.rest
        call = torch.ops.flashjit.attention_backward if ctx.traced else _backward
        dq, dk, dv, *rest = call(torch.zeros_like(o) if do_ is None else do_, dlse, q, k, v, o, lse, more, *ctx.rest)
        named = dict(zip(grads.split(","), rest))
        of_more = [named[name].to(tensor.dtype) if name in named else None for name, tensor in zip(names.partition(";")[0].split(","), more)]
        return *[None] * 7, dq, dk, dv, *of_more


_differentiated: Any = _Differentiable.apply

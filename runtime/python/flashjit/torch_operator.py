"""`attention` takes PyTorch's tensors. A call that needs no gradient, and that nobody traces, goes straight to the C
API (torch_calls), one that needs gradients through autograd (torch_gradients), and one that is traced through the
operator flashjit::attention, which torch.compile knows."""

from __future__ import annotations

import functools
from typing import Any, Mapping, Sequence

import torch
from torch import Tensor

from flashjit import calls, tensors
from flashjit.calls import scalar_word
from flashjit.capi import InvalidError, UnsupportedError
from flashjit.torch_calls import current_stream, find_pool, finish, new_outputs, remember, run_of_pool, same_calls
from flashjit.torch_gradients import differentiated, find_gradients, new_gradients
from flashjit.values import Byte

# Exports without Dynamo have a mode, and this is one call instead of two.
_is_compiling = torch.compiler.is_dynamo_compiling
_is_grad_enabled = torch.is_grad_enabled
_is_any_autocast: Any = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
_is_tracing = torch._C._is_tracing
_is_transforming = torch._C._are_functorch_transforms_active
_modes = torch._C._len_torch_dispatch_stack
_forward_ad: Any = torch.autograd.forward_ad
_external_stream: Any = torch.cuda.ExternalStream
_PLAIN = (Tensor, torch.nn.Parameter)

NO_GRADIENT = "none"  # It stands in place of the names of parameters that have a gradient.


def _function_of(kind: Any) -> Any:
    return getattr(kind.__torch_function__, "__func__", kind.__torch_function__)


_NO_FUNCTIONS = (_function_of(Tensor), _function_of(torch.nn.Parameter))


def _check_subclass(name: str, tensor: Any) -> None:
    """Refuses subclasses, because a subclass of tensors may mean something else than its memory. PyTorch hands it to
    the operator if it has a dispatch of its own. If it only has a function of its own, as CausalBias, whose memory
    is never written, nobody would be asked."""
    if not isinstance(tensor, Tensor):
        raise InvalidError(f"{name}: {type(tensor).__name__} is no tensor of PyTorch, and q is one; convert it")
    if tensor.is_nested:
        raise tensors.nested(name)
    kind = type(tensor)
    dispatches = any("__torch_dispatch__" in vars(base) for base in kind.__mro__ if base not in Tensor.__mro__)
    if _function_of(kind) not in _NO_FUNCTIONS and not dispatches:
        raise UnsupportedError(f"{name}: {kind.__name__} is a subclass of tensors with functions of its own, which kernels do not call; use "
                               ".as_subclass(torch.Tensor) if its memory is what it means")


def _check_transforms(given: Mapping[str, Tensor], needs_gradient: bool) -> None:
    for name, tensor in given.items():
        if needs_gradient and tensor.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            raise InvalidError(f"{name}: is in a transform of torch.func, as grad and vmap are, and they do not see what kernels do; call "
                               "outside of it, with the whole batch, and use backward() or torch.autograd.grad for gradients")


def _check_out(out: Any) -> None:
    if not isinstance(out, Tensor):
        raise InvalidError(f"out: {type(out).__name__} is no tensor of PyTorch, and q is one; convert it")
    if out.is_nested:
        raise tensors.nested("out")
    if out.layout is not torch.strided:
        raise tensors.not_strided("out", out.layout)
    if out.requires_grad and _is_grad_enabled():
        raise InvalidError("out: has requires_grad, and what is written into it has no gradient; call under torch.no_grad(), or leave it out")


def _written(*changed: Tensor) -> None:
    """Tells autograd that what it may have kept of these is out of date."""
    torch.autograd.graph.increment_version([tensor for tensor in changed if not tensor.is_inference()])


def _with_lse(options: tuple[Any, ...]) -> tuple[str, bool]:
    """Returns the words of a call whose LSE is read by its backward, and whether it is a result, too: `lse` may be a
    field of `spec`."""
    words = calls.words_of(*options)
    wanted = any(word.startswith("lse=") and word != "lse=none" for word in words.split())
    return words if wanted else words.replace("lse=none", "") + " lse=ln", wanted


_words_with_lse = functools.lru_cache(_with_lse)  # Dynamo does not follow it.


def _cast_by_autocast(q: Tensor, k: Tensor, v: Tensor, params: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Casts as PyTorch does for its own attention: models have q and k in fp32 at times, by their rope, and v in 16
    bits. Tensors of 8 or 64 bits stay, and so does a cache that is written to."""
    device = q.device.type
    if "k_new" in params or not torch.is_autocast_enabled(device):
        return q, k, v
    dtype = torch.get_autocast_dtype(device)
    q, k, v = (x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() and 1 < x.element_size() < 8 else x for x in (q, k, v))
    return q, k, v


def attention(q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...], out: Tensor | None, stream: int | None, max_q_len: int,
              max_k_len: int, params: Mapping[str, Any]) -> Any:
    """`options` are the arguments of calls.words_of."""
    if _is_any_autocast():
        q, k, v = _cast_by_autocast(q, k, v, params)
    plain = type(q) in _PLAIN and type(k) in _PLAIN and type(v) in _PLAIN
    if not (params or not plain or out is not None or stream is not None or max_q_len or max_k_len or _is_compiling() or _modes() or
            _is_tracing() or _forward_ad._current_level >= 0):
        same = same_calls[_is_grad_enabled() and 1 + q.requires_grad].get(options)
        # The guard ends the process on nested tensors.
        if same is not None and not (q.is_nested or k.is_nested or v.is_nested) and same.like(q, k, v):
            at_q, at_k, at_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
            if (at_q | at_k | at_v) & 15 == same.alignment:
                try:
                    call = same.pool.pop()
                except IndexError:  # The call is in use.
                    pass
                else:
                    ordinal = call.ordinal
                    o, lse = finish(call, same.pool, q, ordinal, current_stream(ordinal) if ordinal >= 0 else None, at_q, at_k, at_v, None)
                    if same.gradients is not None:
                        return differentiated(same.gradients, params, (o, lse), q, k, v)
                    return o if lse is None else (o, lse)
    more, scalars = calls.split(params) if params else (params, params)
    needs_gradient = q.requires_grad or k.requires_grad or v.requires_grad if plain else False
    if more or not plain:
        every = (q, k, v, *more.values())
        for name, tensor in zip(("q", "k", "v", *more), every):
            if type(tensor) not in _PLAIN:
                _check_subclass(name, tensor)
                plain = False
        needs_gradient = any(tensor.requires_grad for tensor in every)
    needs_gradient = needs_gradient and _is_grad_enabled()
    if _forward_ad._current_level >= 0 and any(_forward_ad.unpack_dual(tensor).tangent is not None for tensor in (q, k, v, *more.values())):
        raise UnsupportedError("q, k, v or a parameter has a tangent, and there are no derivatives in forward mode; use backward(), or PyTorch's attention")
    if stream is not None and not q.is_cuda:
        raise tensors.no_stream(stream)
    # Tensors that are made here belong to the stream on which they are used.
    if stream is not None and not needs_gradient:
        device = q.device
        with torch.cuda.stream(_external_stream(stream, device) if stream else torch.cuda.default_stream(device)):
            return attention(q, k, v, options, out, None, max_q_len, max_k_len, params)
    if not _is_compiling() and _is_transforming():
        _check_transforms({"q": q, "k": k, "v": v, **more}, needs_gradient)
    traced = not plain or _is_compiling() or _modes() or _is_tracing()
    if not traced and not needs_gradient:
        if out is not None:
            _check_out(out)
        pool = find_pool(options, q, k, v, more, scalars, out, max_q_len, max_k_len)
        if not (params or out is not None or max_q_len or max_k_len):
            remember(options, pool, None, q, k, v)
        o, lse = run_of_pool(pool, options, q, k, v, more, scalars, out, max_q_len, max_k_len)
        if out is not None:
            _written(out)
        if "k_new" in more:
            _written(k, v)
        return o if lse is None else (o, lse)

    why = "the call needs gradients" if needs_gradient else "the call is traced"
    if needs_gradient and v.requires_grad and not k.requires_grad and calls.in_k(calls.words_of(*options)):
        raise InvalidError("v: requires_grad, and k does not, whose gradient has that of its first columns in it with v_in_k; give both as views of one tensor")
    if out is not None:
        raise InvalidError(f"out: given, and {why}; leave it out, or call under torch.no_grad()")
    if stream is not None:
        raise InvalidError("stream: given, and the call needs gradients, which run on the current stream; use torch.cuda.stream(...)")
    if "k_new" in more:
        raise UnsupportedError(f"k_new: k and v would be written to, and {why}; call under torch.no_grad(), outside of torch.compile")
    words, wanted = (_with_lse if traced else _words_with_lse)(options)
    if needs_gradient and not traced:
        grads = [name for name, tensor in more.items() if tensor.requires_grad]
        gradients = find_gradients(words, q, k, v, more, scalars, grads, max_q_len, max_k_len, wanted)
        if not (params or max_q_len or max_k_len):
            remember(options, gradients.pool, gradients, q, k, v)
        made = run_of_pool(gradients.pool, words, q, k, v, more, scalars, None, max_q_len, max_k_len)
        return differentiated(gradients, scalars, made, q, k, v, *more.values())
    results = _traced(q, k, v, words if needs_gradient else calls.words_of(*options), more, scalars, needs_gradient, max_q_len, max_k_len)
    return results if wanted else results[0]


def _traced(q: Tensor, k: Tensor, v: Tensor, words: str, more: Mapping[str, Tensor], scalars: Mapping[str, float], needs_gradient: bool,
            max_q_len: int, max_k_len: int) -> tuple[Tensor, Tensor]:
    """Makes a call through the operator."""
    names = ",".join(more) + ";" + ",".join([f"{name}:{scalar_word(value)}" for name, value in scalars.items()])
    values = [float(value) for value in scalars.values()]
    every = (q, k, v, *more.values())
    if not needs_gradient:
        return torch.ops.flashjit.attention(*every[:3], list(every[3:]), words, names, values, NO_GRADIENT, max_q_len, max_k_len)  # type: ignore[no-any-return]
    grads = ",".join([name for name, tensor in more.items() if tensor.requires_grad])
    # If a tensor is given twice, Dynamo takes the gradient of its last position only.
    every = tuple([tensor.view_as(tensor) for tensor in every])
    return _traced_with_gradients(words, names, values, grads, max_q_len, max_k_len, *every)  # type: ignore[no-any-return]


def _listed(names: str) -> list[str]:
    return names.split(",") if names else []


def _named(names: str, more: Sequence[Tensor], values: Sequence[float]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Returns the tensors and scalars of a call by their names, such as "table,sink;cap:fp32,n:i32"."""
    of_tensors, _, of_scalars = names.partition(";")
    scalars: dict[str, float] = {}
    for text, value in zip(_listed(of_scalars), values):
        name, _, dtype = text.partition(":")
        scalars[name] = value if dtype == "fp32" else Byte(value) if dtype == "u8" else int(value)
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
    if grads == NO_GRADIENT:
        pool = find_pool(words, q, k, v, given, values, None, max_q_len, max_k_len)
    else:
        pool = find_gradients(words, q, k, v, given, values, _listed(grads), max_q_len, max_k_len, True).pool
    o, lse = run_of_pool(pool, words, q, k, v, given, values, None, max_q_len, max_k_len)
    return o, _no_lse(q) if lse is None else lse


def _no_lse(q: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.float32, device=q.device)


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, more: list[Tensor], words: str, names: str, scalars: list[float], grads: str,
                  max_q_len: int, max_k_len: int) -> tuple[Tensor, Tensor]:
    o, lse = new_outputs(q, v, words)
    return o, _no_lse(q) if lse is None else lse


def _backward(do_: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, more: list[Tensor], words: str,
              names: str, scalars: list[float], grads: str, max_q_len: int, max_k_len: int) -> list[Tensor]:
    given, values = _named(names, more, scalars)
    gradients = find_gradients(words, q, k, v, given, values, _listed(grads), max_q_len, max_k_len, True)
    return gradients.compute(do_, dlse, q, k, v, o, lse, more, values)


def _backward_fake(do_: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, more: list[Tensor],
                   words: str, names: str, scalars: list[float], grads: str, max_q_len: int, max_k_len: int) -> list[Tensor]:
    named, _ = _named(names, more, [])
    return new_gradients(words, q, k, v, [named[name] for name in _listed(grads)])


def _refuse_gradients(ctx: Any, *gradients: Any) -> Any:
    """Refuses gradients: _TracedWithGradients differentiates, and calls the operators below autograd."""
    raise UnsupportedError("gradients have no gradients, and the operators none of their own; leave create_graph=True out, or use "
                           "flashjit.attention")


for _name, _real, _fake in (("attention", _forward, _forward_fake), ("attention_backward", _backward, _backward_fake)):
    for _device in ("CPU", "CUDA"):
        _library.impl(_name, _real, _device)
    torch.library.register_fake(f"flashjit::{_name}", _fake, lib=_library)
    torch.library.register_autograd(f"flashjit::{_name}", _refuse_gradients, lib=_library)


class _TracedWithGradients(torch.autograd.Function):
    """Both of its calls are operators, which tracers see."""

    @staticmethod
    def forward(ctx: Any, words: str, names: str, scalars: list[float], grads: str, max_q_len: int, max_k_len: int, q: Tensor, k: Tensor,
                v: Tensor, *more: Tensor) -> tuple[Tensor, Tensor]:
        o, lse = torch.ops.flashjit.attention(q, k, v, list(more), words, names, scalars, grads, max_q_len, max_k_len)
        ctx.save_for_backward(q, k, v, o, lse, *more)
        ctx.rest = words, names, scalars, grads, max_q_len, max_k_len
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, do_: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
        q, k, v, o, lse, *more = ctx.saved_tensors
        words, names, _, grads, _, _ = ctx.rest
        if calls.in_k(words):
            v = k[..., :v.shape[-1]]  # tracers may keep a copy
        made: list[Tensor | None] = torch.ops.flashjit.attention_backward(torch.zeros_like(o) if do_ is None else do_, dlse, q, k, v, o, lse, more,
                                                                 *ctx.rest)
        dq, dk, dv, *rest = [*made[:2], None, *made[2:]] if calls.in_k(words) else made
        named = dict(zip(grads.split(","), rest))
        of_more = [named[name].to(tensor.dtype) if name in named else None for name, tensor in zip(names.partition(";")[0].split(","), more)]
        return *[None] * 6, dq, dk, dv, *of_more


_traced_with_gradients: Any = _TracedWithGradients.apply

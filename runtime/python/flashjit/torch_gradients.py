"""Calls on PyTorch's tensors have gradients. The calls that compute them are kept and known again, as those of
torch_calls are."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence

import torch
from torch import Tensor

from flashjit import calls, tensors
from flashjit.capi import FlashJitError, InvalidError, UnsupportedError
from flashjit.engine import Kernel, Launch
from flashjit.torch_calls import MOST_KINDS, Pool, current_stream, find_pool, guard_of, guards, new_tensor, run_call, unlike

_is_grad_enabled = torch.is_grad_enabled

# PyTorch batches gradients by the older of its vmaps, whose tensors are none of torch.func.
_is_batched: Any = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda tensor: False)

_kernels: dict[Any, Kernel] = {}  # These are found by everything that decides whether a call has gradients.


def _kernel_of(q: Tensor, k: Tensor, v: Tensor, more: Mapping[str, Tensor], scalars: Mapping[str, float], words: str,
               grads: Sequence[str]) -> Kernel:
    """Returns the kernel of gradients. The forward call asks for it, too, so that it reports if there is no backward."""
    key = (words, tuple(grads), q.dtype, k.dtype, v.dtype, q.device, q.shape[-1], v.shape[-1], q.shape[1:3], k.shape[1:3], tuple(more),
           tuple((t.dtype, t.dim()) for t in more.values()), tuple([(name, calls.scalar_word(value)) for name, value in scalars.items()]),
           tuple([calls.alignment_of(t.data_ptr(), t.shape, t.stride(), t.element_size()) for t in (q, k, v)]))
    kernel = _kernels.get(key)
    if kernel is None:
        views = {name: tensors.view(t.detach(), name) for name, t in {"q": q, "k": k, "v": v, **more}.items()}
        try:
            kernel = calls.prepare(tensors.torch_device(q.device), calls.spec_of("bwd", words, views, scalars, grads),
                                   current_stream(q.device.index) if q.is_cuda else None)
        except FlashJitError as error:
            raise type(error)(f"q, k, v or a parameter has requires_grad, and there is no backward: {error.message}; or detach "
                              "what needs no gradient, or call under torch.no_grad()", error.kind, error.detail) from None
        if calls.word(words, "out") is not None:
            raise UnsupportedError("out=: has no backward; leave it out and convert the result, or call under torch.no_grad()")
        if len(_kernels) >= MOST_KINDS:
            _kernels.clear()
        _kernels[key] = kernel
    return kernel


class _Kind(NamedTuple):
    """This describes a tensor of the backward. `strides` are those that the caller gave it, which may overlap."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] | None = None


def _overlaps(tensor: Tensor) -> bool:
    """Returns whether elements may share memory, as those of expanded tensors do."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


class _Call:
    """This call computes gradients, and lacks only the addresses of its tensors. One thread at a time uses it."""

    __slots__ = ("launch", "run", "handle", "arguments", "error", "needed", "like", "given", "scalars", "made")

    def __init__(self, launch: Launch, given: Mapping[str, Tensor], made: Mapping[str, Tensor], scalars: Mapping[str, float]) -> None:
        self.launch, self.run, self.handle, self.needed = launch, launch.run, launch.handle, launch.needed
        self.arguments, self.error = launch.references
        self.like = guard_of(*given.values()) if guards else unlike
        # An address is as aligned as the first one was, or more, because the kernel was made for that.
        self.given = [(launch.tensors[name], t.stride(), ((t.data_ptr() | 16) & -(t.data_ptr() | 16)) - 1, _overlaps(t))
                      for name, t in given.items()]
        self.made = [(launch.tensors[name], tuple(t.shape), t.stride(), t.dtype) for name, t in made.items()]
        self.scalars = [launch.scalars[name] for name in scalars]


class Gradients:
    """Calls of one pool are differentiated in this way. `grads` are parameters that have gradients, beside q, k and v."""

    def __init__(self, kernel: Kernel, pool: Pool, words: str, q: Tensor, k: Tensor, v: Tensor, more: Mapping[str, Tensor],
                 grads: Sequence[str], max_q_len: int, max_k_len: int, wanted: bool) -> None:
        self.pool, self.words, self.names, self.grads, self.wanted = pool, words, tuple(more), list(grads), wanted
        self.lengths, self.device = (max_q_len, max_k_len), q.device
        o, lse = _Kind((*q.shape[:-1], calls.columns_of(v.shape, words)), q.dtype), _Kind(calls.lse_shape(words, tuple(q.shape)), torch.float32)
        of_more = {name: _Kind(tuple(tensor.shape), tensor.dtype, tensor.stride()) for name, tensor in more.items()}
        of_q, of_k, of_v = (_Kind(tuple(tensor.shape), tensor.dtype, tensor.stride()) for tensor in (q, k, v))
        # If v lies in k, the gradient of k has that of v in it. A hook on saved tensors may give them apart.
        self.of_values = not calls.in_k(words)
        self.expected = {"do": o, "q": of_q, "k": of_k, **({"v": of_v} if self.of_values else {}), "o": o, "lse": lse, **of_more, "dlse": lse}
        self.packed = calls.axes_of(words)[0] == 3
        self.kernel = kernel  # It is for calls in which only O has a gradient.
        self.ready: tuple[list[_Call], list[_Call]] = [], []  # without and with a gradient of the LSE

    def compute(self, do_: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, more: Sequence[Tensor],
                scalars: Mapping[str, float]) -> list[Tensor]:
        """Returns gradients of q, k and v, if v is a tensor of its own, and in fp32 those of `grads`."""
        given = [do_.contiguous(), q, k, *((v,) if self.of_values else ()), o, lse, *more]
        if dlse is not None:
            # Its strides are then those of the LSE, even if a size is 1.
            given.append(dlse.contiguous().view(-1).view(dlse.shape))
        ready = self.ready[dlse is not None]
        ordinal = q.get_device()
        stream = current_stream(ordinal) if ordinal >= 0 else None
        try:
            call: _Call | None = ready.pop()
        except IndexError:
            call = None
        alike = call is not None and call.like(*given)
        if not alike:
            self._check(given)
            # Autograd hands on gradients whose sign is not in memory.
            given = [tensor.resolve_neg() for tensor in given]
        if call is None:
            # The call is known again with the strides of these tensors, so no hook may leave it some that overlap.
            given = [tensor if tensor.stride() == expected.strides or not _overlaps(tensor) else tensor.contiguous()
                     for expected, tensor in zip(self.expected.values(), given)]
            call = self._new_call(given, scalars, stream)
        made, kept = [], []
        for tensor, (structure, strides, mask, overlap) in zip(given, call.given):
            address = tensor.data_ptr()
            if address & mask or not alike and tensor.stride() != strides:
                # No copy can be written there. The call is forgotten, and the next one is for these tensors.
                if overlap:
                    return self.compute(do_, dlse, q, k, v, o, lse, more, scalars)
                kept.append(new_tensor(ordinal, tuple(tensor.shape), strides, tensor.dtype).copy_(tensor))
                address = kept[-1].data_ptr()
            structure.data = address
        for structure, shape, strides, dtype in call.made:
            gradient = new_tensor(ordinal, shape, strides, dtype)
            structure.data = gradient.data_ptr()
            made.append(gradient)
        if self.packed:  # Rows before the first and behind the last sequence do not belong to the call.
            for gradient in made[:3 if self.of_values else 2]:
                gradient.zero_()
        for parameter, value in zip(call.scalars, scalars.values()):
            parameter.scalar = value
        run_call(call, q, stream)
        ready.append(call)
        return made

    def _check(self, given: Sequence[Tensor]) -> None:
        """Gradients may be batches, and hooks on saved tensors may give back others than they were given. Strides and
        addresses may differ."""
        for (name, expected), tensor in zip(self.expected.items(), given):
            if _is_batched(tensor):
                raise InvalidError(f"{name}: is a batch of gradients, as is_grads_batched=True makes it, and a kernel takes one; call "
                                   "torch.autograd.grad for each of them, with retain_graph=True")
            if (tensor.shape, tensor.dtype, tensor.device) != (expected.shape, expected.dtype, self.device):
                raise InvalidError(f"{name}: is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device} in the backward, and the call had "
                                   f"{expected.dtype} {expected.shape} on {self.device}; a hook on saved tensors must give back what it was given")

    def _new_call(self, given: Sequence[Tensor], scalars: Mapping[str, float], stream: int | None) -> _Call:
        named = dict(zip(self.expected, given))
        of = [name for name in ("q", "k", "v") if name in named] + self.grads
        made = dict(zip(["d" + name for name in of],
                        new_gradients(self.words, named["q"], named["k"], named.get("v"), [named[name] for name in self.grads])))
        views = {name: tensors.view(tensor.detach(), name) for name, tensor in {**named, **made}.items()}
        kernel = self.kernel
        if "dlse" in named:
            of_v = {} if self.of_values else {"v": tensors.view(named["k"].detach()[..., :named["o"].shape[-1]], "v")}
            spec = calls.spec_of("bwd", self.words, {**views, **of_v}, scalars, self.grads)
            kernel = calls.prepare(tensors.torch_device(named["q"].device), spec, stream)
        return _Call(Launch(kernel, views, scalars, *self.lengths), named, made, scalars)


def new_gradients(words: str, q: Tensor, k: Tensor, v: Tensor | None, more: Sequence[Tensor]) -> list[Tensor]:
    of = [tensor for tensor in (q, k, None if calls.in_k(words) else v) if tensor is not None]
    return [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in of] + [
        torch.empty(tensor.shape, dtype=torch.float32, device=q.device) for tensor in more]


def find_gradients(words: str, q: Tensor, k: Tensor, v: Tensor, more: Mapping[str, Tensor], scalars: Mapping[str, float],
                   grads: Sequence[str], max_q_len: int, max_k_len: int, wanted: bool) -> Gradients:
    pool = find_pool(words, q, k, v, more, scalars, None, max_q_len, max_k_len)
    key = (*grads, wanted)
    found: Gradients | None = pool.gradients.get(key)
    if found is None:
        kernel = _kernel_of(q, k, v, more, scalars, words, grads)
        found = pool.gradients.setdefault(key, Gradients(kernel, pool, words, q, k, v, more, grads, max_q_len, max_k_len, wanted))
    return found


class _Differentiable(torch.autograd.Function):
    """This is a call past PyTorch's dispatcher. It was made before this sees it, and `results` are its results."""

    @staticmethod
    def forward(ctx: Any, gradients: Gradients, scalars: Mapping[str, float], results: tuple[Tensor, Tensor], q: Tensor, k: Tensor,
                v: Tensor, *more: Tensor) -> Any:
        o, lse = results
        ctx.save_for_backward(q, k, v, o, lse, *more)
        ctx.call = gradients, scalars
        if gradients.wanted:
            ctx.set_materialize_grads(False)
            return results
        return o

    @staticmethod
    def backward(ctx: Any, do_: Tensor | None, dlse: Tensor | None = None) -> tuple[Any, ...]:
        if _is_grad_enabled():
            raise UnsupportedError("gradients have no gradients; leave create_graph=True out, or use PyTorch's attention")
        q, k, v, o, lse, *more = ctx.saved_tensors
        gradients, scalars = ctx.call
        made: list[Tensor | None] = [*gradients.compute(torch.zeros_like(o) if do_ is None else do_, dlse, q, k, v, o, lse, more, scalars)]
        made[2:2] = [] if gradients.of_values else [None]
        if not more:
            return None, None, None, *made
        named = dict(zip(gradients.grads, made[3:]))
        return None, None, None, *made[:3], *[named[name].to(tensor.dtype) if name in named else None
                                              for name, tensor in zip(gradients.names, more)]


# Function.apply calls this where functorch is not at work. The rest of it takes as long as the kernel of a tiny call.
differentiated: Any = super(torch.autograd.Function, _Differentiable).apply

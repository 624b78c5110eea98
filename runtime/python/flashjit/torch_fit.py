"""Kernels read tensors of four dimensions, of one batch, with rows of whole vectors. Tensors of PyTorch's attention are
made to fit. That costs copies, which explain() lists."""

from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor

from flashjit import tensors
from flashjit.capi import InvalidError, UnsupportedError
from flashjit.torch_calls import guard_of, guards, unlike

_is_compiling = torch.compiler.is_dynamo_compiling
_broadcast: Any = torch.broadcast_shapes
_VECTOR = 8  # Head dims of kernels are multiples of it.


class Fitted(NamedTuple):
    """These are arguments for a kernel, and the way from its result to the one that was asked for."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None
    scale: float | None
    shape: tuple[int, ...]
    is_double: bool

    def result(self, o: Tensor) -> Tensor:
        if o.shape[-1] != self.shape[-1]:
            o = o[..., :self.shape[-1]]
        if len(self.shape) != 4:
            o = o.reshape(self.shape)
        return o.double() if self.is_double else o


class _Notes:
    """These lines tell what was copied, and why. There are none if nobody asks, as in graphs of torch.compile."""

    def __init__(self, lines: list[str] | None) -> None:
        self.lines = lines

    def add(self, name: str, made: Tensor, why: str) -> Tensor:
        if self.lines is not None:
            self.lines.append(f"{name}: {why}, which copies {made.numel() * made.element_size()} bytes")
        return made

    def add_if_moved(self, name: str, tensor: Tensor, made: Tensor) -> Tensor:
        if self.lines is not None and made.data_ptr() != tensor.data_ptr():
            self.add(name, made, f"{tensor.dim()} dimensions become {made.dim()}")
        return made


class _Plain:
    """This remembers q, k and v that kernels took as they were. `like` takes a tenth of the time of looking at their
    sizes."""

    def __init__(self) -> None:
        # The second element tells whether heads may have groups. Both are set in one step for other threads.
        self.like: tuple[Callable[..., bool], bool] = unlike, False
        self.seen = torch.Size()

    def learn(self, query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
        """Learns at the second call of one size, so that sizes which take turns cost no more than before."""
        if _is_compiling() or not guards:
            return
        if query.shape == self.seen:
            self.like = guard_of(query, key, value), enable_gqa
        self.seen = query.shape


_plain = _Plain()


def fit_as_before(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> bool:
    """Returns whether these are like those that needed no copy. Asking the guard about nested ones ends the process."""
    if type(query) is not Tensor or type(key) is not Tensor or type(value) is not Tensor or _is_compiling():
        return False
    like, in_groups = _plain.like
    return (enable_gqa or not in_groups) and not (query.is_nested or key.is_nested or value.is_nested) and like(query, key, value)


def fit(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, scale: float | None, enable_gqa: bool,
        lines: list[str] | None = None) -> Fitted:
    """`lines` takes what was copied, and why."""
    if _fits(query, key, value, attn_mask, enable_gqa):
        _plain.learn(query, key, value, enable_gqa)
        return Fitted(query, key, value, attn_mask, scale, (*query.shape[:-1], value.shape[-1]), False)
    notes = _Notes(lines)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        _check(name, tensor)
    rank, d = query.dim(), query.shape[-1]
    if rank < 2 or key.dim() != rank or value.dim() != rank:
        raise InvalidError(f"query, key, value: have {rank}, {key.dim()} and {value.dim()} dimensions; all must have 4, or another number "
                           "from 2 on; reshape them")
    is_double = query.dtype == torch.float64
    # The first of three dimensions are as good as batches, of one head, if heads have no groups.
    at = -3 if rank == 3 and not enable_gqa else 0
    query, key, value = (_wide(tensor, rank, at) for tensor in (query, key, value))
    batch, heads = _common(query, key, value, enable_gqa)
    full = *batch, heads, query.shape[-2]
    shape = {2: full[2:], 3: full[:1] + full[2:] if at else full[1:]}.get(rank, full) + (value.shape[-1],)
    if attn_mask is not None:
        attn_mask = _fit_mask(attn_mask.unsqueeze(at) if attn_mask.dim() == 3 == rank else attn_mask, (*full, key.shape[-2]), notes)
    query, key, value = (_of_four(name, tensor, batch, notes) for name, tensor in (("query", query), ("key", key), ("value", value)))
    if query.shape[1] == 1 < key.shape[1] or query.shape[1] == 1 < value.shape[1]:
        query = query.expand(-1, heads, -1, -1)
    if key.shape[1] != value.shape[1]:
        most = max(key.shape[1], value.shape[1])
        key, value = key.expand(-1, most, -1, -1), value.expand(-1, most, -1, -1)
    # Each head has a gradient of its own then.
    differentiated = torch.is_grad_enabled() and (key.requires_grad or value.requires_grad)
    # One head that was expanded is read as one.
    if key.shape[1] > 1 and key.stride(1) == value.stride(1) == 0 and not differentiated:
        key, value = key[:, :1], value[:, :1]
    if d % _VECTOR and d == key.shape[-1] and scale is None:
        scale = 1 / math.sqrt(d)
    query, key, value = (_rows(name, tensor, notes) for name, tensor in (("query", query), ("key", key), ("value", value)))
    return Fitted(query, key, value, attn_mask, scale, shape, is_double)


def _fits(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, enable_gqa: bool) -> bool:
    """Returns whether kernels take these as they are. This is asked first, because the rest takes longer than a tiny
    call."""
    for tensor in (query, key, value):
        if type(tensor) is not Tensor or tensor.is_nested or tensor.layout is not torch.strided or tensor.is_meta or tensor.dtype is torch.float64 or tensor.dim() != 4:
            return False
        strides = tensor.stride()
        if tensor.shape[3] % _VECTOR or strides[3] != 1 or 0 in strides:
            return False
    if attn_mask is not None and (type(attn_mask) is not Tensor or attn_mask.is_nested or attn_mask.dtype is torch.float64):
        return False
    (batch, heads, _, _), of_key, of_value = query.shape, key.shape, value.shape
    return bool(batch == of_key[0] == of_value[0] and of_key[1] == of_value[1] and (heads == of_key[1] or enable_gqa and heads > 1))


def _wide(tensor: Tensor, rank: int, at: int) -> Tensor:
    """Returns the tensor with four dimensions or more."""
    return tensor[None, None] if rank == 2 else tensor.unsqueeze(at) if rank == 3 else tensor


def _check(name: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise InvalidError(f"{name}: {type(tensor).__name__} is no tensor of PyTorch; convert it")
    if tensor.is_nested:
        raise tensors.nested(name)
    if tensor.layout is not torch.strided:
        raise tensors.not_strided(name, tensor.layout)
    if tensor.is_meta:
        raise InvalidError(f"{name}: lies on meta, where tensors have no elements; move it to cpu or cuda, or use torch.compile or FakeTensorMode")
    if tensor.dtype == torch.float64 and tensor.device.type != "cpu":
        raise UnsupportedError(f"{name}: is float64, which is computed in float32, and on processors alone; convert it")


def _common(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[tuple[int, ...], int]:
    """Returns the batch of all, and the heads of the result."""
    given = (query, key, value)
    batch = tuple(query.shape[:-3])
    try:
        if not batch == key.shape[:-3] == value.shape[:-3]:
            batch = tuple(_broadcast(*(tensor.shape[:-3] for tensor in given)))
    except RuntimeError:
        raise InvalidError("query, key, value: have batches of {}, {} and {}; they must be equal, or 1".format(
            *("x".join(map(str, tensor.shape[:-3])) for tensor in given))) from None
    heads, of_key, of_value = (tensor.shape[-3] for tensor in given)
    if of_key != of_value and 1 not in (of_key, of_value):
        raise InvalidError(f"value: has {of_value} heads, and key has {of_key}; they must be equal, or 1")
    most = max(of_key, of_value) if of_key and of_value else 0
    if heads not in (1, most) and most != 1 and not enable_gqa:
        raise InvalidError(f"key: has {most} heads, and query has {heads}; give enable_gqa=True")
    return batch, most if heads == 1 else heads


def _of_four(name: str, tensor: Tensor, batch: tuple[int, ...], notes: _Notes) -> Tensor:
    """Returns [batch, heads, tokens, d]."""
    wide = tensor if tensor.shape[:-3] == batch else tensor.expand(*batch, *tensor.shape[-3:])
    return wide if len(batch) == 1 else notes.add_if_moved(name, wide, wide.reshape(math.prod(batch), *tensor.shape[-3:]))


def _rows(name: str, tensor: Tensor, notes: _Notes) -> Tensor:
    if tensor.dtype == torch.float64:
        tensor = notes.add(name, tensor.float(), "float64 is computed in float32, to some seven digits")
    over = -tensor.shape[-1] % _VECTOR
    if over:
        return notes.add(name, torch.nn.functional.pad(tensor, (0, over)), f"d={tensor.shape[-1]} is padded with zeros to {tensor.shape[-1] + over}")
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        return notes.add(name, tensor.contiguous(), "its last dimension is not contiguous")
    if any(stride == 0 and count > 1 for count, stride in zip(tensor.shape, tensor.stride())):
        return notes.add(name, tensor.contiguous(), "its batch or its heads are broadcast")
    return tensor


def _fit_mask(attn_mask: Tensor, shape: tuple[int, ...], notes: _Notes) -> Tensor:
    """Returns [batch, heads, queries, keys]."""
    _check("attn_mask", attn_mask)
    try:
        mask = attn_mask.expand(shape)
    except RuntimeError:
        raise InvalidError(f"attn_mask: {tuple(attn_mask.shape)} does not go with {shape}, [batch, heads, queries, keys]") from None
    if mask.dtype == torch.float64:
        mask = notes.add("attn_mask", attn_mask.float(), "float64 is added in float32").expand(shape)
    return mask if len(shape) == 4 else notes.add_if_moved("attn_mask", mask, mask.reshape(math.prod(shape[:-3]), *shape[-3:]))

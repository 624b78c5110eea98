"""Launches on a part of the tokens: kernels that are kept, and the SMs that they leave to an exchange beside them."""

from __future__ import annotations

import weakref
from typing import Any, Mapping

import torch
from torch import Tensor

from flashjit import calls, tensors
from flashjit.capi import InvalidError, UnsupportedError
from flashjit.engine import Kernel
from flashjit.torch_calls import MOST_KINDS, current_stream
from flashjit.values import integer

_LEFT = 8  # SMs for the exchange beside a launch
_kernels: dict[tuple[tuple[int, int], str], Kernel | None] = {}  # None: the spec is refused
_refused: weakref.WeakKeyDictionary[Kernel, int] = weakref.WeakKeyDictionary()  # the largest limit that a kernel did not take


def kernel_if_taken(like: Tensor, spec: str) -> Kernel | None:
    """The kernel of a spec, or None where it is refused. Either is kept."""
    key = tensors.torch_device(like.device), spec
    not_asked = like
    if _kernels.get(key, not_asked) is None:
        return None
    try:
        return kernel_of(like, spec)
    except (InvalidError, UnsupportedError):
        _kernels[key] = None
        return None


def kernel_of(like: Tensor, spec: str) -> Kernel:
    key = tensors.torch_device(like.device), spec
    kernel = _kernels.get(key)
    if kernel is None:
        kernel = calls.prepare(key[0], spec, _stream(like))
        if len(_kernels) >= MOST_KINDS:
            _kernels.clear()
        _kernels[key] = kernel
    return kernel


def _stream(like: Tensor) -> int | None:
    return current_stream(like.device.index) if like.is_cuda else None


def launch(kernel: Kernel, like: Tensor, values: Mapping[str, Any], sms: int = 0) -> None:
    """On the current stream. `sms`: on as many of the GPU's SMs, or on all where the kernel cannot be limited; 0: on all."""
    with torch.no_grad():
        if sms > _refused.get(kernel, 0):
            try:
                kernel.bind(values, stream=_stream(like), like=like, sms=sms)()
                return
            except InvalidError as error:
                if not error.message.startswith("sms:"):
                    raise
                _refused[kernel] = sms
        kernel.bind(values, stream=_stream(like), like=like)()


def sms_beside_exchanges(sms: int | None, device: torch.device) -> int:
    """What launches beside an exchange are given: what the caller says, else all SMs but a few. 0 stands for all."""
    if device.type != "cuda":
        if sms is not None and integer("sms", sms):
            raise InvalidError(f"sms: {sms}, and q lies on a processor, which has none; leave it out")
        return 0
    count = int(torch.cuda.get_device_properties(device).multi_processor_count)
    return max(0, count - _LEFT) if sms is None else integer("sms", sms, 0, count)

"""Launches on a part of the tokens keep their kernels, and leave SMs to an exchange beside them."""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import Any, Callable, Iterator, Mapping, NamedTuple

import torch
from torch import Tensor

from flashjit import calls, tensors
from flashjit.capi import InvalidError, UnsupportedError
from flashjit.engine import Kernel, Launch
from flashjit.torch_calls import MOST_KINDS, current_stream, run_call
from flashjit.values import integer

_LEFT = 8  # number of SMs for the exchange beside a launch
_kernels: dict[tuple[tuple[int, int], str], Kernel | None] = {}  # None if the spec is refused
# This is the largest limit that a kernel did not take.
_refused: weakref.WeakKeyDictionary[Kernel, int] = weakref.WeakKeyDictionary()


def kernel_if_taken(like: Tensor, spec: str) -> Kernel | None:
    """Returns the kernel of a spec, or None if it is refused. Either is kept."""
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


class _Ready:
    """This launch lacks only the addresses of its tensors. Each lies some bytes behind the beginning of one that is
    given."""

    __slots__ = ("launch", "run", "handle", "arguments", "error", "needed", "addresses")

    def __init__(self, launch: Launch, given: Mapping[str, Tensor]) -> None:
        self.launch, self.run, self.handle, self.needed = launch, launch.run, launch.handle, launch.needed
        self.arguments, self.error = launch.references
        self.addresses = [(tensor, name, (tensor.data or 0) - given[name].data_ptr()) for name, tensor in launch.tensors.items()]

    def __call__(self, given: Mapping[str, Tensor], like: Tensor) -> None:
        for tensor, name, behind in self.addresses:
            tensor.data = given[name].data_ptr() + behind
        run_call(self, like, _stream(like))


_ready: dict[Any, list[_Ready]] = {}  # launches that are not in use, by all that they hold
_without: set[Any] = set()  # keys whose spec is refused


class Bound(NamedTuple):
    """This is a kernel with the tensors and scalars of a call."""

    kernel: Kernel
    values: Mapping[str, Any]


def sizes_of(given: Mapping[str, Tensor]) -> tuple[Any, ...]:
    """Returns everything that a call with these tensors depends on, except for their addresses."""
    return tuple([(name, x.dtype, x.shape, x.stride(), x.data_ptr() & 15, x.is_neg()) for name, x in given.items()])


def launch(key: Any, given: Mapping[str, Tensor], like: Tensor, sms: int, bound: Callable[[], Bound | None]) -> bool:
    """Makes a call on the current stream, on at most `sms` of the GPU's SMs, or on all if the kernel cannot be limited;
    0 stands for all. `bound` makes it the first time that this key comes, and it has other addresses later. Returns
    False if `bound` finds no kernel."""
    key = key, like.device, sms, sizes_of(given)
    if key in _without:
        return False
    pool = _ready.get(key)
    # pop() is one step, so there is no lock.
    ready = pool.pop() if pool else None
    if ready is not None:
        ready(given, like)
    else:
        if len(_ready) + len(_without) >= MOST_KINDS:
            _ready.clear()
            _without.clear()
        made = bound()
        if made is None:
            _without.add(key)
            return False
        ready = _first(made, given, like, sms)
    # The call had a copy of a tensor whose sign in memory differs.
    if not any([x.is_neg() for x in given.values()]):
        _ready.setdefault(key, []).append(ready)
    return True


def _first(made: Bound, given: Mapping[str, Tensor], like: Tensor, sms: int) -> _Ready:
    """Runs a launch that is new."""
    kernel, values = made

    def run(sms: int) -> _Ready:
        ready = _Ready(kernel.bind(values, stream=_stream(like), like=like, sms=sms), given)
        ready(given, like)
        return ready

    with torch.no_grad():
        if sms > _refused.get(kernel, 0):
            try:
                return run(sms)
            except InvalidError as error:
                if not error.message.startswith("sms:"):
                    raise
                _refused[kernel] = sms
        return run(0)


class Lanes:
    """Two streams are used in turn: the first blocks of a launch run where the last ones of the launch before it leave
    SMs idle."""

    def __init__(self, device: torch.device) -> None:
        self.main = torch.cuda.current_stream(device)
        self.streams, self.count = _lanes(device.index), 0
        for stream in self.streams:
            stream.wait_stream(self.main)

    @contextlib.contextmanager
    def turn(self, ready: torch.cuda.Event) -> Iterator[None]:
        """Makes a block whose launches run after an event."""
        stream = self.streams[self.count % len(self.streams)]
        self.count += 1
        stream.wait_event(ready)
        with torch.cuda.stream(stream):
            yield

    def join(self) -> None:
        for stream in self.streams:
            self.main.wait_stream(stream)


@functools.lru_cache(None)
def _lanes(device: int) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    return new_stream(device), new_stream(device)


def new_stream(device: torch.device | int) -> torch.cuda.Stream:
    """Makes a stream; PyTorch's own constructor has no types."""
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream


def sms_beside_exchanges(sms: int | None, device: torch.device) -> int:
    """Returns the SMs for launches beside an exchange: the caller's number, else all but a few. 0 stands for all."""
    if device.type != "cuda":
        if sms is not None and integer("sms", sms):
            raise InvalidError(f"sms: {sms}, and q lies on a processor, which has none; leave it out")
        return 0
    count = int(torch.cuda.get_device_properties(device).multi_processor_count)
    return max(0, count - _LEFT) if sms is None else integer("sms", sms, 0, count)

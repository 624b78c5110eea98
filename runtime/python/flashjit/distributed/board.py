"""The GPUs of one host read this memory from one another by their copy engines, so that kernels keep all SMs. It is
PyTorch's symmetric memory."""

from __future__ import annotations

import functools
import math
import pathlib
import zlib
from typing import Any, ContextManager

import torch
import torch.distributed as dist
from torch import Tensor

from flashjit.distributed.exchange import gather, told
from flashjit.distributed.launches import new_stream

_ALIGNMENT = 256  # bytes
_boards: dict[tuple[str, int], Board] = {}


class Board:
    """A board has a buffer of each rank of a group, and all ranks read all buffers. A buffer has two halves, which
    calls use in turn: a rank that writes for a call knows from the call before that all have read what it wrote for
    the one before that."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self.group, self.device = group, device
        # These are the bytes of a half, and the half of the last call.
        self.size, self.half = 0, 0
        self.views: dict[Any, list[list[Tensor]]] = {}
        self.token = torch.zeros(1, device=device)
        self.stream = new_stream(device)
        self.handle: Any = None
        self.own: Any = None
        self.is_there = self._is_there()

    def _is_there(self) -> bool:
        """Returns whether all ranks can read the memory of all. They find it out together."""
        host = zlib.crc32(_host().encode())
        hosts, = gather("asking ranks for their hosts", self.group, [torch.tensor([host], dtype=torch.int64, device=self.device)]).wait()
        if len(set(hosts.flatten().tolist())) > 1:
            return False
        try:
            self._grow(_ALIGNMENT)
            works = 1
        except (RuntimeError, ImportError, AttributeError):  # PyTorch is older, or the GPUs have no way to one another.
            works = 0
        every, = gather("asking ranks for memory that others read", self.group, [torch.tensor([works], device=self.device)]).wait()
        return bool(every.all())

    def _grow(self, size: int) -> None:
        """Makes the buffers larger. All ranks do that at the same call. Memory that others still read stays until they
        have waited here, too."""
        import torch.distributed._symmetric_memory as symmetric

        torch.cuda.synchronize(self.device)
        own = symmetric.empty(2 * size, dtype=torch.uint8, device=self.device)
        self.handle = symmetric.rendezvous(own, self.group)
        self.own, self.size = own, size
        self.views.clear()

    def room(self, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> list[list[Tensor]]:
        """Returns, by rank, tensors of the next call. Each rank writes its own, and reads others in copying(), when it
        has called show()."""
        sizes = [-(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT for shape in shapes]
        if sum(sizes) > self.size:
            self._grow(max(sum(sizes), 2 * self.size))
        self.half = 1 - self.half
        key = self.half, shapes, dtype
        if key not in self.views:
            begins = [(self.half * self.size + sum(sizes[:at])) // dtype.itemsize for at in range(len(sizes))]
            self.views[key] = [[self.handle.get_buffer(rank, shape, dtype, begin) for shape, begin in zip(shapes, begins)]
                               for rank in range(self.group.size())]
        return self.views[key]

    def show(self, what: str) -> None:
        """Copies after this see what all ranks have written."""
        with told(what):
            arrival = dist.all_reduce(self.token, group=self.group, async_op=True)
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
            with self.copying():
                arrival.wait()

    def copying(self) -> ContextManager[Any]:
        """Returns a block whose copies run beside the work of the current stream."""
        return torch.cuda.stream(self.stream)

    def copied(self) -> torch.cuda.Event:
        """Returns the event of all copies so far."""
        event: torch.cuda.Event = self.stream.record_event()
        return event


@functools.lru_cache(None)
def _host() -> str:
    """Identifies the running kernel: hosts may have equal names, and containers of one host different ones."""
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return ""


def board_of(group: Any, device: torch.device) -> Board | None:
    """Returns the board of a group, or None if its ranks do not read one another's memory. All ranks of the group make
    the first call."""
    if device.type != "cuda" or group.size() == 1 or "nccl" not in str(group._get_backend(device).name()):
        return None
    key = str(group.group_name), device.index
    board = _boards.get(key)
    if board is None or board.group is not group:  # Names of groups that are gone come back.
        board = _boards[key] = Board(group, device)
    return board if board.is_there else None

"""Ranks send tensors to one another. A transfer is started, and waited for when its tensors are needed. Errors tell
whose part did not come."""

from __future__ import annotations

import contextlib
import zlib
from typing import Any, Iterator, NamedTuple, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from flashjit.capi import FlashJitError, InvalidError
from flashjit.values import shown

_LARGEST = 448.0  # the largest e4m3


class ExchangeError(FlashJitError, RuntimeError):
    """Another process is gone, or was not there within the timeout of the group. No result of this call is kept."""

    usual_kind = "io"


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Adds to errors of PyTorch's process groups what was to be exchanged."""
    try:
        yield
    except FlashJitError:
        raise
    except RuntimeError as error:
        raise ExchangeError(f"{what}: a process is gone, or was not there within the timeout of its group, and the group is of no more use; "
                            f"PyTorch says: {str(error).splitlines()[0]}") from error


class Transfer:
    """A transfer has been started and not yet waited for. It keeps the tensors that are sent and received."""

    def __init__(self, what: str, works: Sequence[Any], received: Sequence[Tensor], sent: Sequence[Tensor]) -> None:
        self.what, self.works, self.received, self.sent = what, works, received, sent

    @property
    def is_under_way(self) -> bool:
        """Returns whether there is anything to wait for."""
        return bool(self.works)

    def wait(self) -> Sequence[Tensor]:
        """Makes the current stream wait on a GPU, but not the host. Returns the tensors that the transfer has written."""
        with told(self.what):
            for work in self.works:
                work.wait()
        self.sent = ()
        return self.received


class Message(NamedTuple):
    """A message has tensors for a rank of the group, or room for tensors from it."""

    peer: int
    parts: Sequence[Tensor]


def swap(what: str, group: Any, sent: Message, received: Message, tag: int) -> Transfer:
    """Sends to one rank and receives from another. Tensors without elements are not sent, which both sides know."""
    operations = [dist.P2POp(dist.isend, part.contiguous(), group=group, group_peer=sent.peer, tag=tag) for part in sent.parts if part.numel()]
    kept = [operation.tensor for operation in operations]
    operations += [dist.P2POp(dist.irecv, part, group=group, group_peer=received.peer, tag=tag) for part in received.parts if part.numel()]
    if not operations:
        return Transfer(what, (), received.parts, ())
    with told(what):
        works = dist.batch_isend_irecv(operations)
    return Transfer(what, works, received.parts, kept)


def gather(what: str, group: Any, parts: Sequence[Tensor]) -> Transfer:
    """Gathers each rank's tensors into tensors [ranks, ...]."""
    made, works, given = [], [], [part.contiguous() for part in parts]
    with told(what):
        for part in given:
            out = torch.empty((group.size(), *part.shape), dtype=part.dtype, device=part.device)
            works.append(dist.all_gather_into_tensor(out.view(-1), part.view(-1), group=group, async_op=True))
            made.append(out)
    return Transfer(what, works, made, given)


def turn(what: str, group: Any, parts: Sequence[Tensor]) -> Transfer:
    """Exchanges all to all: each part is [ranks, ...], by receiver, and the result is by sender."""
    made, works = [], []
    with told(what):
        for part in parts:
            out = torch.empty_like(part)
            works.append(dist.all_to_all_single(out, part, group=group, async_op=True))
            made.append(out)
    return Transfer(what, works, made, parts)


class Sum:
    """Sums fp32 [ranks, ...] over ranks, of which each keeps its own. NCCL has that by itself. Elsewhere the parts are
    exchanged, as many bytes, and added in the order of the ranks."""

    def __init__(self, what: str, group: Any, parts: Sequence[Tensor]) -> None:
        self.has_sums = all(part.is_cuda for part in parts) and "nccl" in str(dist.get_backend(group))
        if not self.has_sums:
            self.transfer = turn(what, group, parts)
            return
        made = [torch.empty_like(part[0]) for part in parts]
        with told(what):
            works = [dist.reduce_scatter_tensor(out.view(-1), part.view(-1), group=group, async_op=True) for out, part in zip(made, parts)]
        self.transfer = Transfer(what, works, made, parts)

    def wait(self) -> list[Tensor]:
        return [part if self.has_sums else part.sum(0) for part in self.transfer.wait()]


class Travel:
    """Keys and values go to others as they are, or in 8 bits with a scale for each sequence and head."""

    def __init__(self, travel: str | None, k: Tensor, v: Tensor) -> None:
        self.dtype = k.dtype
        self.rounded = travel == "e4m3"
        self.parts: tuple[Tensor, ...] = (k.contiguous(), v.contiguous())
        if self.rounded:
            (k, of_k), (v, of_v) = _rounded(k), _rounded(v)
            self.parts = (k, v, torch.stack((of_k, of_v)))

    def sent(self, part: slice) -> list[Tensor]:
        """Returns the tensors for a rank that needs these tokens."""
        count = part.stop - part.start
        return [*(x.narrow(1, part.start, count) for x in self.parts[:2]), *(self.parts[2:] if count else ())]

    def room(self, part: slice) -> list[Tensor]:
        """Makes room for the tensors from another rank."""
        count = part.stop - part.start
        made = [torch.empty((x.shape[0], count, *x.shape[2:]), dtype=x.dtype, device=x.device) for x in self.parts[:2]]
        return [*made, *(torch.empty_like(x) for x in self.parts[2:] if count)]

    def read(self, parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        k, v, *scales = parts
        if not scales:
            return k, v
        return _read(k, scales[0][..., 0, :, :], self.dtype), _read(v, scales[0][..., 1, :, :], self.dtype)


def _rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    largest = x.detach().abs().amax((1, 3)).float()
    scale = torch.where(largest > 0, largest / _LARGEST, 1.0)
    return (x / scale[:, None, :, None]).to(torch.float8_e4m3fn).view(torch.uint8), scale


def _read(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return (x.view(torch.float8_e4m3fn).float() * scale.unsqueeze(-2).unsqueeze(-1)).to(dtype)


_checked: set[object] = set()


def check_alike(group: Any, facts: dict[str, object], device: torch.device, check: str) -> None:
    """Checks that all ranks ask for equal things: the first time for each new request, and with check="always" each
    time. The host waits for the others then."""
    if check not in ("first", "always", "never"):
        raise InvalidError(f'check: {shown(check)} is none of "first", "always" and "never"')
    key = (group.group_name, group.size(), *facts.values())
    if group.size() == 1 or check == "never" or check == "first" and key in _checked:
        return
    own = torch.tensor([_number(value) for value in facts.values()], dtype=torch.int64, device=device)
    every, = gather("comparing what ranks ask for", group, [own]).wait()
    for at, (name, value) in enumerate(facts.items()):
        others = every[:, at].tolist()
        for rank, other in enumerate(others):
            if other != others[dist.get_rank(group)]:
                there = f"is {other}" if isinstance(value, int) else "differs"
                raise InvalidError(f"{name}: {there} on rank {rank} of the group, and {shown(value)} on rank {dist.get_rank(group)}; all ranks of a "
                                   "group make the same call on shares of equal sizes")
    if len(_checked) > 4096:
        _checked.clear()
    _checked.add(key)


def _number(value: object) -> int:
    """Returns a number that is equal in all processes, which hash() is not."""
    if isinstance(value, int):
        return int(value)
    return zlib.crc32(str(value).encode())

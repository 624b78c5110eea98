"""A rank holds some tokens of a sequence. This module cuts a whole tensor to shares, and puts it together again. A
share is a few runs: begin, begin + step, ... . Ranks hold equally many tokens, and a share has them in the order of
the sequence."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Union

import torch
import torch.distributed as dist
from torch import Tensor

from flashjit.capi import InvalidError, UnsupportedError
from flashjit.values import integer, shown

ORDERS = ("zigzag", "contiguous", "striped")


class Run(NamedTuple):
    """A run is tokens of a share at equal distances. `at` is the number of the first in the share."""

    begin: int
    step: int
    size: int
    at: int

    @property
    def last(self) -> int:
        return self.begin + self.step * (self.size - 1)

    def part(self, low: int, high: int) -> Run:
        """Returns the tokens whose positions are in low..high."""
        first = max(0, -((self.begin - low) // self.step))
        end = min(self.size, (high - self.begin) // self.step + 1)
        return Run(self.begin + self.step * first, self.step, max(0, end - first), self.at + first)

    def back_to(self, block: int) -> Run:
        """Adds tokens before the run, from the first one in a block of `block` tokens of the sequence. An empty run
        stays empty."""
        before = self.begin % block // self.step if self.size else 0
        return self._replace(begin=self.begin - before * self.step, size=self.size + before, at=self.at - before)


def check_order(order: object) -> str:
    if not isinstance(order, str) or order not in ORDERS:
        raise InvalidError(f"order: {shown(order)} is none of {', '.join(ORDERS)}")
    return order


def check_share(name: str, tokens: int, ranks: int, order: str) -> None:
    """`tokens` are those of one share."""
    if order == "zigzag" and ranks > 1 and tokens % 2:
        raise InvalidError(f"{name}: {tokens} tokens a rank are no two chunks of equal length, as order=\"zigzag\" has them; pad the sequence to a "
                           f"multiple of {2 * ranks} tokens, or use order=\"contiguous\"")


@functools.lru_cache(4096)
def runs_of(order: str, ranks: int, rank: int, tokens: int) -> tuple[Run, ...]:
    """Returns the share of a rank. `tokens` are those of the whole sequence."""
    share = tokens // ranks
    if not share:
        return ()
    if order == "striped":
        return (Run(rank, ranks, share, 0),)
    if order == "contiguous":
        return (Run(rank * share, 1, share, 0),)
    half = share // 2
    if rank + 1 == ranks:  # Its two chunks are neighbours.
        return (Run(rank * half, 1, share, 0),)
    return Run(rank * half, 1, half, 0), Run((2 * ranks - 1 - rank) * half, 1, half, half)


def unflattened(x: Tensor, dim: int, sizes: tuple[int, int]) -> Tensor:
    """Returns a view in which one dimension is two. PyTorch's own function has no types."""
    made: Tensor = x.unflatten(dim, sizes)  # type: ignore[no-untyped-call]
    return made


def restored(shares: Tensor, order: str, dim: int) -> Tensor:
    """Returns the whole tensor of the shares of all ranks, [ranks, ...]. `dim` is that of tokens in a share."""
    ranks = shares.shape[0]
    if ranks == 1:
        return shares[0]
    if order == "striped":
        return shares.movedim(0, dim + 1).flatten(dim, dim + 1)
    if order == "zigzag":
        halves = unflattened(shares, dim + 1, (2, -1))
        front, back = halves.select(dim + 1, 0), halves.select(dim + 1, 1).flip(0)
        shares = torch.cat((front, back))
    return shares.movedim(0, dim).flatten(dim, dim + 1)


def arranged(whole: Tensor, order: str, ranks: int, dim: int) -> Tensor:
    """Returns the shares of all ranks, [ranks, ...], of a whole tensor: contiguous, as exchanges take it."""
    if order == "striped":
        return unflattened(whole, dim, (-1, ranks)).movedim(dim + 1, 0).contiguous()
    if order == "zigzag" and ranks > 1:
        chunks = unflattened(whole, dim, (2 * ranks, -1)).movedim(dim, 0)
        front, back = chunks[:ranks], chunks[ranks:].flip(0)
        return torch.stack((front, back), dim + 1).flatten(dim + 1, dim + 2)
    return unflattened(whole, dim, (ranks, -1)).movedim(dim, 0).contiguous()


class Groups(NamedTuple):
    """These processes share a sequence. On a mesh `inner` ones divide the heads of the tokens that an `outer` one has."""

    outer: Any
    inner: Any = None

    @property
    def inner_size(self) -> int:
        return 1 if self.inner is None else int(self.inner.size())

    @property
    def size(self) -> int:
        return int(self.outer.size()) * self.inner_size


Group = Union["dist.ProcessGroup", "dist.device_mesh.DeviceMesh", tuple["dist.ProcessGroup", "dist.ProcessGroup"], None]


def groups_of(group: Any) -> Groups:
    """`group` is a process group, a DeviceMesh of one or two dimensions, a pair (outer, inner) of groups, or None for
    all."""
    if not dist.is_available() or not dist.is_initialized():
        raise InvalidError("group: there are no process groups yet; call torch.distributed.init_process_group first")
    if group is None:
        return Groups(dist.group.WORLD)
    if isinstance(group, (tuple, list)):
        if len(group) != 2 or not all(isinstance(one, dist.ProcessGroup) for one in group):
            raise InvalidError("group: a pair is one of process groups that this process is in: (outer, inner)")
        return Groups(*group)
    if isinstance(group, dist.device_mesh.DeviceMesh):
        if group.ndim > 2:
            raise UnsupportedError(f"group: a mesh of {group.ndim} dimensions; name the one or two over which the sequence lies, as in mesh[\"cp\"]")
        return Groups(*(group.get_group(dim) for dim in range(group.ndim)))
    if isinstance(group, dist.ProcessGroup):
        return Groups(group)
    raise InvalidError(f"group: {shown(group)} is neither a process group that this process is in, nor a DeviceMesh, nor a pair of groups")


def check_device(groups: Groups, device: torch.device) -> None:
    """Checks that the groups exchange tensors of this device."""
    for group in filter(None, groups):
        try:
            name = str(group._get_backend(device).name())
        except RuntimeError:
            name = "none"
        if name == "none" or device.type == "cuda" and name == "gloo":
            raise InvalidError(f"group: its backend for tensors on {device.type} is {name}; make the group with NCCL for GPUs, and Gloo for processors, as "
                               "in init_process_group(\"cpu:gloo,cuda:nccl\")")


def _rank(group: Any) -> int:
    return int(dist.get_rank(group))


def _outer_runs(tokens: int, groups: Groups, order: str) -> tuple[Run, ...]:
    return runs_of(order, groups.outer.size(), _rank(groups.outer), tokens)


def shard(x: Tensor, group: Group = None, order: str = "zigzag", dim: int = 1) -> Tensor:
    """Returns this rank's share of a tensor that every rank has whole: a copy of the tokens along `dim` that `order`
    gives it. It has a gradient, in which the tokens of others are 0.

    >>> import torch, torch.distributed, flashjit.distributed
    >>> if not torch.distributed.is_initialized():  # alone; torchrun has more of them
    ...     torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    >>> flashjit.distributed.shard(torch.arange(8), dim=0)
    tensor([0, 1, 2, 3, 4, 5, 6, 7])
    """
    groups, order = groups_of(group), check_order(order)
    dim = dim % max(1, x.dim())
    tokens = x.shape[dim]
    parts = groups.size * (2 if order == "zigzag" and groups.outer.size() > 1 else 1)
    if tokens % parts:
        raise InvalidError(f"x: {tokens} tokens along dimension {dim} are no multiple of {parts}, as order=\"{order}\" has them on {groups.size} "
                           "ranks; pad it")
    runs = _outer_runs(tokens, groups, order)
    share = torch.cat([x[(slice(None),) * dim + (slice(run.begin, run.last + 1, run.step),)] for run in runs], dim) if runs else x.clone()
    if groups.inner is None:
        return share
    length = tokens // groups.size
    return share.narrow(dim, _rank(groups.inner) * length, length).contiguous()


def unshard(x: Tensor, group: Group = None, order: str = "zigzag", dim: int = 1) -> Tensor:
    """Returns the whole tensor, on every rank, of the shares that ranks have. It has no gradient."""
    groups, order = groups_of(group), check_order(order)
    dim = dim % max(1, x.dim())
    x = x.detach()
    if groups.inner is not None:
        x = restored(_gathered(x, groups.inner), "contiguous", dim)
    check_share("x", x.shape[dim], groups.outer.size(), order)
    return restored(_gathered(x, groups.outer), order, dim).contiguous()


def _gathered(x: Tensor, group: Any) -> Tensor:
    out = torch.empty((group.size(), *x.shape), dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(out.view(-1), x.contiguous().view(-1), group=group)
    return out


def positions(tokens: int, group: Group = None, order: str = "zigzag", device: Any = None) -> Tensor:
    """Returns where the tokens of this rank's share stand in the whole sequence of `tokens`, for rotary embeddings.

    >>> import torch, torch.distributed, flashjit.distributed
    >>> if not torch.distributed.is_initialized():
    ...     torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    >>> flashjit.distributed.positions(4, order="striped")
    tensor([0, 1, 2, 3])
    """
    return shard(torch.arange(integer("tokens", tokens), device=device), group, order, 0)

"""In step t of a ring each rank computes with keys of the t-th rank before it, while those of the next one are on their
way. They come from their owner and not from a neighbour's hands, so only keys that the receiver's queries see are
sent."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from flashjit.distributed import parts
from flashjit.distributed.exchange import Message, Transfer, Travel, swap
from flashjit.distributed.steps import Pair, Problem


class Ring:
    def __init__(self, problem: Problem, group: Any, sms: int) -> None:
        """`sms` is for launches beside an exchange."""
        self.problem, self.group, self.sms = problem, group, sms
        self.ranks, self.rank = int(group.size()), int(dist.get_rank(group))
        # By steps, these are the calls, the keys that this rank reads of the rank that many steps before it, and our
        # keys that the rank as many steps behind it reads.
        self.calls = [self._calls(step) for step in range(self.ranks)]
        self.received = [problem.needed(self.ranks, self.rank, self._peers(step)[0]) for step in range(self.ranks)]
        self.sent = [problem.needed(self.ranks, self._peers(step)[1], self.rank) for step in range(self.ranks)]

    def _calls(self, step: int) -> list[Pair]:
        """Makes calls for keys without those before the first that is needed. Our own keys are all here."""
        before, _ = self._peers(step)
        missing = self.problem.needed(self.ranks, self.rank, before).start if step else 0
        pairs = self.problem.pairs(self.ranks, self.rank, before)
        return [pair._replace(k=pair.k._replace(at=pair.k.at - missing)) for pair in pairs]

    def _peers(self, step: int) -> tuple[int, int]:
        return (self.rank - step) % self.ranks, (self.rank + step) % self.ranks

    def _fetch(self, step: int, travel: Travel) -> Transfer:
        before, behind = self._peers(step)
        return swap(f"ring, step {step} of {self.ranks - 1}: keys of rank {before} for this one, and ours for rank {behind}", self.group,
                    Message(behind, travel.sent(self.sent[step])), Message(before, travel.room(self.received[step])), 2 * step)

    def _keys(self, k: Tensor, v: Tensor) -> Iterator[tuple[int, list[Pair], Tensor, Tensor, bool]]:
        """Gives for each step: the step, its calls, their keys and values, and whether others are on their way."""
        travel = Travel(self.problem.travel, k, v) if self.ranks > 1 else None
        for step in range(self.ranks):
            coming = self._fetch(step + 1, travel) if travel is not None and step + 1 < self.ranks else None
            yield step, self.calls[step], k, v, coming is not None and coming.is_under_way
            if coming is not None and travel is not None:
                k, v = travel.read(coming.wait())

    def forward(self, q: Tensor, k: Tensor, v: Tensor, params: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        sums = parts.Sums(self.problem, q, v.shape[-1])
        for _, pairs, k_step, v_step, is_beside in self._keys(k, v):
            for pair in pairs:
                sums.add(pair, k_step, v_step, params, self.sms if is_beside else 0)
        return sums.results()

    def backward(self, named: Mapping[str, Tensor], k: Tensor, v: Tensor, params: Mapping[str, Any],
                 grads: Sequence[str]) -> dict[str, Tensor]:
        """Sends gradients of keys to their owner while the next step computes."""
        totals = {"d" + name: parts.Total(x.shape, k.device) for name, x in {"q": named["q"], "k": k, "v": v, **{n: params[n] for n in grads}}.items()}
        home: Transfer | None = None
        for step, pairs, k_step, v_step, is_beside in self._keys(k, v):
            of_step = {name: parts.Total(x.shape, k.device) if step else totals[name] for name, x in (("dk", k_step), ("dv", v_step))}
            sms = self.sms if is_beside or home is not None and home.is_under_way else 0
            for pair in pairs:
                parts.backward(self.problem, pair, named, k_step, v_step, params, grads, totals | of_step, sms)
            self._receive(home, step - 1, totals)
            home = self._send_home(step, of_step, k, v) if step else None
        self._receive(home, self.ranks - 1, totals)
        return {name: total.result() for name, total in totals.items()}

    def _send_home(self, step: int, of_step: Mapping[str, parts.Total], k: Tensor, v: Tensor) -> Transfer:
        owner, behind = self._peers(step)
        part = self.sent[step]
        room = [torch.empty((x.shape[0], part.stop - part.start, *x.shape[2:]), dtype=torch.float32, device=x.device) for x in (k, v)]
        return swap(f"ring, step {step} of {self.ranks - 1}: gradients of keys of rank {owner} from this one, and of ours from rank {behind}",
                    self.group, Message(owner, [of_step["dk"].result(), of_step["dv"].result()]), Message(behind, room), 2 * step + 1)

    def _receive(self, home: Transfer | None, step: int, totals: Mapping[str, parts.Total]) -> None:
        if home is not None:
            for name, gradient in zip(("dk", "dv"), home.wait()):
                totals[name].add(self.sent[step].start, gradient)

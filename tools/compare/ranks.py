"""Processes of one host have a GPU each, and are timed together."""
import os
import signal
import socket
import statistics
import subprocess
import sys

import torch
import torch.distributed as dist


def is_rank():
    """Returns whether this process is one of those, started here or by torchrun."""
    return "RANK" in os.environ


def start(count):
    """Starts the same command in this many processes. The first that fails ends all."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
              "NCCL_NVLS_ENABLE": os.environ.get("NCCL_NVLS_ENABLE", "0")}
    started = [subprocess.Popen([sys.executable, *sys.argv], env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(count)]
    waiting, worst = dict(enumerate(started)), 0
    while waiting:
        pid, status = os.wait()
        for rank, process in list(waiting.items()):
            if process.pid == pid:
                del waiting[rank]
                code = os.waitstatus_to_exitcode(status)
                if code and not worst:
                    worst = abs(code)
                    for other in waiting.values():
                        other.send_signal(signal.SIGTERM)
    return worst


class Clock:
    """This clock takes the milliseconds of calls that all ranks make at the same time: those of the slowest."""

    def __init__(self, device, budget_ms):
        self.device, self.budget_ms = device, budget_ms

    def slowest(self, value):
        value = torch.tensor([value], device=self.device, dtype=torch.float64)
        dist.all_reduce(value, dist.ReduceOp.MAX)
        return value.item()

    def block(self, call, count):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            call()
        end.record()
        torch.cuda.synchronize()
        return self.slowest(begin.elapsed_time(end) / count)

    def race(self, calls, rounds):
        """Returns medians of rounds that go there and back, as in clock.race(). Each block begins behind calls that are
        not counted: a GPU that rested is faster for some milliseconds than one at work."""
        counts = {}
        for name, call in calls.items():
            self.block(call, 2)
            counts[name] = max(2, min(50, int(self.budget_ms / self.block(call, 2))))
        taken = {name: [] for name in calls}
        for turn in range(rounds):
            for name in list(calls)[::-1 if turn % 2 else 1]:
                self.block(calls[name], counts[name])
                taken[name].append(self.block(calls[name], counts[name]))
        return {name: statistics.median(values) for name, values in taken.items()}

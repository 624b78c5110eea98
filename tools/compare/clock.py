"""This measures how long launches take. On a GPU that is between CUDA events, with the L2 cache flushed before every
launch."""
import statistics
import time

import torch


class GpuClock:
    def __init__(self):
        # The buffer is several times the L2 of any GPU, so nothing of the previous launch is left there.
        self.flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")

    def samples(self, launch, budget_ms):
        for _ in range(2):
            launch()
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        launch()
        end.record()
        torch.cuda.synchronize()
        count = max(3, min(60, int(budget_ms / max(start.elapsed_time(end), 0.005))))
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for before, after in events:
            self.flush.zero_()
            before.record()
            launch()
            after.record()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) for before, after in events]


def graphed(launch, stream):
    """Returns the launch, which goes to this stream, as the replay of a CUDA graph. Servers do that if a launch is
    short."""
    torch.cuda.synchronize()  # Its tensors are there.
    with torch.cuda.stream(stream):
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = launch()

    def replay(tensors_of=launch):  # The graph itself keeps no tensor alive.
        graph.replay()
        return result

    return replay


class CpuClock:
    def samples(self, launch, budget_ms):
        launch()
        start = time.perf_counter()
        launch()
        count = max(2, min(30, int(budget_ms / 1e3 / max(time.perf_counter() - start, 1e-6))))
        result = []
        for _ in range(count):
            start = time.perf_counter()
            launch()
            result.append((time.perf_counter() - start) * 1e3)
        return result


def race(clock, launches, rounds, budget_ms):
    """Returns the median milliseconds of each. Rounds go through all of them, there and back, so that a change of
    clocks or power meets everyone and nobody always runs behind the same neighbour."""
    taken = {name: [] for name in launches}
    for turn in range(rounds):
        for name in list(launches)[::-1 if turn % 2 else 1]:
            taken[name] += clock.samples(launches[name], budget_ms)
    return {name: statistics.median(values) for name, values in taken.items()}


def product_rate(clock, rounds, budget_ms, dtype):
    """Returns the TFLOP/s of the 8192^3 matrix product of elements of this dtype, bf16 or e4m3, timed as the rows are."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = lambda: a @ b
    if dtype == "e4m3":
        narrow_a, narrow_b, one = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t(), torch.ones((), device="cuda")
        product = lambda: torch._scaled_mm(narrow_a, narrow_b, one, one, out_dtype=torch.bfloat16)
    return 2 * 8192 ** 3 / race(clock, {"product": product}, rounds, budget_ms)["product"] / 1e9

"""Several GPUs need these of one: launches that leave SMs, that go on from earlier ones, the steps of eight ranks, and
shares of a cache."""
import torch

import flashjit
from compare import report
from compare.clock import GpuClock, graphed, race
from compare.parallel import D, HEADS, KV_HEADS, Row, off

LEFT = 8  # SMs for a collective
LEAST_LEFT, MOST_ACCUMULATED, MOST_STEPS = 0.93, 1.05, {"fwd": 1.06, "bwd": 1.08}
MOST_SHARES, SHARES_US = 1.05, 3
RANKS, TOKENS = 8, 1 << 16


class Kernels:
    def __init__(self):
        self.engine, self.known = flashjit.Engine("gpu"), {}
        self.sms = torch.cuda.get_device_properties(0).multi_processor_count

    def bound(self, spec, tensors, sms=0):
        if spec not in self.known:
            self.known[spec] = self.engine.prepare(spec, workspace=True)
        return self.known[spec].bind(tensors, stream=torch.cuda.current_stream().cuda_stream, sms=sms)


def draw(*shape):
    return torch.randn(*shape, device="cuda").bfloat16()


def wide(x):
    return torch.zeros_like(x, dtype=torch.float32)


def limits_and_sums(kernels, tokens, d):
    """Returns (row, launches): plain, on fewer SMs, and going on from earlier results."""
    q, do = draw(1, tokens, HEADS, d), draw(1, tokens, HEADS, d)
    k, v = draw(1, tokens, KV_HEADS, d), draw(1, tokens, KV_HEADS, d)
    fields, rows = f'bf16 d={d} heads={HEADS}/{KV_HEADS} mask="causal"', torch.zeros(1, HEADS, tokens, device="cuda")
    o = torch.empty_like(q)
    plain = f"fwd {fields} lse=ln"
    forward = {"plain": kernels.bound(plain, dict(q=q, k=k, v=v, o=o, lse=rows)),
               "limited": kernels.bound(plain, dict(q=q, k=k, v=v, o=torch.empty_like(o), lse=rows.clone()), kernels.sms - LEFT),
               "accumulated": kernels.bound(f"fwd {fields} accumulate", dict(q=q, k=k, v=v, o=wide(o), lse=rows.clone()))}
    forward["plain"]()
    given = dict(q=q, k=k, v=v, o=o, do=do, lse=rows)
    into = lambda like: {"d" + name: like(x) for name, x in (("q", q), ("k", k), ("v", v))}
    backward = {"plain": kernels.bound(f"bwd {fields}", given | into(torch.empty_like)),
                "limited": kernels.bound(f"bwd {fields}", given | into(torch.empty_like), kernels.sms - LEFT),
                "accumulated": kernels.bound(f"bwd {fields} accumulate", given | into(wide))}
    shape = f"b=1,q={tokens},k={tokens}"
    return [(Row("launches", plain, shape), forward), (Row("launches", f"bwd {fields}", shape), backward)]


def zigzag(x, rank, dim=1):
    half = TOKENS // RANKS // 2
    return torch.cat((x.narrow(dim, rank * half, half), x.narrow(dim, (2 * RANKS - 1 - rank) * half, half)), dim)


def steps_of_ranks(kernels):
    """Returns the steps of all ranks of a ring, one after the other, beside one kernel for all: (row, launches, error
    of the steps) for each pass."""
    fields, half = f"bf16 d={D} heads={HEADS}/{KV_HEADS}", TOKENS // RANKS // 2
    q, do, k, v = draw(1, TOKENS, HEADS, D), draw(1, TOKENS, HEADS, D), draw(1, TOKENS, KV_HEADS, D), draw(1, TOKENS, KV_HEADS, D)
    o, rows = torch.empty_like(q), torch.empty(1, HEADS, TOKENS, device="cuda")
    of_q, of_do, of_k, of_v = ([zigzag(x, rank) for rank in range(RANKS)] for x in (q, do, k, v))

    def steps(operation, more):
        launches = []
        for rank in range(RANKS):
            for step in range(RANKS):
                source = (rank - step) % RANKS
                queries, keys = (slice(None), slice(None)) if not step else (slice(None), slice(half)) if source < rank else (slice(half, None), slice(None))
                mask = "" if step else ' mask="causal"'
                tensors = dict(q=of_q[rank][:, queries], k=of_k[source][:, keys], v=of_v[source][:, keys])
                launches.append(kernels.bound(f"{operation} {fields}{mask} accumulate", tensors | more(rank, source, queries, keys)))
        return lambda: [launch() for launch in launches]

    whole = kernels.bound(f'fwd {fields} mask="causal" lse=ln', dict(q=q, k=k, v=v, o=o, lse=rows))
    sums, of_rows = [wide(x) for x in of_q], [torch.full((1, HEADS, 2 * half), -torch.inf, device="cuda") for _ in range(RANKS)]
    call = steps("fwd", lambda rank, source, queries, keys: dict(o=sums[rank][:, queries], lse=of_rows[rank][:, :, queries]))
    whole(), call()
    error = max(off(sums[rank], zigzag(o, rank)) for rank in range(RANKS))
    shape = f"b=1,q={TOKENS},k={TOKENS}"
    yield Row("steps of 8 ranks", f'fwd {fields} mask="causal" lse=ln', shape), {"plain": whole, "steps": call}, error

    of_o, of_lse = [zigzag(o, rank) for rank in range(RANKS)], [zigzag(rows, rank, 2) for rank in range(RANKS)]
    made = {"d" + name: torch.empty_like(x) for name, x in (("q", q), ("k", k), ("v", v))}
    whole = kernels.bound(f'bwd {fields} mask="causal"', dict(q=q, k=k, v=v, o=o, do=do, lse=rows, **made))
    dq, dk, dv = ([wide(x) for x in xs] for xs in (of_q, of_k, of_v))
    call = steps("bwd", lambda rank, source, queries, keys: dict(
        o=of_o[rank][:, queries], do=of_do[rank][:, queries], lse=of_lse[rank][:, :, queries], dq=dq[rank][:, queries], dk=dk[source][:, keys], dv=dv[source][:, keys]))
    whole(), call()
    error = max(off(found[rank], zigzag(made[name], rank)) for name, found in (("dq", dq), ("dk", dk), ("dv", dv)) for rank in range(RANKS))
    yield Row("steps of 8 ranks", f'bwd {fields} mask="causal"', shape), {"plain": whole, "steps": call}, error


def shares_of_a_cache(kernels, batch, keys, shares):
    """Returns one call over a cache, and calls over its parts, on two streams in turn, with a merge behind them; as
    graphs."""
    fields = f"bf16 d={D} heads={HEADS}/{KV_HEADS}"
    q, k, v, o = draw(batch, 1, HEADS, D), draw(batch, keys, KV_HEADS, D), draw(batch, keys, KV_HEADS, D), draw(batch, 1, HEADS, D)
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        whole = kernels.bound(f"fwd {fields} q_len=1", dict(q=q, k=k, v=v, o=o))
        sums, rows, made = torch.empty(shares, batch, 1, HEADS, D, device="cuda"), torch.empty(shares, batch, HEADS, 1, device="cuda"), torch.empty_like(o)
        part = keys // shares
        parts = []
        for at in range(shares):
            own = slice(at * part, (at + 1) * part)
            with torch.cuda.stream((stream, other)[at % 2]):
                parts.append(kernels.bound(f"fwd {fields} q_len=1 out=fp32 lse=ln", dict(q=q, k=k[:, own], v=v[:, own], o=sums[at], lse=rows[at])))
        merge = kernels.bound(f"merge fp32 out=bf16 d={D} heads={HEADS}", dict(o_parts=sums, lse_parts=rows, o=made))

        def in_turn():
            other.wait_stream(stream)
            for launch in parts:
                launch()
            stream.wait_stream(other)
            merge()

        launches = {"plain": graphed(whole, stream), "shares": graphed(in_turn, stream)}
    for launch in launches.values():
        launch()
    torch.cuda.synchronize()
    return Row(f"{shares} shares of a cache", f"fwd {fields} q_len=1", f"b={batch},q=1,k={keys}"), launches, off(made, o)


def figures_of(row, result):
    plain = result["plain_ms"]
    name = f"{row.name}, {row.spec} {row.shape}"
    if "limited_ms" in result:
        yield report.figure(f"all but {LEFT} SMs over all: {name}", plain / result["limited_ms"], least=LEAST_LEFT)
        yield report.figure(f"going on over plain: {name}", result["accumulated_ms"] / plain, most=MOST_ACCUMULATED)
    if "steps_ms" in result:
        yield report.figure(f"steps over one kernel: {name}", result["steps_ms"] / plain, most=MOST_STEPS[row.spec[:3]])
    if "shares_ms" in result:
        yield report.figure(f"shares less {SHARES_US} us over one call: {name}", (result["shares_ms"] - SHARES_US / 1e3) / plain, most=MOST_SHARES)


def compare(options, machine):
    """Returns (results by row, whether all are right)."""
    kernels, clock, results = Kernels(), GpuClock(), {}
    report.emit(machine)

    def run(row, launches, error=0.0):
        times = race(clock, launches, options.rounds, options.budget)
        result = dict(kind="row", table=row.table, name=row.name, spec=row.spec, shape=row.shape, schedule="", ok=error < 0.01, limit=0.01, rms_limit=None, error=error,
                      **{f"{side}_ms": ms for side, ms in times.items()})
        results[row] = result
        report.emit(result)
        for figure in figures_of(row, result):
            report.emit(figure)

    with torch.no_grad():
        for d in (128, 64):
            for row, launches in limits_and_sums(kernels, 16384, d):
                run(row, launches)
        for row, launches, error in steps_of_ranks(kernels):
            run(row, launches, error)
        for batch, keys in ((1, 1 << 18), (64, 8192)):
            for shares in (2, 4, 8):
                run(*shares_of_a_cache(kernels, batch, keys, shares))
    return results, all(result["ok"] for result in results.values())

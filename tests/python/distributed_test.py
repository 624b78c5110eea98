"""flashjit.distributed on this machine: processes over Gloo, against one process in float64."""

import os
import random

from distributed_support import MASKS, SCALARS, compare, processes
from support import find, harness, load

COUNT = int(os.environ.get("FLASHJIT_DRAWN_SPECS", "8"))  # of each number of ranks


def drawn(rank, ranks, first):
    find("torch")
    for seed in range(first, first + COUNT):
        compare(seed, rank, ranks)


def run_drawn(ranks):
    first = int(os.environ.get("FLASHJIT_SEED", ranks * 100000))
    print(f"seeds {first} to {first + COUNT - 1}; FLASHJIT_SEED and FLASHJIT_DRAWN_SPECS set others")
    processes(ranks, drawn, ranks, first, within=200 + 30 * COUNT)


def test_drawn_specs_on_two_ranks():
    run_drawn(2)


def test_drawn_specs_on_three_ranks():
    run_drawn(3)


def test_drawn_specs_on_four_ranks():
    run_drawn(4)


def test_drawn_specs_on_eight_ranks():
    run_drawn(8)


def test_steps_meet_each_pair_once():
    """Whatever a mask lets a query see is in exactly one call, and calls without a mask hide nothing that it would."""
    torch = find("torch")
    load()
    from flashjit.distributed.call import _problem_of
    from flashjit.distributed.places import runs_of
    rng, masks = random.Random(2), [mask for mask in MASKS if mask is None or "h %" not in mask]
    for _ in range(300):
        ranks, order, mask, top_left = rng.choice((1, 2, 3, 4, 5)), rng.choice(("zigzag", "contiguous", "striped")), rng.choice(masks), rng.random() < 0.3
        share = 2 * rng.randint(1, 12)
        lengths = ranks * share, ranks * (share if rng.random() < 0.7 else share + 2 * rng.randint(0, 5))
        ends = sorted({0, lengths[1], *(rng.randrange(1, lengths[1] + 1) for _ in range(2))}) if rng.random() < 0.4 else None
        shift = 0 if top_left else lengths[1] - lengths[0]
        q, k = torch.arange(lengths[0])[:, None], torch.arange(lengths[1])
        seen = MASKS[mask](*lengths, lambda q: q + shift)(0, 0, q, k) if mask else torch.ones(lengths, dtype=torch.bool)
        if ends:
            ids = torch.searchsorted(torch.tensor(ends), k, right=True)
            seen = seen & (ids[q + shift] == ids)
        scalars = tuple((name, "i32", value) for name, value in SCALARS.get(mask, {}).items())
        problem = _problem_of(mask, None, None, top_left, "", lengths, order, ends and tuple(ends), scalars, None)
        at = lambda rank, length: [run.begin + run.step * i for run in runs_of(order, ranks, rank, length) for i in range(run.size)]
        for rank in range(ranks):
            for sources in (range(ranks), [None]):
                met = torch.zeros(lengths, dtype=torch.int64)
                for source in sources:
                    rows, columns = at(rank, lengths[0]), k.tolist() if source is None else at(source, lengths[1])
                    for pair in problem.pairs(ranks, rank, source):
                        part = torch.tensor(rows[pair.q.at:pair.q.at + pair.q.size])[:, None], torch.tensor(columns[pair.k.at:pair.k.at + pair.k.size])
                        met[part] += 1
                        assert not pair.is_full or seen[part].all(), (mask, order, lengths, pair)
                        if not pair.fused:
                            assert part[0][:, 0].tolist() == [pair.q.begin + pair.q.step * i for i in range(pair.q.size)], pair
                            assert part[1].tolist() == [pair.k.begin + pair.k.step * i for i in range(pair.k.size)], pair
                own = seen[at(rank, lengths[0])]
                assert (met[at(rank, lengths[0])][own] == 1).all() and met.max() <= 1, (mask, order, lengths, rank, ends)


def kinds(rank, ranks):
    """Each way with each order, in both dtypes, where nothing else is drawn."""
    find("torch")
    for at, (way, order) in enumerate((way, order) for way in ("ring", "gather", "ulysses") for order in ("zigzag", "contiguous", "striped")):
        compare(at, rank, ranks, words={"mask": ("causal", "window(9, 0)", None)[at % 3], "how": way, "order": order}, dtype=("float32", "bfloat16")[at % 2])


def test_each_way_with_each_order():
    processes(2, kinds, 2)


def in_a_graph(rank):
    """torch.compile ends its graph before the call, and begins another one behind it."""
    torch = find("torch")
    import flashjit.distributed as fd
    step = lambda q, k, v: fd.attention(q * 2, k, v, mask="causal") + 1
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 8, 2, 16))
    o = torch.compile(step, backend="eager")(q, k, v)
    o.sum().backward()
    assert torch.equal(o, step(q, k, v)) and q.grad.abs().sum() > 0
    assert torch.equal(torch.compile(fd.decode, backend="eager")(q.detach(), k.detach(), v.detach()), fd.decode(q.detach(), k.detach(), v.detach()))


def test_torch_compile_leaves_its_graph():
    processes(2, in_a_graph)


def examples(rank):
    import doctest
    import importlib
    find("torch").distributed.destroy_process_group()  # the examples make one
    for name in ("places", "call", "cache"):
        found = doctest.testmod(importlib.import_module("flashjit.distributed." + name))
        assert found.failed == 0 and found.attempted > 0, f"{name}: {found}"


def test_examples():
    processes(1, examples)


if __name__ == "__main__":
    harness.main(globals())

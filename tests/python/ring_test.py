"""Steps of a ring of GPUs, one after the other: calls that go on from what others gave, of rows that stand at places."""

from support import harness, load, refused


def whole(numpy, q, k, v, window):
    """O, LSE, and the gradients of q, k and v for `do` = q: everything at once, in float64. [tokens, heads, d]"""
    q, k, v = (x.astype("float64") for x in (q, k, v))
    tokens, heads, d = q.shape
    group = heads // k.shape[1]
    at = numpy.arange(tokens)
    seen = (at[None, :] <= at[:, None]) & (at[None, :] >= at[:, None] - window)
    o, lse, grads = numpy.zeros_like(q), numpy.zeros((heads, tokens)), [numpy.zeros_like(x) for x in (q, k, v)]
    for h in range(heads):
        of_k, of_v, do = k[:, h // group], v[:, h // group], q[:, h]
        s = numpy.where(seen, q[:, h] @ of_k.T / d ** 0.5, -numpy.inf)
        lse[h] = numpy.log(numpy.exp(s).sum(-1))
        p = numpy.exp(s - lse[h][:, None])
        o[:, h] = p @ of_v
        ds = p * (do @ of_v.T - (do * o[:, h]).sum(-1, keepdims=True))
        grads[0][:, h] = ds @ of_k / d ** 0.5
        grads[1][:, h // group] += ds.T @ q[:, h] / d ** 0.5
        grads[2][:, h // group] += p.T @ do
    return o, lse, grads


def owned(ranks, rows, striped):
    """Where the rows of each rank stand: a slice of the whole, and the numbers of a call."""
    for rank in range(ranks):
        begin, step = (rank, ranks) if striped else (rank * rows, 1)
        yield slice(begin, begin + (rows - 1) * step + 1, step), {"begin": begin, "step": step, "total": ranks * rows}


def places(queries, keys):
    numbers = {f"q_{name}": value for name, value in queries.items()}
    return {**numbers, **{f"k_{name}": value for name, value in keys.items()}}


def check_ring(numpy, flashjit, striped):
    ranks, rows, heads, d, window = 4, 23, (4, 2), 32, 40
    random = numpy.random.default_rng(7)
    q, k, v = (random.normal(size=(ranks * rows, h, d)).astype("float32") for h in (heads[0], heads[1], heads[1]))
    o, lse, grads = whole(numpy, q, k, v, window)
    fields = f'fp32 d={d} heads={heads[0]}/{heads[1]} mask="window({window}, 0)" places accumulate'
    engine = flashjit.Engine("host")
    forward, backward = engine.prepare("fwd " + fields), engine.prepare("bwd " + fields)
    shares = list(owned(ranks, rows, striped))
    sums = [numpy.zeros((1, ranks * rows, x.shape[1], d), "float32") for x in (q, k, v)]
    for mine, queries in shares:
        own_q = numpy.ascontiguousarray(q[None, mine])
        # Nothing has been seen yet, so O may be anything.
        own_o, own_lse = numpy.full_like(own_q, numpy.nan), numpy.full((1, heads[0], rows), -numpy.inf, "float32")
        steps = [(numpy.ascontiguousarray(k[None, theirs]), numpy.ascontiguousarray(v[None, theirs]), theirs, places(queries, keys))
                 for theirs, keys in shares]
        for of_k, of_v, _, numbers in steps:
            forward.run(q=own_q, k=of_k, v=of_v, o=own_o, lse=own_lse, **numbers)
        assert numpy.abs(own_o[0] - o[mine]).max() < 2e-5 and numpy.abs(own_lse[0] - lse[:, mine]).max() < 2e-5
        dq = numpy.zeros_like(own_q)
        for of_k, of_v, theirs, numbers in steps:
            dk, dv = (numpy.ascontiguousarray(x[:, theirs]) for x in sums[1:])
            backward.run(q=own_q, k=of_k, v=of_v, o=own_o, do=own_q, lse=own_lse, dq=dq, dk=dk, dv=dv, **numbers)
            sums[1][:, theirs], sums[2][:, theirs] = dk, dv
        sums[0][:, mine] = dq
    for found, wanted in zip(sums, grads):
        assert numpy.abs(found[0] - wanted).max() < 1e-4, numpy.abs(found[0] - wanted).max()


def test_ring_of_contiguous_shares():
    flashjit, numpy = load("numpy")
    check_ring(numpy, flashjit, striped=False)


def test_ring_of_striped_shares():
    flashjit, numpy = load("numpy")
    check_ring(numpy, flashjit, striped=True)


def test_rows_that_see_nothing_keep_their_bits():
    flashjit, numpy = load("numpy")
    random = numpy.random.default_rng(8)
    q, k, v, o = (random.normal(size=(1, 9, 2, 16)).astype("float32") for _ in range(4))
    lse = random.normal(size=(1, 2, 9)).astype("float32")
    o[0, 3], lse[0, :, 3] = numpy.nan, -numpy.inf
    o[0, 4] = -0.0
    before = o.tobytes(), lse.tobytes()
    kernel = flashjit.Engine("host").prepare('fwd fp32 d=16 heads=2 mask="causal" places accumulate')
    kernel.run(q=q, k=k, v=v, o=o, lse=lse, q_total=18, k_begin=9, k_total=18)  # all keys are behind all queries
    assert (o.tobytes(), lse.tobytes()) == before
    kernel.run(q=q, k=k, v=v, o=o, lse=lse, q_total=9, k_total=9)
    assert numpy.isfinite(o).all() and numpy.isfinite(lse).all(), "a row that had seen nothing goes on from nothing"


def test_attention_has_no_results_to_go_on_from():
    flashjit, numpy = load("numpy")
    q = numpy.ones((1, 5, 2, 16), "float32")
    refused(flashjit.InvalidError, "accumulate", flashjit.attention, q, q, q, spec="accumulate")
    placed = flashjit.attention(q, q, q, mask="causal", spec="places", q_begin=5, q_total=10, k_total=10)
    assert numpy.abs(placed - flashjit.attention(q, q, q)).max() < 1e-6, "queries behind all keys see all of them"


def test_gradients_of_placed_rows():
    flashjit, torch = load("torch")
    q, k, v = (torch.randn(1, 10, 2, 16, requires_grad=True) for _ in range(3))
    o = flashjit.attention(q, k, v, mask="causal", spec="places", q_begin=5, q_total=20, k_begin=2, k_total=20)
    hidden = 2 + torch.arange(10)[None, :] > 5 + torch.arange(10)[:, None]
    p = torch.softmax((torch.einsum("bqhd,bkhd->bhqk", q, k) / 4).masked_fill(hidden, -torch.inf), -1)
    wanted = torch.einsum("bhqk,bkhd->bqhd", p, v)
    torch.testing.assert_close(o, wanted, atol=1e-5, rtol=1e-5)
    for found, exact in zip(torch.autograd.grad(o.square().sum(), (q, k, v)), torch.autograd.grad(wanted.square().sum(), (q, k, v))):
        torch.testing.assert_close(found, exact, atol=1e-4, rtol=1e-4)


def test_sms_are_those_of_gpus():
    flashjit, numpy = load("numpy")
    q = numpy.ones((1, 5, 2, 16), "float32")
    kernel = flashjit.Engine("host").prepare("fwd fp32 d=16 heads=2")
    refused(flashjit.InvalidError, "sms: 4, and this kernel runs on a processor", kernel.run, q=q, k=q, v=q, o=q.copy(), sms=4)
    refused(flashjit.InvalidError, "sms", kernel.run, q=q, k=q, v=q, o=q.copy(), sms=1.5)
    kernel.run(q=q, k=q, v=q, o=q.copy(), sms=0)
    refused(flashjit.InvalidError, "Kernel.bind", flashjit.attention, q, q, q, sms=4)


if __name__ == "__main__":
    harness.main(globals())

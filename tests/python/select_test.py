"""Lists of keys (`select=`), against attention that reads the rows of each list, one query after the other; and the lists and
scores of `index`, against sums in float64."""

from support import Skip, harness, load, refused
from torch_support import Setting


def drawn_lists(numpy, random, shape, rows, room):
    """Numbers twice, numbers of no row, and counts beyond the room are among them; one query has none."""
    index = random.integers(-2, rows + 2, (*shape, room)).astype("int32")
    index[0, 0] = -1
    return index, random.integers(-1, room + 3, shape).astype("int32")


def exact(numpy, q, rows_k, rows_v, index, count):
    """O and LSE of [tokens, heads, d] over [rows, KV heads, d], by lists of [tokens, KV heads, room]."""
    tokens, heads, d = q.shape
    group = heads // rows_k.shape[1]
    o, lse = numpy.zeros((tokens, heads, rows_v.shape[-1])), numpy.full((heads, tokens), -numpy.inf)
    for t in range(tokens):
        for h in range(heads):
            own = index[t, h // group][:index.shape[-1] if count is None else max(count[t, h // group], 0)]
            own = own[(own >= 0) & (own < len(rows_k))]
            if not len(own):
                continue
            s = rows_k[own, h // group].astype("float64") @ q[t, h] / d ** 0.5
            p = numpy.exp(s - s.max())
            o[t, h] = p @ rows_v[own, h // group] / p.sum()
            lse[h, t] = s.max() + numpy.log(p.sum())
    return o, lse


def agree(numpy, found, wanted):
    for one, other in zip(found, wanted):
        finite = numpy.isfinite(other)
        assert (numpy.isfinite(one) == finite).all(), "only queries without keys have no LSE"
        error = numpy.abs(one[finite] - other[finite]).max()
        assert error < 2e-5, error


def test_lists_of_keys():
    flashjit, numpy = load("numpy")
    random = numpy.random.default_rng(5)
    q = random.standard_normal((2, 9, 4, 32)).astype("float32")
    k, v = random.standard_normal((2, 2, 70, 2, 32)).astype("float32")
    index, count = drawn_lists(numpy, random, (2, 9, 2), 70, 33)
    for lists in ({"key_index": index}, {"key_index": index, "key_count": count}):
        o, lse = flashjit.attention(q, k, v, lse=True, **lists)
        own = lists.get("key_count")
        for b in range(2):
            agree(numpy, (o[b], lse[b]), exact(numpy, q[b], k[b], v[b], index[b], None if own is None else own[b]))
    heads_first = [numpy.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (q, k, v)]
    assert numpy.array_equal(flashjit.attention(*heads_first, layout="bhsd", **lists).transpose(0, 2, 1, 3), o)


def test_packed_tokens_and_pages():
    flashjit, numpy = load("numpy")
    random = numpy.random.default_rng(6)
    q = random.standard_normal((11, 4, 32)).astype("float32")
    k, v = random.standard_normal((2, 5, 16, 2, 32)).astype("float32")
    rows = k.reshape(80, 2, 32), v.reshape(80, 2, 32)
    index, count = drawn_lists(numpy, random, (11, 2), 80, 20)
    lists = {"key_index": index, "key_count": count}
    wanted = exact(numpy, q, *rows, index, count)
    agree(numpy, flashjit.attention(q, *rows, layout="packed", lse=True, **lists), wanted)
    agree(numpy, flashjit.attention(q, k, v, layout="packed/paged(16)", lse=True, **lists), wanted)
    o = flashjit.attention(q[None], k, v, layout="paged(16)", **{name: x[None] for name, x in lists.items()})
    agree(numpy, o, wanted[0][None])
    # Rows that no list has may hold anything.
    unseen = numpy.setdiff1d(numpy.arange(80), index[:, 0][numpy.arange(20) < count[:, :1]])
    for x in rows:
        x[unseen, 0] = numpy.nan
    agree(numpy, flashjit.attention(q, *rows, layout="packed", lse=True, **lists), wanted)


def test_lists_over_latents():
    """V is the first columns of K, which one head has for all."""
    flashjit, numpy = load("numpy")
    random = numpy.random.default_rng(11)
    q, pool = random.standard_normal((11, 4, 40)).astype("float32"), random.standard_normal((5, 16, 1, 40)).astype("float32")
    index, count = drawn_lists(numpy, random, (11, 1), 80, 20)
    lists = {"key_index": index, "key_count": count}
    wanted = exact(numpy, q, pool.reshape(80, 1, 40), pool.reshape(80, 1, 40)[..., :32], index, count)
    agree(numpy, flashjit.attention(q, pool, pool[..., :32], layout="packed/paged(16)", spec="v_in_k", lse=True, **lists), wanted)
    invalid = flashjit.InvalidError
    refused(invalid, ["v:", "first columns"], flashjit.attention, q, pool, pool[..., :32].copy(), layout="packed/paged(16)", spec="v_in_k", **lists)
    refused(invalid, ["v:", "first columns"], flashjit.attention, q, pool, pool[..., 8:], layout="packed/paged(16)", spec="v_in_k", **lists)
    setting = Setting("float32")
    if setting.gpu:
        return  # which computes no fp32
    torch = setting.torch
    given = {name: torch.from_numpy(x) for name, x in lists.items()}
    of_q, of_pool = torch.from_numpy(q), torch.from_numpy(pool)
    for _ in range(2):
        o, lse = flashjit.attention(of_q, of_pool, of_pool[..., :32], layout="packed/paged(16)", spec="v_in_k", lse=True, **given)
        agree(numpy, (o.numpy(), lse.numpy()), wanted)
    # A call that was made before finds another address.
    other = of_pool.clone()
    for k, v in ((of_pool, other[..., :32]), (other, of_pool[..., :32])):
        refused(invalid, ["v:", "first columns"], flashjit.attention, of_q, k, v, layout="packed/paged(16)", spec="v_in_k", lse=True, **given)
    o, lse = flashjit.attention(of_q, other, other[..., :32], layout="packed/paged(16)", spec="v_in_k", lse=True, **given)
    agree(numpy, (o.numpy(), lse.numpy()), wanted)


def test_lists_of_pages():
    """A list of pages is that of the rows which these have, up to the count."""
    flashjit, numpy = load("numpy")
    random = numpy.random.default_rng(7)
    q = random.standard_normal((11, 4, 32)).astype("float32")
    k, v = random.standard_normal((2, 5, 16, 2, 32)).astype("float32")
    pages = random.integers(-2, 7, (11, 2, 3)).astype("int32")
    pages[0, 0] = -1
    count = random.integers(-1, 60, (11, 2)).astype("int32")
    is_there = (pages >= 0) & (pages < 5)
    rows = numpy.where(is_there[..., None], pages[..., None] * 16 + numpy.arange(16), -1).reshape(11, 2, 48)
    for lists, own in (({}, None), ({"key_count": count}, count)):
        wanted = exact(numpy, q, k.reshape(80, 2, 32), v.reshape(80, 2, 32), rows, own)
        agree(numpy, flashjit.attention(q, k, v, layout="packed/paged(16)", lse=True, page_index=pages, **lists), wanted)
    o = flashjit.attention(q[None], k, v, layout="paged(16)", page_index=pages[None], key_count=count[None])
    agree(numpy, o, wanted[0][None])
    refused(flashjit.InvalidError, "select: pages(3) are pages of a pool",
            lambda: flashjit.attention(q, k[0], v[0], layout="packed", page_index=pages))
    refused(flashjit.InvalidError, "page_index.shape[1]: 1, must be 2 (KV heads of the spec)",
            lambda: flashjit.attention(q, k, v, layout="packed/paged(16)", page_index=pages[:, :1]))


def test_masks_of_pools():
    """A mask hides listed keys by the positions that the call gives, of keys and of the first keys of pages."""
    flashjit, numpy = load("numpy")
    random = numpy.random.default_rng(12)
    q = random.standard_normal((11, 4, 32)).astype("float32")
    k, v = random.standard_normal((2, 5, 16, 2, 32)).astype("float32")
    rows = k.reshape(80, 2, 32), v.reshape(80, 2, 32)
    index, count = drawn_lists(numpy, random, (11, 2), 80, 20)
    at, of_keys = random.integers(0, 90, 11).astype("int32"), random.integers(-1, 100, index.shape).astype("int32")
    at[3] = -1  # which is none, so that the query sees nothing
    words = {"layout": "packed/paged(16)", "mask": "window(60, 0)", "lse": True, "q_positions": at}

    def shown(positions):
        return (positions >= 0) & (at >= 0)[:, None, None] & (positions <= at[:, None, None]) & (positions >= at[:, None, None] - 60)

    agree(numpy, flashjit.attention(q, k, v, key_index=index, key_count=count, k_positions=of_keys, **words),
          exact(numpy, q, *rows, numpy.where(shown(of_keys), index, -1), count))
    pages, of_pages = random.integers(-1, 5, (11, 2, 3)).astype("int32"), random.integers(0, 80, (11, 2, 3)).astype("int32")
    listed = numpy.where(pages[..., None] >= 0, pages[..., None] * 16 + numpy.arange(16), -1).reshape(11, 2, 48)
    positions = (of_pages[..., None] + numpy.arange(16)).reshape(11, 2, 48)
    agree(numpy, flashjit.attention(q, k, v, page_index=pages, k_positions=of_pages, **words),
          exact(numpy, q, *rows, numpy.where(shown(positions), listed, -1), None))


def test_tables_of_heads():
    """Each KV head reads the pages of its own line: as calls of one KV head each with that line as the table."""
    flashjit, numpy = load("numpy")
    random = numpy.random.default_rng(8)
    q = random.standard_normal((2, 3, 4, 32)).astype("float32")
    k, v = random.standard_normal((2, 9, 16, 2, 32)).astype("float32")
    table, lengths = random.integers(0, 9, (2, 2, 4)).astype("int32"), numpy.array([61, 33], "int32")
    words = {"layout": "paged(16)", "mask": "causal & window(40, 0)", "k_lens": lengths}
    o = flashjit.attention(q, k, v, block_table=table, **words)
    for hk in range(2):
        own, heads = slice(hk, hk + 1), slice(2 * hk, 2 * hk + 2)
        wanted = flashjit.attention(q[:, :, heads], k[:, :, own], v[:, :, own], block_table=table[:, hk], **words)
        assert numpy.abs(o[:, :, heads] - wanted).max() < 2e-5
    refused(flashjit.InvalidError, "block_table.shape[1]: 1, must be 2 (KV heads of the spec)",
            lambda: flashjit.attention(q, k, v, block_table=table[:, :1], **words))
    table[1, 1, 2] = 9
    refused(flashjit.InvalidError, "block_table[1, 1, 2]: 9, k and v have pages 0 to 8",
            lambda: flashjit.attention(q, k, v, block_table=table, **words))


def test_what_is_refused():
    flashjit, numpy = load("numpy")
    q, index = numpy.ones((1, 10, 2, 16), "float32"), numpy.zeros((1, 10, 2, 3), "int32")
    for begin, words, given in (
            ("k_lens: with select= each query has a list of its keys", {}, {"k_lens": numpy.ones(1, "int32")}),
            ("key_index.shape[1]: 9, must be 10 (tokens of q)", {}, {"key_index": index[:, :9]}),
            ("key_index.shape[3]: 3, must be 4 (keys of a list in the spec)", {"spec": "select=keys(4)"}, {}),
            ("key_index.dtype: 'i64'", {}, {"key_index": index.astype("int64")}),
            ("key_count.shape[2]: 1, must be 2 (KV heads of the spec)", {}, {"key_count": index[..., :1, 0]}),
            ("select: keys(0)", {}, {"key_index": index[..., :0]})):
        refused(flashjit.InvalidError, begin.split("keys(0)")[0], lambda words=words, given=given: flashjit.attention(
            q, q, q, **words, **{"key_index": index, **given}))
    one = q[:, :, :1]
    refused(flashjit.InvalidError, "mask: with select= each query has a list of its keys, which 2 query heads share",
            lambda: flashjit.attention(q, one, one, mask="k < h", key_index=index[:, :, :1]))
    refused(flashjit.InvalidError, "mask: with select= each query has a list of its keys, whose positions in a pool only the device knows",
            lambda: flashjit.attention(q, q, q, mask="document(doc)", layout="paged(10)", key_index=index, doc=index[..., 0, 0]))
    refused(flashjit.InvalidError, "q_positions: missing",
            lambda: flashjit.attention(q, q, q, mask="causal", layout="paged(10)", key_index=index))
    refused(flashjit.InvalidError, "k_positions.shape[3]: 2, must be 3",
            lambda: flashjit.attention(q, q, q, mask="causal", layout="paged(10)", key_index=index, q_positions=index[..., 0, 0].copy(), k_positions=index[..., :2]))
    refused(flashjit.InvalidError, "key_count: given, and the spec does not ask for it; add select=keys(N)",
            lambda: flashjit.attention(q, q, q, key_count=index[..., 0]))


def weights_of_lists(torch, q, k, index):
    """exp(s) of all queries and keys, times how often a list has the key: 0 or more."""
    keys, group = k.shape[1], q.shape[2] // k.shape[2]
    ones = torch.ones(index.shape, dtype=torch.float64, device=q.device)
    times = torch.zeros(*index.shape[:3], keys + 1, dtype=torch.float64, device=q.device)
    times = times.scatter_add_(3, index.long() % (keys + 1), ones)[..., :keys]  # -1 is the last one, which is cut off
    s = torch.einsum("bqhd,bkhd->bqhk", q, k.repeat_interleave(group, 2)) / q.shape[-1] ** 0.5
    return s.exp() * times.repeat_interleave(group, 2)


def attention_to_lists(torch, q, k, v, index):
    p = weights_of_lists(torch, q, k, index)
    group = q.shape[2] // k.shape[2]
    sums = p.sum(-1, keepdim=True)
    o = torch.einsum("bqhk,bkhd->bqhd", p / sums.clamp_min(1e-300), v.repeat_interleave(group, 2))
    return o, sums[..., 0].clamp_min(1e-300).log()


def test_tensors_of_pytorch():
    setting = Setting()
    torch, flashjit = setting.torch, setting.flashjit
    q, k, v = setting.tensors((2, 6, 4, 32), (2, 50, 2, 32), (2, 50, 2, 32))
    index = torch.randint(-1, 50, (2, 6, 2, 40), dtype=torch.int32, device=setting.device)
    o = flashjit.attention(q, k, v, key_index=index)
    setting.close(o, attention_to_lists(torch, q.double(), k.double(), v.double(), index)[0])


def test_gradients():
    """Numbers come twice, a query has none, and some keys are in no list: their gradients are 0."""
    setting = Setting()
    torch, flashjit = setting.torch, setting.flashjit
    given = setting.tensors((2, 7, 4, 32), (2, 50, 2, 32), (2, 50, 2, 32))
    index = torch.randint(-1, 40, (2, 7, 2, 20), dtype=torch.int32, device=setting.device)
    index[1, 3] = -1
    for wants_lse in (False, True):
        own = [tensor.detach().clone().requires_grad_() for tensor in given]
        exact_ones = [tensor.double().requires_grad_() for tensor in given]
        o = flashjit.attention(*own, key_index=index, lse=wants_lse)
        o, lse = o if wants_lse else (o, None)
        wanted, wanted_lse = attention_to_lists(torch, *exact_ones, index)
        factor, of_lse = torch.randn_like(wanted), torch.randn_like(wanted_lse)
        of_lse[1, 3] = 0  # that of the query without keys is -infinity
        total, exact_total = (o * factor.to(o.dtype)).sum(), (wanted * factor.to(o.dtype).double()).sum()
        if wants_lse:
            has_keys = torch.isfinite(lse)
            total = total + (torch.where(has_keys, lse, 0) * of_lse.transpose(1, 2)).sum().to(total.dtype)
            exact_total = exact_total + (wanted_lse * of_lse).sum()
        total.backward()
        exact_total.backward()
        for one, other in zip(own, exact_ones):
            setting.close(one.grad, other.grad)
        for tensor in own[1:]:
            assert not tensor.grad[:, 40:].any(), "nobody has chosen these keys"
            assert tensor.grad[:, :40].abs().sum() > 0


def hidden(torch, index, rule):
    """The lists without keys that `rule`(query, key) does not let be seen."""
    query = torch.arange(index.shape[1], device=index.device)[None, :, None, None]
    return torch.where((index >= 0) & rule(query, index), index, -1)


def test_masks_of_lists():
    """A key counts if it is in the list and the mask shows it; the mask reads where query and key are in the sequence."""
    setting = Setting()
    torch, flashjit = setting.torch, setting.flashjit
    given = setting.tensors((2, 30, 4, 32), (2, 50, 2, 32), (2, 50, 2, 32))
    index = torch.randint(-1, 50, (2, 30, 2, 24), dtype=torch.int32, device=setting.device)
    starts = torch.randint(0, 40, (30,), dtype=torch.int32, device=setting.device)
    cases = (({"mask": "causal"}, lambda q, k: k <= q + 20),
             ({"mask": "causal", "align": "top_left"}, lambda q, k: k <= q),
             ({"mask": "k >= starts[q]", "starts": starts}, lambda q, k: k >= starts.long()[q]))
    for words, rule in cases:
        own = [tensor.detach().clone().requires_grad_() for tensor in given]
        exact_ones = [tensor.double().requires_grad_() for tensor in given]
        o = flashjit.attention(*own, key_index=index, **words)
        wanted, _ = attention_to_lists(torch, *exact_ones, hidden(torch, index, rule))
        setting.close(o, wanted)
        factor = torch.randn_like(wanted).to(o.dtype)
        (o * factor).sum().backward()
        (wanted * factor.double()).sum().backward()
        for one, other in zip(own, exact_ones):
            setting.close(one.grad, other.grad)
    # Counts end lists as ever, and what the mask hides is not read.
    count = torch.full((2, 30, 2), 10, dtype=torch.int32, device=setting.device)
    cut = index.clone()
    cut[..., 10:] = -1
    q, k, v = [tensor.detach().clone() for tensor in given]
    wanted, _ = attention_to_lists(torch, q.double(), k.double(), v.double(), hidden(torch, cut, lambda _, key: key < 45))
    k[:, 45:], v[:, 45:] = float("nan"), float("inf")
    setting.close(flashjit.attention(q, k, v, mask="k < 45", key_index=index, key_count=count), wanted)


def test_a_graph_takes_other_lists():
    """A replay reads the lists that are there then, and so does what a mask hides of them."""
    setting = Setting()
    torch, flashjit = setting.torch, setting.flashjit
    if not setting.gpu:
        raise Skip("no GPU that PyTorch can use")
    draw = lambda rows, *shape: torch.randint(-1, rows, shape, dtype=torch.int32, device=setting.device)
    q, k, v = setting.tensors((2, 300, 4, 64), (2, 500, 2, 64), (2, 500, 2, 64), grad=True)
    given, = setting.tensors((2, 300, 4, 64))
    of_latents, latents = setting.tensors((3, 2, 128, 576), (20, 64, 1, 576))
    of_pages, pool_k, pool_v = setting.tensors((3, 1, 8, 64), (20, 16, 2, 64), (20, 16, 2, 64))
    shapes = {"keys": (500, 2, 300, 2, 40), "rows": (1300, 3, 2, 1, 200), "pages": (20, 3, 1, 2, 5)}
    lists = {name: draw(*shape) for name, shape in shapes.items()}
    count = torch.tensor([[[70, 41]]] * 3, dtype=torch.int32, device=setting.device)

    def step():
        o = flashjit.attention(q, k, v, mask="causal", key_index=lists["keys"])
        return (o, *torch.autograd.grad(o, (q, k, v), given),
                flashjit.attention(of_latents, latents, latents[..., :512], layout="paged(64)", spec="v_in_k", key_index=lists["rows"]),
                flashjit.attention(of_pages, pool_k, pool_v, layout="paged(16)", page_index=lists["pages"], key_count=count))

    def exact():
        own = [tensor.detach().double().requires_grad_() for tensor in (q, k, v)]
        o, _ = attention_to_lists(torch, *own, hidden(torch, lists["keys"], lambda query, key: key <= query + 200))
        yield from (o, *torch.autograd.grad(o, own, given.double()))
        rows = latents.double().view(1, 1280, 1, 576).expand(3, -1, -1, -1)
        yield attention_to_lists(torch, of_latents.double(), rows, rows[..., :512], torch.where(lists["rows"] < 1280, lists["rows"], -1))[0]
        # A list of pages is that of their rows up to the count.
        of_rows = torch.where(lists["pages"][..., None] < 0, -1, lists["pages"][..., None] * 16 + torch.arange(16, device=setting.device)).flatten(3)
        of_rows = torch.where(torch.arange(80, device=setting.device) < count[..., None], of_rows, -1)
        wide = [pool.double().view(1, 320, 2, 64).expand(3, -1, -1, -1) for pool in (pool_k, pool_v)]
        yield attention_to_lists(torch, of_pages.double(), *wide, of_rows)[0]

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    for seed in range(3):
        for name, shape in shapes.items():
            lists[name].copy_(draw(*shape))
        count.copy_(torch.randint(0, 81, count.shape, device=setting.device))
        for tensor in results:
            tensor.fill_(float("nan"))
        graph.replay()
        for got, want, what in zip(results, exact(), ("o", "dq", "dk", "dv", "of latents", "of pages")):
            assert not got.isnan().any() and (got - want).abs().max() < 0.02 * max(1, want.abs().max().item()), (seed, what)


def test_gradients_where_there_is_no_query():
    """Keys have gradients all the same, of 0: nothing is left as it was."""
    flashjit, numpy = load("numpy")
    kernel = flashjit.Engine("host").prepare("bwd fp32 d=8 heads=2/1 select=keys(3)")
    none, keys = numpy.zeros((2, 0, 2, 8), "float32"), numpy.ones((2, 5, 1, 8), "float32")
    dk, dv = numpy.full((2, 2, 5, 1, 8), 7, "float32")
    kernel.run(q=none, k=keys, v=keys, o=none, do=none, lse=numpy.zeros((2, 2, 0), "float32"), dq=none.copy(), dk=dk, dv=dv,
               key_index=numpy.zeros((2, 0, 1, 3), "int32"))
    assert not dk.any() and not dv.any()


def test_gradients_of_packed_tokens():
    """A number is that of a token among all, so lists may cross sequences: these tokens are one."""
    setting = Setting()
    torch, flashjit = setting.torch, setting.flashjit
    q, k, v = setting.tensors((1, 9, 2, 64), (1, 33, 1, 64), (1, 33, 1, 64))
    index = torch.randint(-1, 33, (1, 9, 1, 16), dtype=torch.int32, device=setting.device)
    count = torch.full((9, 1), 5, dtype=torch.int32, device=setting.device)
    own = [tensor[0].detach().clone().requires_grad_() for tensor in (q, k, v)]
    exact_ones = [tensor.double().requires_grad_() for tensor in (q, k, v)]
    # A mask of all tokens as one sequence hides every third key.
    flashjit.attention(*own, "k % 3 != 0", key_index=index[0], key_count=count, layout="packed", score="softcap(50)").sum().backward()
    cut = torch.where(index % 3 == 0, -1, index)
    cut[..., 5:] = -1
    p = torch.einsum("bqhd,bkhd->bqhk", exact_ones[0], exact_ones[1].repeat_interleave(2, 2)) / 8
    times = torch.zeros(1, 9, 1, 34, dtype=torch.float64, device=setting.device)
    times.scatter_add_(3, cut.long() % 34, torch.ones(cut.shape, dtype=torch.float64, device=setting.device))
    p = (50 * torch.tanh(p / 50)).exp() * times[..., :33].repeat_interleave(2, 2)
    torch.einsum("bqhk,bkhd->bqhd", p / p.sum(-1, keepdim=True).clamp_min(1e-300), exact_ones[2].repeat_interleave(2, 2)).sum().backward()
    for one, other in zip(own, exact_ones):
        setting.close(one.grad, other.grad[0])


# ---- index: scores of keys, and lists of the best ----


def relu_sums(numpy, q, k, weights, scale):
    """Scores of [tokens, heads, d] over [keys, KV heads, d]: [tokens, KV heads, keys]."""
    tokens, heads, d = q.shape
    kv_heads = k.shape[1]
    products = numpy.einsum("tghd,kgd->tghk", q.reshape(tokens, kv_heads, heads // kv_heads, d).astype("float64"), k.astype("float64"))
    return numpy.einsum("tghk,tgh->tgk", numpy.maximum(products, 0), weights.reshape(tokens, kv_heads, heads // kv_heads)) * scale


def causal(numpy, scores, begin):
    """Row t sees keys up to begin + t."""
    tokens, _, keys = scores.shape
    hidden = numpy.arange(keys) > begin + numpy.arange(tokens)[:, None]
    return numpy.where(hidden[:, None], -numpy.inf, scores)


def agree_scores(numpy, found, wanted):
    assert found.shape == wanted.shape
    assert (numpy.isfinite(found) == numpy.isfinite(wanted)).all() and (found[~numpy.isfinite(wanted)] == -numpy.inf).all()
    seen = numpy.isfinite(wanted)
    error = numpy.abs(found[seen] - wanted[seen]).max() / max(1, numpy.abs(wanted[seen]).max())
    assert error < 1e-5, error


def best_of(numpy, scores, room, number):
    """Lists and counts of [tokens, KV heads, keys]: in the order of keys, the first of equal ones. `number`: of the row of a key."""
    index, count = numpy.full((*scores.shape[:2], room), -1, "int32"), numpy.zeros(scores.shape[:2], "int32")
    for at in numpy.ndindex(scores.shape[:2]):
        order = numpy.argsort(-scores[at], kind="stable")
        keys = numpy.sort(order[:room][scores[at][order[:room]] > -numpy.inf])
        index[at][:len(keys)], count[at] = number(keys), len(keys)
    return index, count


def test_index_in_dense_layouts():
    flashjit, numpy = load("numpy")
    random = numpy.random.default_rng(3)
    engine = flashjit.Engine("host")
    q, k = random.standard_normal((2, 9, 6, 32)).astype("float32"), random.standard_normal((2, 70, 2, 32)).astype("float32")
    weights = random.standard_normal((2, 9, 6)).astype("float32")
    wanted = numpy.stack([causal(numpy, relu_sums(numpy, q[b], k[b], weights[b], 1), 61) for b in range(2)])
    for layout in ("bshd", "bhsd"):
        turned = [numpy.ascontiguousarray(x.transpose(0, 2, 1, 3)) if layout == "bhsd" else x for x in (q, k)]
        scores = numpy.zeros((2, 9, 2, 70), "float32")
        call = {"q": turned[0], "k": turned[1], "weights": weights}
        engine.prepare(f'index fp32 d=32 heads=6/2 layout={layout} mask="causal"').run(**call, scores=scores)
        for b in range(2):
            agree_scores(numpy, scores[b], wanted[b])
        for room in (1, 20, 66, 100):
            index, count = numpy.zeros((2, 9, 2, room), "int32"), numpy.zeros((2, 9, 2), "int32")
            kernel = engine.prepare(f'index fp32 d=32 heads=6/2 layout={layout} mask="causal" select=keys({room})')
            kernel.run(**call, key_index=index, key_count=count)
            for b in range(2):
                own = best_of(numpy, scores[b], room, lambda keys: keys)
                assert (index[b] == own[0]).all() and (count[b] == own[1]).all(), (layout, room)
            alone = numpy.zeros_like(index)
            kernel.run(**call, key_index=alone)
            assert (alone == index).all(), "key_count may be left out"


def test_index_of_packed_tokens_and_pages():
    flashjit, numpy = load("numpy")
    random = numpy.random.default_rng(4)
    engine = flashjit.Engine("host")
    q_lens, k_lens = [3, 0, 8, 1], [40, 17, 5, 64]
    offsets = [numpy.concatenate([[0], numpy.cumsum(lens)]).astype("int32") for lens in (q_lens, k_lens)]
    q, weights = random.standard_normal((12, 4, 16)).astype("float32"), random.standard_normal((12, 4)).astype("float32")
    k = random.standard_normal((126, 1, 16)).astype("float32")
    wanted = numpy.full((12, 1, 64), -numpy.inf)
    for b in range(4):
        rows, keys = slice(offsets[0][b], offsets[0][b + 1]), slice(offsets[1][b], offsets[1][b + 1])
        wanted[rows, :, :k_lens[b]] = causal(numpy, relu_sums(numpy, q[rows], k[keys], weights[rows], 1), k_lens[b] - q_lens[b])
    scores = numpy.zeros((12, 1, 64), "float32")
    call = {"q": q, "k": k, "weights": weights, "offsets_q": offsets[0], "offsets_k": offsets[1], "max_q_len": 8, "max_k_len": 64}
    engine.prepare('index fp32 d=16 heads=4/1 layout=packed mask="causal"').run(**call, scores=scores)
    agree_scores(numpy, scores, wanted)
    index, count = numpy.zeros((12, 1, 10), "int32"), numpy.zeros((12, 1), "int32")
    engine.prepare('index fp32 d=16 heads=4/1 layout=packed mask="causal" select=keys(10)').run(**call, key_index=index, key_count=count)
    for b in range(4):
        rows = slice(offsets[0][b], offsets[0][b + 1])
        own = best_of(numpy, scores[rows], 10, lambda keys: keys + offsets[1][b])
        assert (index[rows] == own[0]).all() and (count[rows] == own[1]).all(), b

    # The same keys in pages of 8 tokens: what lies behind a length may be anything.
    table = random.permutation(40)[:32].astype("int32").reshape(4, 8)
    pool = numpy.full((40, 8, 1, 16), numpy.nan, "float32")
    for b in range(4):
        for i in range(k_lens[b]):
            pool[table[b, i // 8], i % 8] = k[offsets[1][b] + i]
    call = {"q": q, "k": pool, "weights": weights, "offsets_q": offsets[0], "block_table": table,
            "k_lens": numpy.array(k_lens, "int32"), "max_q_len": 8}
    again = numpy.zeros_like(scores)
    engine.prepare('index fp32 d=16 heads=4/1 layout=packed/paged(8) mask="causal"').run(**call, scores=again)
    agree_scores(numpy, again, wanted)
    engine.prepare('index fp32 d=16 heads=4/1 layout=packed/paged(8) mask="causal" select=keys(10)').run(**call, key_index=index, key_count=count)
    for b in range(4):
        rows = slice(offsets[0][b], offsets[0][b + 1])
        own = best_of(numpy, again[rows], 10, lambda keys: table[b, keys // 8] * 8 + keys % 8)
        assert (index[rows] == own[0]).all() and (count[rows] == own[1]).all(), b


def test_index_of_8_bits_and_ties():
    setting = Setting("bfloat16")
    torch, device = setting.torch, setting.device
    engine = setting.flashjit.Engine("gpu" if setting.gpu else "host")
    q = torch.randn(2, 5, 64, 128, device=device).to(torch.float8_e4m3fn)
    k = torch.randn(2, 300, 1, 128, device=device).to(torch.float8_e4m3fn)
    k[:, 150:] = k[:, :150]  # each twice
    weights, scale = torch.randn(2, 5, 64, device=device), torch.rand(2, 300, 1, device=device)
    scale[:, 150:] = scale[:, :150]
    products = torch.einsum("bthd,bkd->bthk", q.double(), k[:, :, 0].double()).clamp(min=0)
    sums = torch.einsum("bthk,bth->btk", products, weights.double()) * scale[:, None, :, 0]
    hidden = torch.arange(300, device=device) > torch.arange(5, device=device)[:, None] + 295
    sums = sums.masked_fill(hidden, -torch.inf)
    scores = torch.zeros(2, 5, 1, 300, device=device)
    call = {"q": q, "k": k, "weights": weights, "scale_k": scale}
    engine.prepare('index e4m3 d=128 heads=64/1 mask="causal" token_scales').run(**call, scores=scores)
    error = (scores[:, :, 0].double() - sums)[~hidden.expand(2, 5, 300)].abs().max() / sums[sums > -torch.inf].abs().max()
    assert error < (2e-3 if setting.gpu else 1e-5), error
    assert (scores[:, :, 0][hidden.expand(2, 5, 300)] == -torch.inf).all()
    kernel = engine.prepare('index e4m3 d=128 heads=64/1 mask="causal" token_scales select=keys(31)')
    index, count = torch.zeros(2, 5, 1, 31, dtype=torch.int32, device=device), torch.zeros(2, 5, 1, dtype=torch.int32, device=device)
    kernel.run(**call, key_index=index, key_count=count)
    assert (count == 31).all()
    for b in range(2):
        for t in range(5):
            order = torch.sort(-scores[b, t, 0], stable=True).indices[:31].sort().values
            assert torch.equal(index[b, t, 0].long(), order), "of equal scores the first keys are taken, in their order"


def test_lists_of_an_index_go_on_to_attention():
    """The list of one call is the list of the next, in pages and packed."""
    flashjit, numpy = load("numpy")
    random = numpy.random.default_rng(6)
    engine = flashjit.Engine("host")
    table = random.permutation(10).astype("int32").reshape(2, 5)
    lengths, offsets = numpy.array([70, 33], "int32"), numpy.array([0, 4, 6], "int32")
    q, weights = random.standard_normal((6, 4, 16)).astype("float32"), random.standard_normal((6, 4)).astype("float32")
    pool = random.standard_normal((10, 16, 1, 16)).astype("float32")
    index, count = numpy.zeros((6, 1, 12), "int32"), numpy.zeros((6, 1), "int32")
    engine.prepare('index fp32 d=16 heads=4/1 layout=packed/paged(16) mask="causal" select=keys(12)').run(
        q=q, k=pool, weights=weights, offsets_q=offsets, block_table=table, k_lens=lengths, max_q_len=4, key_index=index, key_count=count)
    queries, latents = random.standard_normal((6, 2, 40)).astype("float32"), random.standard_normal((10, 16, 1, 40)).astype("float32")
    o = numpy.zeros((6, 2, 32), "float32")
    engine.prepare("fwd fp32 d=40/32 heads=2/1 layout=packed/paged(16) select=keys(12) v_in_k").run(
        q=queries, k=latents, o=o, key_index=index, key_count=count)
    for b in range(2):
        rows = (table[b].astype("int64")[:, None] * 16 + numpy.arange(16)).flatten()[:lengths[b]]
        for t in range(offsets[b], offsets[b + 1]):
            seen = rows[:lengths[b] - (offsets[b + 1] - 1 - t)]
            scores = relu_sums(numpy, q[t:t + 1], pool.reshape(160, 1, 16)[seen], weights[t:t + 1], 1)[0, 0]
            own = latents.reshape(160, 40)[seen[numpy.argsort(-scores)[:12]]].astype("float64")
            s = queries[t] @ own.T / 40 ** 0.5
            p = numpy.exp(s - s.max(-1, keepdims=True))
            exact = p @ own[:, :32] / p.sum(-1, keepdims=True)
            assert numpy.abs(o[t] - exact).max() < 2e-5, t


def test_index_as_a_function():
    """It makes the spec and the results of its tensors, as attention() does."""
    flashjit, numpy = load("numpy")
    random = numpy.random.default_rng(9)
    q, k = random.standard_normal((2, 9, 6, 32)).astype("float32"), random.standard_normal((2, 70, 2, 32)).astype("float32")
    weights = random.standard_normal((2, 9, 6)).astype("float32")
    wanted = numpy.stack([causal(numpy, relu_sums(numpy, q[b], k[b], weights[b], 1), 61) for b in range(2)])
    for layout in ("bshd", "bhsd"):
        turned = [numpy.ascontiguousarray(x.transpose(0, 2, 1, 3)) if layout == "bhsd" else x for x in (q, k)]
        scores = flashjit.index(*turned, weights, mask="causal", layout=layout)
        found, count = flashjit.index(*turned, weights, best=20, mask="causal", layout=layout)
        for b in range(2):
            agree_scores(numpy, scores[b], wanted[b])
            own = best_of(numpy, scores[b], 20, lambda keys: keys)
            assert (found[b] == own[0]).all() and (count[b] == own[1]).all(), layout
    hidden_from = numpy.array([[50], [7]], "int32")
    cut = flashjit.index(q, k, weights, mask="k < first[b, 0]", first=hidden_from)
    assert (numpy.isfinite(cut).sum(-1) == hidden_from[:, :, None]).all(), "a mask reads tensors by their names"

    # Packed, where rows have the keys of the longest sequence; the same keys in pages; and into tensors of the caller's.
    offsets = numpy.array([0, 3, 9], "int32"), numpy.array([0, 40, 57], "int32")
    flat_q, flat_k, flat_weights = q[0], k[0, :57], weights[0]
    packed = {"layout": "packed", "mask": "causal", "offsets_q": offsets[0], "offsets_k": offsets[1], "max_q_len": 6, "max_k_len": 40}
    scores = flashjit.index(flat_q, flat_k, flat_weights, **packed)
    assert scores.shape == (9, 2, 40)
    agree_scores(numpy, scores[:3], causal(numpy, relu_sums(numpy, flat_q[:3], flat_k[:40], flat_weights[:3], 1), 37))
    pool = numpy.zeros((10, 8, 2, 32), "float32")
    pool[:8].reshape(64, 2, 32)[:40], pool[5:].reshape(40, 2, 32)[:17] = flat_k[:40], flat_k[40:]
    in_pages = {"layout": "packed/paged(8)", "mask": "causal", "offsets_q": offsets[0], "max_q_len": 6, "k_lens": numpy.array([40, 17], "int32"),
                "block_table": numpy.array([[0, 1, 2, 3, 4], [5, 6, 7, 0, 0]], "int32")}
    agree_scores(numpy, flashjit.index(flat_q, pool, flat_weights, **in_pages), scores)
    lists = numpy.zeros((9, 2, 5), "int32"), numpy.zeros((9, 2), "int32")
    found = flashjit.index(flat_q, pool, flat_weights, best=5, out=lists, **in_pages)
    assert found[0] is lists[0] and found[1] is lists[1] and (lists[1][3:] == 5).all()

    invalid = flashjit.InvalidError
    refused(invalid, ["weights:", "dimensions"], flashjit.index, q, k, weights[0])
    refused(invalid, ["k:", "q is fp32"], flashjit.index, q, k.astype("float16"), weights)
    refused(invalid, ["out:", "key_index and key_count"], flashjit.index, q, k, weights, best=5, out=scores)
    refused(invalid, ["best:", "many"], flashjit.index, q, k, weights, best="many")
    refused(invalid, ["select:", "keys(0)"], flashjit.index, q, k, weights, best=0)
    refused(invalid, ["mask:", "casual"], flashjit.index, q, k, weights, mask="casual")


def test_what_an_index_refuses():
    flashjit, numpy = load("numpy")
    engine, invalid = flashjit.Engine("host"), flashjit.InvalidError
    q, k, weights = numpy.zeros((1, 2, 4, 32), "float32"), numpy.zeros((1, 9, 1, 32), "float32"), numpy.zeros((1, 2, 4), "float32")
    kernel = engine.prepare("index fp32 d=32 heads=4/1")
    call = {"q": q, "k": k, "weights": weights, "scores": numpy.zeros((1, 2, 1, 9), "float32")}
    kernel.run(**call)
    refused(invalid, ["scores.shape[3]: 10, must be 9", "those of k"], kernel.run, **{**call, "scores": numpy.zeros((1, 2, 1, 10), "float32")})
    refused(invalid, ["weights"], kernel.run, **{name: x for name, x in call.items() if name != "weights"})
    refused(invalid, ["o", "index scores"], kernel.run, **call, o=q)
    refused(invalid, ["v", "index no V"], kernel.run, **call, v=k)
    refused(invalid, ["key_index", "select=keys(N)"], kernel.run, **call, key_index=numpy.zeros((1, 2, 1, 4), "int32"))
    refused(invalid, ["weights.shape[2]: 3, must be 4"], kernel.run, **{**call, "weights": numpy.zeros((1, 2, 3), "float32")})
    refused(invalid, ["scale_q", "index has them in weights"], kernel.run, **call, scale_q=numpy.ones(1, "float32"))
    refused(invalid, ["score", "weights"], engine.prepare, 'index fp32 d=32 score="s"')
    refused(flashjit.UnsupportedError, ["pages(4)", "keys(N)"], engine.prepare, "index fp32 d=32 layout=paged(16) select=pages(4)")


if __name__ == "__main__":
    harness.main(globals())

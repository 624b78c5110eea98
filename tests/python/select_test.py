"""Lists of keys (`select=`), against attention that reads the rows of each list, one query after the other."""

from support import harness, load, refused
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
    setting = Setting("float32")
    torch, flashjit = setting.torch, setting.flashjit
    import numpy
    random = numpy.random.default_rng(11)
    q, pool = random.standard_normal((11, 4, 40)).astype("float32"), random.standard_normal((5, 16, 1, 40)).astype("float32")
    index, count = drawn_lists(numpy, random, (11, 1), 80, 20)
    lists = {"key_index": index, "key_count": count}
    wanted = exact(numpy, q, pool.reshape(80, 1, 40), pool.reshape(80, 1, 40)[..., :32], index, count)
    agree(numpy, flashjit.attention(q, pool, pool[..., :32], layout="packed/paged(16)", spec="v_in_k", lse=True, **lists), wanted)
    invalid = flashjit.InvalidError
    refused(invalid, ["v:", "first columns"], flashjit.attention, q, pool, pool[..., :32].copy(), layout="packed/paged(16)", spec="v_in_k", **lists)
    refused(invalid, ["v:", "first columns"], flashjit.attention, q, pool, pool[..., 8:], layout="packed/paged(16)", spec="v_in_k", **lists)
    if setting.gpu:
        return  # which computes no fp32
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
            ("mask: with select= each query has a list of its keys", {"mask": "causal"}, {}),
            ("k_lens: with select= each query has a list of its keys", {}, {"k_lens": numpy.ones(1, "int32")}),
            ("key_index.shape[1]: 9, must be 10 (tokens of q)", {}, {"key_index": index[:, :9]}),
            ("key_index.shape[3]: 3, must be 4 (keys of a list in the spec)", {"spec": "select=keys(4)"}, {}),
            ("key_index.dtype: 'i64'", {}, {"key_index": index.astype("int64")}),
            ("key_count.shape[2]: 1, must be 2 (KV heads of the spec)", {}, {"key_count": index[..., :1, 0]}),
            ("select: keys(0)", {}, {"key_index": index[..., :0]})):
        refused(flashjit.InvalidError, begin.split("keys(0)")[0], lambda words=words, given=given: flashjit.attention(
            q, q, q, **words, **{"key_index": index, **given}))
    refused(flashjit.InvalidError, "key_count: given, and the spec does not ask for it; add select=keys(N)",
            lambda: flashjit.attention(q, q, q, key_count=index[..., 0]))


def test_tensors_of_pytorch():
    setting = Setting()
    torch, flashjit = setting.torch, setting.flashjit
    q, k, v = setting.tensors((2, 6, 4, 32), (2, 50, 2, 32), (2, 50, 2, 32))
    index = torch.randint(-1, 50, (2, 6, 2, 40), dtype=torch.int32, device=setting.device)
    o = flashjit.attention(q, k, v, key_index=index)
    ones = torch.ones(index.shape, dtype=torch.float64, device=setting.device)
    times = torch.zeros(2, 6, 2, 51, dtype=torch.float64, device=setting.device).scatter_add_(3, index.long() % 51, ones)[..., :50]
    s = torch.einsum("bqhd,bkhd->bqhk", q.double(), k.double().repeat_interleave(2, 2)) / 32 ** 0.5
    p = s.exp() * times.repeat_interleave(2, 2)  # -1 is the last of 51, which is cut off
    setting.close(o, torch.einsum("bqhk,bkhd->bqhd", p / p.sum(-1, keepdim=True), v.double().repeat_interleave(2, 2)))
    q.requires_grad_()
    refused(flashjit.InvalidError, "select: lists of keys are those of fwd", lambda: flashjit.attention(q, k, v, key_index=index).sum().backward())


if __name__ == "__main__":
    harness.main(globals())

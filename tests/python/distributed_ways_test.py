"""What flashjit.distributed has beside attention on one group: meshes, caches, PyTorch's context_parallel, keys in 8 bits, lists of
blocks; what is sent; and what happens when a process does not come."""

import contextlib
import datetime
import math
import os
import time

from distributed_support import close, compare, draw, processes, reference
from support import find, harness, refused


def meshes(rank, ranks, shape, first):
    """Inner ranks divide the heads that are drawn for all of them."""
    torch = find("torch")
    mesh = torch.distributed.init_device_mesh("cpu", shape, mesh_dim_names=("outer", "inner"))
    for seed, order in enumerate(("zigzag", "contiguous", "striped", "zigzag", "zigzag"), first):
        group = (mesh.get_group(0), mesh.get_group(1)) if seed == first else mesh
        compare(seed, rank, ranks, group, {"how": "mesh", "order": order})


def test_a_mesh_of_four_ranks():
    processes(4, meshes, 4, (2, 2), 70)


def test_a_mesh_of_eight_ranks():
    processes(8, meshes, 8, (4, 2), 80)


def caches(rank, ranks):
    torch = find("torch")
    import flashjit.distributed as fd
    generator = torch.Generator().manual_seed(3)
    batch, room, heads, kv_heads, d, new = 3, 16, 8, 2, 32, 3
    total = room * ranks
    q, k, v = (torch.randn(shape, generator=generator) for shape in ((batch, new, heads, d), (batch, total, kv_heads, d), (batch, total, kv_heads, d)))
    sink = torch.randn(heads, generator=generator)
    for order in ("contiguous", "striped"):
        own = [fd.shard(x, order=order) for x in (k, v)]
        for lens in (None, [total, 5, room + 3]):
            ends = torch.tensor([total] * batch if lens is None else lens, dtype=torch.int32)
            for mask, sees in ((None, lambda at, k: k >= 0), ("causal", lambda at, k: k <= at), ("window(9, 0)", lambda at, k: (k <= at) & (k >= at - 9))):
                for with_sink in (False, True):
                    for layout in ("bshd", "bhsd"):
                        turned = (lambda x: x.transpose(1, 2)) if layout == "bhsd" else lambda x: x
                        seen = lambda b, h, q, k: (k < ends[b]) & sees(ends[b] - new + q, k)
                        o, lse = reference(q, k, v, seen, sink=sink if with_sink else None)
                        got, got_lse = fd.decode(turned(q), *map(turned, own), mask, order=order, layout=layout, lse=True,
                                                 cache_lens=None if lens is None else ends, **({"sink": sink} if with_sink else {}))
                        what = f"{order} {lens} {mask} {with_sink} {layout}"
                        close(turned(got), o, 3e-5, what)
                        close(got_lse, lse, 3e-5, what + " lse")
    pages = own[0].reshape(batch * room // 4, 4, kv_heads, d), own[1].reshape(batch * room // 4, 4, kv_heads, d)
    table = torch.arange(batch * room // 4, dtype=torch.int32).view(batch, -1)
    got = fd.decode(q[:, :1], *pages, order="striped", layout="paged(4)", block_table=table, cache_lens=ends)
    close(got, reference(q[:, :1], k, v, lambda b, h, q, k: k < ends[b])[0], 3e-5, "pages")
    if rank == 0:
        for says, words in (("zigzag is for whole sequences", {"order": "zigzag"}), ("no tensor int32", {"cache_lens": ends.long()}),
                            ("no word of decode", {"k_lens": ends})):
            refused(Exception, says, fd.decode, q, *own, **words)


def test_a_cache_over_ranks():
    for ranks in (2, 3):
        processes(ranks, caches, ranks)


def contexts(rank, ranks):
    torch = find("torch")
    import flashjit.distributed as fd
    sdpa = torch.nn.functional.scaled_dot_product_attention
    mesh = torch.distributed.init_device_mesh("cpu", (ranks,))
    for causal, how in ((True, "allgather"), (False, "alltoall")):
        torch.manual_seed(5)
        q, k, v = torch.randn(3, 2, 4, 8 * ranks, 20)  # d is padded
        kept, x = q.clone(), torch.randn(2, 8 * ranks)
        wanted = sdpa(q, k, v, is_causal=causal)
        fd.set_rotate_method(how)
        with fd.context_parallel(mesh, buffers=[q, k, v, x], buffer_seq_dims=[2, 2, 2, 1], no_restore_buffers={x}):
            assert q.shape == (2, 4, 8, 20) and x.shape == (2, 8)
            leaf = q.clone().requires_grad_()
            o = torch.nn.functional.scaled_dot_product_attention(leaf, k, v, is_causal=causal)
            o.sum().backward()
            whole, gradient = fd.context_parallel_unshard(mesh, [o, leaf.grad], [2, 2])
            refused(fd.context.UnsupportedError, "is_causal", torch.nn.functional.scaled_dot_product_attention, q, k, v, attn_mask=q)
            refused(fd.context.UnsupportedError, "dropout_p", torch.nn.functional.scaled_dot_product_attention, q, k, v, dropout_p=0.5)
        assert torch.nn.functional.scaled_dot_product_attention is sdpa and torch.equal(q, kept) and x.shape == (2, 8)
        close(whole, wanted, 3e-5, "o")
        leaf = kept.clone().requires_grad_()
        sdpa(leaf, k, v, is_causal=causal).sum().backward()
        close(gradient, leaf.grad, 3e-5, "dq")
    with contextlib.suppress(KeyError):
        with fd.context_parallel(mesh, buffers=[q], buffer_seq_dims=[2]):
            raise KeyError
    assert torch.equal(q, kept) and torch.nn.functional.scaled_dot_product_attention is sdpa


def test_the_context_of_pytorch():
    processes(2, contexts, 2)


def eight_bits(rank, ranks):
    """The error is that of elements with 3 bits behind the point: 2^-4 of each at most, and less of their sums. It is not next to none."""
    torch = find("torch")
    import flashjit.distributed as fd
    torch.manual_seed(6)
    inputs = torch.randn(1, 32 * ranks, 4, 32), *torch.randn(2, 1, 32 * ranks, 2, 32)
    wide = [x.double().requires_grad_() for x in inputs]
    do = torch.randn(inputs[0].shape)
    exact = reference(*wide, lambda b, h, q, k: k <= q)[0]
    exact.backward(do.double())
    for how in ("ring", "gather"):
        own = [fd.shard(x).requires_grad_() for x in inputs]
        o = fd.attention(*own, mask="causal", how=how, travel="e4m3")
        o.backward(fd.shard(do))
        for name, got, want in (("o", o, exact), *zip(("dq", "dk", "dv"), (x.grad for x in own), (x.grad for x in wide))):
            want = fd.shard(want.detach())
            error = ((got.double() - want).norm() / want.norm()).item()
            print(f"{how} {name}: {error:.4f} by norm")
            assert 1e-4 < error < 0.05, f"{how} {name}: {error}"
    refused(fd.call.UnsupportedError, "travel", fd.attention, *own, how="ulysses", travel="e4m3")


def test_keys_in_eight_bits():
    processes(2, eight_bits, 2)


def what_is_sent(rank, ranks, mask, order, words, expected):
    """Counts elements of K that go to each rank, in the forward."""
    torch = find("torch")
    dist = torch.distributed
    import flashjit.distributed as fd
    sent, send = {}, dist.batch_isend_irecv

    def counting(operations):
        for operation in operations:
            if operation.op is dist.isend:
                sent[operation.group_peer] = sent.get(operation.group_peer, 0) + operation.tensor.shape[1]
        return send(operations)

    q = torch.ones(1, 16, 1, 8)
    fd.attention(q, q, q, mask=mask, order=order, how="ring", check="always")
    dist.batch_isend_irecv = counting
    fd.attention(q, q, q, mask=mask, order=order, how="ring", **words)
    found = {peer: count // 2 for peer, count in sent.items()}  # of K and V
    assert found == expected.get(rank, {}), f"{mask} {order}: rank {rank} sent {found}"


def test_only_what_others_see_is_sent():
    ring = lambda *pairs: {rank: dict(to) for rank, to in pairs}
    processes(4, what_is_sent, 4, "causal", "contiguous", {}, ring((0, {1: 16, 2: 16, 3: 16}), (1, {2: 16, 3: 16}), (2, {3: 16})))
    # To later ranks goes the first chunk alone, which all of their queries see; to earlier ones go both, for their second chunk.
    processes(4, what_is_sent, 4, "causal", "zigzag", {}, {r: {s: 8 if s > r else 16 for s in range(4) if s != r} for r in range(4)})
    processes(4, what_is_sent, 4, "window(3, 0)", "contiguous", {}, ring((0, {1: 3}), (1, {2: 3}), (2, {3: 3})))
    # A chunk's neighbour behind it lies on the next rank, that of a second chunk on the one before.
    processes(4, what_is_sent, 4, "window(3, 0)", "zigzag", {}, ring((0, {1: 3}), (1, {2: 3, 0: 3}), (2, {3: 3, 1: 3}), (3, {2: 3})))
    documents = {"documents": [0, 16, 40, 64]}
    processes(4, what_is_sent, 4, None, "contiguous", documents, ring((1, {2: 16}), (2, {1: 8, 3: 8}), (3, {2: 16})))


class GatheredBoard:
    """In place of the memory that GPUs of one host read from one another: what ranks show is gathered, and NaN lies where nobody copies to."""

    def __init__(self, group):
        self.group, self.shown = group, 0

    def room(self, shapes, dtype):
        torch = find("torch")
        self.rooms = [[torch.full(shape, math.nan, dtype=dtype) for shape in shapes] for _ in range(self.group.size())]
        return self.rooms

    def show(self, what):
        dist = find("torch").distributed
        self.shown += 1
        for at, part in enumerate(self.rooms[dist.get_rank(self.group)]):
            dist.all_gather([of_rank[at] for of_rank in self.rooms], part.clone(), group=self.group)

    copying = staticmethod(contextlib.nullcontext)
    copied = staticmethod(lambda: None)


def read_from_others(rank, ranks, order, mask, kv_heads, batch):
    torch = find("torch")
    import flashjit.distributed as fd
    from flashjit.distributed import gather
    board = GatheredBoard(torch.distributed.group.WORLD)
    gather.board_of = lambda group, device: board
    empty = torch.empty
    torch.empty = lambda *shape, **words: empty(*shape, **words).fill_(math.nan) if words.get("dtype") == torch.float32 else empty(*shape, **words)
    torch.manual_seed(6)
    q, do_ = torch.randn(2, batch, 16 * ranks, 2 * kv_heads, 16)
    k, v = torch.randn(2, batch, 16 * ranks, kv_heads, 16)
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    sees = {"causal": lambda b, h, q, k: k <= q, "window(9, 0)": lambda b, h, q, k: (k <= q) & (q - k <= 9)}[mask]
    exact = reference(*wide, sees)[0]
    exact.backward(do_.double())
    own = [fd.shard(x, order=order).requires_grad_() for x in (q, k, v)]
    o = fd.attention(*own, mask=mask, order=order, how="gather")
    o.backward(fd.shard(do_, order=order))
    assert board.shown == 2, "the forward reads keys once, and the backward once more"
    for name, got, want in (("o", o, exact), *zip(("dq", "dk", "dv"), (x.grad for x in own), (x.grad for x in wide))):
        torch.testing.assert_close(got, fd.shard(want.detach(), order=order).float(), atol=2e-5, rtol=2e-4, msg=lambda text: f"{name} {order} {mask}: {text}")


def test_keys_read_from_other_ranks():
    for at, (order, mask) in enumerate((order, mask) for order in ("zigzag", "contiguous", "striped") for mask in ("causal", "window(9, 0)")):
        processes((2, 3)[at % 2], read_from_others, (2, 3)[at % 2], order, mask, (1, 5, 8)[at % 3], 1 + at // 3)


def missing(rank, ranks, way, ends, before):
    """Rank 1 does not come to a call, or to its backward, of a group whose timeout is short; kernels are there by then."""
    torch = find("torch")
    dist = torch.distributed
    import flashjit.distributed as fd
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 32, 2, 16))
    fd.attention(q, k, v, mask="causal", how=way).sum().backward()
    q.grad = None
    group = dist.new_group(timeout=datetime.timedelta(seconds=3))
    o = fd.attention(q, k, v, mask="causal", how=way, group=group)
    dist.barrier()
    if rank == 1 and before == "forward":
        ends()
    elif rank == 1:
        o.register_hook(lambda gradient: ends())
    started = time.monotonic()
    try:
        if before == "forward":
            fd.attention(q, k, v, mask="causal", how=way, group=group)
        else:
            o.sum().backward()
    except fd.ExchangeError as error:
        assert "timeout of its group" in str(error) and q.grad is None, error
        assert time.monotonic() - started < 8, "the group's timeout is 3 s"
        return
    raise AssertionError(f"rank {rank} saw no error")


def test_a_rank_that_ends():
    for way in ("ring", "gather", "ulysses"):
        for before in ("forward", "backward"):
            processes(2, missing, 2, way, lambda: os._exit(9), before, dying=(1,))
    processes(4, missing, 4, "gather", lambda: os._exit(9), "forward", dying=(1,))


def test_a_rank_that_is_late():
    def late():
        time.sleep(9)
        os._exit(9)
    processes(3, missing, 3, "ring", late, "forward", dying=(1,))


def unlike(rank, ranks):
    torch = find("torch")
    import flashjit.distributed as fd
    shares = lambda tokens, heads=2: torch.randn(3, 1, tokens, heads, 16)
    for says, words, tensors in (("tokens of q", {}, shares(8 if rank == 1 else 6)), ("heads of q", {}, shares(8, 2 + 2 * (rank == 2))),
                                 ("mask", {"mask": "causal" if rank else None}, shares(8)), ("order", {"order": ("zigzag", "striped")[rank % 2]}, shares(4)),
                                 ("how", {"how": ("ring", "gather")[rank % 2]}, shares(4))):
        refused(fd.call.InvalidError, [says, "on rank"], fd.attention, *tensors, **words)
    q, k, v = shares(8)
    for says, words in (("none of", {"how": "rings"}), ("two dimensions", {"how": "mesh"}), ("seed: missing", {"spec": "dropout=0.5"}), ("no dropout in spec", {"seed": 1}),
                        ("multiple of 32", {"spec": "dropout=0.5", "seed": 1, "offset": 2}), ("spec: append", {"spec": "append"}),
                        ("order", {"order": "spiral"}), ("packed", {"layout": "packed"}), ("k_lens", {"k_lens": torch.ones(1)}), ("sink", {"sink": torch.ones(3)}), ("align", {"align": "middle"}), ("spec: 3", {"spec": 3}),
                        ("lse", {"lse": "log2"}),
                        ("sms: 4, and q lies on a processor", {"sms": 4}), ("sms", {"sms": "all"}), ("sms", {"sms": -1}),
                        ("w: ndarray is no tensor", {"score": "s * w[h]", "w": torch.ones(2).numpy()}),
                        ("cannot be divided among 3", {"how": "ulysses"}), ("nobody: is no word", {"nobody": 3}), ('did you mean mask="causal"?', {"is_causal": 1}), ("did you mean order=?", {"ordr": 1}), ("documents", {"documents": [0, 99]}),
                        ("block_count: missing", {"blocks": 64}), ("key_index: has no meaning", {"key_index": q}), ("q_begin", {"q_begin": 3}), ("check", {"check": "sometimes"}), ("unknown name `casual`", {"mask": "casual"})):
        refused(Exception, says, fd.attention, q, k, v, **words)
    refused(fd.call.UnsupportedError, "float64", fd.attention, *(x.double() for x in (q, k, v)))
    with torch.inference_mode():
        assert fd.attention(q, k, v, mask="causal").shape == q.shape
    refused(fd.call.InvalidError, "a multiple of 6", fd.attention, *shares(7))
    refused(fd.call.InvalidError, "no multiple of 6", fd.shard, torch.ones(1, 8))
    for order in ("zigzag", "contiguous", "striped"):
        x = torch.arange(120.0).view(2, 5, 12)
        assert torch.equal(fd.unshard(fd.shard(x, None, order, 2), None, order, 2), x), order
    assert fd.positions(12).tolist() == {0: [0, 1, 10, 11], 1: [2, 3, 8, 9], 2: [4, 5, 6, 7]}[rank]
    assert fd.positions(6, order="striped").tolist() == [rank, rank + 3]


def test_what_is_refused():
    processes(3, unlike, 3)


# Lists of blocks: each way and order against float64, which keys are sent, which blocks fit which shares.
LISTED = [(way, order) for way in ("ring", "gather", "ulysses", "auto") for order in ("zigzag", "contiguous", "striped")]


def listed(rank, ranks, first, chosen):
    for at, (way, order) in enumerate(chosen, first):
        words = {"mask": ("causal", None, "window(9, 0)", "k <= qpos & (k % 3 != 1 | h % 2 == 0)")[at % 4], "how": way, "order": order,
                 "blocks": ((64, 64), (128, 64), (64, 128))[at % 3]}
        compare(at, rank, ranks, words=words, dtype=("float32", "bfloat16")[at % 2])


def test_lists_in_each_way_and_order_on_two_ranks():
    processes(2, listed, 2, 900, LISTED)


def test_lists_in_each_way_and_order_on_three_ranks():
    processes(3, listed, 3, 930, LISTED[:6])


def test_lists_in_each_way_and_order_on_four_ranks():
    processes(4, listed, 4, 960, LISTED[:9:2])


def test_lists_in_rings_of_eight_ranks():
    processes(8, listed, 8, 990, [("ring", "contiguous"), ("ring", "striped")])


def listed_meshes(rank, ranks):
    mesh = find("torch").distributed.init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("outer", "inner"))
    for seed, order in enumerate(("zigzag", "contiguous", "striped"), 970):
        compare(seed, rank, ranks, mesh, {"how": "mesh", "order": order, "blocks": (64, 64), "outer": ranks // 2})


def test_lists_in_a_mesh():
    processes(4, listed_meshes, 4)


def lists_of(torch, rows):
    """One number in each list: `rows` says which block of keys a block of queries sees, where it sees any."""
    count = torch.tensor([number is not None for number in rows], dtype=torch.int32)
    return {"block_count": count, "block_index": torch.tensor([number or 0 for number in rows], dtype=torch.int32)[:, None]}


def what_is_sent_of_lists(rank, ranks, order, rows, words, expected):
    """Counts elements of K that go to each rank in the forward, and gradients of it that come home."""
    torch = find("torch")
    dist = torch.distributed
    import flashjit.distributed as fd
    sent, send = {}, dist.batch_isend_irecv

    def counting(operations):
        for operation in operations:
            if operation.op is dist.isend:
                key = operation.group_peer, operation.tag % 2
                sent[key] = sent.get(key, 0) + operation.tensor.shape[1]
        return send(operations)

    torch.manual_seed(3)
    inputs = torch.randn(3, 1, 128 * ranks, 1, 8)
    q, k, v = (fd.shard(x, order=order).requires_grad_() for x in inputs)
    dist.batch_isend_irecv = counting
    given = lists_of(torch, rows)
    o = fd.attention(q, k, v, order=order, how="ring", blocks=64, **given, **words)
    found = {peer: count // 2 for (peer, _), count in sent.items()}  # of K and V
    assert found == expected.get(rank, {}), f"{order}: rank {rank} sent {found}"
    sent.clear()
    o.sum().backward()
    home = {peer: count // 2 for (peer, tag), count in sent.items() if tag}
    assert home == {owner: to[rank] for owner, to in expected.items() if rank in to}, f"{order}: rank {rank} sent {home} home"
    wide = [x.double().requires_grad_() for x in inputs]
    seen = torch.tensor([[number == block for block in range(2 * ranks)] for number in rows])
    exact = reference(*wide, lambda b, h, q, k: seen[q // 64, k // 64] & (k <= q if words else k >= 0))[0]
    exact.sum().backward()
    for name, got, want in (("o", o, exact), *zip(("dq", "dk", "dv"), (q.grad, k.grad, v.grad), (x.grad for x in wide))):
        close(got.detach(), fd.shard(want.detach(), order=order), 3e-5, f"{name} {order}")


def test_keys_that_no_list_names_are_not_sent():
    # There are two blocks for each rank. The second one sees a block of the first, and the last one of the third.
    rows = [0, 0, 1, 2, None, 5, 4, 7]
    processes(4, what_is_sent_of_lists, 4, "contiguous", rows, {}, {0: {1: 64}, 2: {3: 64}})
    # Rank r has the blocks r and 7 - r.
    processes(4, what_is_sent_of_lists, 4, "zigzag", [0, 0, 1, 5, None, 5, 2, 7], {}, {0: {1: 64}, 1: {2: 64}, 2: {3: 64, 1: 64}})
    # What a mask hides besides is not sent, either.
    processes(4, what_is_sent_of_lists, 4, "contiguous", [0, 6, 0, 1, 7, 2, 4, 5], {"mask": "causal"}, {0: {1: 128}, 1: {2: 64}, 2: {3: 128}})
    # Between the first and the last block that a rank sees all are sent.
    processes(3, what_is_sent_of_lists, 3, "contiguous", [None, 5, 1, 2, 3, 3], {}, {2: {0: 64}, 0: {1: 64}, 1: {2: 64}})


def choices_for_lists(rank, ranks):
    """What how="auto" takes."""
    torch = find("torch")
    import flashjit.distributed as fd
    from flashjit.distributed import call
    taken, way = [], call._of_way
    call._of_way = lambda name, *rest: taken.append(name) or way(name, *rest)

    def chosen(tokens, rows, **words):
        q, k = torch.ones(1, tokens, 2, 8), torch.ones(1, words.pop("keys", tokens), 2, 8)
        fd.attention(q, k, k, **lists_of(torch, rows), **words)
        return taken.pop()

    near, far = [0, 1, 2, 3], [3, 2, 1, 0]
    assert chosen(128, near, blocks=64, order="contiguous") == "ring", "half of the pairs of chunks see nothing of each other"
    assert chosen(128, near, blocks=64, order="striped", check="never") == "ulysses", "blocks of 64 have no parts"
    assert chosen(128, far[:2], blocks=128, order="striped") == "ulysses", "shares are short"
    assert chosen(100, near, blocks=64, order="contiguous") == "ulysses"
    assert chosen(128, near, blocks=64, order="contiguous", keys=100) == "gather"
    q = torch.ones(1, 100, 3, 8)
    refused(fd.call.UnsupportedError, ["blocks: of 64 queries", "chunks of 100", "multiple of 128 tokens", 'how="ulysses"'], fd.attention, q, q, q, blocks=64,
            order="contiguous", **lists_of(torch, near))


def test_what_auto_takes_for_lists():
    processes(2, choices_for_lists, 2)


def lists_that_are_refused(rank, ranks):
    torch = find("torch")
    import flashjit.distributed as fd
    q = torch.ones(1, 128, 4, 8)
    count, index = torch.ones(1, 4, dtype=torch.int32), torch.zeros(1, 4, 2, dtype=torch.int32)
    lists = {"block_count": count, "block_index": index}
    for says, words in (("blocks= is not", lists), ("block_count: missing", {"blocks": 64}), ("full_count: missing", {"blocks": 64, **lists, "full_index": index}),
                        ("blocks: 100 tokens are no multiple of 64", {"blocks": 100, **lists}), ("neither a number", {"blocks": (64, 64, 64), **lists}),
                        ("neither a number", {"blocks": "64", **lists}), ("the whole sequence has 4 blocks", {"blocks": 64, "block_count": count[:, :2], "block_index": index[:, :2]}),
                        ("lists for 3 heads", {"blocks": 64, "block_count": count.expand(3, 4), "block_index": index.expand(3, 4, 2)}),
                        ("batch is 1", {"blocks": 64, "block_count": count.expand(2, 1, 4), "block_index": index.expand(2, 1, 4, 2)}),
                        ("lists are int32", {"blocks": 64, "block_count": count.long(), "block_index": index}),
                        ("counts are", {"blocks": 64, "block_count": count, "block_index": index.expand(4, 4, 2)}),
                        ("has 1 dimensions", {"blocks": 64, "block_count": count, "block_index": index[0, :, 0]}),
                        ("no multiple of 64; use blocks of a multiple of 128", {"blocks": 64, "order": "striped", "how": "ring", **lists}),
                        ("has chunks of 64; pad the sequence to a multiple of 512", {"blocks": (64, 128), "how": "ring", **lists}),
                        ("leave one of the two out", {"blocks": 64, "spec": "dropout=0.5", "seed": 1, "offset": 1, **lists})):
        refused(Exception, says, fd.attention, q, q, q, **words)
    other = {"block_count": count, "block_index": index + 3 * (rank == 1)}
    refused(fd.call.InvalidError, ["blocks", "on rank"], fd.attention, q, q, q, blocks=64, how="ring", check="always", **other)


def test_lists_that_are_refused():
    processes(2, lists_that_are_refused, 2)


def alone_with_lists(rank, ranks):
    """A group of one takes any sizes."""
    torch = find("torch")
    import flashjit.distributed as fd
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 1, 100, 2, 8)
    rows = [0, 1]
    seen = torch.tensor([[True, False], [False, True]])
    o = fd.attention(q, k, v, blocks=64, how="ring", **lists_of(torch, rows))
    close(o, reference(q, k, v, lambda b, h, q, k: seen[q // 64, k // 64])[0], 3e-5, "o")


def test_lists_of_one_rank():
    processes(1, alone_with_lists, 1)


if __name__ == "__main__":
    harness.main(globals())

"""Lists of blocks (`blocks=`), against attention with the mask that they make."""

from support import Skip, harness, load, refused
from torch_support import Setting


def seen_by(numpy, shape, sizes, listed, full, inside):
    """[batch, heads, queries, keys]: what lists of blocks let through, one number after the other."""
    batch, heads, queries, keys = shape
    seen = numpy.zeros(shape, bool)
    columns = -(-keys // sizes[1])
    for b in range(batch):
        for h in range(heads):
            for row in range(-(-queries // sizes[0])):
                q = slice(row * sizes[0], (row + 1) * sizes[0])
                for (count, index), whole in ((listed, False), (full, True)):
                    if count is None:
                        continue
                    at = b % count.shape[0], h * count.shape[1] // heads, row
                    for number in index[at][:max(int(count[at]), 0)]:
                        k = slice(number * sizes[1], (number + 1) * sizes[1])
                        if 0 <= number < columns:
                            seen[b, h, q, k] |= True if whole else inside[q, k]
    return seen


def drawn_lists(numpy, random, batch, heads, rows, columns):
    """Numbers twice, numbers that are none, and counts beyond the room are among them."""
    count = random.integers(-1, 5, (batch, heads, rows)).astype("int32")
    index = random.integers(-1, columns + 1, (batch, heads, rows, 3)).astype("int32")
    return count, index


def exact(numpy, q, k, v, seen):
    q, k, v = (x.transpose(0, 2, 1, 3).astype("float64") for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    s = numpy.where(seen, q @ numpy.repeat(k, group, 1).transpose(0, 1, 3, 2) / q.shape[-1] ** 0.5, -numpy.inf)
    p = numpy.exp(s - numpy.maximum(s.max(-1, keepdims=True), -1e300))
    return (p / numpy.maximum(p.sum(-1, keepdims=True), 1e-300) @ numpy.repeat(v, group, 1)).transpose(0, 2, 1, 3)


def test_lists_of_blocks():
    flashjit, numpy = load("numpy")
    random = numpy.random.default_rng(3)
    q = random.standard_normal((2, 300, 4, 32)).astype("float32")
    k, v = random.standard_normal((2, 2, 500, 2, 32)).astype("float32")
    at = numpy.ogrid[:300, :500]
    for sizes, batch, heads, mask, has_full in (((64, 64), 2, 4, None, False), ((64, 128), 2, 2, "causal", True), ((128, 64), 1, 1, None, True),
                                                ((192, 256), 1, 4, "window(40, 0)", True), ((64, 64), 1, 2, "causal", False)):
        inside = {None: at[0] >= -1, "causal": at[1] <= at[0] + 200, "window(40, 0)": (at[1] <= at[0] + 200) & (at[1] >= at[0] + 160)}[mask]
        inside = numpy.broadcast_to(inside, (300, 500))
        rows, columns = -(-300 // sizes[0]), -(-500 // sizes[1])
        listed, full = (drawn_lists(numpy, random, batch, heads, rows, columns) for _ in range(2))
        lists = {"block_count": listed[0], "block_index": listed[1], **({"full_count": full[0], "full_index": full[1]} if has_full else {})}
        o = flashjit.attention(q, k, v, mask=mask, blocks=sizes, **lists)
        seen = seen_by(numpy, (2, 4, 300, 500), sizes, listed, full if has_full else (None, None), inside)
        error = numpy.abs(o - exact(numpy, q, k, v, seen)).max()
        assert error < 2e-5, (sizes, batch, heads, mask, error)
        assert not o[~seen.any(-1).transpose(0, 2, 1)].any(), "rows without keys are 0"


def test_what_is_refused():
    flashjit, numpy = load("numpy")
    q = numpy.ones((1, 100, 2, 16), "float32")
    count, index = numpy.ones((1, 2, 2), "int32"), numpy.zeros((1, 2, 2, 1), "int32")
    lists = {"block_count": count, "block_index": index}
    for blocks, begin in ((100, "blocks: the number of queries of a block is 100, no multiple of 64"),
                          ("64", "blocks: '64' is neither a number of tokens nor two"),
                          ((64,), "blocks: a tuple is neither a number of tokens nor two"),
                          ((64, 1.5), "blocks: 1.5 is no whole number")):
        refused(flashjit.InvalidError, begin, lambda blocks=blocks: flashjit.attention(q, q, q, blocks=blocks, **lists))
    refused(flashjit.InvalidError, "block_count: given, and the spec does not ask for it; add blocks=128",
            lambda: flashjit.attention(q, q, q, **lists))
    for begin, given in (("block_count: missing", {"block_index": index}),
                         ("full_index: missing, and full_count is given", {**lists, "full_count": count}),
                         ("block_count.shape[2]: 0, must be 2 (blocks of queries)", {**lists, "block_count": count[:, :, :0]}),
                         ("block_count.dtype: 'i64'", {**lists, "block_count": count.astype("int64")}),
                         ("blocks: lists for 3 heads", {**lists, "block_count": numpy.ones((1, 3, 2), "int32")})):
        refused(flashjit.InvalidError, begin, lambda given=given: flashjit.attention(q, q, q, blocks=64, **given))


def as_mask(torch, count, index, sizes, queries, keys, heads):
    """A mask of bools for PyTorch. All numbers are blocks."""
    listed = torch.arange(index.shape[-1], device=index.device) < count[..., None]
    columns = -(-keys // sizes[1])
    keep = torch.zeros(*index.shape[:-1], columns, device=index.device).scatter_add_(-1, index.long(), listed.float()) > 0
    seen = keep.repeat_interleave(sizes[0], -2).repeat_interleave(sizes[1], -1)[..., :queries, :keys]
    return seen.repeat_interleave(heads // index.shape[1], 1)


def draw_for(setting, heads, rows, columns, room):
    torch = setting.torch
    count = torch.randint(1, room + 1, (2, heads, rows), device=setting.device, dtype=torch.int32)
    index = torch.rand(2, heads, rows, columns, device=setting.device).argsort(-1)[..., :room].to(torch.int32)
    return count, index


def exact_with_gradients(setting, tensors, given, seen):
    torch = setting.torch
    q, k, v = (x.detach().transpose(1, 2).double().requires_grad_() for x in tensors)
    s = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(-1, -2) / q.shape[-1] ** 0.5
    s = s.masked_fill(~seen, -1e300)
    p = torch.where(seen, (s - s.amax(-1, keepdim=True)).exp(), 0.0)
    o = p / p.sum(-1, keepdim=True).clamp(min=1e-300) @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    return [x.transpose(1, 2) for x in (o, *torch.autograd.grad(o, (q, k, v), given.detach().transpose(1, 2).double()))]


def test_gradients_in_blocks():
    setting = Setting()
    torch, attention = setting.torch, setting.flashjit.attention
    for sizes, heads_of_lists, mask in (((64, 64), 4, None), ((128, 128), 2, "causal"), ((64, 128), 1, "causal")):
        q, k, v = setting.tensors((2, 520, 4, 64), (2, 650, 2, 64), (2, 650, 2, 64), grad=True)
        given, = setting.tensors((2, 520, 4, 64))
        count, index = draw_for(setting, heads_of_lists, -(-520 // sizes[0]), -(-650 // sizes[1]), 4)
        seen = as_mask(torch, count, index, sizes, 520, 650, 4)
        if mask:
            seen = seen & torch.ones(520, 650, dtype=torch.bool, device=setting.device).tril(130)
        o = attention(q, k, v, mask=mask, blocks=sizes, block_count=count, block_index=index)
        results = o, *torch.autograd.grad(o, (q, k, v), given)
        for got, want, what in zip(results, exact_with_gradients(setting, (q, k, v), given, seen), ("o", "dq", "dk", "dv")):
            assert (got - want).abs().max() < (2e-4 if not setting.gpu else 0.02) * max(1, want.abs().max().item()), (sizes, mask, what)


def test_lists_under_torch_compile():
    setting = Setting()
    torch = setting.torch
    q, k, v = setting.tensors(*[(2, 200, 4, 32)] * 3, grad=True)
    given, = setting.tensors((2, 200, 4, 32))
    for heads in (4, 1):
        count, index = draw_for(setting, heads, 4, 4, 3)
        call = lambda q, k, v: setting.flashjit.attention(q, k, v, mask="causal", blocks=64, block_count=count, block_index=index)
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        for got, want in zip(*((o, *torch.autograd.grad(o, (q, k, v), given)) for o in (compiled(q, k, v), call(q, k, v)))):
            setting.close(got, want)
        torch._dynamo.reset()


def test_a_graph_takes_other_lists():
    setting = Setting()
    torch, attention = setting.torch, setting.flashjit.attention
    if not setting.gpu:
        raise Skip("no GPU that PyTorch can use")
    q, k, v, given = setting.tensors(*[(2, 1500, 4, 64)] * 4, grad=True)
    count, index = draw_for(setting, 4, 12, 12, 6)

    def step():
        o = attention(q, k, v, mask="causal", blocks=128, block_count=count, block_index=index)
        return o, *torch.autograd.grad(o, (q, k, v), given.detach())

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    for _ in range(3):
        for tensor, drawn in zip((count, index), draw_for(setting, 4, 12, 12, 6)):
            tensor.copy_(drawn)
        graph.replay()
        seen = as_mask(torch, count, index, (128, 128), 1500, 1500, 4) & torch.ones(1500, 1500, dtype=torch.bool, device="cuda").tril()
        for got, want in zip(results, exact_with_gradients(setting, (q, k, v), given, seen)):
            assert (got - want).abs().max() < 0.02 * max(1, want.abs().max().item())


# Kernels that leave out tiles, by lists or step by step, and how many queries they take.
_LOOPS = (("family=hopper,tiles=list", "fwd", 1300), ("family=hopper_backward,tiles=list", "bwd", 1300),
          ("family=hopper_backward,tiles=list,tile_q=64,tile_kv=64", "bwd", 1300),
          ("family=hopper_backward,tiles=range,dq=launch", "bwd", 1300), ("family=sync,tiles=list", "fwd", 1300),
          ("family=sync,tiles=range", "fwd", 1300), ("family=sync_backward", "bwd", 1300), ("family=decode", "fwd", 2))


def test_blocks_that_no_list_has_are_not_visited():
    """There is NaN in their rows, which even a weight of 0 would carry into the result."""
    setting = Setting()
    torch, flashjit = setting.torch, setting.flashjit
    if not setting.gpu:
        raise Skip("no GPU that PyTorch can use")
    engine = flashjit.Engine("gpu")
    for pins, operation, queries in _LOOPS:
        if "hopper" in pins and engine.target != "sm_90a":
            continue
        q, k, v, given = setting.tensors((2, queries, 4, 64), (2, 2000, 2, 64), (2, 2000, 2, 64), (2, queries, 4, 64))
        seen = torch.tensor([column for column in range(16) if column % 3 != 1], device=setting.device)
        count, index = draw_for(setting, 2, -(-queries // 128), len(seen), 3)
        lists = {"block_count": count, "block_index": seen[index.long()].to(torch.int32)}
        o, lse = flashjit.attention(q, k, v, mask="causal", blocks=128, lse=True, **lists)
        hidden = torch.arange(2000, device=setting.device) // 128 % 3 == 1
        k[:, hidden], v[:, hidden] = float("nan"), float("nan")
        results = {"o": torch.full_like(q, float("nan"))}
        if operation == "bwd":
            results = {"dq": torch.full_like(q, float("nan")), "dk": torch.full_like(k, float("nan")), "dv": torch.full_like(v, float("nan"))}
            lists.update({"o": o, "lse": lse, "do": given})
        spec = f'{operation} bf16 d=64 heads=4/2 blocks=128/128/2 mask="causal"'
        engine.prepare(spec, schedule=pins).run(q=q, k=k, v=v, **lists, **results)
        for name, result in results.items():
            assert result.isfinite().all(), (pins, name)
            assert name != "o" or (result - o).abs().max() < 0.02, pins


if __name__ == "__main__":
    harness.main(globals())

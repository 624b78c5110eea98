"""FlexAttention's functions: what is traced of them, and what comes out."""

import itertools
import random

from support import harness, refused
from torch_support import Setting, compare_all, dense, drawn, gradients


def flex_functions(setting):
    """Functions as users write them, of masks and of scores."""
    torch = setting.torch
    documents = torch.randint(0, 3, (150,), device=setting.device)
    slopes, half = torch.rand(12, device=setting.device), torch.tensor(0.5, device=setting.device)
    masks = (None, lambda b, h, q, k: q >= k, lambda b, h, q, k: (q >= k) & (q - k < 40) | (k == 0), lambda b, h, q, k: documents[q] == documents[k],
             lambda b, h, q, k: torch.where(h == 0, k <= q, (k > 2) ^ (q < 9)), lambda b, h, q, k: ~((q // 8 + k) % 3 == h % 2))
    scores = (None, lambda s, b, h, q, k: s + slopes[h] * (k - q), lambda s, b, h, q, k: 5 * torch.tanh(s / 5),
              lambda s, b, h, q, k: torch.where(k % 2 == 0, s, s * half), lambda s, b, h, q, k: s - torch.abs(q - k).sqrt() * 0.1 + torch.clamp(s, -1, 1),
              lambda s, b, h, q, k: s * torch.sigmoid(s) + (q >= k) * 0.3)
    return masks, scores


def test_dense_is_flex_attention():
    """What cases are compared with is what PyTorch's flex_attention gives in float64; on processors it has no gradients."""
    setting = Setting()
    torch, (masks, scores) = setting.torch, flex_functions(setting)
    import torch.nn.attention.flex_attention as pytorchs
    pytorchs._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # as it is written, and not by a kernel
    inputs = [x.double() for x in setting.tensors((2, 4, 77, 64), (2, 2, 130, 64), (2, 2, 130, 64))]
    for mask, score in itertools.product(masks, scores):
        block = pytorchs.create_block_mask(mask, None, None, 77, 130, device=setting.device) if mask else None
        functions = (lambda *x: pytorchs.flex_attention(*x, score, block, enable_gqa=True), lambda *x: dense(torch, *x, mask, score))
        found = [gradients(setting, f, inputs, 1) if setting.gpu else [f(*inputs)] for f in functions]
        for a, b in zip(*found):
            assert (a - b).abs().max() < 1e-12


def test_random_cases_of_flex_attention():
    setting = Setting("bfloat16")
    torch, (masks, scores) = setting.torch, flex_functions(setting)

    def case(seed):
        draw = random.Random(1000 + seed)
        q, k, v = drawn(setting, draw)
        mask, score = draw.randrange(len(masks)), draw.randrange(len(scores))
        return (lambda *x: setting.ours.flex_attention(*x, scores[score], masks[mask], enable_gqa=True),
                lambda *x: dense(torch, *x, masks[mask], scores[score]), (masks[mask], scores[score], q.shape[-1] ** -0.5), (q, k, v), seed,
                f"case {seed} (mask {mask}, score {score}, {tuple(q.shape)}, {tuple(k.shape)})")

    compare_all(setting, [case(seed) for seed in range(setting.cases)])


def test_block_masks():
    setting = Setting()
    torch, flex = setting.torch, setting.ours.flex_attention
    from torch.nn.attention.flex_attention import create_block_mask
    q, k, v = setting.tensors(*[(1, 2, 300, 64)] * 3)
    causal = lambda b, h, q, k: q >= k
    mask = create_block_mask(causal, None, None, 300, 300, device=setting.device)
    o, lse = flex(q, k, v, None, mask, return_lse=True)
    setting.close(o, dense(torch, *(x.double() for x in (q, k, v)), causal, None))
    assert lse.shape == (1, 2, 300) and lse.dtype == torch.float32
    refused(setting.flashjit.InvalidError, ["block_mask", "300"], flex, q[:, :, :200], k, v, None, mask)


def test_blocks_that_are_not_those_of_the_function():
    """They count, whatever the function says of the others; in full ones nobody asks it. Batch indices and heads may have one
    list, or lists of their own; lists may be unordered, and what they have outside is nothing."""
    setting = Setting()
    torch, flex = setting.torch, setting.ours.flex_attention
    from torch.nn.attention.flex_attention import BlockMask, noop_mask
    sizes, lengths = (64, 128), (300, 500)
    draw = torch.Generator(device="cpu").manual_seed(3)
    causal = lambda b, h, q, k: q + 150 >= k
    rows, columns = (-(-n // size) for n, size in zip(lengths, sizes))
    for batch, heads, function in ((1, 1, causal), (2, 4, causal), (1, 4, None), (2, 1, causal)):
        states = torch.randint(0, 3, (batch, heads, rows, columns), generator=draw).to(torch.uint8)

        def lists(state):
            chosen = states == state
            order = torch.argsort(chosen.to(torch.uint8) + torch.rand(chosen.shape, generator=draw) / 2, dim=-1, descending=True)
            return chosen.sum(-1).to(torch.int32).to(setting.device), order.to(torch.int32).to(setting.device)

        block = BlockMask.from_kv_blocks(*lists(1), *lists(2), BLOCK_SIZE=sizes, mask_mod=function, seq_lengths=lengths)
        at = states.to(setting.device)
        seen = lambda b, h, q, k: ((at[b % batch, h % heads, q // 64, k // 128] == 2) |
                                   ((at[b % batch, h % heads, q // 64, k // 128] == 1) & (function or noop_mask)(b, h, q, k)))
        inputs = setting.tensors((2, 4, 300, 64), (2, 2, 500, 64), (2, 2, 500, 64))
        compare_all(setting, [(lambda *x: flex(*x, None, block, enable_gqa=True), lambda *x: dense(torch, *x, seen, None), (seen, None, 0.125), inputs, 0,
                               f"blocks of {batch} x {heads}, {function}")])


def test_functions_that_cannot_be_traced():
    setting = Setting()
    torch, unsupported = setting.torch, setting.flashjit.UnsupportedError
    documents, wide = torch.zeros(9, dtype=torch.int32), torch.zeros(9, dtype=torch.float64)

    def decides(b, h, q, k):
        if q >= k:
            return k > 3
        return q > 3

    for says, mask in ((["flex_test.py", "if q >= k", "torch.where"], decides), ("erf", lambda b, h, q, k: torch.erf(q) > 0),
                       ("bits", lambda b, h, q, k: (q & 7.0) == 0), ("by a number of Python", lambda b, h, q, k: (q << k) == 0),
                       ("two ints", lambda b, h, q, k: q % 2.0 == 0), ("indices", lambda b, h, q, k: documents[q, k] == 0),
                       ("one of Python's", lambda b, h, q, k: documents[q:k] == 0), ("float64", lambda b, h, q, k: wide[q] > 0),
                       ("iterated", lambda b, h, q, k: max(q) > 0), ("dimensions", lambda b, h, q, k: documents == q),
                       ("cannot become an int", lambda b, h, q, k: (q / 2).int() == k), ("exponent", lambda b, h, q, k: q ** k > 3)):
        refused(unsupported, says, setting.ours.trace, mask)


def test_tracing_knows_its_tensors():
    """Also where they are made in the function, and gone when it returns."""
    setting = Setting()
    torch = setting.torch
    table = torch.arange(8.0)
    text = setting.ours.trace(score_mod=lambda s, b, h, q, k: s + (table * 2)[q] + (table * 3)[k] + table.sum() + table.mean() + table[q])
    values = [value.tolist() for name, value in text.items() if name not in ("mask", "score")]
    assert values == [(table * 2).tolist(), (table * 3).tolist(), [28.0], [3.5], table.tolist()], values


def test_flex_attention_in_a_graph():
    """torch.compile follows the functions as they are traced, so that a graph is used again for what it was made for alone."""
    setting = Setting()
    torch, flex, (masks, scores) = setting.torch, setting.ours.flex_attention, flex_functions(setting)
    inputs = setting.tensors((1, 4, 40, 64), (1, 2, 40, 64), (1, 2, 40, 64))

    def same(function, *more, fullgraph=True):
        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=fullgraph, backend="aot_eager")
        for given in more or ((),):
            for got, want in zip(gradients(setting, lambda *x: compiled(*x, *given), inputs, 1),
                                 gradients(setting, lambda *x: function(*x, *given), inputs, 1)):
                setting.close(got, want)

    for mask, score in zip(masks[:5], scores):  # Dynamo does not know ~ of a stand-in
        same(lambda q, k, v: flex(q, k, v, score, mask, enable_gqa=True))
    tables = [torch.randn(40, device=setting.device) for _ in range(3)]
    reads = lambda table: lambda s, b, h, q, k: s + table[q] * (table * 2)[k]
    same(lambda q, k, v, score: flex(q, k, v, score, enable_gqa=True), *((reads(table),) for table in tables))
    same(lambda q, k, v, table: flex(q, k, v, reads(table + 1), enable_gqa=True), *((table,) for table in tables))
    same(lambda q, k, v, cap: flex(q, k, v, lambda s, b, h, q, k: cap * torch.tanh(s / cap), enable_gqa=True), *((cap,) for cap in (3.5, 4.5, 7.0)))
    # What only an eager call can do ends the graph, or says so.
    from torch.nn.attention.flex_attention import create_block_mask
    for fullgraph in (True, False):
        block = create_block_mask(masks[1], None, None, 40, 40, device=setting.device)
        masked = lambda q, k, v: flex(q, k, v, None, block, enable_gqa=True)
        if fullgraph:
            compiled = torch.compile(masked, fullgraph=True, backend="aot_eager")
            refused(RuntimeError, "block_mask: is new", compiled, *inputs)
            masked(*inputs)
        same(masked, fullgraph=fullgraph)
    unknown = torch.compile(lambda q, k, v: flex(q, k, v, lambda s, b, h, q, k: torch.erf(s), enable_gqa=True), backend="aot_eager")
    refused(setting.flashjit.UnsupportedError, ["flex_test.py", "erf"], unknown, *inputs)


if __name__ == "__main__":
    harness.main(globals())

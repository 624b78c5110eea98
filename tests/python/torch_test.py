"""The package on PyTorch's tensors: values and gradients, torch.compile, graphs, threads. On a GPU where PyTorch sees one (bf16), else on the
processor (fp32, fewer cases)."""

import concurrent.futures
import itertools
import math
import random
import shutil
import sys
import threading

import support
from support import Skip, harness, load, refused


class Setting:
    def __init__(self, dtype=None):
        try:
            import torch
        except ImportError as error:
            raise Skip(f"no PyTorch ({error})") from None
        self.torch, self.gpu = torch, torch.cuda.is_available()
        self.flashjit, = load(device="gpu" if self.gpu else "host")
        import flashjit.torch
        self.ours = flashjit.torch
        self.device, own = ("cuda", "bfloat16") if self.gpu else ("cpu", "float32")
        self.dtype = getattr(torch, dtype or own)
        # Of the largest element: twice what rounding P or dS, and then the result, makes at most. In fp32 sums count for more.
        self.limit = 2 * torch.finfo(self.dtype).eps if self.dtype != torch.float32 else 2e-5
        self.cases = 200 if self.gpu else 24
        torch.manual_seed(1)

    def tensors(self, *shapes, grad=False):
        return [self.torch.randn(shape, device=self.device, dtype=self.dtype).requires_grad_(grad) for shape in shapes]

    def close(self, got, wanted, what=""):
        """As a share of the largest element: what is wrong is that by far more."""
        assert got.shape == wanted.shape, f"{what}: {got.shape} and not {wanted.shape}"
        if got.numel() == 0:
            return
        error = (got.double() - wanted.double()).abs().max().item() / max(1, wanted.double().abs().max().item())
        assert error < self.limit, f"{what}: {error}"

    def judge(self, got, exact, recipe, what):
        """The share that an error has of what is allowed: twice the one of the recipe, by norm and by the largest element. Where that
        is next to none, as of one key, two roundings of the result, and what fp32 leaves of numbers that cancel."""
        assert got.shape == exact.shape == recipe.shape, f"{what}: {got.shape} and not {exact.shape}"
        largest, shares = self.torch.finfo(self.dtype).eps / 2, []  # of a rounding; by norm they are about half of that
        for size, rounding in ((self.torch.linalg.vector_norm, largest / 2), (lambda x: x.abs().max(), largest)):
            allowed = 2 * max(size(recipe.double() - exact), rounding * size(exact)) + 1e-5 * size(self.torch.ones_like(exact))
            shares.append((size(got.double() - exact) / allowed).item())
        assert max(shares) <= 1, f"{what}: {shares[0]:.3g} and {shares[1]:.3g} of what is allowed, by norm and at most"
        return max(shares)


def gradient_of(setting, o, seed):
    """What comes back to o: the same numbers in every dtype that o may have."""
    drawn = setting.torch.randn(o.shape, generator=setting.torch.Generator().manual_seed(seed))
    return drawn.to(setting.dtype).to(o.device, o.dtype)


def gradients(setting, function, inputs, seed):
    """What the function gives, and the gradients of its inputs."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    o = function(*inputs)
    o.backward(gradient_of(setting, o, seed))
    return [o.detach(), *(x.grad for x in inputs)]


def drawn(setting, draw):
    """Shapes of a case [batch, heads, tokens, d], and tensors of it, some of them views of others."""
    torch = setting.torch
    kv_heads, group, d = (draw.choice(choices) for choices in (((1, 2), (1, 4), (64, 128)) if setting.gpu else ((1, 2, 3), (1, 2, 4), (8, 16, 32, 40))))
    heads, batch = kv_heads * group, draw.randint(1, 3)
    q_len, k_len = draw.randint(1, 150), draw.randint(1, 150)
    q, k, v = setting.tensors((batch, heads, q_len, d), (batch, kv_heads, k_len, d), (batch, kv_heads, k_len, d))
    if draw.random() < 0.5:  # as projections give them
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    if draw.random() < 0.2:
        wide = torch.zeros(*k.shape[:-1], d + 8, dtype=k.dtype, device=k.device)
        wide[..., :d] = k
        k = wide[..., :d]
    return q, k, v


def recipe(setting, q, k, v, mask_mod, score_mod, scale, seed):
    """What the error rule measures by: inputs of the dtype, fp32 inside, P and dS rounded before they are multiplied, results rounded."""
    torch, group = setting.torch, q.shape[1] // k.shape[1]
    rounded = lambda x: x.to(setting.dtype).float()
    narrow = lambda x: rounded(x.unflatten(1, (-1, group)).sum(2))
    q, k, v = q.float(), *(x.float().repeat_interleave(group, dim=1) for x in (k, v))
    at = positions(torch, q, k)
    s = (q @ k.transpose(2, 3) * scale).requires_grad_()
    scored = score_mod(s, *at) if score_mod else s
    p = masked_softmax(torch, scored.detach(), mask_mod, at)
    o = rounded(rounded(p) @ v)
    do = gradient_of(setting, o, seed)
    ds, = torch.autograd.grad(scored, s, p * (do @ v.transpose(2, 3) - (do * o).sum(-1, keepdim=True)))
    ds = rounded(ds) * scale
    return o, rounded(ds @ k), narrow(ds.transpose(2, 3) @ q), narrow(rounded(p).transpose(2, 3) @ do)


def compare_all(setting, cases):
    """`cases`: arguments of compare(). On a GPU most of the time goes to compiling, which threads do side by side."""
    with concurrent.futures.ThreadPoolExecutor(12 if setting.gpu else 1) as pool:
        shares = [done.result() for done in [pool.submit(compare, setting, *case) for case in cases]]
    print(f"{len(shares)} cases, at most {max(shares):.2f} of what the error rule allows")


def compare(setting, ours, theirs, rest, inputs, seed, what):
    """Values and gradients of `ours` against `theirs` in float64. `rest`: mask, score and scale, as recipe() takes them."""
    exact = gradients(setting, theirs, [x.double() for x in inputs], seed)
    known = recipe(setting, *inputs, *rest, seed)
    found = [setting.judge(*tensors, f"{what}: {name}") for name, *tensors in
             zip(("o", "dq", "dk", "dv"), gradients(setting, ours, inputs, seed), exact, known)]
    if not setting.gpu:  # what autograd does not see goes past it; on a GPU it would be one more kernel to compile
        found.append(setting.judge(ours(*inputs), exact[0], known[0], what))
    return max(found)


def test_random_cases_of_scaled_dot_product_attention():
    setting = Setting("bfloat16")
    torch, sdpa = setting.torch, setting.torch.nn.functional.scaled_dot_product_attention

    def case(seed):
        draw = random.Random(seed)
        q, k, v = drawn(setting, draw)
        kind, options, theirs = draw.choice(("none", "causal", "bool", "float")), {"enable_gqa": True}, {"enable_gqa": True}
        full = *q.shape[:3], k.shape[2]
        shape = [draw.choice((1, n)) for n in full[:2]] + [*full[2:]]
        mask_mod = score_mod = None
        if kind == "causal":
            options["is_causal"] = theirs["is_causal"] = True
            mask_mod = lambda b, h, i, j: i >= j
        elif kind == "bool":
            options["attn_mask"] = theirs["attn_mask"] = torch.rand(shape, device=q.device) < 0.7
            options["attn_mask"][..., 0] = True  # PyTorch's ways differ in rows that see nothing
            mask_mod = lambda *at: options["attn_mask"].expand(full)[at]
        elif kind == "float":
            options["attn_mask"] = torch.randn(shape, device=q.device, dtype=q.dtype)
            theirs["attn_mask"] = options["attn_mask"].double()
            score_mod = lambda s, *at: s + options["attn_mask"].expand(full)[at]
        if draw.random() < 0.3:
            options["scale"] = theirs["scale"] = 0.2
        return (lambda *x: setting.ours.scaled_dot_product_attention(*x, **options), lambda *x: sdpa(*x, **theirs),
                (mask_mod, score_mod, options.get("scale", q.shape[-1] ** -0.5)), (q, k, v), seed, f"case {seed} ({kind}, {tuple(q.shape)}, {tuple(k.shape)})")

    compare_all(setting, [case(seed) for seed in range(setting.cases)])


def positions(torch, q, k):
    """The grids b, h, q and k."""
    return [torch.arange(n, device=q.device).view([-1 if i == j else 1 for j in range(4)]) for i, n in enumerate((*q.shape[:3], k.shape[2]))]


def masked_softmax(torch, s, mask_mod, at):
    """Of rows that see nothing, 0."""
    if mask_mod is None:
        return torch.softmax(s, -1)
    seen = mask_mod(*at).expand(s.shape)
    return torch.softmax(s.masked_fill(~seen, -math.inf), -1).masked_fill(~seen, 0)


def dense(torch, q, k, v, mask_mod, score_mod):
    """Flex attention by its definition."""
    at = positions(torch, q, k)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    s = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    return masked_softmax(torch, score_mod(s, *at) if score_mod else s, mask_mod, at) @ v


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
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask
    q, k, v = setting.tensors(*[(1, 2, 300, 64)] * 3)
    causal = lambda b, h, q, k: q >= k
    mask = create_block_mask(causal, None, None, 300, 300, device=setting.device)
    o, lse = flex(q, k, v, None, mask, return_lse=True)
    setting.close(o, dense(torch, *(x.double() for x in (q, k, v)), causal, None))
    assert lse.shape == (1, 2, 300) and lse.dtype == torch.float32
    refused(setting.flashjit.InvalidError, ["block_mask", "300"], flex, q[:, :, :200], k, v, None, mask)
    fewer = BlockMask.from_kv_blocks(mask.kv_num_blocks - 1, mask.kv_indices, mask.full_kv_num_blocks * 0, mask.full_kv_indices, mask.BLOCK_SIZE, causal,
                                     seq_lengths=(300, 300))
    refused(setting.flashjit.UnsupportedError, "blocks are not those", flex, q, k, v, None, fewer)


def test_functions_that_cannot_be_traced():
    setting = Setting()
    torch, unsupported = setting.torch, setting.flashjit.UnsupportedError
    documents, wide = torch.zeros(9, dtype=torch.int32), torch.zeros(9, dtype=torch.float64)

    def decides(b, h, q, k):
        if q >= k:
            return k > 3
        return q > 3

    for says, mask in ((["torch_test.py", "if q >= k", "torch.where"], decides), ("erf", lambda b, h, q, k: torch.erf(q) > 0),
                       ("bits", lambda b, h, q, k: (q & 7) == 0), ("bits", lambda b, h, q, k: (q ^ k) == 0), ("bits", lambda b, h, q, k: ~q == 0),
                       ("two ints", lambda b, h, q, k: q % 2.0 == 0), ("indices", lambda b, h, q, k: documents[q, k] == 0),
                       ("one of Python's", lambda b, h, q, k: documents[q:k] == 0), ("float64", lambda b, h, q, k: wide[q] > 0),
                       ("iterated", lambda b, h, q, k: max(q) > 0), ("dimensions", lambda b, h, q, k: documents == q),
                       ("cannot become an int", lambda b, h, q, k: (q / 2).int() == k), ("exponent", lambda b, h, q, k: q ** k > 3)):
        refused(unsupported, says, setting.ours.trace, mask)
    q, k, v = setting.tensors(*[(1, 1, 9, 8)] * 3)
    refused(setting.flashjit.InvalidError, "an index may not read a tensor", setting.ours.flex_attention, q, k, v, None,
            lambda b, h, q, k: documents[documents[k]] == 0)


def test_tracing_knows_its_tensors():
    """Also where they are made in the function, and gone when it returns."""
    setting = Setting()
    torch = setting.torch
    table = torch.arange(8.0)
    text = setting.ours.trace(score_mod=lambda s, b, h, q, k: s + (table * 2)[q] + (table * 3)[k] + table.sum() + table.mean() + table[q])
    values = [value.tolist() for name, value in text.items() if name not in ("mask", "score")]
    assert values == [(table * 2).tolist(), (table * 3).tolist(), [28.0], [3.5], table.tolist()], values


def test_gradients_of_everything():
    setting = Setting()
    torch, attention = setting.torch, setting.flashjit.attention
    q, k, v = setting.tensors((2, 50, 4, 32), (2, 60, 2, 32), (2, 60, 2, 32))
    bias, sink, scalar = (torch.randn(shape, device=q.device) for shape in ((4, 50, 60), (4,), (1,)))

    def ours(q, k, v, bias, sink, scalar):
        o, lse = attention(q, k, v, score="s + table[h, q, k] * c[0]", mask="causal", table=bias, sink=sink, c=scalar, lse=True)
        return torch.cat((o.double(), lse.transpose(1, 2).double()[..., None].expand(*o.shape)), 1)

    def theirs(q, k, v, bias, sink, scalar):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
        s = q @ k.transpose(2, 3) / math.sqrt(32) + bias * scalar
        s = s.masked_fill(torch.ones(50, 60, dtype=torch.bool, device=q.device).triu(11), -math.inf)
        s = torch.cat((s, sink.view(1, 4, 1, 1).expand(2, 4, 50, 1)), -1)
        lse = s.logsumexp(-1)
        o = ((s[..., :-1] - lse[..., None]).exp() @ v).transpose(1, 2)
        return torch.cat((o, lse.transpose(1, 2)[..., None].expand(*o.shape)), 1)

    inputs = q, k, v, bias, sink, scalar
    wanted = gradients(setting, theirs, [x.double() for x in inputs], 1)
    for name, got, want in zip(("o", "dq", "dk", "dv", "dbias", "dsink", "dc"), gradients(setting, ours, inputs, 1), wanted):
        setting.close(got, want, name)
    # The LSE alone, and neither.
    leaf = q.clone().requires_grad_()
    attention(leaf, k, v, lse=True)[1].sum().backward()
    reference = q.double().requires_grad_()
    (reference.transpose(1, 2) @ k.double().transpose(1, 2).repeat_interleave(2, dim=1).transpose(2, 3) / math.sqrt(32)).logsumexp(-1).sum().backward()
    setting.close(leaf.grad, reference.grad)
    # Packed sequences: what lies between them has gradients of 0.
    offsets = torch.tensor([2, 20, 47], dtype=torch.int32, device=q.device)
    packed = [x[0, :50].clone().requires_grad_() for x in (q, k, v)]
    attention(*packed, layout="packed", offsets_q=offsets, offsets_k=offsets, max_q_len=27)[2:47].sum().backward()
    apart = [x[0, :50].double().transpose(0, 1).requires_grad_() for x in (q, k, v)]
    sum(dense(torch, *(x[None, :, slice(*part)] for x in apart), None, None).sum() for part in ((2, 20), (20, 47))).backward()
    for got, want in zip(packed, apart):
        setting.close(got.grad, want.grad.transpose(0, 1))


def test_dropout():
    setting = Setting()
    torch, attention, sdpa = setting.torch, setting.flashjit.attention, setting.ours.scaled_dot_product_attention
    from flashjit.calls import dropped_share
    q, k, v = setting.tensors((2, 3, 60, 64), (2, 3, 64, 64), (2, 3, 64, 64))
    state = {"spec": "dropout=0.3", "layout": "bhsd", "seed": torch.tensor([5], device=q.device), "offset": torch.tensor([6], device=q.device)}
    unit = torch.eye(64, dtype=q.dtype, device=q.device).expand(v.shape)
    kept = attention(q, torch.zeros_like(k), unit.contiguous(), **state) != 0  # all weights of a query are equal there
    assert abs(kept.double().mean().item() - (1 - dropped_share(0.3))) < 0.02

    def theirs(q, k, v):
        return torch.softmax(q @ k.transpose(2, 3) / 8, -1) * kept / (1 - dropped_share(0.3)) @ v

    wanted = gradients(setting, theirs, [x.double() for x in (q, k, v)], 1)
    for more in ({}, {"seed": 5, "offset": 6}):  # tensors, and numbers
        for got, want in zip(gradients(setting, lambda *x: attention(*x, **{**state, **more}), (q, k, v), 1), wanted):
            setting.close(got, want)
    results = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        results += [sdpa(q, k, v, dropout_p=0.3), sdpa(q, k, v, dropout_p=0.3)]
    assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[3])
    assert not torch.equal(results[0], results[1]) and not torch.equal(results[0], results[4])


def test_eight_bits():
    """Q, K and V of e4m3 with their scales; what comes out is bf16. P is rounded to e4m3, too, before it is multiplied."""
    setting = Setting("bfloat16")
    torch, eight = setting.torch, setting.torch.float8_e4m3fn
    q, k, v = (x.to(eight) for x in setting.tensors((2, 150, 4, 128), (2, 200, 2, 128), (2, 200, 2, 128)))
    scales = {f"scale_{name}": torch.rand(2, heads, device=q.device) + 0.5 for name, heads in (("q", 4), ("k", 2), ("v", 2))}
    try:
        o = setting.flashjit.attention(q, k, v, mask="causal", **scales)
    except setting.flashjit.UnsupportedError as error:
        raise Skip(str(error)) from None
    assert o.dtype == torch.bfloat16
    wide = [x.double() * scale[:, None, :, None] for x, scale in zip((q, k, v), scales.values())]
    q, k, v = (x.transpose(1, 2) for x in wide)
    k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
    s = (q @ k.transpose(2, 3) / math.sqrt(128)).masked_fill(torch.ones(150, 200, dtype=torch.bool, device=q.device).triu(51), -math.inf)
    p = (s - s.amax(-1, keepdim=True)).exp()
    exact, recipe = (parts @ v / p.sum(-1, keepdim=True) for parts in (p, p.to(eight).double()))
    print(f"{setting.judge(o.transpose(1, 2), exact, recipe, 'o'):.2f} of what the error rule allows")


def test_gradients_that_are_not_there():
    setting = Setting()
    torch, flashjit = setting.torch, setting.flashjit
    q, k, v = setting.tensors(*[(1, 8, 2, 16)] * 3, grad=True)
    lengths = torch.tensor([5], dtype=torch.int32, device=q.device)
    refused(flashjit.FlashJitError, ["requires_grad", "no backward", "torch.no_grad()"], flashjit.attention, q, k, v, k_lens=lengths)
    refused(flashjit.FlashJitError, ["requires_grad", "max_logit"], flashjit.attention, q, k, v, spec="max_logit")
    refused(flashjit.InvalidError, ["out", "torch.no_grad()"], flashjit.attention, q, k, v, out=torch.empty_like(q))
    refused(flashjit.FlashJitError, "no gradient", flashjit.attention, q, k, v, mask="w[k] > 0.0",
            w=torch.ones(8, device=q.device, requires_grad=True))
    with torch.no_grad():
        flashjit.attention(q, k, v, k_lens=lengths)
    refused(flashjit.UnsupportedError, "create_graph", torch.autograd.grad, flashjit.attention(q, k, v).sum(), q, create_graph=True)


def test_what_is_refused():
    setting = Setting()
    torch, flashjit, sdpa = setting.torch, setting.flashjit, setting.ours.scaled_dot_product_attention
    q, k, v = setting.tensors(*[(1, 4, 8, 16)] * 3)
    for error, says, function, arguments, named in (
        (flashjit.InvalidError, "contiguous", flashjit.attention, (q.transpose(2, 3).contiguous().transpose(2, 3), k, v), {}),
        (flashjit.InvalidError, ["meta", "cpu or cuda"], flashjit.attention, (q, k.to("meta"), v), {}),
        (flashjit.InvalidError, "strided", flashjit.attention, (q, k, v), {"mask": "w[k] > 0", "w": torch.ones(8).to_sparse()}),
        (flashjit.InvalidError, "negates", flashjit.attention, (q, k, v), {"score": "s + w[k]", "w": torch.zeros(8, dtype=torch.complex64).conj().imag}),
        (flashjit.InvalidError, "complex64", flashjit.attention, (q.to(torch.complex64), k, v), {}),
        (flashjit.InvalidError, "no tensor of PyTorch", flashjit.attention, (q, k.cpu().float().numpy(), v), {}),
        (flashjit.InvalidError, ["k", "requires_grad"], flashjit.attention, (q.cpu().float().numpy(), k.detach().cpu().float().clone().requires_grad_(), v), {}),
        (flashjit.InvalidError, "no tensor of PyTorch", flashjit.attention, (q, k, v), {"out": q.cpu().float().numpy()}),
        (flashjit.InvalidError, ["out", "requires_grad"], flashjit.attention, (q, k, v), {"out": torch.empty_like(q).requires_grad_()}),
        (flashjit.InvalidError, "v: is", flashjit.attention, (q, k, v.half()), {}),
        (flashjit.InvalidError, "`out`", flashjit.attention, (q, k, v), {"dq": q}),
        (flashjit.InvalidError, "dropout", sdpa, (q, k, v), {"dropout_p": 1.0}),
        (flashjit.InvalidError, "is_causal", sdpa, (q, k, v), {"is_causal": True, "attn_mask": torch.ones(8, 8, dtype=torch.bool, device=q.device)}),
        (flashjit.InvalidError, "attn_mask", sdpa, (q, k, v), {"attn_mask": torch.ones(8, 7, dtype=torch.bool, device=q.device)}),
        (flashjit.InvalidError, "attn_mask", sdpa, (q, k, v), {"attn_mask": torch.ones(8, 8, dtype=torch.int32, device=q.device)}),
        (flashjit.InvalidError, "enable_gqa", sdpa, (q, k[:, :2], v[:, :2]), {}),
        (flashjit.InvalidError, "dimensions", sdpa, (q, k[0], v), {}),
        (flashjit.InvalidError, "batch", sdpa, (q.expand(2, -1, -1, -1), k, v), {}),
        (RuntimeError, "", torch.func.vmap(lambda x: flashjit.attention(x, x, x)), (torch.randn(2, 1, 4, 2, 8),), {}),
    ):
        refused(error, says, function, *arguments, **named)
    weight, out = torch.ones_like(q).requires_grad_(), torch.ones_like(q)
    product = weight * out
    flashjit.attention(q, k, v, out=out)
    refused(RuntimeError, "inplace", product.sum().backward)
    if setting.gpu:
        refused(flashjit.InvalidError, "memory", flashjit.attention, q, k.cpu(), v)
    setting.close(sdpa(q[0], k[0], v[0]), sdpa(q, k, v)[0])
    setting.close(sdpa(q[0, 0], k[0, 0], v[0, 0]), sdpa(q, k, v)[0, 0])
    blocked = torch.ones(8, 8, dtype=torch.bool, device=q.device)
    blocked[3] = False
    assert (sdpa(q, k, v, attn_mask=blocked)[:, :, 3] == 0).all()


def test_autocast_and_subclasses():
    setting = Setting()
    torch, ours = setting.torch, setting.ours
    q, k, v = (torch.randn(1, 2, 9, 16, device=setting.device) for _ in range(3))
    with torch.autocast(setting.device, torch.bfloat16):
        assert ours.scaled_dot_product_attention(q, k, v).dtype == torch.bfloat16
    parameter = torch.nn.Parameter(q.to(setting.dtype))
    setting.flashjit.attention(parameter, k.to(setting.dtype), v.to(setting.dtype)).sum().backward()
    assert parameter.grad.shape == q.shape


def test_compile():
    setting = Setting()
    torch, flashjit = setting.torch, setting.flashjit
    bias, text = torch.randn(4, 40, 40, device=setting.device), setting.ours.trace(lambda b, h, q, k: q >= k)

    def plain(q, k, v):
        o, lse = flashjit.attention(q * 2, k, v, mask="causal", score="s + table[h, q, k] * c", lse=True, table=bias, c=0.5)
        return o + 1, lse

    def masked(q, k, v):
        return setting.ours.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True, enable_gqa=True).transpose(1, 2)

    def traced(q, k, v):
        return flashjit.attention(q, k, v, **text)

    backends = ["aot_eager"] + ["inductor"] * bool(shutil.which("g++"))  # which compiles what is around
    for function in (plain, masked, traced):
        for backend in backends:
            torch._dynamo.reset()
            compiled = torch.compile(function, fullgraph=True, backend=backend)
            for length in (40, 33, 17):  # static at first, and then dynamic
                inputs = setting.tensors((2, length, 4, 32), (2, length, 2, 32), (2, length, 2, 32))
                results = lambda f: f(*inputs)[0] if function is plain else f(*inputs)
                setting.close(results(compiled), results(function), function.__name__)
                first = lambda f: lambda *x: f(*x)[0] if function is plain else f(*x)
                for got, want in zip(gradients(setting, first(compiled), inputs, 2), gradients(setting, first(function), inputs, 2)):
                    setting.close(got, want, function.__name__)


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
    refused(setting.flashjit.UnsupportedError, ["torch_test.py", "erf"], unknown, *inputs)


def test_the_operators():
    """By PyTorch's own check: schema, fake tensors, and what torch.compile wants."""
    setting = Setting()
    torch = setting.torch
    import flashjit.torch_operator
    q, k, v = setting.tensors((1, 20, 4, 32), (1, 24, 2, 32), (1, 24, 2, 32))
    table = torch.randn(24, device=q.device)
    words = 'layout=bshd mask="causal" score="s + t[k] * c" lse=ln'
    rest = [[table], words, "t;c:fp32", [0.5], "t", 0, 0]
    tests = "test_schema", "test_faketensor", "test_aot_dispatch_dynamic"
    torch.library.opcheck(torch.ops.flashjit.attention, (q, k, v, *rest), test_utils=tests)
    o, lse = torch.ops.flashjit.attention(q, k, v, *rest)
    torch.library.opcheck(torch.ops.flashjit.attention_backward, (torch.ones_like(o), None, q, k, v, o, lse, *rest), test_utils=tests)


def test_tracing_sees_the_call():
    setting = Setting()
    torch = setting.torch
    from torch.fx.experimental.proxy_tensor import make_fx
    q, k, v = setting.tensors(*[(1, 9, 2, 16)] * 3)
    graph = make_fx(lambda q, k, v: setting.flashjit.attention(q, k, v, mask="causal"))(q, k, v)
    other = setting.tensors(*[(1, 9, 2, 16)] * 3)
    setting.close(graph(*other), setting.flashjit.attention(*other, mask="causal"))


def test_calls_that_are_almost_the_same():
    """A call is known again by what its tensors are: whatever differs from the calls before must be seen."""
    setting = Setting()
    torch, attention = setting.torch, setting.flashjit.attention
    from torch.fx.experimental.proxy_tensor import make_fx
    q, k, v = setting.tensors((2, 40, 4, 64), (2, 40, 2, 64), (2, 40, 2, 64))
    odd = setting.tensors((q.numel() + 1,))[0][1:].view(q.shape).copy_(q)
    turned = q.transpose(1, 2).contiguous().transpose(1, 2)
    wanted = dense(torch, *(x.double().transpose(1, 2) for x in (q, k, v)), lambda b, h, i, j: i >= j, None).transpose(1, 2)
    known = lambda: [setting.close(attention(q, k, v, mask="causal"), wanted) for _ in range(4)]
    for first, rows in ((q, 2), (odd, 2), (turned, 2), (q[1:], 1), (q[:, :].clone(), 2), (torch.nn.Parameter(q), 2)):
        known()
        setting.close(attention(first, k[2 - rows:], v[2 - rows:], mask="causal"), wanted[2 - rows:])
    known()
    leaf = q.clone().requires_grad_()
    attention(leaf, k, v, mask="causal").sum().backward()
    assert leaf.grad.abs().max() > 0
    known()
    with torch.no_grad():
        assert not attention(leaf, k, v, mask="causal").requires_grad
    graph = make_fx(lambda q, k, v: attention(q, k, v, mask="causal"))(q, k, v)
    setting.close(graph(-q, k, v), attention(-q, k, v, mask="causal"))
    known()
    halves = [x.half() for x in (q, k, v)]
    assert attention(*halves, mask="causal").dtype == torch.float16
    refused(setting.flashjit.InvalidError, "v: is fp16", attention, q, k, halves[2], mask="causal")


def test_threads():
    setting = Setting()
    torch, flashjit = setting.torch, setting.flashjit
    q, k, v = setting.tensors((2, 40, 4, 32), (2, 40, 2, 32), (2, 40, 2, 32))
    wanted = {c: flashjit.attention(q * c, k, v, mask="causal") for c in range(4)}
    wrong = []

    def work(c):
        stream = torch.cuda.Stream() if setting.gpu else None
        with torch.cuda.stream(stream):
            mine = q * c
            for _ in range(200):
                if not torch.equal(flashjit.attention(mine, k, v, mask="causal"), wanted[c]):
                    wrong.append(c)

    if setting.gpu:
        torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(c,)) for c in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


def test_graph_capture():
    setting = Setting()
    torch, flashjit = setting.torch, setting.flashjit
    if not setting.gpu:
        raise Skip("no GPU that PyTorch can use")
    q, k, v = setting.tensors((2, 300, 8, 128), (2, 300, 2, 128), (2, 300, 2, 128))
    step = lambda: (flashjit.attention(q, k, v, mask="causal"), flashjit.attention(q[:, -1:], k, v, mask="causal"))
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            step()
        raise AssertionError("compiled while a stream captures")
    except flashjit.FlashJitError as error:
        assert error.kind == "capture", error
    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    q.normal_()
    graph.replay()
    for got, want in zip(results, step()):
        assert torch.equal(got, want)


def test_several_devices():
    """Each has an engine; what is current does not matter, and threads on all of them at once do not either."""
    setting = Setting()
    torch, attention = setting.torch, setting.flashjit.attention
    count = torch.cuda.device_count() if setting.gpu else 0
    if count < 2:
        raise Skip("fewer than two GPUs that PyTorch can use")
    inputs = setting.tensors((2, 300, 8, 64), (2, 900, 2, 64), (2, 900, 2, 64))

    def results(device):
        q, k, v = (x.to(device) for x in inputs)
        step = lambda *x: attention(*x, mask="causal")
        decoded = step(q[:, -1:], k, v)  # with a workspace
        return [x.cpu() for x in (*gradients(setting, step, (q, k, v), 1), decoded)]

    def check(device):
        for got, want in zip(results(device), first):
            setting.close(got, want, device)

    first = results(0)
    for current in range(count):
        with torch.cuda.device(current):
            for device in range(count):
                check(device)
    with concurrent.futures.ThreadPoolExecutor(2 * count) as pool:
        list(pool.map(check, [i % count for i in range(20 * count)]))
    q, k, v = (x.to(1) for x in inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(1), torch.cuda.graph(graph):
        captured = attention(q[:, -1:], k, v, mask="causal")
    graph.replay()
    assert torch.equal(captured.cpu(), first[-1])
    refused(setting.flashjit.InvalidError, "GPU", attention, q, inputs[1], v)


def test_a_model_of_transformers():
    setting = Setting()
    torch = setting.torch
    try:
        import transformers
    except ImportError as error:
        raise Skip(f"no transformers ({error})") from None
    setting.ours.register_with_transformers()
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, max_position_embeddings=128)
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(config).to(setting.device, setting.dtype)
    tokens = torch.randint(0, 64, (2, 20), device=setting.device)
    padding = torch.ones_like(tokens)
    padding[0, :7] = 0  # on the left

    def results(implementation):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        output = model(tokens, labels=tokens)
        output.loss.backward()
        with torch.no_grad():
            masked = model(tokens, attention_mask=padding).logits[:, 7:]
            spoken = model.generate(tokens, attention_mask=padding, max_new_tokens=5, do_sample=False, output_logits=True, return_dict_in_generate=True)
        return [output.logits.detach(), *(p.grad.clone() for p in model.parameters()), masked, spoken.logits[0]]

    for ours, theirs in zip(results("jit_attention"), results("sdpa")):
        setting.close(ours, theirs)


def test_training():
    """Two layers of a transformer; the loss follows that with PyTorch's attention."""
    setting = Setting()
    sys.path.insert(0, support.source("tests", "embed"))
    import transformer_test
    model = transformer_test.Setting()
    ours = transformer_test.losses(model, lambda q, k, v: setting.flashjit.attention(q, k, v, mask="causal"))
    transformer_test.expect_same(ours, transformer_test.losses(model, transformer_test.pytorchs(model)), 0.9)


def test_examples():
    load("torch")
    import doctest

    import flashjit.flex
    import flashjit.torch
    for module in (flashjit.flex, flashjit.torch):
        found = doctest.testmod(module)
        assert found.failed == 0 and found.attempted > 0, found


if __name__ == "__main__":
    harness.main(globals())

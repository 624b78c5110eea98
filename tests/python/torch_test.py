"""The package on PyTorch's tensors: values and gradients, torch.compile, graphs, threads."""

import concurrent.futures
import math
import random
import shutil
import sys
import threading

import support
from support import Skip, find, harness, load, refused
from torch_support import Setting, compare_all, dense, drawn, gradients


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
    transposed = setting.flashjit.attention(q, k, v.permute(0, 2, 3, 1).contiguous(), mask="causal", spec="v_transposed", **scales)
    wide = [x.double() * scale[:, None, :, None] for x, scale in zip((q, k, v), scales.values())]
    q, k, v = (x.transpose(1, 2) for x in wide)
    k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
    s = (q @ k.transpose(2, 3) / math.sqrt(128)).masked_fill(torch.ones(150, 200, dtype=torch.bool, device=q.device).triu(51), -math.inf)
    p = (s - s.amax(-1, keepdim=True)).exp()
    exact, recipe = (parts @ v / p.sum(-1, keepdim=True) for parts in (p, p.to(eight).double()))
    for result, name in ((o, "o"), (transposed, "o of V^T")):
        print(f"{setting.judge(result.transpose(1, 2), exact, recipe, name):.2f} of what the error rule allows")


def test_gradients_that_are_not_there():
    setting = Setting()
    torch, flashjit = setting.torch, setting.flashjit
    q, k, v = setting.tensors(*[(1, 8, 2, 16)] * 3, grad=True)
    lengths = torch.tensor([5], dtype=torch.int32, device=q.device)
    refused(flashjit.FlashJitError, ["requires_grad", "no backward", "torch.no_grad()"], flashjit.attention, q, k, v, k_lens=lengths)
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
        (flashjit.InvalidError, "c.item()", flashjit.attention, (q, k, v), {"score": "s * c", "c": torch.tensor(2.0, device=q.device)}),
        (flashjit.InvalidError, "dropout", sdpa, (q, k, v), {"dropout_p": 1.0}),
        (flashjit.InvalidError, "is_causal", sdpa, (q, k, v), {"is_causal": True, "attn_mask": torch.ones(8, 8, dtype=torch.bool, device=q.device)}),
        (flashjit.InvalidError, "attn_mask", sdpa, (q, k, v), {"attn_mask": torch.ones(8, 7, dtype=torch.bool, device=q.device)}),
        (flashjit.InvalidError, "attn_mask", sdpa, (q, k, v), {"attn_mask": torch.ones(8, 8, dtype=torch.int32, device=q.device)}),
        (flashjit.InvalidError, "enable_gqa", sdpa, (q, k[:, :2], v[:, :2]), {}),
        (flashjit.InvalidError, "dimensions", sdpa, (q, k[0], v), {}),
        (flashjit.InvalidError, "batch", sdpa, (q.expand(2, -1, -1, -1), k.expand(3, -1, -1, -1), v), {}),
        (flashjit.InvalidError, "vmap", torch.func.vmap(lambda x: flashjit.attention(x, x, x)), (torch.randn(2, 1, 4, 2, 8),), {}),
    ):
        refused(error, says, function, *arguments, **named)
    flashjit.attention(q, k, v)
    with torch.autograd.forward_ad.dual_level():  # PyTorch asks nobody who knows nothing of tangents
        refused(flashjit.UnsupportedError, "tangent", flashjit.attention, torch.autograd.forward_ad.make_dual(q, q), k, v)
    weight, out = torch.ones_like(q).requires_grad_(), torch.ones_like(q)
    product = weight * out
    flashjit.attention(q, k, v, out=out)
    refused(RuntimeError, "inplace", product.sum().backward)
    if setting.gpu:
        refused(flashjit.InvalidError, "memory", flashjit.attention, q, k.cpu(), v)
    for _ in range(3):  # also where the same call without the negative bit is known
        refused(flashjit.InvalidError, ["out", "negates"], flashjit.attention, q, k, v, out=torch._neg_view(torch.zeros_like(q)))
        flashjit.attention(q, k, v, out=torch.zeros_like(q))
    setting.close(sdpa(q[0], k[0], v[0]), sdpa(q, k, v)[0])
    setting.close(sdpa(q[0, 0], k[0, 0], v[0, 0]), sdpa(q, k, v)[0, 0])
    blocked = torch.ones(8, 8, dtype=torch.bool, device=q.device)
    blocked[3] = False
    assert (sdpa(q, k, v, attn_mask=blocked)[:, :, 3] == 0).all()


def test_autocast():
    """As PyTorch's attention: all of q, k and v are cast, and gradients come back in the dtypes of what was given."""
    setting = Setting()
    torch, ours, attention = setting.torch, setting.ours, setting.flashjit.attention
    compiled = torch.compile(lambda q, k, v: attention(q, k, v, layout="bhsd"), fullgraph=True, backend="aot_eager")
    for dtype in (torch.bfloat16, torch.float16):
        given = [torch.randn(1, 2, 40, 16, device=setting.device).requires_grad_() for _ in range(2)]
        given.append(torch.randn(1, 2, 40, 16, device=setting.device, dtype=dtype).requires_grad_())  # as models with rope have them
        narrow = [x.detach().to(dtype).requires_grad_() for x in given]
        wanted = ours.scaled_dot_product_attention(*narrow)
        wanted.square().sum().backward()
        with torch.autocast(setting.device, dtype):
            theirs = torch.nn.functional.scaled_dot_product_attention(*given)
        for call in (lambda q, k, v: attention(q, k, v, layout="bhsd"), ours.scaled_dot_product_attention, ours.flex_attention, compiled):
            for x in given:
                x.grad = None
            with torch.autocast(setting.device, dtype):
                o = call(*given)
                with torch.no_grad():
                    assert torch.equal(call(*given), o)
            o.square().sum().backward()
            assert o.dtype == theirs.dtype == dtype and torch.equal(o, wanted)
            for x, like in zip(given, narrow):
                assert x.grad.dtype == x.dtype and torch.equal(x.grad, like.grad.to(x.dtype))


def test_subclasses():
    setting = Setting()
    torch = setting.torch
    q, k, v = (torch.randn(1, 2, 9, 16, device=setting.device) for _ in range(3))
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


def test_compile_keeps_the_types_of_numbers():
    setting = Setting()
    torch, attention = setting.torch, setting.flashjit.attention
    from flashjit.torch_operator import _named
    assert [type(value).__name__ for value in _named(";n:u8,c:fp32,i:i32", [], [3.0, 0.5, 3.0])[1].values()] == ["Byte", "float", "int"]
    q, = setting.tensors((2, 9, 2, 32))
    call = lambda q: attention(q, q, q, mask="k >= n", n=True)
    torch._dynamo.reset()
    setting.close(torch.compile(call, fullgraph=True, backend="aot_eager")(q), call(q))


def test_compile_of_a_tensor_that_is_given_twice():
    """Its gradient is that of all its places."""
    setting = Setting()
    torch, attention = setting.torch, setting.flashjit.attention

    def apart(q, k, v, left, right):
        return attention(q, k, v, score="s + left[k] * right[k]", left=left, right=right)

    tied = torch.compile(lambda q, kv, table: apart(q, kv, kv, table, table), fullgraph=True, backend="aot_eager")
    q, kv, table = setting.tensors((2, 9, 2, 32), (2, 9, 2, 32), (9,))
    got = gradients(setting, tied, (q, kv, table), 2)
    o, dq, dk, dv, dleft, dright = gradients(setting, apart, (q, kv, kv, table, table), 2)
    for mine, wanted in zip(got, (o, dq, dk + dv, dleft + dright)):
        setting.close(mine, wanted)


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
    """Also where the same call was made before, which is then known by its tensors."""
    setting = Setting()
    from torch.fx.experimental.proxy_tensor import make_fx
    q, k, v = setting.tensors(*[(1, 9, 2, 16)] * 3)
    call = lambda q, k, v: setting.flashjit.attention(q, k, v, mask="causal")
    other = setting.tensors(*[(1, 9, 2, 16)] * 3)
    wanted = [call(*other) for _ in range(4)][-1]
    setting.close(make_fx(call)(q, k, v)(*other), wanted, "make_fx")
    setting.close(setting.torch.jit.trace(call, (q, k, v))(*other), wanted, "torch.jit.trace")


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
    packed, offsets = [x.flatten(0, 1) for x in (q, k, v)], torch.tensor([0, 40, 80], dtype=torch.int32, device=q.device)
    seen = torch.tensor([40, 40], dtype=torch.int32, device=q.device)
    o = attention(*packed, layout="packed", mask="causal & k < paged[b]", paged=seen, offsets_q=offsets, offsets_k=offsets, max_q_len=40, max_k_len=40)
    setting.close(o.view(q.shape), wanted)  # a parameter that is called like a layout
    halves = [x.half() for x in (q, k, v)]
    assert attention(*halves, mask="causal").dtype == torch.float16
    refused(setting.flashjit.InvalidError, "v: is fp16", attention, q, k, halves[2], mask="causal")


def test_calls_of_many_sizes():
    """More than are kept, so that calls are made from those of other sizes; with much that differs beside, and from several threads."""
    setting = Setting()
    torch, attention = setting.torch, setting.flashjit.attention
    q, k, v = setting.tensors((2, 150, 4, 64), (2, 150, 2, 64), (2, 150, 2, 64))
    table = torch.randn(150, device=q.device)
    odd = setting.tensors((q.numel() + 1,))[0][1:].view(q.shape).copy_(q)
    out = torch.empty_like(q)

    def case(n):
        of, batch, queries = (q, odd)[n % 3 == 0], 1 + n % 2, (1, n)[n % 5 > 0]
        x = of[:batch, n - queries:n], k[:batch, :n], v[:batch, :n]
        wanted = dense(torch, *(y.double().transpose(1, 2) for y in x), lambda b, h, i, j: i + n - queries >= j, None).transpose(1, 2)
        check = lambda o: setting.close(o, wanted, f"{n} keys, {queries} queries")
        check(attention(*x, mask="causal"))
        if n % 4 == 0:
            o, lse = attention(*x, mask="causal & k < n", lse=True, n=n)
            check(o)
            assert lse.shape == (batch, 4, queries) and lse.isfinite().all(), n
        if n % 4 == 1:
            check(attention(*x, mask="causal", score="s + 0 * t[k]", t=table[:n]))
        return check, x

    for n in [*range(1, 151), *range(150, 0, -1)]:
        check, x = case(n)
        if n % 4 == 2:
            check(attention(*x, mask="causal", out=out[:x[0].shape[0], :x[0].shape[1]]))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(case, [1 + 37 * i % 150 for i in range(300)]))


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
    transformers = find("transformers")
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

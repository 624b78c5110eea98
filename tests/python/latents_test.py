"""Caches of latents whose rows are bytes (kv=latent656, kv=latent584), filled by PyTorch as engines fill them."""

from support import harness, refused
from torch_support import Setting, gradients

PAGE = 64


def largest_narrow(torch, x):
    """A tensor: by a number a GPU divides as a product with its reciprocal, which is rounded."""
    return torch.tensor(448.0, device=x.device)


def rows_of_656(torch, x):
    """The pool of x, [rows, 576], and what its rows are worth."""
    groups = x[:, :512].reshape(-1, 4, 128)
    scale = groups.abs().amax(-1, keepdim=True) / largest_narrow(torch, x)
    narrow, wide = (groups / scale).to(torch.float8_e4m3fn), x[:, 512:].bfloat16()
    parts = narrow.reshape(-1, 512), scale.reshape(-1, 4), wide
    pool = torch.cat([part.contiguous().view(torch.uint8) for part in parts], 1).view(-1, PAGE, 1, 656)
    return pool, torch.cat([(narrow.float() * scale).reshape(-1, 512).bfloat16(), wide], 1)


def rows_of_584(torch, x):
    """The same of [rows, 512]. Scales lie behind a page, and pages further apart than they need."""
    groups = x[:, :448].reshape(-1, 7, 64)
    scale = torch.exp2(torch.ceil(torch.log2(groups.abs().amax(-1, keepdim=True) / largest_narrow(torch, x))))
    narrow, wide = (groups / scale).to(torch.float8_e4m3fn), x[:, 448:].bfloat16()
    data = torch.cat([part.contiguous().view(torch.uint8) for part in (narrow.reshape(-1, 448), wide)], 1)
    exponents = torch.nn.functional.pad(scale.reshape(-1, 7).log2().add(127).to(torch.uint8), (0, 1), value=255)
    pages = x.shape[0] // PAGE
    pool = torch.full((pages, PAGE * 584 + 64), 255, dtype=torch.uint8, device=x.device)
    pool[:, :PAGE * 576] = data.view(pages, -1)
    pool[:, PAGE * 576:PAGE * 584] = exponents.view(pages, -1)
    return pool[:, :PAGE * 584].view(pages, PAGE, 1, 584), torch.cat([(narrow.float() * scale).reshape(-1, 448).bfloat16(), wide], 1)


def test_rows_of_engines():
    setting = Setting("bfloat16")
    torch = setting.torch
    engine = setting.flashjit.Engine("gpu" if setting.gpu else "host")
    table = torch.tensor([[3, 1, 5], [0, 2, 4]], dtype=torch.int32, device=setting.device)
    lengths = torch.tensor([150, 192], dtype=torch.int32, device=setting.device)
    for name, d, fill in (("latent656", 576, rows_of_656), ("latent584", 512, rows_of_584)):
        k, rows = fill(torch, torch.randn(6 * PAGE, d, device=setting.device))
        q, = setting.tensors((2, 3, 16, d))
        kernel = engine.prepare(f"fwd bf16 kv={name} d={d}/512 heads=16/1 layout=paged({PAGE}) v_in_k")
        o = torch.empty(2, 3, 16, 512, dtype=torch.bfloat16, device=setting.device)
        for pool in (k, k.view(torch.float8_e4m3fn)):
            call = {"q": q, "k": pool, "o": o, "block_table": table, "k_lens": lengths}
            kernel.run(**call)
            for b in range(2):
                keys = rows.view(6, PAGE, d)[table[b].long()].reshape(-1, d)[:lengths[b]].double()
                weights = (torch.einsum("qhd,kd->hqk", q[b].double(), keys) / d ** 0.5).softmax(-1)
                setting.close(o[b], torch.einsum("hqk,kd->qhd", weights, keys[:, :512]), name)
        refused(setting.flashjit.InvalidError, ["k.dtype", "int8", "u8"], kernel.run, **{**call, "k": k.view(torch.int8)})
        refused(setting.flashjit.InvalidError, [f"{k.shape[-1] - 16}, must be {k.shape[-1]}", "bytes of a row"], kernel.run, **{**call, "k": k[..., :-16].contiguous()})


def test_quantize_makes_rows_of_engines():
    setting = Setting("bfloat16")
    torch = setting.torch
    engine = setting.flashjit.Engine("gpu" if setting.gpu else "host")
    for name, d, fill in (("latent656", 576, rows_of_656), ("latent584", 512, rows_of_584)):
        x = torch.randn(3, PAGE, 1, d, device=setting.device).bfloat16()
        k, _ = fill(torch, x.float().view(-1, d))
        y = torch.zeros_like(k, memory_format=torch.contiguous_format)
        kernel = engine.prepare(f"quantize bf16 out={name} d={d}")
        kernel.run(x=x, y=y)
        made, wanted = y.flatten(1), k.reshape(3, PAGE * k.shape[-1]).clone()
        if name == "latent584":  # a byte of eight is to spare
            for page in (made, wanted):
                page[:, PAGE * 576:].view(3, PAGE, 8)[..., 7] = 0
        assert torch.equal(made, wanted), name
        refused(setting.flashjit.InvalidError, ["scale", "out=latent656"], kernel.run, x=x, y=y, scale=torch.ones(3, 1, device=setting.device))
        refused(setting.flashjit.InvalidError, ["y.shape", "bytes of a row"], kernel.run, x=x, y=y[..., :-16].contiguous())


def test_new_rows_turn_in_the_call_that_appends_them():
    """A cache whose keys were turned and rounded by PyTorch, and one to which a call has appended the last of them."""
    setting = Setting("bfloat16")
    torch = setting.torch
    engine = setting.flashjit.Engine("gpu" if setting.gpu else "host")
    table = torch.tensor([[3, 1, 5], [0, 2, 4]], dtype=torch.int32, device=setting.device)
    lengths = torch.tensor([150, 192], dtype=torch.int32, device=setting.device)
    new = torch.tensor([[147, 148, 149], [189, 190, 191]], device=setting.device)
    angles = torch.arange(192, device=setting.device)[:, None] * 10000.0 ** (-torch.arange(32, device=setting.device) / 32)
    cos, sin = angles.cos(), angles.sin()

    def turned(x, positions):  # [2, tokens, ..., 64]
        at = [table[positions].view(*positions.shape, *[1] * (x.dim() - 3), 32) for table in (cos, sin)]
        left, right = x.float().chunk(2, -1)
        return torch.cat([left * at[0] - right * at[1], right * at[0] + left * at[1]], -1).bfloat16()

    for name, d, fill in (("latent656", 576, rows_of_656), ("latent584", 512, rows_of_584)):
        x, q = setting.tensors((2, 192, d), (2, 3, 16, d))
        positions = torch.arange(192, device=setting.device).expand(2, 192)
        rows = torch.zeros(6 * PAGE, d, device=setting.device)
        rows.view(6, PAGE, d)[table.long()] = torch.cat([x[..., :-64], turned(x[..., -64:], positions)], -1).float().view(2, 3, PAGE, d)
        full, _ = fill(torch, rows)
        for b in range(2):
            rows.view(6, PAGE, d)[table[b, new[b] // PAGE].long(), new[b] % PAGE] = 100
        before, _ = fill(torch, rows)
        given = torch.stack([x[b, new[b]] for b in range(2)])[:, :, None]
        for words, tables in (("", {"cos": cos, "sin": sin}), (" rope_base=10000", {})):
            results = []
            for k, spec, more, queries in ((full, "", {}, torch.cat([q[..., :-64], turned(q[..., -64:], new)], -1)),
                                        (before, f" append rope=half(64) rope_from={d - 64}{words}", {"k_new": given, **tables}, q)):
                pool = torch.empty_strided(k.shape, k.stride(), dtype=k.dtype, device=k.device).copy_(k)
                kernel = engine.prepare(f"fwd bf16 kv={name} d={d}/512 heads=16/1 layout=paged({PAGE}) mask=\"causal\" v_in_k{spec}")
                o = torch.empty(2, 3, 16, 512, dtype=torch.bfloat16, device=setting.device)
                kernel.run(q=queries, k=pool, o=o, block_table=table, k_lens=lengths, **more)
                results.append(o)
            setting.close(results[1], results[0].double(), name)


def test_gradients_where_v_lies_in_k():
    """Those of a latent that K is, and V a view of, as autograd gives them of PyTorch's attention: with lists, and compiled, too."""
    setting = Setting("bfloat16")
    torch, attention = setting.torch, setting.flashjit.attention
    q, latent = setting.tensors((2, 40, 4, 72), (2, 64, 1, 72))
    index = torch.stack([torch.randperm(64, device=setting.device)[:20] for _ in range(80)]).view(2, 40, 1, 20).int()
    hidden = torch.ones(2, 40, 64, dtype=torch.bool, device=setting.device).scatter(2, index[:, :, 0].long(), False)
    later = torch.arange(64, device=setting.device) > torch.arange(24, 64, device=setting.device)[:, None]

    def plain(hides):
        def function(q, latent):
            s = torch.einsum("bqhd,bkd->bhqk", q, latent[:, :, 0]) / 72 ** 0.5
            weights = s.masked_fill(hides, -torch.inf).softmax(-1)
            return torch.einsum("bhqk,bkd->bqhd", weights, latent[:, :, 0, :40])
        return function

    def by_view(q, latent, **more):
        return attention(q, latent, latent[..., :40], spec="v_in_k", **more)

    compiled = torch.compile(by_view, backend="aot_eager")
    for what, hides, more in (("causal", later, {"mask": "causal"}), ("lists", hidden[:, None], {"key_index": index})):
        exact = gradients(setting, plain(hides), [q.double(), latent.double()], 3)
        for function in (by_view, compiled):
            for got, wanted in zip(gradients(setting, lambda q, k: function(q, k, **more), [q, latent], 3), exact):
                setting.close(got, wanted, what)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (saved.append(x), x.clone())[1], lambda x: x):  # V is then no view of K
        for got, wanted in zip(gradients(setting, lambda q, k: by_view(q, k, mask="causal"), [q, latent], 3),
                               gradients(setting, plain(later), [q.double(), latent.double()], 3)):
            setting.close(got, wanted, "hooks")
    assert saved
    o, lse = by_view(q.clone().requires_grad_(), leaf := latent.clone().requires_grad_(), mask="causal", lse=True)
    (o.sum() + lse.sum()).backward()
    assert leaf.grad.isfinite().all() and leaf.grad.abs().max() > 0
    refused(setting.flashjit.InvalidError, ["v: requires_grad", "v_in_k"], attention, q, latent, latent[..., :40].requires_grad_(),
            spec="v_in_k")


if __name__ == "__main__":
    harness.main(globals())

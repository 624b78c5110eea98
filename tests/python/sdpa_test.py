"""Arguments that PyTorch's scaled_dot_product_attention takes and kernels do not: they are copied, and explain() says so, or refused."""

import support
from support import harness, refused
from torch_support import Setting, gradients


def same_as_pytorchs(setting, inputs, what, copies=(), dtype=None, **options):
    """Values and gradients, and what explain() says of copies."""
    torch = setting.torch
    double = {name: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for name, x in options.items()}
    wanted = gradients(setting, lambda *x: torch.nn.functional.scaled_dot_product_attention(*x, **double), [x.double() for x in inputs], 1)
    found = gradients_of(setting, inputs, wanted[0].shape, **options)
    for name, got, want in zip(("o", "dq", "dk", "dv"), found, wanted):
        assert got.dtype == (dtype or inputs[0].dtype), f"{what}: {got.dtype}"
        setting.close(got, want, f"{what}: {name}")
    plan = setting.ours.explain(*inputs, **options)
    for text in copies or ["nothing is copied"]:
        assert text in plan, f"{what}: '{text}' is not in\n{plan}"


def gradients_of(setting, inputs, shape, **options):
    """Like gradients(), and with inputs that stay views."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    o = setting.ours.scaled_dot_product_attention(*leaves, **options)
    assert o.shape == shape, f"{tuple(o.shape)} and not {tuple(shape)}"
    from torch_support import gradient_of
    o.backward(gradient_of(setting, o, 1))
    return [o.detach(), *(x.grad for x in leaves)]


def test_strides_and_head_dims():
    setting = Setting()
    strided = lambda *shape: setting.tensors((*shape[:-2], shape[-1], shape[-2]))[0].transpose(-1, -2)
    same_as_pytorchs(setting, setting.tensors(*[(2, 4, 9, 16)] * 3), "as it is")
    same_as_pytorchs(setting, [strided(2, 4, 9, 16) for _ in range(3)], "columns", ["query: its last dimension is not contiguous, which copies"])
    same_as_pytorchs(setting, setting.tensors((2, 4, 9, 16), (2, 4, 7, 16)) + [strided(2, 4, 7, 16)], "columns of v", ["value: its last dimension"])
    for d, d_v in ((20, 20), (1, 1), (16, 5), (7, 16)):
        inputs = setting.tensors((2, 4, 9, d), (2, 4, 7, d), (2, 4, 7, d_v))
        copies = [f"{name}: d={n} is padded with zeros to" for name, n in (("query", d), ("key", d), ("value", d_v)) if n % 8]
        same_as_pytorchs(setting, inputs, f"d={d}/{d_v}", copies)
        same_as_pytorchs(setting, inputs, f"d={d}/{d_v}, with a scale", copies, scale=0.7)


def test_batches_and_heads():
    setting = Setting()
    torch, tensors = setting.torch, setting.tensors
    mask = torch.randn(3, 1, 9, 7, device=setting.device, dtype=setting.dtype)
    for what, shapes, options in (
        ("5 dimensions", ((2, 3, 4, 9, 16), (2, 3, 4, 7, 16)), {}),
        ("6 dimensions", ((2, 1, 3, 4, 9, 16), (2, 1, 3, 4, 7, 16)), {"is_causal": True}),
        ("5 dimensions, in groups", ((2, 3, 4, 9, 16), (2, 3, 2, 7, 16)), {"enable_gqa": True}),
        ("5 dimensions, with a mask", ((2, 3, 4, 9, 16), (2, 3, 4, 7, 16)), {"attn_mask": mask}),
        ("3 dimensions", ((4, 9, 16), (4, 7, 16)), {"attn_mask": mask[0]}),
        ("2 dimensions", ((9, 16), (7, 16)), {"attn_mask": mask[0, 0] > -1}),
    ):
        copies = ["attn_mask: 5 dimensions become 4, which copies"] if "mask" in what and what[0] == "5" else ()
        same_as_pytorchs(setting, tensors(*shapes, shapes[1]), what, copies, **options)
    for what, shapes in (
        ("one batch of keys", ((3, 4, 9, 16), (1, 4, 7, 16), (1, 4, 7, 16))),
        ("one batch of queries", ((1, 4, 9, 16), (3, 4, 7, 16), (3, 4, 7, 16))),
        ("one batch of v", ((3, 4, 9, 16), (3, 4, 7, 16), (1, 4, 7, 16))),
        ("one head of queries", ((3, 1, 9, 16), (3, 4, 7, 16), (3, 4, 7, 16))),
        ("one head of keys", ((3, 4, 9, 16), (3, 1, 7, 16), (3, 4, 7, 16))),
        ("one batch of 3 dimensions", ((4, 9, 16), (1, 7, 16), (1, 7, 16))),
        ("batches across", ((2, 1, 4, 9, 16), (1, 3, 4, 7, 16), (1, 3, 4, 7, 16))),
    ):
        same_as_pytorchs(setting, tensors(*shapes), what, [", which copies"])
    same_as_pytorchs(setting, tensors((3, 4, 9, 16), (3, 1, 7, 16), (3, 1, 7, 16)), "one head of keys and values")
    q, k, v = tensors((3, 4, 9, 16), (3, 1, 7, 16), (3, 1, 7, 16))
    same_as_pytorchs(setting, [q, k.expand(3, 4, 7, 16), v.expand(3, 4, 7, 16)], "an expanded head")
    q, k, v = tensors((3, 4, 9, 16), (1, 4, 7, 16), (1, 4, 7, 16))
    same_as_pytorchs(setting, [q, k.expand(3, 4, 7, 16), v.expand(3, 4, 7, 16)], "an expanded batch", ["key: its batch or its heads are broadcast"])


def test_calls_that_follow_others():
    """What fits is known again, and what does not is never taken for it."""
    setting = Setting()
    torch, sdpa = setting.torch, setting.ours.scaled_dot_product_attention
    theirs = lambda *x, **options: torch.nn.functional.scaled_dot_product_attention(*[t.double() for t in x], **options)
    q, k, v = setting.tensors((2, 4, 9, 16), (2, 4, 9, 16), (2, 4, 9, 16))
    turned = q.transpose(2, 3).contiguous().transpose(2, 3)
    nested = torch.nested.nested_tensor(list(q.unbind()))
    for _ in range(3):
        for x in (q, q, q, turned, q[:, :, :5], q.detach().requires_grad_()):
            for options in ({}, {"is_causal": True}, {"scale": 0.3}):
                setting.close(sdpa(x, k, v, **options), theirs(x, k, v, **options), f"{x.shape} {options}")
        for _ in range(3):
            setting.close(sdpa(q, k[:, :2], v[:, :2], enable_gqa=True), theirs(q, k[:, :2], v[:, :2], enable_gqa=True))
        refused(setting.flashjit.InvalidError, "enable_gqa", sdpa, q, k[:, :2], v[:, :2])
        refused(setting.flashjit.InvalidError, "nested", sdpa, nested, nested, nested)


def test_float64():
    setting = Setting()
    torch = setting.torch
    inputs = [torch.randn(2, 4, 9, 16, dtype=torch.float64) for _ in range(3)]
    setting.limit = 1e-5
    if setting.gpu:
        refused(setting.flashjit.UnsupportedError, ["float64", "convert"], setting.ours.scaled_dot_product_attention, *[x.cuda() for x in inputs])
        return
    setting.dtype = torch.float64
    for options in ({}, {"is_causal": True}, {"attn_mask": torch.randn(9, 9, dtype=torch.float64)}):
        same_as_pytorchs(setting, inputs, "float64", ["query: float64 is computed in float32"], torch.float64, **options)


def test_causal_biases():
    """PyTorch's subclasses of tensors for masks have memory that nobody wrote."""
    setting = Setting()
    torch, ours, attention = setting.torch, setting.ours.scaled_dot_product_attention, setting.flashjit.attention
    from torch.nn.attention.bias import causal_lower_right, causal_upper_left
    for queries, keys in ((9, 9), (5, 12), (12, 5)):
        q, k, v = setting.tensors((2, 4, queries, 16), (2, 4, keys, 16), (2, 4, keys, 16))
        seen = torch.ones(queries, keys, dtype=torch.bool, device=q.device)
        import warnings
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for bias, wanted in ((causal_upper_left(queries, keys), seen.tril()), (causal_lower_right(queries, keys), seen.tril(keys - queries))):
                for _ in range(2):
                    setting.close(ours(q, k, v, attn_mask=bias), ours(q, k, v, attn_mask=wanted), f"{queries}, {keys}")
                refused(setting.flashjit.InvalidError, ["attn_mask", f"({queries}, {keys + 1})"], ours, q, torch.cat((k, k[:, :, :1]), 2),
                        torch.cat((v, v[:, :, :1]), 2), attn_mask=bias)
                refused(setting.flashjit.InvalidError, "is_causal", ours, q, k, v, attn_mask=bias, is_causal=True)
                refused(setting.flashjit.UnsupportedError, ["w", "CausalBias"], attention, q, k, v, layout="bhsd", mask="w[q, k] != 0", w=bias)

    class Meaning(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return super().__torch_function__(function, types, args, kwargs or {})

    class Name(torch.Tensor):
        pass

    refused(setting.flashjit.UnsupportedError, ["q", "Meaning", "as_subclass"], attention, q.as_subclass(Meaning), k, v, layout="bhsd")
    named = attention(q.as_subclass(Name), k, v, layout="bhsd")
    assert type(named) is Name
    setting.close(named.as_subclass(torch.Tensor), attention(q, k, v, layout="bhsd"))


def test_tensors_without_strides_or_memory():
    setting = Setting()
    torch, flashjit, sdpa = setting.torch, setting.flashjit, setting.ours.scaled_dot_product_attention
    q, k, v = setting.tensors(*[(2, 4, 9, 16)] * 3)
    call = lambda x: flashjit.attention(x, k, v, mask="causal")
    for _ in range(3):  # with calls of the same words before
        call(q)
        for name, transform in (("grad", torch.func.grad(lambda x: call(x).sum())), ("jacrev", torch.func.jacrev(call)),
                                ("vmap", torch.func.vmap(lambda x: flashjit.attention(x[None], k, v)[0]))):
            refused(flashjit.InvalidError, ["torch.func", "torch.autograd.grad"], transform, q)
        import warnings
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nested = [torch.nested.nested_tensor(list(q[0].unbind()), layout=layout) for layout in (torch.strided, torch.jagged)]
        for x in nested:
            refused(flashjit.InvalidError, ["nested", "packed"], flashjit.attention, x, x, x, mask="causal")
            refused(flashjit.InvalidError, ["k", "nested"], flashjit.attention, q, x, x, mask="causal")
            refused(flashjit.InvalidError, ["nested", "packed"], sdpa, x, x, x)
        for name, sparse in (("query", (q.to_sparse(), k, v)), ("value", (q, k, v.to_sparse()))):
            refused(flashjit.InvalidError, [f"{name}: its layout is torch.sparse_coo", "to_dense"], sdpa, *sparse)
        meta = q.to("meta")
        refused(flashjit.InvalidError, "meta", flashjit.attention, meta, meta, meta, mask="causal")
        refused(flashjit.InvalidError, ["query", "meta"], sdpa, meta, meta, meta)
        refused(flashjit.InvalidError, "k: NoneType", flashjit.attention, q, None, v, mask="causal")


if __name__ == "__main__":
    harness.main(globals())

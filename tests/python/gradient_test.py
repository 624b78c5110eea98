"""Gradients through the package, whatever was called before, and however autograd is told what it needs."""

import concurrent.futures
import contextlib

import support
from support import Skip, harness, refused
from torch_support import Setting, gradients


def inputs_of(setting):
    return setting.tensors((2, 20, 4, 32), (2, 24, 2, 32), (2, 24, 2, 32), grad=True)


def cases(setting):
    """Calls that are remembered by their tensors, by a key with parameters, and with a gradient of a parameter."""
    attention, torch = setting.flashjit.attention, setting.torch
    table = torch.randn(24, device=setting.device)
    bias = torch.randn(24, device=setting.device, requires_grad=True)
    return (lambda *x: attention(*x, mask="causal"),
            lambda *x: attention(*x, mask="causal", lse=True)[0],
            lambda *x: attention(*x, mask="causal & k < n", score="s + t[k]", t=table, n=21),
            lambda *x: attention(*x, score="s + t[k]", t=bias))


def test_gradients_after_calls_without_them():
    """Modes without gradients leave nothing behind that a call with them takes."""
    setting = Setting()
    torch = setting.torch
    for call in cases(setting):
        q, k, v = inputs_of(setting)
        wanted = gradients(setting, call, (q, k, v), 1)
        for mode in (torch.no_grad, torch.inference_mode, contextlib.nullcontext, torch.no_grad):
            for _ in range(4):
                with mode():
                    o = call(q, k, v)
                assert o.requires_grad == (mode is contextlib.nullcontext)
                setting.close(o.detach().clone(), wanted[0])
            for got, want in zip(gradients(setting, call, (q, k, v), 1), wanted):
                setting.close(got, want)


def test_an_lse_whose_gradient_is_a_view():
    """Of one head it may be contiguous with strides of its own, as a transposed one is, and the kernel has one set for both."""
    setting = Setting()
    torch, attention = setting.torch, setting.flashjit.attention
    q, k, v = setting.tensors((2, 20, 1, 32), (2, 20, 1, 32), (2, 20, 1, 32), grad=True)
    weights = torch.randn(2, 1, 20, device=setting.device)
    given = weights.as_strided(weights.shape, (20, 1, 1))
    assert given.is_contiguous() and given.stride() != weights.stride()
    for _ in range(2):
        got = torch.autograd.grad(attention(q, k, v, mask="causal", lse=True)[1], (q, k), given)
        wanted = torch.autograd.grad(attention(q, k, v, mask="causal", lse=True)[1], (q, k), weights)
        for one, other in zip(got, wanted):
            setting.close(one, other)


def test_gradients_of_each_input_alone():
    """Which of q, k and v have gradients may differ from call to call, in each mode."""
    setting = Setting()
    torch, attention = setting.torch, setting.flashjit.attention
    leaves = inputs_of(setting)
    _, *wanted = gradients(setting, lambda *x: attention(*x, mask="causal"), leaves, 1)
    weights = gradients(setting, lambda *x: x[0] * 1, leaves[:1], 1)[1]  # what gradients() sends back
    for repeat in range(3):
        for bits in range(8):
            x = [leaf.detach().requires_grad_(bool(bits >> at & 1)) for at, leaf in enumerate(leaves)]
            for mode in (torch.no_grad, contextlib.nullcontext):
                for _ in range(3):
                    with mode():
                        o = attention(*x, mask="causal")
                    assert o.requires_grad == (mode is contextlib.nullcontext and bits > 0), (bits, mode)
            if bits:
                o.backward(weights)
            for at, leaf in enumerate(x):
                assert (leaf.grad is not None) == bool(bits >> at & 1), bits
                if leaf.grad is not None:
                    setting.close(leaf.grad, wanted[at], f"{bits}: {at}")


def test_the_lse_as_a_field_of_the_spec():
    """There are as many results with gradients as without them, traced or not."""
    setting = Setting()
    torch, attention = setting.torch, setting.flashjit.attention
    q, k, v = inputs_of(setting)
    for field, base in (("lse=ln", "ln"), ("lse=log2", "log2"), ("lse=none", False), ("numerics=fast lse=ln", "ln")):
        plain = lambda *x: attention(*x, mask="causal", spec=field)
        for call in (plain, plain, torch.compile(plain, fullgraph=True, backend="aot_eager")):
            for grad in (True, False):
                with torch.set_grad_enabled(grad):
                    got, wanted = (x if isinstance(x, tuple) else (x,) for x in (call(q, k, v), attention(q, k, v, mask="causal", lse=base)))
                assert len(got) == len(wanted) == (2 if base else 1), f"{field}: {len(got)} and {len(wanted)}"
                assert all(x.requires_grad == grad for x in got)
                for x, y in zip(got, wanted):
                    setting.close(x, y, field)
                if grad and base == "ln":
                    for x, y in zip(*(torch.autograd.grad(sum(t.float().sum() for t in results), (q, k, v)) for results in (got, wanted))):
                        setting.close(x, y, field)


def test_checkpoints():
    """They call without gradients, and again with them, at every step."""
    setting = Setting()
    from torch.utils.checkpoint import checkpoint
    for call in cases(setting):
        leaves = inputs_of(setting)
        wanted = gradients(setting, call, leaves, 1)
        for reentrant in (True, False):
            for step in range(4):
                run = lambda *x: checkpoint(lambda *y: call(*[t * 1 for t in y]), *x, use_reentrant=reentrant)
                for got, want in zip(gradients(setting, run, leaves, 1), wanted):
                    setting.close(got, want, f"use_reentrant={reentrant}, step {step}")


def test_threads_with_and_without_gradients():
    setting = Setting()
    torch = setting.torch
    call = cases(setting)[0]
    leaves = inputs_of(setting)
    wanted = gradients(setting, call, leaves, 1)

    def work(at):
        for step in range(50):
            if (at + step) % 2:
                with torch.no_grad():
                    assert not call(*leaves).requires_grad
            else:
                for got, want in zip(gradients(setting, call, leaves, 1), wanted):
                    setting.close(got, want)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))


def test_saved_tensors_that_come_back_otherwise():
    """Hooks on saved tensors may give back copies with other strides and addresses."""
    setting = Setting()
    torch = setting.torch
    for call in cases(setting):
        leaves = [x.detach().transpose(1, 2).contiguous().transpose(1, 2) for x in inputs_of(setting)]
        wanted = gradients(setting, call, leaves, 1)
        assert not leaves[0].is_contiguous()

        def moved(tensor):
            room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
            return room[1:].view(tensor.shape).copy_(tensor)

        for unpack in (lambda x: x.contiguous(), moved):
            for _ in range(3):
                with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
                    for got, want in zip(gradients(setting, call, leaves, 1), wanted):
                        setting.close(got, want)


def test_saved_tensors_that_come_back_with_elements_that_share_memory():
    """What hooks gave back once, expanded or as windows that overlap, decides about no other call; what was given so stays right."""
    setting = Setting()
    torch = setting.torch
    leaves = inputs_of(setting)

    def scaled(factor):
        return lambda *x: setting.flashjit.attention(*x, score=f"s * {factor}")

    def windows(tensor):
        return torch.randn(4096, device=tensor.device).to(tensor.dtype).as_strided(tensor.shape, (200, 1, *tensor.stride()[2:]))

    for factor, unpack in enumerate((lambda x: x[:1].expand_as(x), windows, lambda x: x[:, :1].expand_as(x))):
        wanted = gradients(setting, scaled(f"(1.5 + {factor})"), leaves, 1)  # the same numbers in other words, to another call
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
            o = scaled(1.5 + factor)(*leaves)
        torch.autograd.grad(o.sum(), leaves)
        for _ in range(3):
            for got, want in zip(gradients(setting, scaled(1.5 + factor), leaves, 1), wanted):
                setting.close(got, want)

    q, k, v = leaves
    expanded = q, *(x.detach()[:1].expand_as(x).requires_grad_() for x in (k, v))
    dense = q, *(x.detach().clone().requires_grad_() for x in expanded[1:])
    wanted = torch.autograd.grad(scaled("(5.5)")(*dense).sum(), dense)
    for unpack in (lambda x: x, lambda x: x.contiguous(), lambda x: x):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
            for got, want in zip(torch.autograd.grad(scaled(5.5)(*expanded).sum(), expanded), wanted):
                setting.close(got, want)


def test_saved_tensors_that_come_back_as_others():
    """Of another dtype, size or device: refused by name, whether such gradients were made before or not."""
    setting = Setting()
    torch, flashjit = setting.torch, setting.flashjit
    other = torch.float16 if setting.dtype != torch.float16 else torch.bfloat16
    queries, keys = (lambda x: x.dim() == 4 and x.shape[1] == 20), (lambda x: x.dim() == 4 and x.shape[1] == 24)
    changes = (("q", queries, lambda x: x.to(other)), ("k", keys, lambda x: x[:, :10].clone()), ("k", keys, lambda x: x[:, :, :1].clone()),
               ("lse", lambda x: x.dim() == 3, lambda x: x.double()), ("lse", lambda x: x.dim() == 3, lambda x: x[..., None]),
               ("q", queries, lambda x: x.to("meta")))
    for call in cases(setting):
        leaves = inputs_of(setting)
        for _ in range(2):
            for name, concerned, change in changes:
                with torch.autograd.graph.saved_tensors_hooks(lambda x: change(x) if concerned(x) else x, lambda x: x):
                    o = call(*leaves)
                refused(flashjit.InvalidError, [f"{name}: ", "hook", "in the backward"], o.sum().backward)
            gradients(setting, call, leaves, 1)
    table = torch.randn(24, device=setting.device)
    for _ in range(2):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x[:5].clone() if x.dim() == 1 else x, lambda x: x):
            o = flashjit.attention(*leaves, score="s + t[k]", t=table)
        refused(flashjit.InvalidError, ["t: ", "hook"], o.sum().backward)
        gradients(setting, lambda *x: flashjit.attention(*x, score="s + t[k]", t=table), leaves, 1)


def test_gradients_of_results_that_are_views():
    """The gradient of O is expanded, transposed or misaligned at times, and the LSE may have a gradient or none."""
    setting = Setting()
    torch, attention = setting.torch, setting.flashjit.attention
    leaves = inputs_of(setting)
    for back in (lambda o: torch.ones((), dtype=o.dtype, device=o.device).expand(o.shape),
                 lambda o: torch.linspace(0, 1, o.numel(), dtype=o.dtype, device=o.device).view(o.transpose(1, 2).shape).transpose(1, 2),
                 lambda o: torch.linspace(0, 1, o.numel() + 1, dtype=o.dtype, device=o.device)[1:].view(o.shape)):
        for lse in (False, True, False):
            results = []
            for copied in (False, True):
                o = attention(*leaves, mask="causal", lse=lse)
                given = [back(o[0] if lse else o)]
                given = [x.contiguous().clone() if copied else x for x in given]
                if lse:
                    given.append(torch.ones_like(o[1]))
                results.append(torch.autograd.grad(o if lse else [o], leaves, given))
            for got, want in zip(*results):
                setting.close(got, want)


def test_gradients_of_results_that_are_negated_views():
    """A sign that PyTorch keeps beside the memory is one of the gradient, whether such gradients were made before or not."""
    setting = Setting()
    torch, attention = setting.torch, setting.flashjit.attention
    for width in (32, 64):
        leaves = setting.tensors(*[(2, 20, 2, width)] * 3, grad=True)
        for _ in range(2):
            for lse in (False, True):
                results = []
                for sign in (torch._neg_view, torch.neg):
                    o = attention(*leaves, mask="causal", lse=lse)
                    given = [sign(torch.ones_like(x)) for x in (o if lse else [o])]
                    results.append(torch.autograd.grad(o if lse else [o], leaves, given))
                for got, want in zip(*results):
                    setting.close(got, want)


def test_second_derivatives_are_refused():
    setting = Setting()
    torch, attention = setting.torch, setting.flashjit.attention
    leaves = inputs_of(setting)
    for _ in range(3):
        o = attention(*leaves, mask="causal")
        refused(setting.flashjit.UnsupportedError, "create_graph", torch.autograd.grad, o.sum(), leaves, create_graph=True)


def test_batches_of_gradients_are_refused():
    setting = Setting()
    torch, attention = setting.torch, setting.flashjit.attention
    leaves = inputs_of(setting)
    for call in (lambda: attention(*leaves), lambda: attention(*leaves, lse=True)[1]):
        for _ in range(3):  # also where such gradients are known
            o = call()
            refused(setting.flashjit.InvalidError, ["is a batch of gradients", "torch.autograd.grad"], torch.autograd.grad, o, leaves,
                    torch.ones(3, *o.shape, dtype=o.dtype, device=o.device), is_grads_batched=True)
            torch.autograd.grad(call().sum(), leaves)


def test_kernels_and_autograd():
    """It learns of what a Kernel writes, and a Kernel takes nothing that should have gradients."""
    setting = Setting()
    torch, flashjit = setting.torch, setting.flashjit
    q, k, v = setting.tensors(*[(1, 16, 1, 64)] * 3)
    engine, word = flashjit.Engine("gpu" if setting.gpu else "host"), "bf16" if setting.gpu else "fp32"
    kernel = engine.prepare(f"fwd {word} d=64 heads=1 append lse=ln")
    weight = torch.ones_like(q).requires_grad_()
    given = {"q": q, "k": k, "v": v, "k_new": q, "v_new": q, "o": torch.empty_like(q), "lse": torch.empty(1, 1, 16, device=q.device)}
    launch = kernel.bind(given)
    for call in (launch, launch, lambda: kernel.run(**given)):
        kept = {name: (x * weight.new_ones(x.shape, dtype=x.dtype).requires_grad_()).sum() for name, x in given.items()}
        call()
        for name, product in kept.items():
            if name in ("k", "v", "o", "lse"):
                refused(RuntimeError, "inplace", product.backward)
            else:
                product.backward()
    for name in ("q", "k", "o"):
        leaf = {**given, name: given[name].clone().requires_grad_()}
        refused(flashjit.InvalidError, [f"{name}: has requires_grad", "flashjit.attention", "no_grad"], kernel.run, **leaf)
        with torch.no_grad():
            kernel.run(**leaf)
    with torch.inference_mode():
        kernel.run(**{**given, "o": torch.empty_like(q)})
    if not setting.gpu:
        out = torch.ones_like(q)
        product = (out * weight).sum()
        flashjit.attention(q.numpy(), k, v, out=out)
        refused(RuntimeError, "inplace", product.backward)
        refused(flashjit.InvalidError, "out: has requires_grad", flashjit.attention, q.numpy(), k, v, out=torch.ones_like(q).requires_grad_())


def test_a_graph_makes_other_lists_of_tiles():
    """What a mask reads is looked at by launches of the graph, so that a replay skips what its tensors hide then."""
    setting = Setting()
    torch, flashjit = setting.torch, setting.flashjit
    if not setting.gpu:
        raise Skip("no GPU that PyTorch can use")
    q, k, v, given = (x.requires_grad_() for x in setting.tensors(*[(2, 1500, 4, 64)] * 4))
    doc = torch.zeros(2, 1500, dtype=torch.int32, device=setting.device)

    def step():
        o = flashjit.attention(q, k, v, mask="document(doc) & causal", doc=doc)
        return o, *torch.autograd.grad(o, (q, k, v), given.detach())

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    for documents in (1, 7, 40, 1500):
        doc.copy_(torch.arange(1500, device=setting.device) * documents // 1500)
        graph.replay()
        at = torch.arange(1500, device=setting.device)
        seen = (doc[0, :, None] == doc[0]) & (at[:, None] >= at)
        wide = [x.detach().transpose(1, 2).double().requires_grad_() for x in (q, k, v)]
        o = torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=seen)
        wanted = o, *torch.autograd.grad(o, wide, given.detach().transpose(1, 2).double())
        for got, want in zip(results, wanted):
            want = want.transpose(1, 2)
            assert (got - want).abs().max() < 0.02 * max(1, want.abs().max().item()), documents


def test_rows_behind_the_last_sequence_spoil_no_gradient():
    """Nobody writes them: memory that has been used before is taken for O."""
    setting = Setting()
    torch, attention = setting.torch, setting.flashjit.attention
    offsets = torch.tensor([0, 60, 100], dtype=torch.int32, device=setting.device)
    layer = torch.nn.Linear(32, 8, device=setting.device, dtype=setting.tensors((1,))[0].dtype)
    for _ in range(3):
        q, k, v = setting.tensors((140, 4, 32), (140, 4, 32), (140, 4, 32), grad=True)
        used = [torch.full((140, 4, 32), float("nan"), device=setting.device, dtype=q.dtype) for _ in range(4)]
        del used
        o = attention(q, k, v, layout="packed", mask="causal", offsets_q=offsets, offsets_k=offsets, max_q_len=60, max_k_len=60)
        layer(o)[:100].sum().backward()
        assert not o[100:].any() and layer.weight.grad.isfinite().all() and all(x.grad.isfinite().all() for x in (q, k, v))


if __name__ == "__main__":
    harness.main(globals())

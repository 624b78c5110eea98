"""How steps of flashjit.distributed are launched: what goes on from earlier steps, and which launches leave SMs to an exchange."""

from distributed_support import close, processes, reference
from support import find, harness, refused


def both(torch, tokens, rank, ranks, mask="causal", sees=lambda b, h, q, k: k <= q, score=None, **words):
    """Compares O and gradients of this rank's share with float64."""
    import flashjit.distributed as fd
    torch.manual_seed(9)
    inputs = torch.randn(2, tokens, 4, 16), *torch.randn(2, 2, tokens, 2, 16)
    do, own = torch.randn(inputs[0].shape), [fd.shard(x, None, words["order"]).requires_grad_() for x in inputs]
    wide = [x.double().requires_grad_() for x in inputs]
    exact = reference(*wide, sees, score and (lambda s, b, h, q, k: s * words["w"].double().detach()[h]))[0]
    exact.backward(do.double())
    o = fd.attention(*own, mask=mask, score=score, **words)
    o.backward(fd.shard(do, None, words["order"]))
    for name, got, want in (("o", o, exact), *zip(("dq", "dk", "dv"), (x.grad for x in own), (x.grad for x in wide))):
        close(got.detach(), fd.shard(want.detach(), None, words["order"]), 3e-5, f"{name} of {words} on rank {rank} of {ranks}")


class Watch:
    """Counts merges, and keeps specs and limits of launches. `refuses`: no spec with accumulate is taken."""

    def __init__(self, refuses=False, limits=False):
        from flashjit import calls
        from flashjit.capi import InvalidError
        from flashjit.distributed import call, launches, parts
        from flashjit.engine import Kernel
        self.merges, self.launched, self.asked, self.refuses = 0, [], [], refuses
        merge, prepare, bind, limited = parts.merge, calls.prepare, Kernel.bind, []
        launches._kernels.clear()
        launches._refused.clear()

        def merging(*tensors):
            self.merges += 1
            merge(*tensors)

        def preparing(device, spec, stream):
            self.asked.append(spec)
            if self.refuses and "accumulate" in spec.split():
                raise InvalidError("accumulate: no")
            return prepare(device, spec, stream)

        def binding(kernel, values, *, sms=0, **more):
            spec = kernel.facts["spec"]
            if sms and limits == "refused":
                limited.append(spec)
                raise InvalidError(f"sms: {sms}, and this loop has a block for each tile")
            made = bind(kernel, values, **more)
            made.watched = spec, sms
            return made

        def launching(ready, *tensors):
            self.launched.append(ready.launch.watched)
            return run(ready, *tensors)

        parts.merge, calls.prepare, Kernel.bind, self.limited = merging, preparing, binding, limited
        run, launches._Ready.__call__ = launches._Ready.__call__, launching
        if limits:
            call.sms_beside_exchanges = lambda sms, device: 100 if sms is None else sms

    def take(self, operation):
        """Whether launches go on, and their limits, since the last time."""
        taken = [("accumulate" in spec.split(), sms) for spec, sms in self.launched if spec.startswith(operation)]
        self.launched = [one for one in self.launched if not one[0].startswith(operation)]
        return taken


def going_on(rank, ranks):
    torch = find("torch")
    watch = Watch()
    for order in ("zigzag", "contiguous", "striped"):
        both(torch, 16 * ranks, rank, ranks, order=order, how="ring")
        for operation in ("fwd", "bwd"):
            calls = [goes_on for goes_on, _ in watch.take(operation)]
            # Our own keys come first, and all of our queries see some; of contiguous shares others see the earlier ones alone.
            assert calls == [False] + [True] * (len(calls) - 1) and len(calls) >= (rank + 1 if order == "contiguous" else ranks), (order, operation, calls)
    assert watch.merges == 0
    # Gradients of weights are written by each call, so that the backward adds up outside; the forward has none.
    both(torch, 16 * ranks, rank, ranks, order="striped", how="ring", score="s * w[h]", w=torch.tensor([1.0, 0.5, 2.0, 1.0], requires_grad=True))
    assert [goes_on for goes_on, _ in watch.take("fwd")] == [False] + [True] * (ranks - 1)
    assert [goes_on for goes_on, _ in watch.take("bwd")] == [False] * ranks
    # One query has kernels that split its keys, which go on, too.
    both(torch, ranks, rank, ranks, order="striped", how="ring", mask=None, sees=None)
    assert [goes_on for goes_on, _ in watch.take("fwd")] == [False] + [True] * (ranks - 1) and watch.merges == 0
    assert len(watch.asked) == len(set(watch.asked)), "each kernel is asked for once"


def test_steps_go_on_from_each_other():
    for ranks in (2, 3):
        processes(ranks, going_on, ranks)


def without(rank, ranks):
    torch = find("torch")
    watch = Watch(refuses=True)
    for order in ("zigzag", "contiguous", "striped"):
        for _ in range(2):
            both(torch, 16 * ranks, rank, ranks, order=order, how="ring")
    assert not any(goes_on for goes_on, _ in watch.take("fwd") + watch.take("bwd")) and watch.merges >= 2 * 2 * (ranks - 1)
    assert len(watch.asked) == len(set(watch.asked)), "what is refused is remembered"


def test_specs_that_do_not_go_on_are_merged():
    processes(2, without, 2)


def limits(rank, ranks, how, fwd, bwd):
    torch = find("torch")
    watch = Watch(limits=True)
    for words, limit in (({}, 100), ({"sms": 0}, 0), ({"sms": 30}, 30)):
        both(torch, 16 * ranks, rank, ranks, order="striped", how=how, **words)
        for operation, beside in (("fwd", fwd), ("bwd", bwd)):
            found = [sms for _, sms in watch.take(operation)]
            assert found == [limit * is_beside for is_beside in beside], (how, words, operation, found)


def test_launches_beside_an_exchange_leave_sms():
    # Behind the last step's launch nothing comes in the forward; in the backward gradients of the step before are on their way home.
    processes(3, limits, 3, "ring", [1, 1, 0], [1, 1, 1])
    processes(2, limits, 2, "ring", [1, 0], [1, 0])
    # There are two KV heads, and so two pieces.
    processes(2, limits, 2, "gather", [1, 0], [1, 1])


def unlimited(rank, ranks):
    torch = find("torch")
    watch = Watch(limits="refused")
    for _ in range(2):
        both(torch, 16 * ranks, rank, ranks, order="striped", how="ring")
    assert watch.limited and len(watch.limited) == len(set(watch.limited)), "each kernel is tried once"


def test_kernels_that_cannot_be_limited_take_all():
    processes(3, unlimited, 3)


def dropping(rank, ranks):
    """Against one process that has all: which weights are dropped is a matter of the seed and of where they stand."""
    torch = find("torch")
    import flashjit
    import flashjit.distributed as fd
    torch.manual_seed(3)
    tokens, numbers = 64 * ranks, {"spec": "dropout=0.25", "seed": 11, "offset": 2**40 + 5}
    inputs = torch.randn(2, tokens, 4, 16), *torch.randn(2, 2, tokens, 2, 16)
    do = torch.randn(inputs[0].shape)
    for mask in (None, "causal", "window(70, 0)"):
        wide = [x.clone().requires_grad_() for x in inputs]
        exact = flashjit.attention(*wide, mask=mask, **numbers)
        exact.backward(do)
        plain = flashjit.attention(*inputs, mask=mask)
        assert (plain - exact).abs().max() > 0.1, "something is dropped"
        for how, order in (("ring", "zigzag"), ("ring", "contiguous"), ("gather", "zigzag"), ("auto", "contiguous")):
            own = [fd.shard(x, None, order).requires_grad_() for x in inputs]
            words = numbers if how == "ring" else numbers | {"seed": torch.tensor([11])}
            o = fd.attention(*own, mask=mask, how=how, order=order, **words)
            o.backward(fd.shard(do, None, order))
            for name, got, want in (("o", o, exact), *zip(("dq", "dk", "dv"), (x.grad for x in own), (x.grad for x in wide))):
                close(got.detach(), fd.shard(want.detach(), None, order).double(), 3e-5, f"{name} of {mask}, {how}, {order} on rank {rank} of {ranks}")
    refused(flashjit.UnsupportedError, "divides heads", fd.attention, *own, how="ulysses", order="zigzag", **numbers)
    refused(flashjit.UnsupportedError, "32 neighbours", fd.attention, *own, how="ring", order="striped", **numbers)


def test_dropout_is_that_of_the_whole_sequence():
    for ranks in (2, 3):
        processes(ranks, dropping, ranks)


if __name__ == "__main__":
    harness.main(globals())

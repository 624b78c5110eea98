"""A transformer of two layers in PyTorch is trained, with attention by us through the C API and with PyTorch's own: the losses
of both are the same. On a GPU where PyTorch sees one, else on the processor, with fewer steps."""

import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import harness
from harness import Skip, find, source

LAYERS, HEADS, KV_HEADS, D, WIDTH, WORDS, BATCH = 2, 4, 2, 64, 256, 64, 4


class Setting:
    """Where it runs, and how much of it."""

    def __init__(self):
        torch = find("torch")
        sys.path.insert(0, source("runtime", "python"))
        from flashjit import Engine, FlashJitError
        from flashjit.calls import dropped_share
        from flashjit.capi import Library
        self.dropped_share, self.torch, self.on_gpu = dropped_share, torch, torch.cuda.is_available()
        self.device = "cuda" if self.on_gpu else "cpu"
        self.tokens, self.steps = (256, 100) if self.on_gpu else (64, 12)
        torch.set_num_threads(1)  # of tensors as small as these, threads wait for each other most of the time
        torch.zeros(1, device=self.device)  # the primary context exists from here on
        try:  # with sanitizers this Python cannot load it
            library = Library(os.path.join(harness.ARGS.build, "lib", "libflashjit.so"))
            self.engine = Engine("gpu" if self.on_gpu else "host", library=library)
        except FlashJitError as error:
            raise Skip(str(error)) from None

    @property
    def stream(self):
        return self.torch.cuda.current_stream().cuda_stream if self.on_gpu else None

    def sentences(self):
        """[batch, tokens + 1]: each word follows from the one before, but for one in eight."""
        torch = self.torch
        generator = torch.Generator().manual_seed(1)
        follows = torch.randperm(WORDS, generator=generator)
        words = torch.randint(WORDS, (BATCH, self.tokens + 1), generator=generator)
        for t in range(1, self.tokens + 1):
            kept = torch.rand(BATCH, generator=generator) < 7 / 8
            words[:, t] = torch.where(kept, follows[words[:, t - 1]], words[:, t])
        return words.to(self.device)


class Ours:
    """Attention of bf16 tensors [batch, tokens, heads, d] as autograd takes it; with `dropout` other weights in every call."""

    def __init__(self, setting, dropout):
        torch, rest = setting.torch, f' bf16 d={D} heads={HEADS}/{KV_HEADS} mask="causal" lse=ln'
        if dropout:
            rest += f" dropout={dropout}"
        forward, backward = (setting.engine.prepare(operation + rest) for operation in ("fwd", "bwd"))
        self.calls = 0

        def random_state():
            self.calls += 1
            return {"seed": torch.tensor([7], device=setting.device), "offset": torch.tensor([self.calls], device=setting.device)} if dropout else {}

        class Attention(torch.autograd.Function):
            @staticmethod
            def forward(context, q, k, v):
                q, k, v = (tensor.contiguous() for tensor in (q, k, v))
                state = random_state()
                o = torch.full_like(q, math.nan)
                lse = torch.full((len(q), HEADS, q.shape[1]), math.nan, device=q.device)
                forward.run(q=q, k=k, v=v, o=o, lse=lse, **state, stream=setting.stream)
                context.save_for_backward(q, k, v, o, lse, *state.values())
                context.names = list(state)
                return o

            @staticmethod
            def backward(context, do):
                q, k, v, o, lse, *state = context.saved_tensors
                gradients = [torch.full_like(tensor, math.nan) for tensor in (q, k, v)]
                operands = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "do": do.contiguous(), **dict(zip(("dq", "dk", "dv"), gradients))}
                backward.run(**operands, **dict(zip(context.names, state)), stream=setting.stream)
                return tuple(gradients)

        self.attend = Attention.apply


def pytorchs(setting):
    functional = setting.torch.nn.functional

    def attend(q, k, v):
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)

    return attend


class Masked:
    """Plain attention with the weights dropped that ours drops. Of a call it sees them in what comes out of K of zeros, where all
    weights of a query are equal, and V, rows of a unit matrix at some keys and 0 at the others."""

    def __init__(self, setting, dropout):
        self.torch, self.dropped, self.ours = setting.torch, setting.dropped_share(dropout), Ours(setting, dropout)

    def kept(self, q, v):
        torch, parts, call = self.torch, [], self.ours.calls
        with torch.no_grad():
            for first in range(0, q.shape[1], D):
                unit = torch.zeros_like(v)
                unit[:, first:first + D] = torch.eye(D, device=v.device)[:, None]
                self.ours.calls = call  # the same in all parts
                parts.append(self.ours.attend(q, torch.zeros_like(v), unit).transpose(1, 2) != 0)
        return torch.cat(parts, dim=-1)

    def attend(self, q, k, v):
        torch, group = self.torch, HEADS // KV_HEADS
        kept = self.kept(q, v)
        q, k, v = (tensor.transpose(1, 2).float() for tensor in (q, k, v))
        k, v = (tensor.repeat_interleave(group, dim=1) for tensor in (k, v))
        hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
        p = torch.softmax((q @ k.transpose(2, 3) / math.sqrt(D)).masked_fill(hidden, -math.inf), dim=-1)
        return (p * kept / (1 - self.dropped) @ v).transpose(1, 2).to(torch.bfloat16)


def transformer(setting, attend):
    """Weights are fp32, and attention is of bf16. So are the other products on a GPU; processors without instructions for them take a minute."""
    nn = setting.torch.nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * D, bias=False)
            self.out = nn.Linear(HEADS * D, WIDTH, bias=False)
            self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

        def forward(self, x):
            rows = self.qkv(self.before(x)).to(setting.torch.bfloat16).unflatten(-1, (-1, D))
            o = attend(*rows.split((HEADS, KV_HEADS, KV_HEADS), dim=2))
            x = x + self.out(o.flatten(2).to(x.dtype))
            return x + self.mlp(self.between(x))

    setting.torch.manual_seed(2)
    words, places = nn.Embedding(WORDS, WIDTH), nn.Embedding(setting.tokens, WIDTH)

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = words, places
            self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
            self.last = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False))

        def forward(self, text):
            return self.last(self.layers(self.words(text) + self.places.weight))

    return Transformer().to(setting.device)


def losses(setting, attend):
    torch = setting.torch
    model, text = transformer(setting, attend), setting.sentences()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(setting.steps):
        with torch.autocast(setting.device, dtype=torch.bfloat16, enabled=setting.on_gpu):
            logits = model(text[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def expect_same(ours, theirs, falls):
    differences = [abs(a - b) for a, b in zip(ours, theirs)]
    print(f"{len(ours)} steps, loss from {ours[0]:.4f} to {ours[-1]:.4f}, largest difference {max(differences):.2g}")
    assert max(differences) < 1e-3, f"step {differences.index(max(differences))}: {max(differences)}\n{ours}\n{theirs}"
    assert ours[-1] < falls * ours[0], ours


def test_two_layers_with_our_gradients():
    setting = Setting()
    expect_same(losses(setting, Ours(setting, 0).attend), losses(setting, pytorchs(setting)), 0.9)


def test_two_layers_with_dropout():
    setting = Setting()
    expect_same(losses(setting, Ours(setting, 0.1).attend), losses(setting, Masked(setting, 0.1).attend), 0.9)


if __name__ == "__main__":
    harness.main(globals())

"""What the tests with PyTorch share: where they run, and how results are judged. On a GPU where PyTorch sees one (bf16), else on the
processor (fp32, fewer cases)."""

import concurrent.futures
import math

from support import find, load


class Setting:
    def __init__(self, dtype=None):
        torch = find("torch")
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

"""This module has the tensors of a row of gradients, our launch on them, PyTorch's launches for them, and the errors of
gradients."""
import contextlib
import math

import torch
import torch.nn.functional as F

from compare.problem import Problem, Reference

NAMES = ("dq", "dk", "dv")


class GradientProblem(Problem):
    """This has what a forward call of ours has left. Results are dq, dk and dv one after the other, as one tensor."""

    def __init__(self, row, device, engine):
        super().__init__(row, device, engine)
        shape = (row.heads, sum(row.lengths)) if row.packed else (row.b, row.heads, row.queries or row.s)
        self.lse = torch.full(shape, math.nan, device=device)
        self.o = super().launch_of(engine.prepare(row.spec_of("fwd") + " lse=ln"), lse=self.lse)()
        self.do = torch.randn_like(self.o)
        self.of_params = {"d" + row.grads: torch.full_like(self.params[row.grads], math.nan, dtype=torch.float32)} if row.grads else {}

    def launch_of(self, kernel, stream=None, shared=True):
        sizes = [tensor.numel() for tensor in (self.q, self.k, self.v)]
        out = torch.full((sum(sizes),), math.nan, device=self.q.device, dtype=self.q.dtype)
        results = {name: part.view_as(of) for name, part, of in zip(NAMES, out.split(sizes), (self.q, self.k, self.v))}
        operands = {"q": self.q, "k": self.k, "v": self.v, "o": self.o, "do": self.do, "lse": self.lse, **results, **self.of_params}
        if self.row.packed:
            operands.update(offsets_q=self.offsets, offsets_k=self.offsets)
        handle = (stream or torch.cuda.current_stream()).cuda_stream if self.q.is_cuda else None
        longest = self.row.s if self.row.packed else 0
        launch = kernel.bind({**operands, **self.params}, max_q_len=longest, max_k_len=longest, stream=handle)

        def launch_into():
            launch()
            return out

        return launch_into


def backward_of(problem, backend=None):
    """Returns what autograd launches for a call that has been made."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    inputs = [tensor.detach().requires_grad_() for tensor in (problem.q, problem.k, problem.v)]
    with torch.enable_grad(), sdpa_kernel([getattr(SDPBackend, backend)]) if backend else contextlib.nullcontext():
        grouped = {"enable_gqa": True} if problem.row.heads != problem.row.kv_heads else {}
        o = F.scaled_dot_product_attention(*inputs, is_causal=problem.row.mask == "causal", **grouped)

    def launch():
        return torch.cat([gradient.flatten() for gradient in gradients()])

    def gradients():
        return torch.autograd.grad(o, inputs, problem.do, retain_graph=True)

    launch.timed = gradients  # It does not put them together.
    return launch


class GradientReference(Reference):
    """These are float64 gradients of some KV heads and the query heads that they serve, from q, k, v and dO alone.
    `limit` is twice the largest error of the recipe on them: the same input type, fp32 inside, O, P and dS rounded
    to the input type before their products, and the results rounded. The recipe of a table has the rounding of O, by
    which each dS is off, mostly where few keys are seen."""

    def __init__(self, problem, seed, heads=4):
        self.problem, self.samples, self.limit = problem, [], 0.0
        row = problem.row
        generator = torch.Generator().manual_seed(seed)
        if row.grads:  # This is a gradient of a table that all sequences share: one head of all of them.
            pairs = [(batch, seed % row.kv_heads) for batch in range(row.b)]
        else:
            count = max(1, heads * row.kv_heads // row.heads)
            pairs = [divmod(pair, row.kv_heads) for pair in torch.randperm(row.b * row.kv_heads, generator=generator)[:count].tolist()]
        self.of_table = {torch.float64: {}, torch.float32: {}}
        for batch, hk in pairs:
            exact, recipe = (self.gradients(batch, hk, real) for real in (torch.float64, torch.float32))
            self.samples.append((batch, hk, exact))
            self.allow((a.to(problem.q.dtype), b) for a, b in zip(recipe, exact))
        self.allow((self.of_table[torch.float32][head], exact) for head, exact in self.of_table[torch.float64].items())

    def allow(self, pairs):
        self.limit = max(self.limit, *(2 * (recipe.double() - exact).abs().max().item() for recipe, exact in pairs), 0.0)

    def heads_of(self, hk):
        group = self.problem.row.heads // self.problem.row.kv_heads
        return range(hk * group, (hk + 1) * group)

    def gradients(self, batch, hk, real):
        """Returns dQ of the query heads one after the other, dK, dV."""
        problem = self.problem
        k, v = (problem.keys_of(tensor, batch, hk).to(real) for tensor in (problem.k, problem.v))
        of_queries, dk, dv = [], torch.zeros_like(k), torch.zeros_like(v)
        for head in self.heads_of(hk):
            q, do = (problem.queries_of(tensor, batch, head).to(real) for tensor in (problem.q, problem.do))
            of_queries.append(self.add_head(batch, head, q, k, v, do, dk, dv))
        return torch.cat(of_queries), dk, dv

    def add_head(self, batch, head, q, k, v, do, dk, dv):
        """Returns its dQ, and adds its shares of dK and dV."""
        problem, real = self.problem, q.dtype
        rounded = (lambda x: x) if real == torch.float64 else (lambda x: x.to(problem.q.dtype).to(real))
        dq, scale = torch.zeros_like(q), 1 / math.sqrt(problem.row.d)
        step = 2048
        for first in range(0, len(q), step):  # float64 of all scores of a head takes 2 GB at 16k.
            rows = slice(first, first + step)
            index = torch.arange(first, min(first + step, len(q)), device=q.device)
            with torch.enable_grad():  # It is needed for the score only.
                products = (q[rows] @ k.T * scale).requires_grad_()
                s = problem.scored(products, batch, head, index, len(q))
            p = torch.softmax(s.detach(), dim=-1)
            weights, dp = problem.dropped(p, batch, head, index), problem.dropped(do[rows] @ v.T, batch, head, index)
            o = rounded(rounded(weights) @ v)
            ds = p * (dp - (do[rows] * o).sum(-1, keepdim=True))
            if problem.row.grads:
                table = self.of_table[real].setdefault(head, torch.zeros_like(problem.params[problem.row.grads][head], dtype=real))
                table[rows] += ds
            if s is not products:
                ds, = torch.autograd.grad(s, products, ds)
            ds = rounded(ds)
            dq[rows] = ds @ k * scale
            dk += ds.T @ q[rows] * scale
            dv += rounded(weights).T @ do[rows]
        return dq

    def errors(self, output):
        problem = self.problem
        of = (problem.q, problem.k, problem.v)
        dq, dk, dv = [part.view_as(tensor) for part, tensor in zip(output.split([tensor.numel() for tensor in of]), of)]
        differences = []
        for batch, hk, exact in self.samples:
            found = (torch.cat([problem.queries_of(dq, batch, head) for head in self.heads_of(hk)]),
                     problem.keys_of(dk, batch, hk), problem.keys_of(dv, batch, hk))
            differences += [(part.double() - wanted).flatten() for part, wanted in zip(found, exact)]
        differences += [(problem.of_params["d" + problem.row.grads][head].double() - wanted).flatten() for head, wanted in self.of_table[torch.float64].items()]
        difference = torch.cat(differences).nan_to_num(nan=math.inf, posinf=math.inf, neginf=math.inf)
        return difference.abs().max().item(), difference.square().mean().sqrt().item()

"""The tensors of a row of the backward table, our launch on them, what PyTorch has for them, and how wrong gradients are."""
import math

import torch
import torch.nn.functional as F

from compare.problem import Problem, Reference

NAMES = ("dq", "dk", "dv")


class GradientProblem(Problem):
    """What a forward call has left is PyTorch's; results are dq, dk and dv one after the other, as one tensor."""

    def __init__(self, row, device):
        super().__init__(row, device)
        self.do = torch.randn_like(self.q)
        results = torch.ops.aten._scaled_dot_product_flash_attention(self.q, self.k, self.v, 0.0, row.mask == "causal", False)
        self.o, self.lse = results[0], results[1].contiguous()

    def launch_of(self, kernel, stream=None, shared=True):
        sizes = [tensor.numel() for tensor in (self.q, self.k, self.v)]
        out = torch.full((sum(sizes),), math.nan, device=self.q.device, dtype=self.q.dtype)
        results = {name: part.view_as(of) for name, part, of in zip(NAMES, out.split(sizes), (self.q, self.k, self.v))}
        operands = {"q": self.q, "k": self.k, "v": self.v, "o": self.o, "do": self.do, "lse": self.lse, **results}
        launch = kernel.bind(operands, self.params, 0, (stream or torch.cuda.current_stream()).cuda_stream)

        def launch_into():
            launch()
            return out

        return launch_into


def backward_of(problem, backend):
    """Of a call that has been made: what autograd launches."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    inputs = [tensor.detach().requires_grad_() for tensor in (problem.q, problem.k, problem.v)]
    with torch.enable_grad(), sdpa_kernel([getattr(SDPBackend, backend)]):
        o = F.scaled_dot_product_attention(*inputs, is_causal=problem.row.mask == "causal")

    def launch():
        return torch.cat([gradient.flatten() for gradient in gradients()])

    def gradients():
        return torch.autograd.grad(o, inputs, problem.do, retain_graph=True)

    launch.timed = gradients  # without putting them together
    return launch


class GradientReference(Reference):
    """float64 gradients of some heads; `limit` is twice the largest error of the recipe on them: the same input type, fp32
    inside, P and dS rounded to the input type before their products, and the results."""

    def __init__(self, problem, seed, heads=4):
        self.problem, self.samples, self.limit = problem, [], 0.0
        row = problem.row
        generator = torch.Generator().manual_seed(seed)
        for pair in torch.randperm(row.b * row.heads, generator=generator)[:heads].tolist():
            batch, head = divmod(pair, row.heads)
            exact, recipe = (self.gradients(batch, head, real) for real in (torch.float64, torch.float32))
            self.samples.append((batch, head, exact))
            worst = max((a.to(problem.q.dtype).double() - b).abs().max().item() for a, b in zip(recipe, exact))
            self.limit = max(self.limit, 2 * worst)

    def gradients(self, batch, head, real):
        problem, row = self.problem, self.problem.row
        rounded = (lambda x: x) if real == torch.float64 else (lambda x: x.to(problem.q.dtype).to(real))
        q, k, v, o, do = (tensor[batch, head].to(real) for tensor in (problem.q, problem.k, problem.v, problem.o, problem.do))
        results = [torch.zeros_like(tensor) for tensor in (q, k, v)]
        scale = 1 / math.sqrt(row.d)
        step = 2048
        for first in range(0, row.s, step):  # float64 of all scores of a head takes 2 GB at 16k
            rows = slice(first, first + step)
            index = torch.arange(first, min(first + step, row.s), device=q.device)
            s = problem.scored(q[rows] @ k.T * scale, batch, head, index, row.s)
            p = torch.exp(s - problem.lse[batch, head, rows, None].to(real))
            delta = (do[rows] * o[rows]).sum(-1, keepdim=True)
            ds = rounded(p * (do[rows] @ v.T - delta))
            results[0][rows] = ds @ k * scale
            results[1] += ds.T @ q[rows] * scale
            results[2] += rounded(p).T @ do[rows]
        return results

    def errors(self, output):
        problem = self.problem
        of = (problem.q, problem.k, problem.v)
        parts = [part.view_as(tensor) for part, tensor in zip(output.split([tensor.numel() for tensor in of]), of)]
        difference = torch.cat([(part[batch, head].double() - wanted).flatten()
                                for batch, head, exact in self.samples for part, wanted in zip(parts, exact)])
        difference = difference.nan_to_num(nan=math.inf, posinf=math.inf, neginf=math.inf)
        return difference.abs().max().item(), difference.square().mean().sqrt().item()

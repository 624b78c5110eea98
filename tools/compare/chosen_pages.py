"""Each query chooses pages for each KV head (`select=pages`). This module has their tensors, and the exact results."""
import math

import torch

from compare.problem import DTYPES, Reference


class PagesProblem:
    """A sequence has `s` keys in pages of its own, of which a list names some. All of these are full."""

    def __init__(self, row, device):
        self.row, self.out_dtype = row, DTYPES[row.dtype]
        drawn = lambda *shape: torch.randn(*shape, device=device, dtype=self.out_dtype)
        of_sequence = row.s // row.page
        self.q = drawn(row.b, row.queries, row.heads, row.d)
        self.pools = {name: drawn(row.b * of_sequence, row.page, row.kv_heads, row.d) for name in ("k", "v")}
        own = torch.rand(row.b, row.queries, row.kv_heads, of_sequence, device=device).argsort(-1)[..., :row.pages]
        own[..., :row.shared] = own[:, :1, :, :row.shared]  # A query's other pages may repeat these.
        pages = torch.randperm(row.b * of_sequence, device=device).view(row.b, 1, 1, of_sequence)
        self.page_index = pages.expand(*own.shape[:-1], of_sequence).gather(-1, own).to(torch.int32)

    def launch_of(self, kernel, stream=None, shared=True):
        o = torch.full_like(self.q, math.nan)
        handle = (stream or torch.cuda.current_stream()).cuda_stream if self.q.is_cuda else None
        launch = kernel.bind({"q": self.q, "o": o, "page_index": self.page_index, **self.pools}, stream=handle)

        def launch_into():
            launch()
            return o

        return launch_into


class PagesReference(Reference):
    """This reference has the query heads of a KV head, for some queries."""

    def __init__(self, problem, seed, queries=16):
        self.problem, self.samples, self.limit, squares = problem, [], 0.0, []
        row, group = problem.row, problem.row.heads // problem.row.kv_heads
        generator = torch.Generator().manual_seed(seed)
        for number in torch.randperm(row.b * row.queries * row.kv_heads, generator=generator)[:queries].tolist():
            of_query, hk = divmod(number, row.kv_heads)
            sequence, query = divmod(of_query, row.queries)
            heads = slice(hk * group, (hk + 1) * group)
            pages = problem.page_index[sequence, query, hk].long()
            k, v = (problem.pools[name][pages, :, hk].flatten(0, 1) for name in ("k", "v"))
            q = problem.q[sequence, query, heads]
            weights = lambda real: torch.softmax(q.to(real) @ k.to(real).T * row.d ** -0.5, dim=-1)
            exact = weights(torch.float64) @ v.double()
            self.samples.append((sequence, query, heads, exact))
            recipe = (weights(torch.float32).to(q.dtype).float() @ v.float()).to(problem.out_dtype)
            unit = torch.finfo(q.dtype).eps / 2
            variance = unit ** 2 * (weights(torch.float64).square() @ v.double().square() + exact.square()) / 3
            self.limit = max(self.limit, 4 * variance.max().sqrt().item(), 2 * (recipe.double() - exact).abs().max().item())
            squares.append((recipe.double() - exact).square().mean())
        self.rms = torch.stack(squares).mean().sqrt().item()

    def errors(self, output):
        difference = torch.cat([(output[sequence, query, heads].double() - exact).flatten() for sequence, query, heads, exact in self.samples])
        difference = difference.nan_to_num(nan=math.inf, posinf=math.inf, neginf=math.inf)
        return difference.abs().max().item(), difference.square().mean().sqrt().item()

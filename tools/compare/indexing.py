"""An index finds the keys that a query should read. This module has its tensors, the exact results, and PyTorch's
products."""
import math

import torch

from compare.problem import DTYPES, Reference

# This limits PyTorch's version, whose products of all heads lie in memory.
QUERIES_AT_A_TIME = 256
# Matrix units may be off by these shares of a sum, and of each of its terms (autotune/reference/index.cpp).
ERRORS = {"e4m3": (2.0 ** -10, 2.0 ** -13), "bf16": (2.0 ** -20, 2.0 ** -20)}
SELDOM = 3


class IndexProblem:
    def __init__(self, row, device):
        self.row, self.out_dtype = row, torch.float32
        dtype = DTYPES[row.dtype]
        self.q = torch.randn(row.b, row.queries, row.heads, row.d, device=device).to(dtype)
        self.k = torch.randn(row.b * row.s, row.d, device=device).to(dtype)
        self.weights = torch.randn(row.b, row.queries, row.heads, device=device) * row.heads ** -0.5
        self.scales = torch.rand(row.b * row.s, device=device) + 0.5 if row.dtype == "e4m3" else None
        if row.page:
            self.block_table = torch.randperm(row.b * row.s // row.page, device=device).to(torch.int32).view(row.b, -1)
            self.k_lens = torch.full((row.b,), row.s, dtype=torch.int32, device=device)

    def rows_of(self, sequence):
        """Returns the numbers of the rows of K that a sequence has."""
        if not self.row.page:
            return torch.arange(self.row.s, device=self.k.device) + sequence * self.row.s
        pages = self.block_table[sequence].long()
        return (pages[:, None] * self.row.page + torch.arange(self.row.page, device=pages.device)).flatten()

    def seen(self, query):
        """Returns how many of the first keys a query sees."""
        return self.row.s - self.row.queries + query + 1 if self.row.mask == "causal" else self.row.s

    def launch_of(self, kernel, stream=None, shared=True):
        row, device = self.row, self.q.device
        if row.page:
            view = lambda x, *rest: x.view(-1, row.page, *rest)
            tensors = {"q": self.q, "k": view(self.k, 1, row.d), "weights": self.weights, "block_table": self.block_table, "k_lens": self.k_lens}
        else:
            offsets = [torch.tensor([0, count], dtype=torch.int32, device=device) for count in (row.queries, row.s)]
            view = lambda x, *rest: x.view(-1, *rest)
            tensors = {"q": self.q[0], "k": view(self.k, 1, row.d), "weights": self.weights[0], "offsets_q": offsets[0], "offsets_k": offsets[1]}
        if self.scales is not None:
            tensors["scale_k"] = view(self.scales, 1)
        rest = {"key_index": (row.best, torch.int32)} if row.best else {"scores": (row.s, torch.float32)}
        made = {name: torch.zeros(row.b, row.queries, 1, size, dtype=dtype, device=device) for name, (size, dtype) in rest.items()}
        tensors.update({name: x if row.page else x[0] for name, x in made.items()})
        handle = (stream or torch.cuda.current_stream()).cuda_stream if self.q.is_cuda else None
        lengths = {} if row.page else {"max_q_len": row.queries, "max_k_len": row.s}
        launch = kernel.bind(tensors, stream=handle, **lengths)
        result = next(iter(made.values()))[:, :, 0]

        def launch_into():
            launch()
            return result

        return launch_into


class IndexReference(Reference):
    """This reference has all keys of some queries. Errors are in units of the possible errors of matrix units, so the
    limit is 1. They are those of scores, or for a list how far a key that it has lies below one that it passes over."""

    def __init__(self, problem, seed, queries=8):
        self.problem, self.samples, self.limit, self.rms = problem, [], 1.0, 1.0
        row, (of_sum, of_terms) = problem.row, ERRORS[problem.row.dtype]
        generator = torch.Generator().manual_seed(seed)
        for number in torch.randperm(row.b * row.queries, generator=generator)[:queries].tolist():
            sequence, query = divmod(number, row.queries)
            rows = problem.rows_of(sequence)
            q, k, weights = problem.q[sequence, query].double(), problem.k[rows].double(), problem.weights[sequence, query].double()
            positive = (q @ k.T).clamp_min(0)
            scales = problem.scales[rows].double() if problem.scales is not None else torch.ones(len(rows), dtype=torch.float64, device=q.device)
            exact = weights @ positive * scales
            squares = weights.square() @ (q.abs() @ k.abs().T).square()
            allowed = (of_sum * (weights.abs() @ positive) + SELDOM * of_terms * squares.sqrt()) * scales
            exact[problem.seen(query):] = -math.inf
            self.samples.append((sequence, query, rows, exact, allowed))

    def errors(self, output):
        of = self.of_list if self.problem.row.best else self.of_scores
        found = torch.cat([of(output[sequence, query], *rest) for sequence, query, *rest in self.samples])
        found = found.nan_to_num(nan=math.inf, posinf=math.inf, neginf=math.inf)
        return found.max().item(), found.square().mean().sqrt().item()

    @staticmethod
    def of_scores(scores, rows, exact, allowed):
        seen = exact > -math.inf
        hidden = torch.where(scores[~seen] == -math.inf, 0.0, math.inf).double()
        return torch.cat(((scores[seen].double() - exact[seen]).abs() / allowed[seen], hidden))

    @staticmethod
    def of_list(numbers, rows, exact, allowed):
        listed = torch.isin(rows, numbers[numbers >= 0].long())
        count = min(len(numbers), int((exact > -math.inf).sum()))
        if int(listed.sum()) != count or int((numbers >= 0).sum()) != count:
            return torch.tensor([math.inf], dtype=torch.float64, device=exact.device)
        passed_over = exact.masked_fill(listed, -math.inf)
        best, least = passed_over.argmax(), exact.masked_fill(~listed, math.inf).argmin()
        distance = (passed_over[best] - exact[least]).clamp_min(0) / (allowed[best] + allowed[least])
        return distance[None]


def makers_of(problem):
    return {"torch": lambda: of_torch(problem)}


def of_torch(problem):
    """Does it in the usual way of PyTorch: products of all heads in bf16, or in 8 bits if PyTorch has these, their
    sums, and topk."""
    row = problem.row
    is_narrow = row.dtype == "e4m3" and not row.page and problem.q.is_cuda
    one = torch.ones((), device=problem.q.device)
    wide = torch.bfloat16

    def products(q, k):
        if is_narrow:
            return torch._scaled_mm(q.reshape(-1, row.d), k.T, scale_a=one, scale_b=one, out_dtype=wide).view(*q.shape[:-1], -1)
        return q.to(wide) @ k.to(wide).transpose(-1, -2)

    def lists(scores, numbers):
        values, best = scores.topk(min(row.best, row.s), dim=-1)
        found = numbers.expand(scores.shape).gather(-1, best)
        return torch.where(values > -math.inf, found, -1).to(torch.int32)

    def of_pages():
        k = problem.k.view(torch.uint8 if row.dtype == "e4m3" else wide).view(-1, row.page * row.d)
        k = k[problem.block_table.long()].view(problem.k.dtype).view(row.b, row.s, row.d)
        summed = (products(problem.q[:, 0], k).relu_().float() * problem.weights[:, 0, :, None]).sum(1)
        numbers = (problem.block_table.long()[..., None] * row.page + torch.arange(row.page, device=summed.device)).flatten(1)
        if problem.scales is not None:
            summed *= problem.scales[numbers]
        return (lists(summed, numbers) if row.best else summed)[:, None]

    def of_tokens():
        numbers, made = problem.rows_of(0), []
        for first in range(0, row.queries, QUERIES_AT_A_TIME):
            part = slice(first, first + QUERIES_AT_A_TIME)
            positive = products(problem.q[0, part], problem.k).relu_()
            scores = torch.bmm(problem.weights[0, part, None].to(wide), positive)[:, 0].float()
            if problem.scales is not None:
                scores *= problem.scales
            if row.mask == "causal":
                last = torch.arange(first, first + len(scores), device=scores.device) + row.s - row.queries
                scores.masked_fill_(numbers > last[:, None], -math.inf)
            made.append(lists(scores, numbers) if row.best else scores)
        return torch.cat(made)[None]

    return of_pages if row.page else of_tokens

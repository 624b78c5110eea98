"""Latents are served as rows of 8 bits, whole or with their scales, and with keys that an indexer has chosen for each
query. This module has their tensors, the exact results, and FlashMLA on the same tensors."""
import functools
import importlib.util
import inspect
import math

import torch

from compare.latent_rows import COLUMNS, VALUES
from compare.problem import Reference


class LatentProblem:
    """`rows_at(numbers)` returns rows of the cache in float64, and `keys_of` the keys that a query reads."""

    def __init__(self, row, device):
        self.row, self.out_dtype = row, torch.bfloat16
        self.q = torch.randn(row.b, row.queries, row.heads, COLUMNS, device=device, dtype=torch.bfloat16)
        if row.dtype == "e4m3":
            self.q = self.q.to(torch.float8_e4m3fn)
        raw = torch.randn(row.b * row.s, COLUMNS, device=device, dtype=torch.bfloat16)
        if row.kv == "latent656":
            raw *= 3 * torch.rand(len(raw), 1, device=device, dtype=torch.bfloat16)
        self.cache, self.scales = self.stored(raw)
        self.pages_of_sequence = row.s // row.page if row.page else 0
        if row.page:
            self.block_table = torch.randperm(row.b * self.pages_of_sequence, device=device).to(torch.int32).view(row.b, -1)
            self.k_lens = torch.full((row.b,), row.s, dtype=torch.int32, device=device)
        if row.chosen:  # These are numbers of rows of the pool.
            lists = [torch.randperm(row.s, device=device)[:row.chosen] + b * row.s for b in range(row.b) for _ in range(row.queries)]
            self.key_index = torch.stack(lists).to(torch.int32).view(row.b, row.queries, 1, row.chosen)

    def stored(self, raw):
        """Returns (rows as the cache has them, scales of their columns if they have any)."""
        if self.row.kv == "latent656":
            return self.with_scales(raw)
        return (raw.to(torch.float8_e4m3fn) if "e4m3" in (self.row.kv, self.row.dtype) else raw), None

    @staticmethod
    def with_scales(raw):
        groups = raw[:, :VALUES].float().view(len(raw), 4, 128)
        scales = groups.abs().amax(-1).clamp_min(1e-4) / 448
        codes = (groups / scales[..., None]).to(torch.float8_e4m3fn).view(len(raw), VALUES)
        parts = codes.view(torch.uint8), scales.view(torch.uint8), raw[:, VALUES:].contiguous().view(torch.uint8)
        return torch.cat(parts, dim=1), scales

    def rows_at(self, numbers):
        stored = self.cache[numbers]
        if self.scales is None:
            return stored.double()
        codes = stored[:, :VALUES].view(torch.float8_e4m3fn).double().view(len(stored), 4, 128)
        turned = stored[:, VALUES + 16:].contiguous().view(torch.bfloat16).double()
        return torch.cat(((codes * self.scales[numbers][..., None].double()).view(len(stored), VALUES), turned), dim=1)

    def keys_of(self, sequence, query):
        if self.row.chosen:
            return self.rows_at(self.key_index[sequence, query, 0].long())
        pages = self.block_table[sequence].long()
        return self.rows_at((pages[:, None] * self.row.page + torch.arange(self.row.page, device=pages.device)).flatten())

    @property
    def pool(self):
        return self.cache.view(-1, self.row.page, 1, self.cache.shape[-1])

    def launch_of(self, kernel, stream=None, shared=True):
        row = self.row
        o = torch.full((*self.q.shape[:-1], VALUES), math.nan, device=self.q.device, dtype=self.out_dtype)
        if row.page:
            tensors = {"q": self.q, "k": self.pool, "o": o}
        else:
            tensors = {"q": self.q[0], "k": self.cache[:, None], "o": o[0]}
        if row.chosen:
            tensors["key_index"] = self.key_index if row.page else self.key_index[0]
        else:
            tensors.update(block_table=self.block_table, k_lens=self.k_lens)
        if "e4m3" in (row.kv, row.dtype):
            tensors["scale_k"] = torch.ones(1, 1, device=self.q.device)
        if row.dtype == "e4m3":
            tensors["scale_q"] = torch.ones(1, row.heads, device=self.q.device)
        handle = (stream or torch.cuda.current_stream()).cuda_stream
        launch = kernel.bind(tensors, stream=handle)

        def launch_into():
            launch()
            return o

        return launch_into


class LatentReference(Reference):
    """This reference has all heads of some queries."""

    def __init__(self, problem, seed, queries=8):
        self.problem, self.samples, self.limit = problem, [], 0.0
        row, squares = problem.row, []
        generator = torch.Generator().manual_seed(seed)
        for number in torch.randperm(row.b * row.queries, generator=generator)[:queries].tolist():
            sequence, query = divmod(number, row.queries)
            keys = problem.keys_of(sequence, query)
            q = problem.q[sequence, query]
            p = torch.softmax(q.float().double() @ keys.T * COLUMNS ** -0.5, dim=-1)
            exact = p @ keys[:, :VALUES]
            self.samples.append((sequence, query, exact))
            rounded = keys.float().to(q.dtype).float()
            p = torch.softmax(q.float() @ rounded.T * COLUMNS ** -0.5, dim=-1)
            # Weights of 8 bits end at 448.
            unit = 256 / p.amax(-1, keepdim=True) if row.dtype == "e4m3" else 1
            recipe = ((p * unit).to(q.dtype).float() @ rounded[:, :VALUES] / unit).to(problem.out_dtype)
            self.limit = max(self.limit, 2 * (recipe.double() - exact).abs().max().item())
            squares.append((recipe.double() - exact).square().mean())
        self.rms = torch.stack(squares).mean().sqrt().item()

    def errors(self, output):
        difference = torch.cat([(output[sequence, query].double() - exact).flatten() for sequence, query, exact in self.samples])
        difference = difference.nan_to_num(nan=math.inf, posinf=math.inf, neginf=math.inf)
        return difference.abs().max().item(), difference.square().mean().sqrt().item()


def flashmla(problem):
    import flash_mla
    row, scale = problem.row, COLUMNS ** -0.5
    if row.table == "sparse_prefill":
        call = of_any_version(flash_mla.flash_mla_sparse_fwd)
        return lambda: call(problem.q[0], problem.cache[:, None], problem.key_index[0], scale, VALUES)[0][None]
    call = of_any_version(flash_mla.flash_mla_with_kvcache)
    plan, common = flash_mla.get_mla_metadata()[0], dict(softmax_scale=scale, causal=False)
    if row.chosen:
        cache, indices = problem.pool.view(torch.float8_e4m3fn), problem.key_index.view(row.b, row.queries, row.chosen)
        return lambda: call(problem.q, cache, None, None, VALUES, plan, is_fp8_kvcache=True, indices=indices, **common)[0]
    q, of_cache = problem.q, (problem.pool, problem.block_table, problem.k_lens, VALUES, plan)
    if "e4m3" in (row.kv, row.dtype):  # It rounds Q to 8 bits, too.
        q, one = q.to(torch.float8_e4m3fn), torch.ones(1, device=q.device)
        plans = of_any_version(flash_mla.get_mla_decoding_metadata)(problem.k_lens, row.heads, 1, h_q=row.heads, is_fp8_kvcache=True)
        plan.tile_scheduler_metadata, plan.num_splits = plans
        common.update(is_fp8_kvcache=True, descale_q=one, descale_k=one)
    return lambda: call(q, *of_cache, **common)[0]


def of_any_version(function):
    """Tells builds that also have older kernels to take these, because no other ones run dense rows of 8 bits."""
    return functools.partial(function, use_legacy=True) if "use_legacy" in inspect.signature(function).parameters else function


def makers_of(problem):
    """Returns the makers. Nobody has dense rows with their scales, only chosen ones."""
    is_there = importlib.util.find_spec("flash_mla") and (problem.row.chosen or problem.row.kv != "latent656")
    return {"flashmla": lambda: flashmla(problem)} if is_there else {}

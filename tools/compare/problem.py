"""This module has the tensors of a row, our launch on them, and the errors of a result."""
import itertools
import math
import random

import torch

from compare import sparse
from compare.rows import SOFTCAP, WINDOW
from flashjit.calls import dropped_share

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn}


def shape_logits(kind, q, k):
    """Changes random q and k [..., heads, keys, d] so that their logits are of this row of DATA: the first dimension of
    q is the same in all queries, and that of k is the height of a key above the rest."""
    name, _, number = kind.rstrip(")").partition("(")
    if name == "normal":
        return
    if name == "wide":
        q *= float(number)
        return
    if name == "equal":
        k.copy_(k[..., :1, :].expand_as(k))
        return
    keys = k.shape[-2]
    height = float(number)
    along = torch.arange(keys, device=k.device) / keys
    above = {"sink": lambda: height * (along == 0),
             "key": lambda: height * (torch.arange(keys, device=k.device) == torch.randint(keys, (*k.shape[:-2], 1), device=k.device)),
             "rising": lambda: height * along, "falling": lambda: height * (1 - along),
             "combs": lambda: height * (torch.arange(keys, device=k.device) % 64 == 0)}[name]()
    first = 8.0
    q[..., 0] = first
    k[..., 0] = above * (math.sqrt(q.shape[-1]) / first)


def drawn_trees(row):
    """Returns [batch, query, word]: bits of a draft's ancestors, and of itself."""
    trees = torch.zeros(row.b, row.queries, -(-row.queries // 64), dtype=torch.int64)
    for tree in trees:
        for draft in range(row.queries):
            if draft:
                tree[draft] = tree[random.randrange(draft)]
            word = 1 << draft % 64
            tree[draft, draft // 64] |= word - (1 << 64) if word >> 63 else word
    return trees


def codes_of(x):
    """Returns (elements of 8 bits of x [.., heads, keys, d], the scales of the heads)."""
    scale = x.float().abs().amax(dim=(0, 2, 3)) / 448
    return (x.float() / scale[:, None, None]).to(torch.float8_e4m3fn), scale


def turned(x, cos, sin):
    """Returns rows [.., d] with their halves turned by the angles of their positions."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class Problem:
    """This has fresh random tensors for a row. Attention is computed over `q`, `k` and `v`, and a call gets `given` in
    their place."""

    def __init__(self, row, device, engine):
        self.row = row

        def drawn(heads, tokens, one_after_the_other, d=row.d):
            shape = (sum(row.lengths), heads, d) if one_after_the_other else (row.b, heads, tokens, d)
            return torch.randn(shape, device=device, dtype=DTYPES[row.dtype] if row.dtype != "e4m3" else torch.float32).to(DTYPES[row.dtype])

        # Tensors are contiguous, for the reference and for peers. Sequences of different lengths lie one after the
        # other.
        self.q_starts = [0, *itertools.accumulate(row.q_lens or row.keys)]
        self.packed = row.packed or bool(row.q_lens)
        self.q = drawn(row.heads, row.queries or row.s, row.packed)
        if row.q_lens:
            self.q = torch.randn(sum(row.q_lens), row.heads, row.d, device=device, dtype=DTYPES[row.dtype])
        self.k = drawn(row.kv_heads, row.s, row.lengths)
        self.v = self.k[..., :row.d_v] if row.v_in_k else drawn(row.kv_heads, row.s, row.lengths, row.d_v or row.d)
        for tensor in (self.k, self.v) if row.prefix else ():
            tensor[1:, :, :row.prefix] = tensor[:1, :, :row.prefix]
        shape_logits(row.data, self.q, self.k)
        self.params, self.given = {}, {}
        if row.append:
            self.draw_new_tokens(device)
        if row.kv:
            for name in ("k", "v"):
                codes, scale = codes_of(getattr(self, name))
                self.given[name], self.params["scale_" + name] = codes, scale
                setattr(self, name, codes.float() * scale[:, None, None])
        self.starts = [0, *itertools.accumulate(row.keys)]
        if self.packed:
            self.offsets = torch.tensor(self.q_starts, dtype=torch.int32, device=device)
        if row.page:
            self.fill_pages(device)
        if row.mask == "tree":
            self.params["ancestors"] = drawn_trees(row).to(device)
        if row.score == "alibi":
            slopes = [2.0 ** (-8.0 * (head + 1) / row.heads) for head in range(row.heads)]
            self.params["slope"] = torch.tensor(slopes, dtype=torch.float32, device=device)
        elif row.score.startswith("bias_"):
            dtype = DTYPES[row.score.removeprefix("bias_")]
            self.params["table"] = torch.randn(row.heads, row.s, row.s, device=device, dtype=dtype)
        if row.block or row.documents:
            self.params.update(sparse.params_of(row, device))
        if row.dropout:
            self.params.update({name: torch.randint(1 << 40, (1,), device=device) for name in ("seed", "offset")})
            self.kept = self.kept_weights(engine.prepare(row.spec_of("fwd")))

    def draw_new_tokens(self, device):
        """Draws the last tokens of the sequences, which the call writes, and the angles by which it turns them."""
        row = self.row
        tokens = -(-row.s // (row.page or 1)) * (row.page or 1)  # There is room for this many.
        angles = torch.arange(tokens, device=device)[:, None] * 10000.0 ** (-torch.arange(0, row.d, 2, device=device) / row.d)
        self.params.update(cos=angles.cos(), sin=angles.sin())
        there = slice(row.s - row.queries, row.s)
        cos, sin = angles.cos()[there], angles.sin()[there]
        self.given["q"], self.q = self.q, turned(self.q, cos, sin)
        self.given["k_new"], self.given["v_new"] = (torch.randn_like(tensor[:, :, there]) for tensor in (self.k, self.v))
        self.given["k"], self.given["v"] = self.k.clone(), self.v.clone()
        for tensor in (self.given["k"], self.given["v"]):
            tensor[:, :, there] = math.nan
        self.k[:, :, there], self.v[:, :, there] = turned(self.given["k_new"], cos, sin), self.given["v_new"]

    def operand(self, name):
        return self.given.get(name, getattr(self, name, None))

    def kept_weights(self, kernel):
        """Returns which weights dropout keeps, [batch, head, query, key] (False also for hidden ones). If K is 0, all
        weights are equal, and O shows which of them V lets through: rows of a unit matrix at some keys and 0 at the
        others."""
        given, kept = (self.k, self.v), torch.zeros(self.row.b, self.row.heads, self.row.s, self.row.s, dtype=torch.bool, device=self.q.device)
        self.k, self.v = torch.zeros_like(self.k), torch.zeros_like(self.v)
        launch, width = Problem.launch_of(self, kernel), self.v.shape[-1]  # This is the forward launch.
        for first in range(0, self.row.s, width):
            self.v.zero_()
            part = self.v[..., first:first + width, :]
            part.copy_(torch.eye(width, device=self.v.device)[:part.shape[-2]])
            kept[..., first:first + width] = launch()[..., :part.shape[-2]] != 0
        self.k, self.v = given
        return kept

    def dropped(self, p, batch, head, index):
        """Returns weights of these queries with some of them dropped, if the row says so."""
        return p * self.kept[batch, head, index] / (1 - dropped_share(self.row.dropout)) if self.row.dropout else p

    def fill_pages(self, device):
        """Puts the keys into the pages of a pool, which sequences have in random order."""
        counts = [-(-length // self.row.page) for length in self.row.keys]
        pages = torch.randperm(sum(counts)).to(device, torch.int32)
        self.pages = torch.split(pages, counts)  # pages of each sequence
        self.block_table = torch.zeros(self.row.b, max(counts), dtype=torch.int32, device=device)
        self.k_lens = torch.tensor(self.row.keys, dtype=torch.int32, device=device)
        shape = (sum(counts), self.row.page, self.row.kv_heads, self.row.d)
        filled = {name: self.operand(name) for name in (("k",) if self.row.v_in_k else ("k", "v"))}
        dtype = filled["k"].dtype
        # PyTorch moves bytes, but not all of its functions take floats of 8 bits.
        if dtype.itemsize == 1:
            filled = {name: tensor.view(torch.uint8) for name, tensor in filled.items()}
        self.pools = {name: torch.zeros(shape, device=device, dtype=tensor.dtype) for name, tensor in filled.items()}
        for b, (own, length) in enumerate(zip(self.pages, self.row.keys)):
            self.block_table[b, :len(own)] = own
            for pool, tensor in ((self.pools[name], filled[name]) for name in filled):
                keys = tensor[self.starts[b]:self.starts[b + 1]] if self.row.lengths else tensor[b].transpose(0, 1)
                padded = pool.new_zeros(len(own) * self.row.page, *keys.shape[1:])
                padded[:length] = keys
                pool[own.long()] = padded.view(len(own), *pool.shape[1:])
        self.pools = {name: pool.view(dtype) for name, pool in self.pools.items()}
        shared = self.row.prefix // self.row.page
        self.block_table[:, :shared] = self.block_table[0, :shared].clone()

    def launch_of(self, kernel, stream=None, shared=True, **more):
        """`shared` means that the kernel's spec has a shared prefix, if this row has one. `more` has tensors by name."""
        o = torch.full_like(self.q[..., :self.v.shape[-1]], math.nan, memory_format=torch.contiguous_format, dtype=self.out_dtype)
        operands = {"q": self.operand("q"), "k": self.operand("k"), "o": o, **more} | ({} if self.row.v_in_k else {"v": self.operand("v")})
        new = {name: self.given[name] for name in ("k_new", "v_new") if name in self.given}
        operands.update(new)
        if self.row.packed:
            operands.update(offsets_q=self.offsets, offsets_k=self.offsets)
        if self.row.page:  # Queries lie by tokens, then heads.
            by_tokens = (lambda tensor: tensor) if self.packed else (lambda tensor: tensor.transpose(1, 2))
            operands = {"q": by_tokens(self.operand("q")), "o": by_tokens(o), "k_lens": self.k_lens,
                        "block_table": self.block_table, **self.pools, **{name: by_tokens(tensor) for name, tensor in new.items()}}
            if self.packed:
                operands["offsets_q"] = self.offsets
            if self.row.prefix and shared:
                operands["shared_prefix"] = torch.tensor([self.row.prefix], dtype=torch.int32, device=self.q.device)
        handle = (stream or torch.cuda.current_stream()).cuda_stream if self.q.is_cuda else None
        longest = max(self.row.q_lens, default=self.row.s) if self.packed else 0
        launch = kernel.bind({**operands, **self.params}, max_q_len=longest, max_k_len=longest, stream=handle)

        def launch_into():
            launch()
            return o

        return launch_into

    @property
    def out_dtype(self):
        return torch.bfloat16 if self.row.dtype == "e4m3" else self.q.dtype

    def queries_of(self, tensor, batch, head):
        """Returns [tokens, d] of one head of Q or O."""
        return tensor[self.q_starts[batch]:self.q_starts[batch + 1], head] if self.packed else tensor[batch, head]

    def keys_of(self, tensor, batch, head):
        return tensor[self.starts[batch]:self.starts[batch + 1], head] if self.row.lengths else tensor[batch, head]

    def scored(self, s, batch, head, index, count):
        """Applies the row's score and mask to the logits of these of `count` queries."""
        k = torch.arange(s.shape[1], device=s.device)
        q = index + s.shape[1] - count
        if self.row.score == "softcap":
            s = SOFTCAP * torch.tanh(s / SOFTCAP)
        elif self.row.score == "alibi":
            s = s + self.params["slope"][head].to(s.dtype) * (k - q[:, None]).to(s.dtype)
        elif self.row.score.startswith("bias_"):
            s = s + self.params["table"][head, q].to(s.dtype)
        if self.row.mask == "full":
            return s
        if self.row.mask == "blocks":
            return s.masked_fill(sparse.hidden(self, head, q[:, None], k), -math.inf)
        if self.row.mask == "tree":
            draft = (k + count - s.shape[1]).clamp(min=0)
            seen = self.params["ancestors"][batch, index][:, draft // 64] >> draft % 64 & 1
            return s.masked_fill((k >= s.shape[1] - count) & (seen == 0), -math.inf)
        hidden = k > q[:, None]
        if self.row.mask == "documents":
            hidden = hidden | sparse.hidden(self, head, q[:, None], k)
        if self.row.mask == "window":
            hidden = hidden | (k <= q[:, None] - WINDOW)
        return s.masked_fill(hidden, -math.inf)


def narrow_weights(p):
    """Returns P as products of 8 bits take it: e4m3. The largest of a row lies anywhere from 128 to 256, as it does if
    a row's reference is the largest of its first tile. If it were always 256, the largest weight would have no
    error."""
    shift = torch.arange(p.shape[-2], device=p.device, dtype=p.dtype)[:, None] * 0.618 % 1
    raised = 256 * torch.exp2(-shift) / p.amax(dim=-1, keepdim=True)
    return (p * raised).to(torch.float8_e4m3fn).to(p.dtype) / raised


def quantised(x):
    """Returns x rounded with a scale for the head."""
    scale = x.abs().amax() / 448
    return (x / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale


class Reference:
    """These are float64 results of some rows of some heads. `limit` is the error rule's (autotune/reference/compare.h):
    twice the largest error of the recipe on them, softmax(q k) v with the same input type, fp32 inside and P rounded
    to the input type. For few rows the recipe may be right by luck, for example if a row's largest weight is nearly
    1, so the limit is at least four standard deviations of the effect of these roundings on one element. With a mask
    that is far more than most rows need, so for 8 bits `rms_limit` is twice `rms`, the root of the mean square of
    the recipe's errors. If the call quantises, so does the recipe. For a cache of 8 bits it is bf16's on the same
    numbers."""

    rms_limit = None

    def __init__(self, problem, seed, heads=16, rows=128):
        self.problem, self.samples, self.limit = problem, [], 0.0
        row, squares = problem.row, []
        is_narrow = row.compute or row.dtype == "e4m3"
        generator = torch.Generator().manual_seed(seed)
        for pair in torch.randperm(row.b * row.heads, generator=generator)[:heads].tolist():
            batch, head = divmod(pair, row.heads)
            q = problem.queries_of(problem.q, batch, head)
            k, v = (problem.keys_of(tensor, batch, head * row.kv_heads // row.heads) for tensor in (problem.k, problem.v))
            index = torch.randint(len(q), (min(rows, len(q)),), generator=generator).to(q.device)
            index[0], index[-1] = 0, len(q) - 1

            def weights_and_values(real, narrow):
                s = problem.scored(narrow(q.to(real))[index] @ narrow(k.to(real)).T / math.sqrt(row.d), batch, head, index, len(q))
                return problem.dropped(torch.softmax(s, dim=-1), batch, head, index), narrow(v.to(real))

            p, values = weights_and_values(torch.float64, lambda x: x)
            exact = p @ values
            self.samples.append((batch, head, index, exact))
            # Roundings are uniform within one unit, so their variance is a third of its square.
            types = torch.float8_e4m3fn if is_narrow else q.dtype, problem.out_dtype
            unit_of_weights, unit_of_output = (torch.finfo(dtype).eps / 2 for dtype in types)
            variance = (unit_of_weights ** 2 * (p.square() @ values.square()) + unit_of_output ** 2 * exact.square()) / 3
            self.limit = max(self.limit, 4 * variance.max().sqrt().item())
            rounded = quantised if row.compute else (lambda x: x.to(problem.q.dtype).to(x.dtype)) if row.kv else lambda x: x
            p, values = weights_and_values(torch.float32, rounded)
            recipe = ((narrow_weights(p) if is_narrow else p.to(q.dtype).to(p.dtype)) @ values).to(problem.out_dtype)
            self.limit = max(self.limit, 2 * (recipe.double() - exact).abs().max().item())
            squares.append((recipe.double() - exact).square().mean())
        self.rms = torch.stack(squares).mean().sqrt().item()
        if is_narrow:
            self.rms_limit = 2 * self.rms

    def allows(self, largest, rms):
        return largest <= self.limit and (self.rms_limit is None or rms <= self.rms_limit)

    def errors(self, output):
        """Returns (largest, root of the mean square); infinite if the output is NaN."""
        difference = torch.cat([(self.problem.queries_of(output, batch, head)[index].double() - exact).flatten()
                                for batch, head, index, exact in self.samples])
        difference = difference.nan_to_num(nan=math.inf, posinf=math.inf, neginf=math.inf)
        return difference.abs().max().item(), difference.square().mean().sqrt().item()

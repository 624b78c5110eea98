"""Functions of FlexAttention as users write them: masks and scores by name, and what the language cannot say. Each is run on
numbers of one query and key by PyTorch, and as a text by FlashJIT."""

import functools
import math
from types import SimpleNamespace

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 4, 40, 40, 16
INF = float("inf")


def tables(torch, device):
    """Tensors that functions read. `learned`: those that have gradients."""
    torch.manual_seed(3)
    randn = lambda *shape, **kinds: torch.randn(shape, device=device, **kinds)
    ints = lambda low, high, *shape, dtype=torch.int32: torch.randint(low, high, shape, device=device, dtype=dtype)
    t = SimpleNamespace(
        half=torch.tensor(0.5, device=device), one=torch.tensor([0.75], device=device), flag=torch.tensor(True, device=device),
        by_head=randn(HEADS), by_batch=randn(BATCH), by_q=randn(QUERIES), by_k=randn(KEYS), half_k=randn(KEYS).half(), bf16_q=randn(QUERIES).bfloat16(),
        pairs=randn(QUERIES, KEYS), head_pairs=randn(HEADS, QUERIES, KEYS), all_pairs=randn(BATCH, HEADS, QUERIES, KEYS), batch_pairs=randn(BATCH, QUERIES, KEYS),
        relative=randn(QUERIES + KEYS), relative_heads=randn(QUERIES + KEYS, HEADS), lengths=torch.tensor([30, 17], device=device),
        documents=ints(0, 3, KEYS).sort()[0], batch_documents=ints(0, 3, BATCH, KEYS).sort()[0], wide_documents=ints(0, 3, KEYS, dtype=torch.int64),
        bytes=ints(0, 255, KEYS, dtype=torch.uint8), shorts=ints(-300, 300, KEYS, dtype=torch.int16), large=ints(2**30, 2**31 - 1, KEYS),
        far=ints(-2**63, 2**63 - 1, KEYS, dtype=torch.int64), bools=ints(0, 2, KEYS).bool(), pair_bools=ints(0, 2, QUERIES, KEYS).bool(), flags=ints(0, 16, KEYS), signed=ints(-9, 9, KEYS),
        chosen=ints(0, KEYS, BATCH, HEADS, 3), spans=torch.tensor([[0, 12], [5, 25], [20, 40]], dtype=torch.int32, device=device),
        strided=randn(KEYS, 3)[:, 1], spread=randn(1, KEYS).expand(QUERIES, KEYS), turned=randn(KEYS, QUERIES).t(), part=randn(60, 60)[10:50, 5:45],
        starts=torch.tensor([0, 13, 27, KEYS], dtype=torch.int32, device=device), q_rows=randn(BATCH, HEADS, QUERIES, 4), k_rows=randn(BATCH, KEYS, 4))
    t.sequence = torch.repeat_interleave(torch.arange(3, dtype=torch.int32, device=device), t.starts[1:] - t.starts[:-1])
    learn = lambda *shape: randn(*shape).requires_grad_()
    t.learned = SimpleNamespace(by_head=learn(HEADS), by_k=learn(KEYS), pairs=learn(QUERIES, KEYS), head_pairs=learn(HEADS, QUERIES, KEYS), relative=learn(QUERIES + KEYS),
                                gate=learn(1), one_number=learn(), rows=learn(1, KEYS), cells=learn(HEADS, 8), wide=learn(KEYS, 2), half=learn(KEYS).detach().half().requires_grad_())
    return t


def masks(torch, t):
    """By name."""
    from torch.nn.attention.flex_attention import and_masks, noop_mask, or_masks
    causal = lambda b, h, q, k: q >= k
    window = lambda b, h, q, k: q - k <= 9

    def shifted(offset):
        return lambda b, h, q, k: q + offset >= k

    def of_sequences(inner):
        def mask(b, h, q, k):
            own = t.sequence[q] == t.sequence[k]
            return own & inner(b, h, q - t.starts[t.sequence[q]], k - t.starts[t.sequence[k]])
        return mask

    def in_blocks(b, h, q, k):
        q_block, k_block = q // 8, k // 8
        return (q_block == k_block) | ((k_block < q_block) & ((q_block - k_block) % 2 == 0))

    def dilated(b, h, q, k):
        distance = (q - k).abs()
        return (distance <= 16) & (distance % 3 == 0)

    def neighbourhood(b, h, q, k):
        q_row, q_column, k_row, k_column = q // 8, q % 8, k // 8, k % 8
        return ((q_row.clamp(1, 3) - k_row).abs() <= 1) & ((q_column.clamp(2, 5) - k_column).abs() <= 2)

    def changed_in_place(b, h, q, k):
        distance = q - k
        distance.clamp_(min=-3)
        distance += 2
        return distance >= 0

    def of_span(b, h, q, k):
        span = t.spans[t.documents[k]]
        return (q >= span[0]) & (q < span[1])

    return {
        "noop": noop_mask,
        "causal": causal,
        "causal_shifted": shifted(5),
        "causal_partial": functools.partial(lambda n, b, h, q, k: q + n >= k, 3),
        "causal_by_torch": lambda b, h, q, k: torch.ge(q, k),
        "inverse_causal": lambda b, h, q, k: q <= k,
        "strictly_causal": lambda b, h, q, k: (q > k) | (k == 0),
        "window": lambda b, h, q, k: (q >= k) & (q - k < 10),
        "two_sided_window": lambda b, h, q, k: torch.abs(q - k) < 7,
        "and_masks": and_masks(causal, window),
        "or_masks": or_masks(lambda b, h, q, k: k < 4, causal),
        "and_of_three": and_masks(causal, window, noop_mask),
        "or_of_and": or_masks(and_masks(causal, window), lambda b, h, q, k: k == 0),
        "and_of_one": and_masks(causal),
        "prefix": lambda b, h, q, k: (k < 11) | (q >= k),
        "prefix_by_batch": lambda b, h, q, k: (k < t.lengths[b]) | (q >= k),
        "padded": lambda b, h, q, k: k < t.lengths[b],
        "padded_causal": lambda b, h, q, k: (q >= k) & (k < t.lengths[b]),
        "padded_both": lambda b, h, q, k: (q < t.lengths[b]) & (k < t.lengths[b]),
        "documents": lambda b, h, q, k: t.documents[q] == t.documents[k],
        "documents_by_batch": lambda b, h, q, k: t.batch_documents[b, q] == t.batch_documents[b, k],
        "documents_in_steps": lambda b, h, q, k: t.batch_documents[b][q] == t.batch_documents[b][k],
        "documents_causal": and_masks(causal, lambda b, h, q, k: t.documents[q] == t.documents[k]),
        "documents_of_64_bits": lambda b, h, q, k: t.wide_documents[q] * 4 == t.wide_documents[k] * 4,
        "by_head": lambda b, h, q, k: torch.where(h % 2 == 0, q >= k, q <= k),
        "by_head_window": lambda b, h, q, k: (q - k).abs() <= h * 4,
        "by_batch_and_head": lambda b, h, q, k: (b + h) % 2 * k <= q,
        "blocks": in_blocks,
        "dilated": dilated,
        "neighbourhood": neighbourhood,
        "chunks": lambda b, h, q, k: q.div(8, rounding_mode="floor") == torch.div(k, 8, rounding_mode="floor"),
        "chunks_by_shift": lambda b, h, q, k: q >> 3 == k >> 3,
        "chunks_floor_divide": lambda b, h, q, k: torch.floor_divide(q, 8) == torch.floor_divide(k, 8),
        "low_bits": lambda b, h, q, k: (q & 3) == (k & 3),
        "high_bits": lambda b, h, q, k: (q & ~7) == (k & ~7),
        "bits_apart": lambda b, h, q, k: (q ^ k) < 16,
        "bits_disjoint": lambda b, h, q, k: (q & k) == 0,
        "bits_joined": lambda b, h, q, k: (q | k) < 24,
        "bits_shifted": lambda b, h, q, k: (q << 1) >= k,
        "bits_negated": lambda b, h, q, k: ~q <= -k,
        "flags": lambda b, h, q, k: ((t.flags[q] & t.flags[k]) != 0) | (q == k),
        "one_flag": lambda b, h, q, k: (t.flags[k] & 4 != 0) | (q == k),
        "bits_of_signed": lambda b, h, q, k: (t.signed[k] & 6) <= (t.signed[q] | 1),
        "table": lambda b, h, q, k: t.pair_bools[q, k] | (q == k),
        "table_in_steps": lambda b, h, q, k: t.pair_bools[q][k] | (q == k),
        "table_of_bools": lambda b, h, q, k: t.bools[q] | t.bools[k] | (q == k),
        "bools_added": lambda b, h, q, k: (t.bools[q] + t.bools[k]) | (q == k),
        "bools_multiplied": lambda b, h, q, k: (t.bools[q] * t.bools[k]) | (q == k),
        "bools_compared": lambda b, h, q, k: (t.bools[q] == t.bools[k]) | (q == k),
        "bools_apart": lambda b, h, q, k: (t.bools[q] ^ t.bools[k]) | (q == k),
        "sum_of_bools": lambda b, h, q, k: (q >= k).int() + (k < 3).int() >= 1,
        "logical": lambda b, h, q, k: torch.logical_and(q >= k, torch.logical_not(torch.logical_xor(k > 2, k > 3))),
        "logical_or": lambda b, h, q, k: torch.logical_or(q >= k, k < 2),
        "not": lambda b, h, q, k: ~(q < k),
        "flag": lambda b, h, q, k: t.flag & (q >= k),
        "all_but_python": lambda b, h, q, k: (q >= k) & True,
        "bytes_wrap": lambda b, h, q, k: (t.bytes[q] + t.bytes[k] < 128) | (q == k),
        "bytes_times": lambda b, h, q, k: (t.bytes[q] * 3 >= t.bytes[k]) | (q == k),
        "bytes_below_0": lambda b, h, q, k: (t.bytes[q] - t.bytes[k] < 128) | (q == k),
        "positions_of_64_bits": lambda b, h, q, k: (t.far[q] - t.far[k] < 7) | (q == k),
        "wraps_64_bits": lambda b, h, q, k: (t.far[q] * 9 - (-t.far[k]) < 0) | (q == k),
        "ints_wrap": lambda b, h, q, k: (t.large[q] + t.large[k] < -2**30) | (q == k),
        "ints_of_16_bits": lambda b, h, q, k: (t.shorts[q] * t.shorts[k] < 0) | (q == k),
        "cast_wraps": lambda b, h, q, k: ((q * 100).to(torch.uint8) >= k) | (q == k),
        "from_the_end": lambda b, h, q, k: t.documents[-1] == t.documents[k],
        "in_place": changed_in_place,
        "any_of_row": lambda b, h, q, k: (t.chosen[b, h] == k).any() | (q == k),
        "any_unsqueezed": lambda b, h, q, k: (t.chosen[b, h] == k.unsqueeze(-1)).any(dim=-1) | (q == k),
        "all_of_row": lambda b, h, q, k: (t.chosen[b, h] <= k).all() | (q == k),
        "python_dimensions": lambda b, h, q, k: q >= k if q.ndim == 0 and q.dim() == 0 and not q.shape else q < 0,
        "python_dtype": lambda b, h, q, k: q < 0 if q.dtype.is_floating_point or q.is_floating_point() else q >= k,
        "remainder": lambda b, h, q, k: torch.remainder(q - k, 5) < 3,
        "fmod": lambda b, h, q, k: torch.fmod(q - k, 5) >= 0,
        "divided_to_0": lambda b, h, q, k: torch.div(q - k, 4, rounding_mode="trunc") >= 0,
        "negative_divisor": lambda b, h, q, k: (q // -4 + (q - k) % -3) <= 0,
        "true_division": lambda b, h, q, k: k / 2 <= q,
        "of_floats": lambda b, h, q, k: q.float() * 0.5 >= k.float() - 10,
        "clamped": lambda b, h, q, k: q.clamp(min=5) >= k,
        "clamp_min_max": lambda b, h, q, k: q.clamp_min(3).clamp_max(30) >= k,
        "least": lambda b, h, q, k: torch.minimum(q, torch.maximum(k, h)) <= k,
        "masked_fill_of_ints": lambda b, h, q, k: q.masked_fill(q < 5, 20) >= k,
        "full_like": lambda b, h, q, k: q >= torch.full_like(k, 7) * (k > 7),
        "nested_reads": lambda b, h, q, k: k >= t.starts[t.sequence[q]],
        "sequences": of_sequences(causal),
        "sequences_window": of_sequences(lambda b, h, q, k: (q - k).abs() <= 4),
        "span_in_steps": of_span,
        "next_start": lambda b, h, q, k: k < t.starts[t.sequence[q] + 1],
        "next_start_of_64_bits": lambda b, h, q, k: (k < t.starts[t.sequence.long()[q] + 1]) & (k >= t.starts[t.sequence.long()[q]]),
        "from_the_end_by_tensor": lambda b, h, q, k: k < t.starts[t.sequence[q] - 3],
    }


def on_cuda(torch):
    """The same scores in other words, for PyTorch's own vmap: of logsigmoid it says "SmallVector unable to grow" on CUDA."""
    return {"logsigmoid": lambda s, b, h, q, k: -torch.nn.functional.softplus(-s)}


def scores(torch, t):
    """By name."""
    F, learned = torch.nn.functional, t.learned

    def alibi(s, b, h, q, k):
        return s + torch.exp2(-((h + 1) * 8.0 / HEADS)) * (k - q)

    def in_place(s, b, h, q, k):
        s = s * 1.0
        alias = s
        s.mul_(0.5).add_(q * 0.1)
        s -= k * 0.05
        return alias

    def looped(s, b, h, q, k):
        total = 0.0
        for at in range(3):
            total = total + t.relative[k + at]
        return s + total / 3

    def summed(s, b, h, q, k):
        total = torch.zeros_like(s)
        for table in (t.by_q[q], t.by_k[k]):
            total += table
        return s + total

    def with_inner(s, b, h, q, k):
        def inner(x):
            return torch.where(x > 0, x, x * 0.5)
        return inner(s) + inner(t.by_k[k])

    return {
        "identity": lambda s, b, h, q, k: s,
        "twice": lambda s, b, h, q, k: s * 2,
        "squared": lambda s, b, h, q, k: s * s,
        "negated": lambda s, b, h, q, k: -s,
        "halved": lambda s, b, h, q, k: s / 2,
        "causal": lambda s, b, h, q, k: torch.where(q >= k, s, -INF),
        "inverse_causal": lambda s, b, h, q, k: torch.where(q <= k, s, -INF),
        "causal_by_method": lambda s, b, h, q, k: s.where(q >= k, -INF),
        "causal_masked_fill": lambda s, b, h, q, k: s.masked_fill(q < k, -INF),
        "causal_least": lambda s, b, h, q, k: torch.where(q >= k, s, torch.finfo(torch.float32).min),
        "causal_tensor": lambda s, b, h, q, k: torch.where(q >= k, s, torch.tensor(-INF)),
        "relative": lambda s, b, h, q, k: s + (q - k),
        "relative_causal": lambda s, b, h, q, k: torch.where(q >= k, s + (q - k), -INF),
        "relative_float": lambda s, b, h, q, k: s + (q - k).to(torch.float32) * 0.1,
        "alibi": alibi,
        "alibi_table": lambda s, b, h, q, k: s + t.by_head[h] * (k - q),
        "alibi_power": lambda s, b, h, q, k: s + 2.0 ** (-(h + 1) * 2.0) * (k - q),
        "alibi_pow": lambda s, b, h, q, k: s - torch.pow(0.5, h + 1.0) * (q - k).abs(),
        "softcap": lambda s, b, h, q, k: 5 * torch.tanh(s / 5),
        "softcap_method": lambda s, b, h, q, k: (s / 3).tanh() * 3.0,
        "sigmoid": lambda s, b, h, q, k: torch.sigmoid(s),
        "silu": lambda s, b, h, q, k: F.silu(s),
        "relu": lambda s, b, h, q, k: F.relu(s),
        "relu_method": lambda s, b, h, q, k: s.relu() + 1,
        "leaky_relu": lambda s, b, h, q, k: F.leaky_relu(s, 0.1),
        "elu": lambda s, b, h, q, k: F.elu(s),
        "gelu_tanh": lambda s, b, h, q, k: F.gelu(s, approximate="tanh"),
        "softplus": lambda s, b, h, q, k: F.softplus(s),
        "logsigmoid": lambda s, b, h, q, k: F.logsigmoid(s),
        "exp": lambda s, b, h, q, k: torch.exp(s * 0.3),
        "exp2": lambda s, b, h, q, k: torch.exp2(s * 0.3),
        "log": lambda s, b, h, q, k: torch.log(s.abs() + 1),
        "log2": lambda s, b, h, q, k: (s * s + 1).log2(),
        "log1p": lambda s, b, h, q, k: torch.log1p(s * s),
        "log_distance": lambda s, b, h, q, k: s - torch.log((q - k).abs() + 1.0),
        "sqrt": lambda s, b, h, q, k: s + torch.sqrt((q - k).abs()),
        "rsqrt": lambda s, b, h, q, k: s * torch.rsqrt(q + 1),
        "reciprocal": lambda s, b, h, q, k: s * torch.reciprocal(k + 1.0),
        "square": lambda s, b, h, q, k: torch.square(s),
        "abs": lambda s, b, h, q, k: s.abs(),
        "power_2": lambda s, b, h, q, k: s ** 2,
        "power_3": lambda s, b, h, q, k: torch.pow(s, 3),
        "float_power": lambda s, b, h, q, k: (s.abs() + 0.1) ** 1.7,
        "power_half": lambda s, b, h, q, k: (s * s + 0.1) ** 0.5,
        "power_below_0": lambda s, b, h, q, k: s * (k + 1.0) ** -2,
        "of_sign": lambda s, b, h, q, k: s * torch.sign(q - k + 0.5),
        "clamp": lambda s, b, h, q, k: torch.clamp(s, -1, 1),
        "clamp_min": lambda s, b, h, q, k: s.clamp_min(-0.5),
        "clamp_max": lambda s, b, h, q, k: s.clamp_max(0.5),
        "clamp_by_name": lambda s, b, h, q, k: torch.clamp(s, max=0.25),
        "maximum": lambda s, b, h, q, k: torch.maximum(s, t.by_k[k]),
        "minimum": lambda s, b, h, q, k: torch.min(s, t.half),
        "bias": lambda s, b, h, q, k: s + t.pairs[q, k],
        "bias_of_heads": lambda s, b, h, q, k: s + t.head_pairs[h, q, k],
        "bias_of_all": lambda s, b, h, q, k: s + t.all_pairs[b, h, q, k],
        "bias_in_steps": lambda s, b, h, q, k: s + t.all_pairs[b][h][q][k],
        "bias_in_two_steps": lambda s, b, h, q, k: s + t.batch_pairs[b][q, k],
        "bias_with_slices": lambda s, b, h, q, k: s + t.head_pairs[h, :, k][q],
        "bias_with_dots": lambda s, b, h, q, k: s + t.head_pairs[..., k][h, q],
        "bias_of_batch": lambda s, b, h, q, k: s + t.by_batch[b],
        "bias_fp16": lambda s, b, h, q, k: s + t.half_k[k],
        "bias_bf16": lambda s, b, h, q, k: s * t.bf16_q[q],
        "captured_number": lambda s, b, h, q, k: s * t.half,
        "captured_one_element": lambda s, b, h, q, k: s + t.one[0],
        "captured_computed": lambda s, b, h, q, k: s + (t.by_k * 2)[k] + t.by_q.mean(),
        "captured_twice": lambda s, b, h, q, k: s + t.by_k[k] + t.by_k[q],
        "python_number": lambda s, b, h, q, k: s * math.pi,
        "from_the_end": lambda s, b, h, q, k: s + t.by_k[-1] + t.pairs[-2, k],
        "shifted_view": lambda s, b, h, q, k: s + t.part[q, k],
        "strided": lambda s, b, h, q, k: s + t.strided[k],
        "expanded": lambda s, b, h, q, k: s + t.spread[q, k],
        "transposed": lambda s, b, h, q, k: s + t.turned[q, k],
        "relative_table": lambda s, b, h, q, k: s + t.relative[q - k + KEYS - 1],
        "relative_of_heads": lambda s, b, h, q, k: s + t.relative_heads[q - k + KEYS - 1, h],
        "relative_from_the_end": lambda s, b, h, q, k: s + t.relative[q - k],
        "relative_clamped": lambda s, b, h, q, k: s + t.relative[(q - k).clamp(0, 20)],
        "buckets": lambda s, b, h, q, k: s + t.relative[torch.clamp(torch.abs(q - k) // 4, max=7)],
        "weird_index": lambda s, b, h, q, k: s + t.by_k[(q * 7 + k * 3 + h) % KEYS],
        "index_by_head_and_modulo": lambda s, b, h, q, k: s + t.head_pairs[h, q % 8, k % 5],
        "index_by_kv_head": lambda s, b, h, q, k: s + t.by_head[h // 2],
        "index_by_bytes": lambda s, b, h, q, k: s + t.by_head[t.documents[k]],
        "from_the_end_by_tensor": lambda s, b, h, q, k: s + t.by_k[t.signed[k]] - t.pairs[t.signed.long()[k] * 2 - 1, t.signed[q]],
        "distance_in_sequence": lambda s, b, h, q, k: s + t.by_k[q - t.starts.long()[t.sequence.long()[q]]],
        "learned_from_the_end_by_tensor": lambda s, b, h, q, k: s + learned.by_k[t.signed.long()[k] + t.signed.long()[q]],
        "nested_captures": lambda s, b, h, q, k: s + t.by_k[t.starts[t.sequence[k]]],
        "scaled_by_bool": lambda s, b, h, q, k: s * (q >= k),
        "bool_plus": lambda s, b, h, q, k: s + (q >= k) * 0.3,
        "sum_of_bools": lambda s, b, h, q, k: s + ((q > k) + (k > 3)),
        "bool_and_number": lambda s, b, h, q, k: s + (t.bools[k] + 1),
        "int_table": lambda s, b, h, q, k: s + t.signed[k] * 0.25,
        "ints_of_64_bits": lambda s, b, h, q, k: s + t.wide_documents[q] * 4,
        "bytes_wrap": lambda s, b, h, q, k: s + (t.bytes[k] * 2) / 64,
        "int_true_division": lambda s, b, h, q, k: s + q / (k + 1),
        "by_head": lambda s, b, h, q, k: torch.where(h == 0, s, s * 0.5),
        "by_heads": lambda s, b, h, q, k: torch.where(h % 2 == 0, s + t.by_q[q], s - t.by_k[k]),
        "by_batch": lambda s, b, h, q, k: torch.where(b == 0, s, s + k * 0.01),
        "by_position": lambda s, b, h, q, k: torch.where(k % 2 == 0, s, s * t.half),
        "by_condition_of_score": lambda s, b, h, q, k: torch.where(s > 0, s, s * 0.1),
        "documents": lambda s, b, h, q, k: torch.where(t.documents[q] == t.documents[k], s, -INF),
        "padded": lambda s, b, h, q, k: torch.where(k < t.lengths[b], s, -INF),
        "window": lambda s, b, h, q, k: torch.where((q - k).abs() < 9, s, -INF),
        "zeros_like": lambda s, b, h, q, k: torch.where(q >= k, s, torch.full_like(s, -INF)) + torch.zeros_like(s),
        "new_zeros": lambda s, b, h, q, k: torch.maximum(s, s.new_zeros(())),
        "new_full": lambda s, b, h, q, k: s + s.new_full((), 0.5) * q.new_ones(()),
        "in_place": in_place,
        "looped": looped,
        "summed": summed,
        "with_inner": with_inner,
        "lerp": lambda s, b, h, q, k: torch.lerp(s, t.by_k[k].to(s.dtype), 0.3),
        "addcmul": lambda s, b, h, q, k: torch.addcmul(s, t.by_k[k], t.by_q[q], value=0.5),
        "add_alpha": lambda s, b, h, q, k: torch.add(s, t.by_k[k], alpha=0.5),
        "sub_from": lambda s, b, h, q, k: 1 - s,
        "divided_by": lambda s, b, h, q, k: 1.0 / (s * s + 1),
        "dot": lambda s, b, h, q, k: s + torch.dot(t.q_rows[b, h, q], t.k_rows[b, k]),
        "sum_of_products": lambda s, b, h, q, k: s + (t.q_rows[b, h, q] * t.k_rows[b, k]).sum(-1),
        "type_as": lambda s, b, h, q, k: s + (q - k).type_as(s) * 0.01,
        "detached_position": lambda s, b, h, q, k: s + q.detach() * 0.01,
        "python_dimensions": lambda s, b, h, q, k: s * 2 if s.ndim == 0 and len(s.shape) == 0 else s,
        "python_dtype": lambda s, b, h, q, k: s * 2 if s.is_floating_point() else s,
        "of_bool_cast": lambda s, b, h, q, k: s + (k % 3).bool(),
        "learned_by_head": lambda s, b, h, q, k: s * learned.by_head[h],
        "learned_by_key": lambda s, b, h, q, k: s + learned.by_k[k],
        "learned_pairs": lambda s, b, h, q, k: s + learned.pairs[q, k],
        "learned_of_heads": lambda s, b, h, q, k: s + learned.head_pairs[h, q, k],
        "learned_in_steps": lambda s, b, h, q, k: s + learned.head_pairs[h][q][k],
        "learned_relative": lambda s, b, h, q, k: s + learned.relative[q - k + KEYS - 1],
        "learned_from_the_end": lambda s, b, h, q, k: s + learned.relative[q - k],
        "learned_gate": lambda s, b, h, q, k: s * torch.sigmoid(learned.gate[0]),
        "learned_number": lambda s, b, h, q, k: s * learned.one_number,
        "learned_expanded": lambda s, b, h, q, k: s + learned.rows.expand(QUERIES, KEYS)[q, k],
        "learned_broadcast": lambda s, b, h, q, k: s + learned.rows[0, k],
        "learned_strided": lambda s, b, h, q, k: s + learned.wide[:, 1][k],
        "learned_transposed": lambda s, b, h, q, k: s + learned.wide.t()[0, k],
        "learned_twice": lambda s, b, h, q, k: s + learned.by_k[k] * learned.by_k[q],
        "learned_buckets": lambda s, b, h, q, k: s + learned.cells[h, torch.clamp((q - k).abs() // 4, max=7)],
        "learned_fp16": lambda s, b, h, q, k: s + learned.half[k],
        "learned_clamped": lambda s, b, h, q, k: s + learned.by_k[k].clamp(-0.5, 0.5),
        "learned_computed": lambda s, b, h, q, k: s + (learned.by_k * 2 + 1)[k],
    }


def beyond(torch, t):
    """Scores that the language has no counterpart for, with what the refusal says."""
    return {
        "sin_of_cos": ("cos", lambda s, b, h, q, k: torch.sin(torch.cos(s))),
        "floor": ("floor", lambda s, b, h, q, k: torch.floor(s)),
        "erf": ("erf", lambda s, b, h, q, k: torch.erf(s)),
        "gelu": ("gelu", lambda s, b, h, q, k: torch.nn.functional.gelu(s)),
        "detached": ("detach", lambda s, b, h, q, k: s - s.detach()),
        "to_int": ("cannot become an int", lambda s, b, h, q, k: s.int()),
        "float_modulo": ("two ints", lambda s, b, h, q, k: s % 2),
        "requires_grad": ("requires_grad", lambda s, b, h, q, k: s if s.requires_grad else s * 2),
    }

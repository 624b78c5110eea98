"""These tables have the problems that are run, what they are held against, and the figures that an H200 must reach."""
import dataclasses
import random

from compare import index_rows, latent_rows, sparse_rows
from compare.row import SOFTCAP, WINDOW, Ratio, Row, Sum

HINTS = {False: "none", True: "sizes"}  # prepare is told this beside the spec
ALL_TABLES = ("forward", "gqa", "window", "scores", "packed")
SPARSE_TABLES = ("sparse", "sparse_backward")
LATENT_TABLES = ("latents", "sparse_decode", "sparse_prefill")
DRAWN_TABLES = ("drawn", "drawn_backward", "drawn_cache")
GPU_TABLES = (*ALL_TABLES, "backward", "training", "data", "fp8", "decode", "paged", "mla", "prefix", "mixed", "cache", *SPARSE_TABLES, *LATENT_TABLES, "pages", "index", *DRAWN_TABLES)  # data takes minutes
IN_GRAPHS = ("decode", "paged", "mla", "latents", "sparse_decode", "pages", "prefix", "mixed", "cache", "drawn", "drawn_cache")  # replayed from CUDA graphs, as servers do where launches are short

# These say by how much the better of cuDNN 9.19 and FlashAttention-3 beat cuDNN 9.19 [M64].
BEST_PEER_OVER_CUDNN = {
    (64, "full", 1024): 1.00, (64, "full", 4096): 1.04, (64, "full", 16384): 1.13,
    (64, "causal", 1024): 1.00, (64, "causal", 4096): 1.03, (64, "causal", 16384): 1.10,
    (128, "full", 1024): 1.00, (128, "full", 4096): 1.04, (128, "full", 16384): 1.08,
    (128, "causal", 1024): 1.09, (128, "causal", 4096): 1.11, (128, "causal", 16384): 1.03,
    (256, "full", 1024): 1.04, (256, "full", 4096): 1.01, (256, "full", 16384): 1.06,
    (256, "causal", 1024): 1.05, (256, "causal", 4096): 1.19, (256, "causal", 16384): 1.10,
}
LEAST_OF_BEST_PEER = 0.97
LEAST_BACKWARD_OVER_CUDNN, LEAST_BACKWARD_MEAN_OVER_CUDNN = 1.10, 1.26
LEAST_BACKWARD_OVER_BEST = 1.10  # the best of cuDNN and FlashAttention-2, at other head dims
LEAST_BACKWARD_TFLOPS = {(64, "full"): 590, (64, "causal"): 590, (128, "full"): 645, (128, "causal"): 630, (256, "full"): 515,
                         (256, "causal"): 505}  # at 16k
LEAST_BACKWARD_OVER_TORCH = {"fp32": 1.0, "bf16": 1.2}  # means, on processors
LEAST_DETERMINISTIC_OVER_FAST = {64: 0.88, 128: 0.88, 256: 0.95}
DROPOUT = 0.1
LEAST_MEAN_OVER_CUDNN = 1.10
# These are shares of the rate of a bf16 8192^3 matrix product in the same run. None is only shown.
LEAST_OF_PRODUCT = {(128, "full", 16384): 0.95, (128, "causal", 16384): 0.92, (64, "full", 16384): 0.76,
                    (64, "causal", 16384): None}
MOST_OF_FA2_ERROR = 1.2
MOST_COLD_MEDIAN_MS, MOST_COLD_MS = 450, 900

# These are the contents of tensors, and how many times as long as on normal data a launch may take. Numbers are logits.
DATA = {"normal": 1.0,
        **{f"sink({height})": 1.15 for height in (5, 10, 20, 60)},     # token 0 above the rest
        **{f"key({height})": 1.4 for height in (10, 30)},              # a random key above the rest
        "wide(3)": 1.15, "wide(5)": 1.15, "wide(10)": 1.4,               # standard deviation
        "rising(30)": 1.15, "falling(30)": 1.15, "rising(200)": 1.4, "falling(200)": 1.4,  # along the keys
        "combs(20)": 1.4,                                              # every 64th key above the rest
        "equal": 1.4}
LEAST_OVER_CUDNN_ON_DATA = {64: 1.0, 128: 1.0, 256: 0.95}

# For Q, K and V of 8 bits these are TFLOP/s, and the figures of FlashAttention-3's authors at 4k. Ours have to be
# LEAST_OVER_FA3 times as fast.
LEAST_NARROW_TFLOPS = {64: 800, 128: 1080, 256: 1200}
FA3_NARROW_TFLOPS = {(64, "full"): 607, (128, "full"): 867, (256, "full"): 1120, (64, "causal"): 530, (128, "causal"): 794, (256, "causal"): 1014}
LEAST_OVER_FA3 = 1.1
LEAST_COMPUTE_OVER_BF16 = 1.2  # 16 bits that are quantised, rotated and multiplied as 8, over bf16

# Decode is replayed from CUDA graphs. Times are in us: (batch, keys) with 32/8 heads, one H200, bf16.
LEAST_DECODE_OVER_CUDNN, LEAST_DECODE_MEAN_OVER_CUDNN = 1.0, 1.15
MOST_DECODE_US = {(1, 1024): 7.5, (1, 8192): 16.5}
# These are times through a page table, with pages of 64 or 256 tokens. Smaller ones may take a little more.
MOST_PAGED_US = {(1, 8192): 17.5, (16, 8192): 135, (64, 8192): 490, (128, 2048): 255}
MOST_SMALL_PAGES = 1.05
# These are for K and V of 8 bits, contiguous or in pages of 64, with the root mean square of their errors over that of
# bf16 on the same numbers.
MOST_NARROW_CACHE_US = {(1, 8192): 13, (16, 8192): 78, (64, 8192): 262, (128, 2048): 134}
MOST_OF_BF16_ERROR = 1.5
MOST_US_OF_APPEND = 2.0
LEAST_PAGED_OVER_CONTIGUOUS = 0.95  # limit for pieces of prompts
# Latents have 576 columns, of which V is the first 512: 128 query heads, one KV head, through pages of 64 tokens.
MOST_MLA_US = {(16, 8192): 66, (64, 8192): 205, (128, 4096): 205}
READ_TBS = 4.54  # an H200's best rate of reading
# This is the rate of the product of 16 bits under an H200's limit of power. Long forwards reach about as much.
MULTIPLY_TFLOPS = 750
LEAST_UNEVEN_OVER_EVEN = 0.88
MOST_INVARIANT_OVER_DEFAULT = 1.08
LEAST_SHARED_OVER_UNSHARED = 5.0
MOST_MIXED_OVER_ALONE = 1.03  # the sum of prompts alone and single tokens alone
MOST_TREE_OVER_ONE = 1.2  # drafts in a tree, over one token

DRAWN_FLOPS, DRAWN_BYTES = 4e11, 2e9  # limits for a drawn row: about a millisecond

USUAL_DIMS = (64, 128, 256)
def forward_rows():
    return [Row("forward", d, mask, s, 16384 // s, 2048 // d, 2048 // d)
            for d in (64, 128, 256) for mask in ("full", "causal") for s in (1024, 4096, 16384)]


def backward_rows():
    shapes = [(d, s) for d in (64, 128, 256) for s in (1024, 4096, 16384)] + [(d, 4096) for d in (40, 80, 96, 112, 160, 192)]
    return [Row("backward", d, mask, s, 16384 // s, max(1, 2048 // d), max(1, 2048 // d), d_v=d_v)
            for d, s, d_v in [(*shape, 0) for shape in shapes] + [(192, 4096, 128)] for mask in ("full", "causal")]


def decode_rows():
    sizes = ((1, 1024), (1, 8192), (1, 131072), (8, 4096), (16, 8192), (128, 2048), (64, 8192))
    return [Row("decode", 128, "full", s, b, heads, kv_heads, queries=1)
            for heads, kv_heads in ((32, 8), (64, 8), (32, 32)) for b, s in sizes if kv_heads == 8 or b * s <= 262144]


def drawn_row(draw, table):
    """Draws a problem that a model might have, of a size nobody chose: itself, or few queries, or as many as there are,
    on other keys; for a cache, few queries or a piece of a prompt."""
    def between(least, most):
        return int(least * ((most + 1) / least) ** draw.random())

    if table == "drawn_cache":
        d, kv_heads, group = draw.choice((64, 64, 96, 128, 128, 128, 192, 256)), draw.choice((1, 2, 4, 8, 16)), draw.choice((1, 2, 4, 5, 8, 16))
        queries = draw.choice((1, 1, 1, between(2, 16), between(17, 2048)))
        s = max(queries, between(256, 65536))
        most = min(DRAWN_BYTES / (4.0 * d * kv_heads * s), DRAWN_FLOPS / (4.0 * d * kv_heads * group * queries * s), 128)
        return Row(table, d, "causal" if queries > 1 else "full", s, between(1, max(1, int(most))), kv_heads * group, kv_heads, dtype=draw.choice(("bf16", "fp16")),
                   queries=queries, page=draw.choice((0, 16, 64, 256)), kv=draw.choice(("", "e4m3")))
    d, d_v = draw.choice(((32, 0), (40, 0), (48, 0), (64, 0), (64, 0), (72, 0), (80, 0), (96, 0), (112, 0), (128, 0), (128, 0), (160, 0), (192, 0), (192, 128), (256, 0)))
    kv_heads, group = draw.choice((1, 2, 3, 4, 5, 8, 12, 16)), draw.choice((1, 1, 1, 2, 4, 7, 8))
    heads, dtype = kv_heads * group, draw.choice(("bf16", "bf16", "fp16"))
    kind = draw.choice(("itself", "itself", "few", "others") if table == "drawn" else ("itself", "itself", "others"))
    queries, s = {"itself": lambda: (0, between(64, 16384)), "few": lambda: (between(1, 16), between(256, 65536)),
                  "others": lambda: (between(64, 8192), between(16, 4096))}[kind]()
    largest = DRAWN_FLOPS / (4.0 * d * heads * (queries or s) * s)  # Everything else follows from it.
    largest = min(largest, DRAWN_BYTES / (4.0 * d * max(heads * (queries or s), kv_heads * s)))
    mask = draw.choice(("full", "causal")) if kind == "itself" else "full"
    return Row(table, d, mask, s, between(1, max(1, min(64, int(largest)))), heads, kv_heads, dtype=dtype, queries=queries, d_v=d_v)


def drawn_rows(table, seed, count):
    draw = random.Random(seed)
    return [drawn_row(draw, table) for _ in range(count)]


def paged_row(s, b, page, lengths=()):
    return Row("paged", 128, "full", s, b, 32, 8, queries=1, page=page, lengths=lengths)


def paged_rows():
    return [paged_row(s, b, page) for b, s in MOST_PAGED_US for page in (16, 64, 256)]


def paged_ratios():
    """Compares very uneven batches, the same in every run, with even ones of as many tokens."""
    ratios = []
    for seed in (1, 2, 3):
        draw = random.Random(seed)
        lengths = tuple(int(64 * 512 ** draw.random()) for _ in range(64))
        mean = round(sum(lengths) / len(lengths))
        ratios.append(Ratio(f"64 sequences of {min(lengths)}..{max(lengths)} tokens in pages, over 64 of {mean}, in TB/s",
                            paged_row(max(lengths), 64, 64, lengths), paged_row(mean, 64, 64), "rate", LEAST_UNEVEN_OVER_EVEN))
    return ratios


def mla_rows():
    return [Row("mla", 576, "full", s, b, 128, 1, queries=1, page=page, d_v=512)
            for b, s in ((1, 8192), *MOST_MLA_US) for page in (0, 64)]


def cache_row(s, b, **more):
    return Row("cache", 128, more.pop("mask", "full"), s, b, 32, 8, queries=more.pop("queries", 1), **more)


def narrow_cache_rows():
    return [cache_row(s, b, kv="e4m3", page=page) for b, s in MOST_NARROW_CACHE_US for page in (0, 64)]


def cache_ratios():
    """Compares calls that write new tokens with calls that find them there, and pieces of prompts over pages with
    contiguous keys."""
    ratios = [Ratio(f"us that append and rope take, {b} x {s} in pages", cache_row(s, b, page=64, append=True), cache_row(s, b, page=64),
                    "more", MOST_US_OF_APPEND) for b, s in MOST_PAGED_US]
    prompts = [dict(s=16384 + queries, b=b, queries=queries, mask="causal") for queries, b in ((512, 1), (2048, 1), (2048, 4))]
    return ratios + [Ratio(f"{one['b']} x {one['queries']} new tokens on 16k in pages of 64, over contiguous keys", cache_row(**one, page=64),
                           cache_row(**one), "rate", LEAST_PAGED_OVER_CONTIGUOUS) for one in prompts]


def prefix_rows():
    return [Row("prefix", 128, "full", 32768 + 1024, 64, 32, 8, queries=1, page=64, prefix=32768)]


def mixed_ratios():
    """Compares prompts and single tokens in one launch with both alone, and drafts in a tree with one token."""
    def mixed(prompts, singles):
        lengths = (2048,) * prompts + (8192,) * singles
        return Row("mixed", 128, "causal", max(lengths), len(lengths), 32, 8, page=64, lengths=lengths,
                   q_lens=(2048,) * prompts + (1,) * singles)

    def drafts(queries, mask):
        return Row("mixed", 128, mask, 8192, 16, 64, 8, queries=queries, page=64)
    return [Sum("2 prompts of 2048 and 62 single tokens at 8192 in one launch, over the sum of both alone, time", mixed(2, 62),
                (mixed(2, 0), mixed(0, 62)), MOST_MIXED_OVER_ALONE),
            Sum("16 drafts in a tree at 16 x 8192, 64/8 heads, over one token, time", drafts(16, "tree"), (drafts(1, "full"),),
                MOST_TREE_OVER_ONE)]


def cpu_rows():
    return [Row("cpu", d, mask, s, 1, 8, 8, dtype=dtype, threads=threads) for threads in (1, 16) for dtype in ("fp32", "bf16")
            for d, s, mask in ((64, 1024, "causal"), (128, 2048, "causal"), (128, 2048, "full"))]


def cpu_backward_rows():
    return [Row("cpu_backward", d, mask, 2048, 1, 8, 8, dtype=dtype, threads=threads) for threads in (1, 16) for dtype in ("fp32", "bf16")
            for d, mask in ((64, "full"), (64, "causal"), (128, "causal"))]


def decode_ratios():
    """Compares kernels that give the same bits in any batch with the default."""
    def row(s, b, numerics=""):
        return Row("decode", 128, "full", s, b, 32, 8, queries=1, numerics=numerics)
    return [Ratio(f"time of batch-invariant decode over the default, {b} x {s}", row(s, b, "batch_invariant"), row(s, b),
                  "time", MOST_INVARIANT_OVER_DEFAULT) for b, s in ((1, 1024), (1, 8192), (16, 8192), (64, 8192), (128, 2048))]


def gqa_ratios():
    def row(heads, kv_heads):
        return Row("gqa", 128, "causal", 8192, 2, heads, kv_heads)
    return [Ratio(f"GQA {heads}/8, causal, 8k, over MHA with {heads} heads", row(heads, 8), row(heads, heads), "rate", 0.98)
            for heads in (32, 64)]


def window_ratios():
    def row(mask):
        return Row("window", 128, mask, 16384, 1, 16, 16)
    return [Ratio(f"window {WINDOW} at 16k, d128, over causal, on the visible part", row("window"), row("causal"), "rate", 0.85)]


def scores_ratios():
    def row(score):
        return Row("scores", 128, "causal", 4096, 4, 16, 16, score=score)
    return [Ratio(f"time of {name} over plain, causal, 4k, d128", row(score), row("plain"), "time", limit)
            for score, name, limit in (("softcap", f"softcap({SOFTCAP:g})", 1.15), ("alibi", "alibi", 1.10),
                                       ("bias_bf16", "bias[h,q,k] in bf16", 1.35), ("bias_fp32", "bias[h,q,k] in fp32", 1.35))]


def document_lengths(draw, total=32768, least=128, most=8192):
    """Draws lengths with exactly this sum. The last ones take what is left."""
    lengths, left = [], total
    while left:
        length = min(draw(least, most), left)
        if 0 < left - length < least:
            length = left if left <= most else left - least
        lengths.append(length)
        left -= length
    return tuple(lengths)


def packed_ratios():
    # The documents are equal in every run, because the ratio depends on them.
    uniform, logarithmic = random.Random(3), random.Random(3)
    draws = {"uniform": lambda lo, hi: int(lo + (hi - lo) * uniform.random()),
             "log-uniform": lambda lo, hi: int(lo * (hi / lo) ** logarithmic.random())}
    ratios = []
    for name, draw in draws.items():
        lengths = document_lengths(draw)
        mean = max(128, round(sum(lengths) / len(lengths) / 128) * 128)
        ratios.append(Ratio(f"{len(lengths)} packed documents, lengths {name} in 128..8192, over dense causal of {mean}",
                            Row("packed", 128, "causal", max(lengths), len(lengths), 16, 16, lengths=lengths),
                            Row("packed", 128, "causal", mean, round(sum(lengths) / mean), 16, 16), "rate", 0.80))
    return ratios


def data_ratios():
    def row(d, dtype, mask, s, b, data):
        return Row("data", d, mask, s, b, 2048 // d, 2048 // d, dtype=dtype, data=data)
    return [Ratio(f"time on {data} over normal, {dtype} d={d} {mask} {b} x {s}", row(d, dtype, mask, s, b, data),
                  row(d, dtype, mask, s, b, "normal"), "time", limit)
            for dtype in ("fp16", "bf16") for d in (64, 128, 256) for mask in ("full", "causal") for s, b in ((4096, 4), (16384, 1))
            for data, limit in DATA.items() if data != "normal"]


def narrow_ratios():
    """Compares elements of 8 bits with those of 16, other tables' problems in both with plain calls, and calls that
    quantise first."""
    def row(d, mask, s, b, **more):
        return Row("fp8", d, mask, s, b, 2048 // d, 2048 // d, **more)
    shapes = [(d, mask, s, b) for d in USUAL_DIMS for mask in ("full", "causal") for s, b in ((4096, 4), (16384, 1))]
    ratios = [Ratio(f"8 bits over bf16, d={d} {mask} {b} x {s}", row(d, mask, s, b, dtype="e4m3"), row(d, mask, s, b), "rate", None)
              for d, mask, s, b in shapes]
    ratios += [Ratio(f"linear_exp over without, d={d} {mask} {b} x {s}", row(d, mask, s, b, dtype="e4m3", linear=True),
                     row(d, mask, s, b, dtype="e4m3"), "rate", None) for d, mask, s, b in shapes]
    ratios += [dataclasses.replace(ratio, what="8 bits: " + ratio.what, **{
                   side: dataclasses.replace(getattr(ratio, side), table="fp8", dtype="e4m3") for side in ("row", "base")})
               for ratio in (*gqa_ratios(), *window_ratios(), *scores_ratios(), *packed_ratios())]
    return ratios + [Ratio(f"compute={words} over bf16, d=128, full, {b} x {s}", row(128, "full", s, b, compute=words), row(128, "full", s, b),
                           "rate", LEAST_COMPUTE_OVER_BF16 if s == 16384 and "scales" not in words else None)
                     for s, b in ((4096, 4), (16384, 1))
                     for words in ("e4m3", "e4m3 rotate", "e4m3 rotate scales=block(128)", "e4m3 rotate linear_exp",
                                   "e4m3 rotate scales=block(128) linear_exp")]


def training_ratios():
    """Compares gradients of everything with plain ones, and dropout in both directions."""
    def row(mask="causal", d=128, heads=16, kv_heads=16, s=16384, b=1, **more):
        return Row("training", d, mask, s, b, heads, kv_heads, **more)
    ratios = [Ratio(f"gradients, deterministic over fast, d{d}, {mask}, 16k", row(mask, d, 2048 // d, 2048 // d, numerics="deterministic"),
                    row(mask, d, 2048 // d, 2048 // d), "rate", LEAST_DETERMINISTIC_OVER_FAST[d])
              for d in USUAL_DIMS for mask in ("full", "causal")]
    ratios += [Ratio("gradients, GQA 32/8 over plain, causal, 16k", row(heads=32, kv_heads=8), row(), "rate", 0.95),
               Ratio(f"gradients, window {WINDOW} at 16k over causal, on the visible part", row("window"), row(), "rate", 0.75)]
    for ratio in packed_ratios():
        ratios.append(Ratio("gradients, " + ratio.what, dataclasses.replace(ratio.row, table="training"),
                            dataclasses.replace(ratio.base, table="training"), "rate", 0.90))
    plain = dict(s=4096, b=4)
    ratios += [Ratio(f"time of gradients, {name} over plain, causal, 4k", row(**plain, **more), row(**plain), "time", limit)
               for name, limit, more in ((f"softcap({SOFTCAP:g})", 1.25, dict(score="softcap")), ("alibi", 1.15, dict(score="alibi")),
                                         ("bias[h,q,k]", 1.35, dict(score="bias_bf16")),
                                         ("bias[h,q,k] with its gradient", 1.80, dict(score="bias_bf16", grads="table")),
                                         (f"dropout {DROPOUT:g}", 1.15, dict(dropout=DROPOUT)))]
    ratios += [Ratio(f"time of gradients, bias[h,q,k]{name} over plain, {mask}, 4k, d{d}",
                     row(mask, d, **plain, score="bias_bf16", **more), row(mask, d, **plain), "time", limit)
               for d in (64, 128) for mask in ("full", "causal") if (d, mask) != (128, "causal")
               for name, limit, more in (("", 1.35, {}), (" with its gradient", 1.80, dict(grads="table")))]
    forward = Row("dropout", 128, "causal", 4096, 4, 16, 16)
    return ratios + [Ratio(f"time forward, dropout {DROPOUT:g} over none, causal, 4k", dataclasses.replace(forward, dropout=DROPOUT),
                           forward, "time", 1.15)]


def ratios_of(table):
    if table in SPARSE_TABLES:
        return sparse_rows.document_ratios(table)
    return {"training": training_ratios, "gqa": gqa_ratios, "window": window_ratios, "scores": scores_ratios, "packed": packed_ratios, "data": data_ratios, "fp8": narrow_ratios, "decode": decode_ratios, "paged": paged_ratios, "cache": cache_ratios, "pages": index_rows.pages_ratios}.get(table, list)()


def groups_of(table, seed, count):
    """Returns lists of rows. Those of one list are timed in turns, because they are compared with each other."""
    alone = {"forward": forward_rows, "backward": backward_rows, "cpu": cpu_rows, "cpu_backward": cpu_backward_rows, "decode": decode_rows, "paged": paged_rows, "mla": mla_rows, "prefix": prefix_rows, "cache": narrow_cache_rows, "index": index_rows.index_rows}.get(table, list)()
    alone += sparse_rows.block_rows(table) if table in SPARSE_TABLES else []
    alone += latent_rows.rows_of_table(table) if table in LATENT_TABLES else []
    alone += drawn_rows(table, seed, count) if table in DRAWN_TABLES else []
    groups = {row: [row] for row in alone}  # A base that is one of them is there once.
    for one in mixed_ratios() if table == "mixed" else ():
        groups[one.row] = [one.row, *one.parts]
    for ratio in ratios_of(table):
        # There is one group for a table, or one for each base if they are many, or large.
        groups.setdefault(ratio.base if table in ("data", "training", "fp8", *SPARSE_TABLES, *IN_GRAPHS) else None, []).extend((ratio.base, ratio.row))
    return [list(dict.fromkeys(group)) for group in groups.values()]


class BadFilter(Exception):
    pass


def filtered(groups, only):
    """Returns the rows that agree with every key=value of `only`."""
    wanted = []
    for item in filter(None, only.split(",")):
        key, sign, value = item.partition("=")
        names = [field.name for field in dataclasses.fields(Row) if field.name not in ("lengths", "q_lens", "documents")]
        if key not in names or not sign:
            raise BadFilter(f"--only: {item} is not key=value with a key of {', '.join(names)}")
        wanted.append((key, value))
    kept = [[row for row in group if all(str(getattr(row, key)) == value for key, value in wanted)] for group in groups]
    kept = [group for group in kept if group]
    if not kept:
        values = {key: dict.fromkeys(str(getattr(row, key)) for group in groups for row in group) for key, _ in wanted}
        known = "; ".join(f"{key} is one of {', '.join(seen)}" for key, seen in values.items())
        raise BadFilter(f"--only: no row of the chosen tables has {only}; {known}")
    return kept

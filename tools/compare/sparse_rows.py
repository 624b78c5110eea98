"""These are the tables of blocks that lists name and of documents whose numbers lie in a tensor, and the figures that
an H200 must reach."""
import itertools
import random

from compare.row import Ratio, Row

# These are TFLOP/s on the scores of visited blocks, and the time of documents in a tensor over that of the same
# documents packed.
LEAST_TFLOPS = {("sparse", 128): 710, ("sparse_backward", 128): 600, ("sparse", 64): 640, ("sparse_backward", 64): 465}
MOST_OVER_PACKED = 1.08


def block_rows(table):
    """Returns 12.5 % of blocks of 128 in 16k, and 10 % of blocks of 64 in 32k."""
    return [Row(table, 128, "blocks", s, 1, heads, heads, block=block, listed=listed)
            for block, listed, heads, s in ((128, 16, 16, 16384), (64, 51, 24, 32768))]


def lengths_of(tokens, count):
    """Returns lengths that are very unequal, and the same in every run."""
    draw = random.Random(3)
    shares = [draw.random() ** 3 + 0.02 for _ in range(count)]
    ends = [round(tokens * end / sum(shares)) for end in itertools.accumulate(shares)]
    return tuple(end - begin for begin, end in zip([0, *ends], ends))


def document_ratios(table):
    ratios = []
    for d, (count, tokens) in itertools.product((64, 128), ((16, 8192), (40, 32768))):
        lengths = lengths_of(tokens, count)
        ratios.append(Ratio(f"time of {count} documents in a tensor, {tokens} tokens, d={d}, over the same packed ({table})",
                            Row(table, d, "documents", tokens, 1, 16, 16, documents=lengths),
                            Row(table, d, "causal", max(lengths), count, 16, 16, lengths=lengths), "time", MOST_OVER_PACKED))
    return ratios


def figures_of(results, wanted, figure):
    return [figure(f"{row.table}: {row.listed} of {row.s // row.block} blocks of {row.block}, TFLOP/s", result["flashjit_tflops"],
                   least=LEAST_TFLOPS[row.table, row.block] if wanted and row.d == 128 else None)
            for row, result in results.items() if row.block]

"""These are the tables of indexers that choose keys and pages, and of chosen pages, with the figures that an H200 must
reach."""
from compare.row import Ratio, Row

# (dtype, batch, keys, queries, heads, keys of a list; 0 stands for the scores themselves)
INDEXED = (("e4m3", 1, 8192, 4096, 64, 0), ("e4m3", 1, 32768, 4096, 64, 0), ("bf16", 1, 8192, 4096, 64, 0),
           ("e4m3", 1, 8192, 4096, 64, 2048), ("e4m3", 1, 32768, 4096, 64, 2048),
           ("e4m3", 1, 32768, 1, 64, 2048), ("e4m3", 64, 32768, 1, 64, 2048), ("bf16", 64, 32768, 1, 64, 2048))
PAGE_OF_DECODE = 64
# (queries of a sequence, each with a list of its own; pages that all of these lists share; highest time over dense)
MOST_OF_DENSE = ((1, 0, 1.05), (4, 0, 1.3), (4, 14, 1.3), (4, 15, 1.3))


def index_rows():
    return [Row("index", 128, "full" if queries == 1 else "causal", s, b, heads, 1, dtype=dtype, queries=queries, best=best,
                page=PAGE_OF_DECODE if queries == 1 else 0)
            for dtype, b, s, queries, heads, best in INDEXED]


def pages_row(queries, shared):
    return Row("pages", 128, "full", 8192, 128, 32, 8, queries=queries, page=128, pages=16, shared=shared)


def pages_ratios():
    dense = Row("decode", 128, "full", 2048, 128, 32, 8, queries=1)
    return [Ratio(f"time of 16 pages of 128 keys, 128 sequences, {queries} {'query' if queries == 1 else 'queries'} with lists of their own"
                  + (f" that share {shared}" if shared else "") + ", over dense 2048", pages_row(queries, shared), dense, "time", most)
            for queries, shared, most in MOST_OF_DENSE]

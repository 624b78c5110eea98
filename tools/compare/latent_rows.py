"""These are the tables of latents as they are served, and the figures that an H200 must reach."""
from compare.row import Row

COLUMNS, VALUES = 576, 512

# These are times in us, or TFLOP/s, that an H200 must reach. None is only shown. A dtype of 8 bits is that of Q, too.
MOST_DENSE_US = {("dtype e4m3", 64, 8192): 195, ("dtype e4m3", 16, 8192): None, ("dtype e4m3", 128, 4096): None,
                 ("dtype e4m3", 1, 8192): None,
                 ("e4m3", 64, 8192): 195, ("e4m3", 16, 8192): None, ("e4m3", 128, 4096): None, ("e4m3", 1, 8192): None,
                 ("latent656", 64, 8192): 195, ("bf16", 3, 12032): None, ("bf16", 12, 6016): None, ("bf16", 40, 10048): None,
                 ("bf16", 96, 3008): None, ("bf16", 64, 8192): None}
MOST_CHOSEN_US = {(1, 128, 1): 18, (16, 128, 1): 38, (64, 128, 1): 86, (128, 128, 1): 165, (128, 64, 1): 110, (64, 128, 2): 165}
LEAST_PREFILL_TFLOPS = {(8192, 128, 2048): 720, (32768, 128, 2048): 690, (65536, 64, 2048): 620, (8192, 128, 512): 610}


def rows_of_table(table):
    def row(s, b, heads=128, **more):
        return Row(table, COLUMNS, "full", s, b, heads, 1, d_v=VALUES, **more)

    if table == "latents":
        return [row(s, b, queries=1, page=64, **elements_of(kv)) for kv, b, s in MOST_DENSE_US]
    if table == "sparse_decode":
        return [row(32768, b, heads, queries=queries, page=64, kv="latent656", chosen=2048) for b, heads, queries in MOST_CHOSEN_US]
    return [row(s, 1, heads, queries=4096, chosen=chosen) for s, heads, chosen in LEAST_PREFILL_TFLOPS]


def elements_of(name):
    if name.startswith("dtype "):
        return {"dtype": name.removeprefix("dtype ")}
    return {"kv": "" if name == "bf16" else name}


def limit_of(row):
    """Returns the microseconds that a row may take."""
    if row.table == "latents":
        name = f"dtype {row.dtype}" if row.dtype == "e4m3" else row.kv or row.dtype
        return MOST_DENSE_US.get((name, row.b, row.s))
    return MOST_CHOSEN_US.get((row.b, row.heads, row.queries)) if row.table == "sparse_decode" else None


def figures_of(results, wanted, figure):
    return [figure(f"prefill of {row.chosen} of {row.s} keys, {row.heads} heads, TFLOP/s", result["flashjit_tflops"],
                   least=LEAST_PREFILL_TFLOPS.get((row.s, row.heads, row.chosen)) if wanted else None)
            for row, result in results.items() if row.table == "sparse_prefill"]

"""Measured rows become figures, and both become JSON lines and Markdown. A result is a dict: kind="row", the fields of
its Row, ok, limit, rms_limit (None if there is none), schedule, and for every side NAME_ms, NAME_tflops,
NAME_max_err, NAME_rms_err, over_NAME."""
import json
import math
import statistics

from compare import latent_rows, rows, sparse_rows

SHOWN = {"before": "before", "unshared": "unshared", "cudnn": "cuDNN", "fa2": "FA2", "flex": "Flex", "flashinfer": "FlashInfer",
         "fa4": "FA4", "cudnn_blocks": "cuDNN blocks", "flashinfer_blocks": "FlashInfer blocks", "flashmla": "FlashMLA", "efficient": "efficient", "products": "products", "torch": "PyTorch"}
PEERS = tuple(SHOWN)


def finite(value):
    """Replaces numbers that JSON has no word for: infinity, and the error of a NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def emit(line):
    print(json.dumps({key: finite(value) for key, value in line.items()}), flush=True)


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values))


def counted(count, noun):
    return f"{count} {noun}" + ("" if count == 1 else "s")


# ---- figures ----

def figure(what, value, least=None, most=None):
    reached = value >= least if least is not None else value <= most if most is not None else None
    return dict(kind="figure", what=what, value=value, least=least, most=most, reached=reached)


def beside_best_peer(row, result):
    """Returns over_cudnn of the row as a share of what the best peer reaches there, or None."""
    best = rows.BEST_PEER_OVER_CUDNN.get((row.d, row.mask, row.s)) if row.table == "forward" else None
    return result["over_cudnn"] / best if best and "over_cudnn" in result else None


def over_fa2(result, key):
    return result["flashjit_" + key] / result["fa2_" + key] if result.get("fa2_" + key) else None


def least_over(peer, results, count, dtype):
    """Returns (for the mean, for each of some rows of this dtype) over this peer, if a whole table was run."""
    if peer == "torch" and all(row.table == "cpu_backward" for row in results):
        return rows.LEAST_BACKWARD_OVER_TORCH[dtype], None
    if peer != "cudnn":
        return None, None
    if all(row.table == "decode" for row in results):
        return (rows.LEAST_DECODE_MEAN_OVER_CUDNN if count == len(rows.decode_rows()) else None), rows.LEAST_DECODE_OVER_CUDNN
    if all(row.table == "backward" for row in results):
        return (rows.LEAST_BACKWARD_MEAN_OVER_CUDNN if count == len(rows.forward_rows()) else None), rows.LEAST_BACKWARD_OVER_CUDNN
    return (rows.LEAST_MEAN_OVER_CUDNN if count == len(rows.forward_rows()) else None), None


def most_us(row):
    """Returns how long a row of few queries may take, if that is known."""
    if row.table in rows.LATENT_TABLES:
        return latent_rows.limit_of(row)
    if row.table == "mla":
        return rows.MOST_MLA_US.get((row.b, row.s)) if row.page else None
    if row.table == "cache":
        return rows.MOST_NARROW_CACHE_US.get((row.b, row.s)) if row.kv else None
    if (row.heads, row.kv_heads) != (32, 8):
        return None
    if row.table == "decode" and not row.numerics:
        return rows.MOST_DECODE_US.get((row.b, row.s))
    most = rows.MOST_PAGED_US.get((row.b, row.s)) if row.table == "paged" else None
    return most and most * (rows.MOST_SMALL_PAGES if row.page < 64 else 1)


def decode_figures(results, wanted):
    return [figure(f"us of {row.name}", result["flashjit_ms"] * 1e3, most=most_us(row) if wanted else None)
            for row, result in results.items() if most_us(row)]


def mla_figures(results, wanted):
    """Returns ratios to the time of reading the latents. A launch of 128 heads does more: products take longer."""
    return [figure(f"time over that of reading K at {rows.READ_TBS} TB/s: {row.name}",
                   result["flashjit_ms"] * 1e9 * rows.READ_TBS / row.kv_bytes)
            for row, result in results.items() if row.table == "mla" and wanted]


def cache_figures(results, wanted):
    return [figure(f"rms error over that of bf16 on the same numbers: {row.name}", result["flashjit_rms_err"] / result["bf16_rms_err"],
                   most=rows.MOST_OF_BF16_ERROR)
            for row, result in results.items() if "bf16_rms_err" in result]


def prefix_figures(results, wanted):
    return [figure(f"over the same without shared_prefix: {row.name}", result["over_unshared"],
                   least=rows.LEAST_SHARED_OVER_UNSHARED if wanted else None)
            for row, result in results.items() if "over_unshared" in result]


def mixed_figures(results, wanted):
    return [figure(one.what, results[one.row]["flashjit_ms"] / sum(results[part]["flashjit_ms"] for part in one.parts),
                   most=one.limit if wanted else None)
            for one in rows.mixed_ratios() if all(row in results for row in (one.row, *one.parts))]


def peer_figures(results, wanted):
    made = []
    for peer in PEERS:
        groups = {}
        for row, result in results.items():
            if (row.table in ("forward", "backward", "cpu", "cpu_backward", "decode", "mla", "index", *rows.LATENT_TABLES) and not row.numerics or peer == "before") and "over_" + peer in result:
                groups.setdefault((row.threads, row.dtype, row.d in rows.USUAL_DIMS or row.v_in_k), []).append(result["over_" + peer])
        for (threads, dtype, usual), values in groups.items():
            where = counted(len(values), "row") + (f", {threads} threads, {dtype}" if threads else "") + ("" if usual else ", other head dims")
            least_mean, least = least_over(peer, results, len(values), dtype) if wanted or threads else (None, None)
            made.append(figure(f"over {SHOWN[peer]}, geometric mean of {where}", geometric_mean(values), least=least_mean))
            made.append(figure(f"over {SHOWN[peer]}, least of {where}", min(values), least=least))
    parts = {row: part for row, result in results.items() if (part := beside_best_peer(row, result)) is not None}
    if parts and wanted:
        row = min(parts, key=parts.get)
        made.append(figure(f"over cuDNN, of what the best of cuDNN and FA3 reaches, least: d={row.d} {row.mask} s={row.s}",
                           parts[row], least=rows.LEAST_OF_BEST_PEER))
    return made


def backward_figures(results, wanted):
    """Returns rates at 16k, and other head dims over the better of the peers that take them."""
    mine = {row: result for row, result in results.items() if row.table == "backward" and not row.numerics}
    made = [figure(f"gradients, d={row.d} {row.mask} 16k, TFLOP/s", result["flashjit_tflops"],
                   least=rows.LEAST_BACKWARD_TFLOPS[row.d, row.mask] if wanted else None)
            for row, result in mine.items() if row.s == 16384 and (row.d, row.mask) in rows.LEAST_BACKWARD_TFLOPS]
    for row, result in mine.items():
        over = [result["over_" + peer] for peer in ("cudnn", "fa2") if "over_" + peer in result]
        if over and row.d not in rows.USUAL_DIMS:
            made.append(figure(f"gradients, {row.name}, over the better of {len(over)}", min(over),
                               least=rows.LEAST_BACKWARD_OVER_BEST if wanted else None))
    return made


def drawn_cache_figures(results, wanted):
    """Compares with reading K and V, or multiplying, whichever takes longer on an H200. The rows that lose most have
    their names."""
    over = {row: result["flashjit_ms"] * 1e-3 / max(row.kv_bytes / (rows.READ_TBS * 1e12), row.flops / (rows.MULTIPLY_TFLOPS * 1e12))
            for row, result in results.items() if row.table == "drawn_cache" and wanted}
    if not over:
        return []
    return [figure(f"time over its floor, geometric mean of {counted(len(over), 'drawn row')}", geometric_mean(over.values()))] + [
        figure(f"time over its floor: {row.name}", over[row]) for row in sorted(over, key=over.get, reverse=True)[:12]]


def drawn_figures(results, wanted):
    """Compares with the better of the peers that take a row. The rows that lose most have their names."""
    over = {}
    for row, result in results.items():
        ratios = [result["over_" + peer] for peer in PEERS if peer != "before" and "over_" + peer in result]
        if row.table in ("drawn", "drawn_backward") and ratios:
            over[row] = min(ratios)
    if not over:
        return []
    made = [figure(f"over the best of the peers, geometric mean of {counted(len(over), 'drawn row')}", geometric_mean(over.values())),
            figure("part of them that is as fast", sum(ratio >= 1 for ratio in over.values()) / len(over))]
    return made + [figure(f"over the best of the peers: {row.name}", over[row]) for row in sorted(over, key=over.get)[:12] if over[row] < 1]


def plain(row):
    return row.score == "plain" and row.heads * row.d == 2048 and row.kv_heads == row.heads and not row.packed


def narrow_figures(row, rate, product, wanted):
    what = f"8 bits, d={row.d} {row.mask} s={row.s}{' linear_exp' if row.linear else ''}"
    asked = row.mask == "full" or row.s == 16384
    made = [figure(f"{what}, TFLOP/s", rate, least=rows.LEAST_NARROW_TFLOPS[row.d] if wanted and asked else None),
            figure(f"{what}, of the product", rate / product)]
    if row.s == 4096:
        made.append(figure(f"{what}, over what FlashAttention-3's authors give", rate / rows.FA3_NARROW_TFLOPS[row.d, row.mask],
                           least=rows.LEAST_OVER_FA3 if wanted else None))
    return made


def product_figures(results, products, wanted):
    if not products:
        return []
    product = statistics.median(products)
    dtype = "e4m3" if any(row.table == "fp8" for row in results) else "bf16"
    made = [figure(f"{dtype} 8192^3 product, TFLOP/s (median of {', '.join(f'{rate:.0f}' for rate in products)})", product)]
    for row, result in results.items():
        if row.table == "fp8" and (row.d, row.mask) in rows.FA3_NARROW_TFLOPS and row.dtype == "e4m3" and plain(row):
            made += narrow_figures(row, result["flashjit_tflops"], product, wanted)
        key = (row.d, row.mask, row.s)
        if row.table == "forward" and key in rows.LEAST_OF_PRODUCT:
            made.append(figure(f"d={row.d} {row.mask} s={row.s}, {result['flashjit_tflops']:.0f} TFLOP/s, of the product",
                               result["flashjit_tflops"] / product, least=rows.LEAST_OF_PRODUCT[key] if wanted else None))
    return made


def ratio_figures(results, table, wanted):
    made = []
    for ratio in rows.ratios_of(table):
        ours, base = results.get(ratio.row), results.get(ratio.base)
        if not (ours and base):
            continue
        limit = ratio.limit if wanted else None
        if ratio.kind == "rate":
            made.append(figure(ratio.what, ours["flashjit_tflops"] / base["flashjit_tflops"], least=limit))
        elif ratio.kind == "more":
            made.append(figure(ratio.what, 1e3 * (ours["flashjit_ms"] - base["flashjit_ms"]), most=limit))
        else:
            made.append(figure(ratio.what, ours["flashjit_ms"] / base["flashjit_ms"], most=limit))
        if table == "data" and "over_cudnn" in ours:
            made.append(figure(f"over cuDNN{ratio.what.removeprefix('time').replace(' over normal', '')}", ours["over_cudnn"],
                               least=rows.LEAST_OVER_CUDNN_ON_DATA[ratio.row.d] if wanted else None))
    return made


def of_limit(result):
    """Returns the error over its limit. If the recipe is exact there is no room: the result is 0, too, or beyond any
    limit."""
    def share(error, limit):
        return error / limit if limit else math.inf if error else 0.0

    largest = share(result["flashjit_max_err"], result["limit"])
    return largest if result["rms_limit"] is None else max(largest, share(result["flashjit_rms_err"], result["rms_limit"]))


def error_figures(results):
    made = []
    same = [result["same_bits_as_before"] for result in results.values() if "same_bits_as_before" in result]
    if same:
        made.append(figure(f"of {counted(len(same), 'row')} with the bits of before", sum(same)))
    for key, what in (("max_err", "largest error"), ("rms_err", "rms error")):
        # For 8 bits it has the same Q, K and V in 16 bits, so that shows nothing.
        in_16 = {row: result for row, result in results.items() if row.dtype != "e4m3" and not row.compute}
        ratios = {row: ratio for row, result in in_16.items() if (ratio := over_fa2(result, key)) is not None}
        if ratios:
            row = max(ratios, key=ratios.get)
            where = f"worst of {counted(len(ratios), 'row')}: d={row.d} {row.mask} s={row.s}"
            made.append(figure(f"{what} over that of FA2, {where}", ratios[row], most=rows.MOST_OF_FA2_ERROR))
    if results:
        worst = max(of_limit(result) for result in results.values())
        made.append(figure("error over its limit, worst row", worst, most=1))
    return made


def figures(results, products, tables, wanted):
    """`wanted` means that this is the GPU that the speeds to reach were set for."""
    made = peer_figures(results, wanted) + product_figures(results, products, wanted)
    for of_table in (backward_figures, drawn_figures, drawn_cache_figures, decode_figures, cache_figures, mla_figures, prefix_figures, mixed_figures):
        made += of_table(results, wanted)
    made += sparse_rows.figures_of(results, wanted, figure) + latent_rows.figures_of(results, wanted, figure)
    for table in tables:
        made += ratio_figures(results, table, wanted)
    return made + error_figures(results)


def cold_figures(times, cores, wanted):
    limited = wanted and cores <= 2  # The limits are those of two cores.
    where = f"cold compile on {counted(cores, 'core')}, ms"
    median, largest = (rows.MOST_COLD_MEDIAN_MS, rows.MOST_COLD_MS) if limited else (None, None)
    return [figure(f"{where}, median of {len(times)}", statistics.median(times), most=median),
            figure(f"{where}, largest", max(times), most=largest)]


# ---- Markdown ----

def table(head, lines):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(cells) + " |" for cells in lines] + [""]


def cell(value, form=".2f"):
    return "-" if value is None else format(value, form)


def error_cell(result):
    return cell(of_limit(result)) + ("" if result["ok"] else " WRONG")


def rate_table(results, wanted):
    """Returns the forward table, or that of the processor."""
    cpu = next(iter(results)).table in ("cpu", "cpu_backward")
    unit, scale = ("GFLOP/s", 1000) if cpu else ("TFLOP/s", 1)
    peers = [peer for peer in PEERS if any("over_" + peer in result for result in results.values())]
    head = (["threads", "dtype"] if cpu else []) + ["d", "mask", "s", "FlashJIT " + unit] + [f"{SHOWN[peer]} {unit}" for peer in peers]
    head += [f"over {SHOWN[peer]}" for peer in peers]
    head += ["over cuDNN to reach"] if wanted else []
    head += ["max err / FA2", "rms err / FA2"] if "fa2" in peers else []
    lines = []
    for row, result in results.items():
        cells = ([str(row.threads), row.dtype] if cpu else []) + [f"{row.d}/{row.d_v}" if row.d_v else str(row.d), row.mask, str(row.s)]
        for side in ("flashjit", *peers):
            rate = result.get(side + "_tflops")
            cells.append(cell(rate and rate * scale, ".0f"))
        part = beside_best_peer(row, result) if wanted else None
        low = part is not None and part < rows.LEAST_OF_BEST_PEER
        cells += [cell(result.get("over_" + peer), ".3f" if peer == "before" else ".2f") + (" LOW" if low and peer == "cudnn" else "") for peer in peers]
        if wanted:
            cells.append(cell(rows.LEAST_OF_BEST_PEER * rows.BEST_PEER_OVER_CUDNN[row.d, row.mask, row.s]))
        if "fa2" in peers:
            for key in ("max_err", "rms_err"):
                ratio = over_fa2(result, key)
                cells.append(cell(ratio) + (" HIGH" if ratio is not None and ratio > rows.MOST_OF_FA2_ERROR else ""))
        lines.append(cells + [error_cell(result), result["schedule"]])
    return table(head + ["err / limit", "schedule"], lines)


def time_table(results):
    """Returns the rows of the other tables."""
    peers = [peer for peer in PEERS if any("over_" + peer in result for result in results.values())]
    reads = next(iter(results)).table in rows.IN_GRAPHS
    unit, key, form = ("TB/s", "_tbs", ".2f") if reads else ("TFLOP/s", "_tflops", ".0f")
    head = ["problem", "FlashJIT us", unit] + [f"{SHOWN[peer]} {unit}" for peer in peers]
    head += [f"over {SHOWN[peer]}" for peer in peers] + ["err / limit", "schedule"]
    lines = []
    for row, result in results.items():
        us = result["flashjit_ms"] * 1e3
        cells = [f"`{row.name}`", cell(us, ".0f" if us >= 100 else ".1f"), cell(result["flashjit" + key], form)]
        cells += [cell(result.get(peer + key), form) for peer in peers]
        cells += [cell(result.get("over_" + peer), ".3f" if peer == "before" else ".2f") for peer in peers]
        lines.append(cells + [error_cell(result), result["schedule"]])
    return table(head, lines)


def figure_table(made):
    lines = []
    for item in made:
        limits = [f"{word} {item[key]:g}" for key, word in (("least", "at least"), ("most", "at most")) if item[key] is not None]
        verdict = {None: "-", True: "yes", False: "NO"}[item["reached"]]
        lines.append([item["what"], cell(item["value"], ".3f" if item["value"] < 10 else ".0f"), *(limits or "-"), verdict])
    return table(["what", "figure", "to reach", "reached"], lines)


def markdown(command, machine, results, failed, made, wanted):
    lines = [f"`{command}`", "", ", ".join(f"{key} {value}" for key, value in machine.items() if key != "kind"), ""]
    for name in dict.fromkeys(row.table for row in results):
        chosen = {row: result for row, result in results.items() if row.table == name}
        lines += [f"{name}:", ""]
        lines += rate_table(chosen, wanted and name == "forward") if name in ("forward", "backward", "cpu", "cpu_backward") else time_table(chosen)
    lines += [f"FAILED `{line['row']}`: {line['error']}\n" for line in failed]
    return "\n".join(lines + figure_table(made))

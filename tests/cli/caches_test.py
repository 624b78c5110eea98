"""Lengths on the device and pages, as files and drawn: run, bench and tune."""

import struct

import harness
from harness import flashjit, need, read, refused, scratch, write
from run_test import npy, parse

HOST = ["--target", "host"]
BATCH, HEADS, DIM, PAGE = 3, 2, 8, 4
LENGTHS = [9, 0, 4]  # of keys
TABLE = [[5, 0, 3], [-1, 99, -7], [0, 77, 77]]  # the first page of the last sequence is shared; what holds no key is anything
PAGES = 6


def floats(shape, seed):
    count, state, values = 1, seed, []
    for extent in shape:
        count *= extent
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        values.append(state / 2**30 - 1)
    return values


def ints(values):
    return struct.pack(f"<{len(values)}i", *values)


def gathered(pool, nothing=float("nan")):
    """[batch, 12, heads, d], with `nothing` where there is no key."""
    row = HEADS * DIM
    dense = []
    for b in range(BATCH):
        for key in range(3 * PAGE):
            at = (TABLE[b][key // PAGE] * PAGE + key % PAGE) * row
            dense += pool[at:at + row] if key < LENGTHS[b] else [nothing] * row
    return dense


def test_checked_on_host():
    need("host")
    for spec, shape in [('fwd fp32 d=64 heads=4/2 k_lens mask="causal" lse=ln', "q=5,k=100+64+0+9"),
                        ("fwd bf16 d=64 heads=2 layout=bhsd k_lens max_logit", "b=2,q=30,k=70"),
                        ('fwd bf16 d=64 heads=4 layout=packed k_lens mask="window(16, 0)"', "q=20+1,k=33+70"),
                        ('fwd fp16 d=64 heads=4/2 layout=paged(16) mask="causal" score="alibi"', "q=5,k=100+64+0+9"),
                        ('fwd fp32 d=40 heads=2 layout=paged(3) mask="document(doc)"', "q=7,k=10+20"),
                        ('fwd bf16 d=64 heads=4 layout=packed/paged(32) mask="causal" sink', "q=20+1+0,k=33+70+5"),
                        ("fwd fp32 d=64 heads=2 layout=paged(16) k_len=40", "b=2,q=1"), ("fwd fp32 d=8 layout=paged(16)", "b=0,q=3"),
                        ("fwd fp32 d=64 heads=2 layout=paged(16)", "b=2,q=3,k=0"),
                        ('fwd bf16 kv=e4m3 d=64 heads=4/2 layout=paged(16) mask="causal"', "q=5,k=100+64"),
                        ("fwd fp16 kv=e5m2 d=40 heads=2 layout=packed lse=ln", "q=5+2,k=30+64"), ("fwd fp32 kv=int8 d=64", "b=2,q=1,k=300"),
                        ('fwd e4m3 d=64 heads=4/2 scales=block(64) mask="causal" lse=ln', "b=2,q=70,k=200"),
                        ("fwd e5m2 kv=e4m3 d=40 heads=2 layout=packed bytes=8 out=fp32", "q=5+2,k=30+64")]:
        line = flashjit("run", spec, "--shape", shape, *HOST, "--check", "--json").line()
        assert line["ok"] and line["rel_err"] <= line["ref_err"], line


def test_files():
    """A pool and its table give the bits of the same keys in one piece, whose room behind the lengths holds NaN."""
    need("host")
    pools = {name: floats((PAGES, PAGE, HEADS, DIM), seed) for name, seed in (("k", 1), ("v", 2))}
    queries = write("q.npy", npy((BATCH, 2, HEADS, DIM), struct.pack(f"<{BATCH * 2 * HEADS * DIM}f", *floats((BATCH, 2, HEADS, DIM), 3))))
    lengths = write("lengths.npy", npy((BATCH,), ints(LENGTHS), "<i4"))
    table = write("table.npy", npy((BATCH, 3), ints(sum(TABLE, [])), "<i4"))
    outputs = []
    for layout, shape, values in [("k_lens", (BATCH, 3 * PAGE, HEADS, DIM), gathered), (f"layout=paged({PAGE})", (PAGES, PAGE, HEADS, DIM), list)]:
        files = [part for name in ("k", "v") for part in ("--" + name, write(name + ".npy", npy(shape, struct.pack(f"<{len(values(pools[name]))}f", *values(pools[name])))))]
        files += ["--q", queries, "--k_lens", lengths] + (["--block_table", table] if "paged" in layout else [])
        outputs.append(scratch("o.npy"))
        run = flashjit("run", f'fwd fp32 d={DIM} heads={HEADS} mask="causal" {layout}', "--shape", f"b={BATCH},q=2,k={3 * PAGE}", *HOST, *files, "--o",
                       outputs[-1], "--check", "--json")
        assert run.line()["ok"]
    dense, paged = (parse(read(output)) for output in outputs)
    assert dense == paged and any(dense[1])
    none = dense[1][2 * HEADS * DIM:4 * HEADS * DIM]  # the second sequence has no keys
    assert not any(none), none


def test_eight_bits():
    """Codes and scales from files give what the numbers they stand for give."""
    need("host")
    shape, count = (BATCH, 5, HEADS, DIM), BATCH * 5 * HEADS * DIM
    e4m3 = {0x38: 1.0, 0x30: 0.5, 0xc4: -3.0, 0x7e: 448.0, 0x01: 2.0**-9, 0x80: -0.0, 0x41: 2.25}
    int8 = {code: float(code - 256 if code > 127 else code) for code in (0, 1, 5, 127, 128, 200, 255)}
    queries = write("q.npy", npy((BATCH, 2, HEADS, DIM), struct.pack(f"<{BATCH * 2 * HEADS * DIM}f", *floats((BATCH, 2, HEADS, DIM), 3))))
    for kv, values, descr in [("e4m3", e4m3, "|u1"), ("int8", int8, "|i1")]:
        codes = {name: [list(values)[i * step % len(values)] for i in range(count)] for name, step in (("k", 1), ("v", 3))}
        scales = {"k": [0.5, 0.25], "v": [2.0, 0.125]}  # of the heads
        outputs = []
        for wide in (True, False):
            files = []
            for name in ("k", "v"):
                numbers = [values[code] * scales[name][i // DIM % HEADS] for i, code in enumerate(codes[name])]
                data = npy(shape, struct.pack(f"<{count}f", *numbers)) if wide else npy(shape, bytes(codes[name]), descr)
                files += ["--" + name, write(name + ".npy", data)]
                if not wide:
                    files += ["--scale_" + name, write(f"scale_{name}.npy", npy((1, HEADS), struct.pack("<2f", *scales[name])))]
            outputs.append(scratch("o.npy"))
            run = flashjit("run", f'fwd fp32{"" if wide else " kv=" + kv} d={DIM} heads={HEADS}', "--shape", f"b={BATCH},q=2,k=5", *HOST, "--q", queries,
                           *files, "--o", outputs[-1], "--check", "--json")
            assert run.line()["ok"]
        dense, small = (parse(read(output))[1] for output in outputs)
        assert all(abs(a - b) <= 1e-5 * max(abs(a), 1) for a, b in zip(dense, small, strict=True)), kv


def test_eight_bits_of_queries():
    """The same of Q, with scales of its heads or blocks; LSE and O are those of the numbers that codes stand for."""
    need("host")
    values, rows = {0x38: 1.0, 0x30: 0.5, 0xc4: -3.0, 0x01: 2.0**-9, 0x80: -0.0, 0x41: 2.25}, 70
    codes = {name: [list(values)[i * step % len(values)] for i in range(rows * HEADS * DIM)] for name, step in (("q", 1), ("k", 5), ("v", 1))}
    for blocks in (1, 2):
        scales, shape = [0.5 * (i + 1) for i in range(blocks * HEADS)], (1, rows, HEADS, DIM)
        outputs = []
        for wide in (True, False):
            files = []
            for name in ("q", "k", "v"):
                numbers = [values[code] for code in codes[name]]
                if wide and name == "q":
                    numbers = [x * scales[(i // DIM // HEADS // 64 if blocks > 1 else 0) * HEADS + i // DIM % HEADS] for i, x in enumerate(numbers)]
                data = npy(shape, struct.pack(f"<{len(numbers)}f", *numbers)) if wide else npy(shape, bytes(codes[name]), "|u1")
                files += ["--" + name, write(name + ".npy", data)]
            if not wide:
                shape_of = (1, blocks, HEADS) if blocks > 1 else (1, HEADS)
                for name in ("q", "k", "v"):
                    numbers = scales if name == "q" else [1.0] * len(scales)
                    files += ["--scale_" + name, write(f"scale_{name}.npy", npy(shape_of, struct.pack(f"<{len(scales)}f", *numbers)))]
            outputs.append(scratch("o.npy"))
            spec = f"fwd fp32 d={DIM} heads={HEADS}" if wide else f"fwd e4m3 out=fp32 d={DIM} heads={HEADS}{' scales=block(64)' if blocks > 1 else ''}"
            run = flashjit("run", spec, "--shape", f"b=1,q={rows},k={rows}", *HOST, *files, "--o", outputs[-1], "--check", "--json")
            assert run.line()["ok"] and (wide or run.line()["weights"] == "fp16"), run.line()
        dense, small = (parse(read(output))[1] for output in outputs)
        assert all(abs(a - b) <= 1e-5 * max(abs(a), 1) for a, b in zip(dense, small, strict=True)), blocks


def test_scales_that_are_no_numbers():
    """A scale counts as if it were in all elements that it is of: 0 makes all keys alike, infinity and NaN show in O."""
    need("host")
    shape, count = (1, 3, 1, DIM), 3 * DIM
    files = [part for name, code in (("q", 0x38), ("k", 0x38), ("v", 0x40)) for part in ("--" + name, write(name + ".npy", npy(shape, bytes([code] * count), "|u1")))]
    inf, nan = float("inf"), float("nan")
    for name, scale, holds in [("scale_q", 0.0, lambda o: o == 2), ("scale_k", 0.0, lambda o: o == 2), ("scale_v", 0.0, lambda o: o == 0),
                               ("scale_q", nan, lambda o: o != o), ("scale_k", inf, lambda o: o != o), ("scale_k", -inf, lambda o: o == 0),
                               ("scale_v", inf, lambda o: o == inf), ("scale_v", nan, lambda o: o != o)]:
        for blocks in ("", " scales=block(64)"):
            numbers = {other: scale if other == name else 1.0 for other in ("scale_q", "scale_k", "scale_v")}
            shape_of = (1, 1, 1) if blocks else (1, 1)
            given = [part for other, x in numbers.items() for part in ("--" + other, write(other + ".npy", npy(shape_of, struct.pack("<f", x))))]
            output = scratch("o.npy")
            run = flashjit("run", f"fwd e4m3 d={DIM} out=fp32{blocks}", "--shape", "q=3,k=3", *HOST, *files, *given, "--o", output, "--check", "--json")
            assert run.line()["ok"] and all(map(holds, parse(read(output))[1])), (name, scale, blocks, parse(read(output)))


def test_what_rounding_costs():
    """Q, K and V of 8 bits are drawn as numbers and rounded; how far the result is from theirs is what explain says."""
    need("host")
    for spec, shape in [("fwd e4m3 d=128 heads=2/1", "b=2,q=60,k=500"), ("fwd e4m3 d=128 heads=2 layout=bhsd scales=block(128)", "q=200,k=500"),
                        ("fwd e4m3 d=64 heads=2 layout=packed", "q=70+9,k=300+40"), ("fwd e4m3 d=64 heads=4/2 layout=packed scales=block(64) mask=\"causal\"", "q=70+0+9,k=300+5+40"),
                        ("fwd e4m3 d=128 heads=2 layout=packed/paged(128) scales=block(64)", "q=70+9,k=300+40"), ("fwd e4m3 d=64 heads=2 layout=paged(16)", "b=2,q=5,k=200..300"),
                        ("fwd e4m3 d=64 heads=2 layout=packed/paged(16) token_scales", "q=70+9,k=300+140"), ("fwd e4m3 d=96/64 heads=2/1 v_in_k", "q=60,k=300"),
                        ("fwd e4m3 d=64/96 heads=2/1 v_transposed", "b=2,q=60,k=500"), ("fwd e4m3 d=64 heads=4/2 layout=packed v_transposed scales=block(64)", "q=70+0+9,k=300+5+40"),
                        ("fwd bf16 compute=e4m3 d=128 heads=2 layout=packed rotate scales=block(64)", "q=70+0+9,k=300+5+40")]:
        line = flashjit("run", spec, "--shape", shape, *HOST, "--check", "--json").line()
        outliers = flashjit("run", spec, "--shape", shape, *HOST, "--check", "--json", "--data", "outliers").line()
        assert line["ok"] and outliers["ok"], (line, outliers)
        said = flashjit("explain", spec, "--arch", "sm_90a", "--json").lines()[0]["rounding_error"]
        assert 0.75 < line["unrounded_rel_err"] / said["normal"] < 1.25, (spec, line["unrounded_rel_err"], said)
        assert line["unrounded_rms"] < outliers["unrounded_rms"] and outliers["unrounded_rel_err"] < 0.2, (spec, line, outliers)
    given = ["--scale_q", write("one.npy", npy((1, 1), struct.pack("<f", 1)))]
    line = flashjit("run", "fwd e4m3 d=64", "--shape", "q=9", *HOST, *given, "--check", "--json").line()
    assert line["ok"] and "unrounded_rel_err" not in line, line


def test_numbers_outside_the_pool():
    need("host")
    for change, says in [(6, "block_table[0, 2]: 6"), (-1, "block_table[0, 2]: -1")]:
        rows = [TABLE[0][:2] + [change]] + TABLE[1:]
        table = write("table.npy", npy((BATCH, 3), ints(sum(rows, [])), "<i4"))
        lengths = write("lengths.npy", npy((BATCH,), ints(LENGTHS), "<i4"))
        files = [part for name in ("k", "v") for part in ("--" + name, write(name + ".npy", npy((PAGES, PAGE, HEADS, DIM))))]
        refused("run", f"fwd fp32 d={DIM} heads={HEADS} layout=paged({PAGE})", "--shape", f"b={BATCH},q=2,k=12", *HOST, *files, "--k_lens", lengths,
                "--block_table", table, says=[says, "pages 0 to 5"])


def test_refused():
    need("host")
    for spec, shape, options, says in [
            ("fwd fp32 d=8 k_lens", "q=3+4,k=5", [], ["q needs layout=packed"]), ("fwd fp32 d=8", "q=3,k=5+6", [], ["k_lens"]),
            ("fwd fp32 d=8", "q=3", ["--k_lens", write("l.npy", npy((1,), ints([3]), "<i4"))], ["k_lens"]),
            ("fwd fp32 d=8 k_lens", "q=3", ["--k_lens", write("l.npy", npy((2,), ints([3, 3]), "<i4"))], ["(2)", "(1)"]),
            ("fwd fp32 d=8 layout=paged(4)", "q=3", ["--k", write("k.npy", npy((2, 5, 1, 8)))], ["k.shape[1]: 5, must be 4"]),
            ("fwd fp32 d=8", "q=3", ["--scale_k", write("s.npy", npy((1, 1)))], ["scale_k"]),
            ("fwd fp32 kv=e4m3 d=8", "q=3", ["--scale_k", write("s.npy", npy((1, 3)))], ["scale_k.shape[1]: 3, must be 1"]),
            ("fwd fp32 kv=e4m3 d=8", "q=3", ["--k", write("wide.npy", npy((1, 3, 1, 8)))], ["holds float32", "e4m3 of the spec is uint8 there"]),
            ("fwd fp32 kv=e4m3 d=8", "q=3", ["--data", "rising(30)"], ["--data", "kv=e4m3"]),
            ("fwd fp32 d=8 layout=paged(4)", "q=3,k=8", ["--block_table", write("t.npy", npy((2, 2), ints([0, 1, 0, 1]), "<i4"))],
             ["block_table.shape[0]: 2, must be 1"])]:
        refused("run", spec, "--shape", shape, *HOST, *options, says=says)


def test_bench_and_tune():
    need("host")
    spec = 'fwd fp32 d=32 heads=2 layout=paged(16) mask="causal"'
    fused, naive = flashjit("bench", spec, "--shape", "q=1,k=200+30", *HOST, "--against", "naive", "--seconds", "0.05", "--json").lines()
    assert fused["us"] > 0 and fused["tbs"] > 0 and naive["us"] > 0
    line = flashjit("tune", spec, "--shape", "q=4,k=100+30", *HOST, "--budget", "1s", "--json").lines()[-1]
    assert line["ok"] and line["best_us"] > 0, line


if __name__ == "__main__":
    harness.main(globals())

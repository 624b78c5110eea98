"""flashjit run and bench, .npy files among them."""

import math
import os
import re
import resource
import struct

import harness
from harness import flashjit, need, read, refused, scratch, write

HOST = ["--target", "host"]


def npy(shape, data=None, descr="<f4", fortran=False, version=1, header=None, size=None):
    """A .npy file as bytes, sound unless told otherwise."""
    count = math.prod(shape)
    if data is None:
        data = struct.pack(f"<{count}f", *[(i % 7) * 0.25 - 0.75 for i in range(count)]) if descr == "<f4" else bytes(count * int(descr[2]))
    if header is None:
        inner = ", ".join(str(n) for n in shape) + ("," if len(shape) == 1 else "")
        header = f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': ({inner}), }}"
    header = header.encode() if isinstance(header, str) else header
    length = len(header) if size is None else size
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", length) + header + data


def parse(data):
    """Shape and float32 values of a .npy file that the command wrote."""
    assert data[:8] == b"\x93NUMPY\x01\x00"
    length = struct.unpack("<H", data[8:10])[0]
    assert (10 + length) % 64 == 0, "data is not aligned"
    header = eval(data[10:10 + length], {"__builtins__": {}})
    assert header["descr"] == "<f4" and header["fortran_order"] is False, header
    values = struct.unpack(f"<{math.prod(header['shape'])}f", data[10 + length:])
    return header["shape"], values


def test_check_on_host():
    need("host")
    for spec, shape in [('fwd bf16 d=64 heads=4/2 mask="causal"', "b=2,q=100,k=130"), ("fwd fp32 d=40 heads=2 lse=ln max_logit", "q=33"),
                        ('fwd fp16 d=64 heads=2 layout=packed mask="causal"', "q=100+37+0,k=100+64+9"), ("fwd fp32 d=64 heads=2", "b=2,q=5,k=0"),
                        ('fwd bf16 d=64 heads=4 layout=bhsd sink mask="window(16, 0)" score="softcap(20)"', "b=1,q=70"),
                        ('fwd fp32 d=64 heads=2 params="doc: i32[2]" mask="doc[b, q] == doc[b, k]"', "b=2,q=64"),
                        ("fwd fp32 d=16 heads=2 layout=paged(8)", "b=5,q=1,k=3..90"), ("merge fp32 d=16 heads=2 lse=ln", "b=2,q=3,parts=4"), ("quantize fp32 d=16 heads=2 rotate scales=block(64)", "b=2,q=70"),
                        ("fwd fp32 d=64 heads=2", "b=0,q=5"), ("fwd fp32 d=64 heads=2", "q=0,k=7")]:
        line = flashjit("run", spec, "--shape", shape, *HOST, "--check", "--json").line()
        assert line["ok"] and line["ms"] >= 0 and line["rel_err"] <= line["ref_err"], line
        assert {"max_abs_err", "rel_err", "ref_err"} <= set(line)


def test_drawn_lengths():
    need("host")
    spec = "fwd fp32 d=16 heads=2 k_lens"
    shapes = [flashjit("run", spec, "--shape", "b=40,q=1,k=5..500", *HOST, "--json").line()["shape"] for _ in range(2)]
    assert shapes[0] == shapes[1], shapes
    lengths = [int(length) for length in shapes[0].split("k=")[1].split("+")]
    assert len(lengths) == 40 and min(lengths) >= 5 and max(lengths) <= 500 and len(set(lengths)) > 20, lengths
    for shape in ["b=2,q=1,k=9..5", "b=2,q=1,k=0..5", "b=2,q=1,k=..5", "b=2,q=1,k=1..", "b=2,q=1,k=1..x", "b=2,q=1,k=1+2..5"]:
        refused("run", spec, "--shape", shape, *HOST, "--json", kind="invalid", says="--shape")
    refused("run", "fwd fp32 d=16 heads=2", "--shape", "b=2,q=1,k=1..5", *HOST, "--json", kind="invalid", says="k_lens")


def test_check_on_gpu():
    need("gpu")
    line = flashjit("run", 'fwd bf16 d=128 heads=32/8 mask="causal"', "--shape", "q=1000", "--target", "gpu", "--check", "--json").line()
    assert line["ok"] and line["target"].startswith("sm_")


def test_auto_falls_back_to_host():
    need("host")
    if harness.has("gpu"):
        raise harness.Skip("there is a GPU here")
    assert flashjit("run", "fwd fp32 d=64 heads=1", "--shape", "q=8", "--json").line()["target"].startswith("x86")


def test_no_gpu_is_a_message():
    if harness.has("gpu"):
        raise harness.Skip("there is a GPU here")
    refused("run", "fwd fp16 d=64 heads=1", "--shape", "q=8", "--target", "gpu", "--json", kind="not_found", says="driver")


def test_files_in_and_out():
    need("host")
    q, k, v = (write(name, npy((1, 3, 1, 8))) for name in ["q.npy", "k.npy", "v.npy"])
    o, lse = scratch("o.npy"), scratch("lse.npy")
    flashjit("run", "fwd fp32 d=8 heads=1 lse=ln", "--shape", "q=3", *HOST, "--q", q, "--k", k, "--v", v, "--o", o, "--lse", lse)
    # The same by hand, in float64.
    rows = [[(i * 8 + j) % 7 * 0.25 - 0.75 for j in range(8)] for i in range(3)]
    shape, got = parse(read(o))
    lse_shape, got_lse = parse(read(lse))
    assert tuple(shape) == (1, 3, 1, 8) and tuple(lse_shape) == (1, 1, 3)
    for i in range(3):
        scores = [sum(a * b for a, b in zip(rows[i], row)) / math.sqrt(8) for row in rows]
        weights = [math.exp(s) for s in scores]
        for j in range(8):
            want = sum(w * row[j] for w, row in zip(weights, rows)) / sum(weights)
            assert abs(got[i * 8 + j] - want) < 1e-5, (i, j, got[i * 8 + j], want)
        assert abs(got_lse[i] - math.log(sum(weights))) < 1e-5


def test_bf16_files():
    need("host")
    spec = ["fwd bf16 d=16 heads=1", "--shape", "q=4", *HOST, "--json"]
    for descr in ["<V2", "|V2", "<u2"]:
        path = write("q.npy", npy((1, 4, 1, 16), descr=descr))
        assert flashjit("run", *spec, "--q", path).line()["ok"]
    o = scratch("o.npy")
    flashjit("run", *spec, "--o", o)
    assert b"'<V2'" in read(o)[:128]
    assert flashjit("run", *spec, "--q", o).line()["ok"], "the command must read what it writes"


def test_seeds_are_whole_numbers():
    for seed in ("-1", "18446744073709551616", "1.5", ""):
        refused("run", "fwd fp32 d=8 heads=2", "--shape", "q=5", *HOST, "--seed", seed, code=2, says=["--seed", "whole number"])


def test_same_seed_same_result():
    need("host")
    results = []
    for seed in ["7", "7", "8"]:
        o = scratch(f"o{len(results)}.npy")
        flashjit("run", "fwd fp32 d=64 heads=2", "--shape", "q=50", *HOST, "--seed", seed, "--o", o, env={"FLASHJIT_THREADS": str(1 + len(results))})
        results.append(read(o))
    assert results[0] == results[1] and results[1] != results[2]


def test_dropout():
    need("host")
    for spec in ["fwd fp32 d=32 heads=2 dropout=0.5", "bwd bf16 d=32 heads=2 layout=packed dropout=0.1"]:
        assert flashjit("run", spec, "--shape", "q=40+0+7" if "packed" in spec else "q=40", *HOST, "--check", "--json").line()["ok"]
    results = []
    for numbers in [[], ["--param", "offset=0"], ["--param", "offset=1"], ["--param", "seed=5"]]:
        o = scratch(f"dropped{len(results)}.npy")
        flashjit("run", "fwd fp32 d=32 heads=2 dropout=0.5", "--shape", "q=40", *HOST, "--seed", "1", *numbers, "--o", o)
        results.append(read(o))
    assert results[0] == results[1] and len(set(results)) == 3
    refused("run", "fwd fp32 d=32 heads=2", "--shape", "q=40", *HOST, "--param", "offset=1", "--json", kind="invalid", says="offset")


def test_hostile_npy():
    need("host")
    shape = (1, 4, 1, 16)
    good = npy(shape)
    bad = {
        "empty": b"", "short magic": b"\x93NUM", "wrong magic": b"PK\x03\x04" + good[4:], "version 3": npy(shape, version=3)[:6] + b"\x03" + good[7:],
        "header cut": good[:40], "data cut": good[:-1], "data too long": good + b"x", "header length": npy(shape, size=60000),
        "huge header": npy(shape, version=2, size=0xffffffff), "big endian": npy(shape, descr=">f4"), "fortran": npy(shape, fortran=True),
        "doubles": npy(shape, descr="<f8"), "objects": npy(shape, descr="|O8"), "text": npy(shape, descr="<U2"),
        "other shape": npy((1, 4, 1, 8)), "other rank": npy((4, 16)), "negative": npy(shape, data=b"", header="{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4), }"),
        "overflow": npy(shape, data=b"", header="{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 4), }"),
        "digits": npy(shape, data=b"", header="{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 100 + ",), }"),
        "many dims": npy(shape, data=b"", header="{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 500 + "), }"),
        "no shape": npy(shape, header="{'descr': '<f4', 'fortran_order': False}"), "code": npy(shape, header="__import__('os').system('true')"),
        "not closed": npy(shape, header="{'descr': '<f4"), "binary header": npy(shape, header=bytes(range(128, 256))),
    }
    for name, data in bad.items():
        path = write("bad.npy", data)
        run = refused("run", "fwd fp32 d=16 heads=1", "--shape", "q=4", *HOST, "--q", path, "--json", kind="invalid", says="bad.npy")
        assert len(run.err) < 600, f"{name}: the message is too long\n{run}"
    flashjit("run", "fwd fp32 d=16 heads=1", "--shape", "q=4", *HOST, "--q", write("good.npy", good))


def test_unreadable_npy():
    need("host")
    args = ["run", "fwd fp32 d=16 heads=1", "--shape", "q=4", *HOST, "--json", "--q"]
    refused(*args, scratch("absent.npy"), kind="not_found", says="absent.npy")
    os.mkfifo(scratch("pipe"))
    for path, what in ((scratch("."), "folder"), (scratch("pipe"), "pipe"), ("/dev/zero", "device")):
        refused(*args, path, kind="invalid", says=f"error: --q: {path}: not a regular file but a {what}")
    spec = 'fwd fp32 d=16 heads=1 k_lens params="extra: fp32[2]" score="s + extra[q, k]"'
    for option, value in (("--k_lens", scratch(".")), ("--param", f"extra={scratch('.')}")):
        refused("run", spec, "--shape", "q=4", *HOST, option, value, "--json", kind="invalid", says=[f"error: {option}: ", "a folder"])


def test_params():
    need("host")
    spec = 'fwd fp32 d=16 heads=2 params="cap: fp32, extra: fp32[2]" score="s * cap + extra[q, k]"'
    bias = write("bias.npy", npy((4, 4)))
    line = flashjit("run", spec, "--shape", "q=4", *HOST, "--param", "cap=0.5", "--param", f"extra={bias}", "--check", "--json").line()
    assert line["ok"]
    for param, says in [("capp=1", "capp"), ("cap", "NAME"), ("=1", "NAME"), ("extra=1.5", "extra"), ("cap=absent.npy", "cap"), (f"extra={write('small.npy', npy((3, 4)))}", "extra")]:
        refused("run", spec, "--shape", "q=4", *HOST, "--param", param, "--json", kind="invalid", says=says)
    refused("run", spec, "--shape", "q=4", *HOST, "--param", "cap=1", "--param", "cap=2", "--json", kind="invalid", says="given twice")
    refused("run", "fwd fp32 d=16 heads=2", "--shape", "q=4", *HOST, "--k_lens", bias, "--json", kind="invalid", says="add k_lens to the spec")


def test_too_large_is_refused():
    need("host")
    refused("run", "fwd fp32 d=256 heads=64", "--shape", "b=1000000,q=1000000000", *HOST, "--json", kind="invalid", says="memory")
    refused("run", "fwd fp32 d=64 heads=1 q_len<=16", "--shape", "q=17", *HOST, "--json", kind="invalid", says=["q", "17", "16"])


def test_errors_of_an_engine_name_the_option():
    need("host")
    spec = "fwd fp32 d=16 heads=2"
    given = {"--bundle": scratch("absent.fjb"), "--override": scratch(""), "--device": "3", "--record": scratch("")}
    calls = [[command, spec, "--shape", "q=8", *HOST, option, value] for option, value in given.items() for command in ("run", "bench")]
    for call in [*calls, ["tune", spec, "--shape", "q=8", *HOST, "--device", "3"]]:
        line = refused(*call, "--json").lines()[-1]
        assert line["error"]["message"].startswith(call[-2] + ": "), line


def test_output_that_the_spec_lacks():
    need("host")
    refused("run", "fwd fp32 d=16 heads=1", "--shape", "q=4", *HOST, "--lse", scratch("l.npy"), "--json", kind="invalid", says="lse=ln")


def test_full_disk():
    need("host")
    o = scratch("o.npy")
    refused("run", "fwd fp32 d=64 heads=2", "--shape", "q=100", *HOST, "--o", o, "--json", kind="io", says="cannot be written",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)), restore_signals=False)
    assert [name for name in os.listdir(harness.ARGS.scratch) if name.startswith("o.npy")] == [], "a part of the file is left"


def test_the_shape_is_a_hint():
    need("host")
    spec = "fwd fp32 d=16 heads=2"

    def ran(*args):
        line = flashjit("run", spec, *args, *HOST, "--check", "--json").line()
        return line["schedule"], [note for note in line["notes"] if "cost model" in note]

    hinted, unasked = ran("--shape", "q=16"), ran("--shape", "q=16", "--no-hint")
    assert hinted[0] != unasked[0] and hinted[1] == ["schedule by the cost model for b=1,q=16,k=16"] and not unasked[1], (hinted, unasked)
    # Without a hint the shape has no say in it.
    assert ran("--shape", "b=2,q=700", "--no-hint") == unasked
    # Rounded up to the class.
    assert ran("--shape", "b=1,q=10,k=15") == hinted
    # A pin decides alone.
    assert ran("--shape", "q=16", "--schedule", unasked[0]) == unasked
    # What goes into a manifest is what a bundle will have.
    assert ran("--shape", "q=16", "--record", scratch("r.txt")) == unasked
    # Nothing to choose for.
    for shape in ["q=0,k=7", "b=0,q=5", "q=5,k=0"]:
        assert ran("--shape", shape) == unasked, shape
    # Packed sequences count by their mean.
    spec += " layout=packed"
    assert ran("--shape", "q=100+60+0+4")[1] == ["schedule by the cost model for b=4,q=64,k=64"]
    for args, note in [([], True), (["--no-hint"], False), (["--schedule", "tile_q=64"], False)]:
        assert ("note: schedule by the cost model for b=1,q=16" in flashjit("bench", spec, "--shape", "q=16", *HOST, "--seconds", "0.05", *args).out) == note


def bench_table(text):
    """The cells of each line, and what stands below; a cell ends where two blanks follow."""
    lines = text.splitlines()
    end = next(i for i, line in enumerate(lines) if line.startswith("ratio: "))
    head, *rows = [re.split(r"  +", line.strip()) for line in lines[:end]]
    assert head[:2] == ["time", "ratio"] and head[-1] == "spec" and all(len(row) == len(head) for row in rows), text
    places = [line.rindex("  ") for line in lines[:end]]
    assert len(set(places)) == 1, text  # the columns are aligned
    return rows, "\n".join(lines[end:])


def test_bench_table():
    need("host")
    specs = ["fwd fp32 d=64 heads=2", 'fwd fp32 d=64 heads=2 mask="causal"', "bwd fp32 d=64 heads=2"]
    plain = ["--shape", "q=128", *HOST, "--seconds", "0.05"]
    rows, below = bench_table(flashjit("bench", *specs, *plain).out)
    assert [row[-1] for row in rows] == specs and "over those of the first" in below, rows
    size = {"us": 1, "ms": 1e3, "s": 1e6}
    times = [float(row[0].split()[0]) * size[row[0].split()[1]] for row in rows]
    assert rows[0][1] == "1.00", rows
    for time, row in zip(times, rows):
        assert abs(float(row[1]) - time / times[0]) < 0.006 + 1e-3 * float(row[1]) and 1 <= float(row[0].split()[0]) < 1000, rows
    rows, below = bench_table(flashjit("bench", *specs[:2], *plain, "--against", "naive").out)
    assert [row[-2] for row in rows] == ["fused", "textbook"] * 2 and "fused kernel of the same spec" in below, rows
    assert rows[0][1] == rows[2][1] == "1.00" and float(rows[1][-3]) > 1, rows  # the textbook version takes more memory
    assert below.count("note: schedule by the cost model") == 1, below
    single = flashjit("bench", specs[0], *plain).out
    assert single.startswith(specs[0] + "\n") and "ratio" not in single, single


def test_bench():
    need("host")
    lines = flashjit("bench", "fwd fp32 d=64 heads=2", 'fwd fp32 d=64 heads=2 mask="causal"', "--shape", "q=128", *HOST,
                     "--seconds", "0.05", "--json").lines()
    assert len(lines) == 2
    for line in lines:
        assert 0 < line["us_p10"] <= line["us"] <= line["us_p90"] and line["tflops"] > 0 and line["tbs"] > 0, line


def test_terms_of_gradients_that_count_as_nothing():
    """Numbers below the smallest normal one of fp32 may be lost before they are added up."""
    need("host")
    line = flashjit("run", "bwd fp32 d=24 scale=1e-30", "--shape", "b=3,q=17,k=9", *HOST, "--data", "key(20)", "--check", "--json").line()
    assert line["ok"], line


def test_data_with_structure():
    need("host")
    for kind in ("wide(10)", "equal", "sink(60)", "key(30)", "rising(200)", "falling(200)", "combs(20)"):
        for layout, shape in (("bhsd", "b=2,q=40,k=300"), ("packed", "q=40+9,k=300+70")):
            spec = f'fwd bf16 d=64 heads=4/2 layout={layout} mask="causal"'
            assert flashjit("run", spec, "--shape", shape, *HOST, "--data", kind, "--check", "--json").line()["ok"], (kind, layout)
    assert flashjit("bench", "fwd fp32 d=64 heads=2", "--shape", "q=128", *HOST, "--seconds", "0.05", "--data", "sink(20)", "--json").line()["us"] > 0
    refused("bench", "fwd fp32 d=64 heads=2", "--shape", "q=128", *HOST, "--data", "snik(20)", says=["--data", "sink(N)"])
    refused("run", "fwd fp32 d=64 heads=2", "--shape", "q=128", *HOST, "--data", "sink", says=["--data", "sink(N)"])
    for command in ("run", "bench"):
        for operation in ("merge", "quantize", "index"):  # these have no q and k
            for kind in ("equal", "wide(5)", "sink(3)", "outliers"):
                refused(command, f"{operation} fp32 d=16", "--shape", "q=5", *HOST, "--data", kind, says=["--data", "normal", operation, "fwd"])


def test_bench_with_a_hint_and_without():
    need("host")
    spec, told = "fwd fp32 d=16 heads=2", ["--shape", "q=16", *HOST, "--seconds", "0.05", "--against", "unhinted"]
    hinted, unhinted = flashjit("bench", spec, *told, "--json").lines()
    assert (hinted["version"], unhinted["version"]) == ("fused", "unhinted") and hinted["schedule"] != unhinted["schedule"], (hinted, unhinted)
    assert abs(unhinted["times_fused"] - unhinted["us"] / hinted["us"]) < 1e-6
    rows, below = bench_table(flashjit("bench", spec, *told).out)
    assert [row[-2:] for row in rows] == [["hinted", spec], ["unhinted", spec]] and rows[0][1] == "1.00", rows
    assert "over those of the hinted kernel of the same spec" in below, below


def test_bench_against_naive():
    need("host")
    for operation, matrices in (("fwd", "S and P"), ("bwd", "P and dS")):
        fused, naive = flashjit("bench", f"{operation} fp32 d=64 heads=2", "--shape", "q=256", *HOST, "--seconds", "0.05", "--against", "naive", "--json").lines()
        assert fused["version"] == "fused" and naive["version"] == "naive"
        assert naive["memory_bytes"] - fused["memory_bytes"] >= 2 * 256 * 256 * 4, f"{matrices} must have been in memory"
        assert naive["times_fused"] > 0 and naive["memory_times_fused"] > 1


if __name__ == "__main__":
    harness.main(globals())

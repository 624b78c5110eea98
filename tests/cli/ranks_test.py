"""explain --ranks: attention over several GPUs, counted. tools/RANKS.md is its page."""

import os
import subprocess
import sys

import harness
from harness import flashjit, read, refused, source

SPEC = 'fwd bf16 d=128 heads=64/8 mask="causal"'
ARGS = ("--arch", "sm_90a", "--shape", "b=1,q=65536", "--ranks")


def explained(*args):
    return flashjit("explain", *args, "--json").line()


def way(line, name, heads_over=None):
    return next(way for way in line["ways"] if way["way"] == name and heads_over in (None, way["heads_over"]))


def test_json_has_every_way_and_its_steps():
    line = explained(SPEC, *ARGS, "8x450GB/s")
    assert line["ok"] and line["spec"] == SPEC and line["target"] == "sm_90a" and line["ranks"] == 8 and line["hosts"] == 1, line
    assert [(way["way"], way["heads_over"], way["ring_of"]) for way in line["ways"]] == [
        ("gather", 1, 1), ("ring", 1, 8), ("mesh", 2, 4), ("mesh", 4, 2), ("ulysses", 8, 1)], line
    whole = 65536 * 8 * (128 + 128) * 2
    ring = way(line, "ring")
    assert ring["forward"]["bytes"] == whole * 7 / 8 and ring["backward"]["bytes"] == 3 * whole * 7 / 8, ring
    assert sum(run["count"] for run in ring["forward"]["steps"]) == 8, ring
    for each in line["ways"]:
        for key in ("forward", "backward"):
            course = each[key]
            total = course["before_us"] + course["behind_us"]
            total += sum(run["count"] * max(run["compute_us"], run["exchange_us"]) for run in course["steps"])
            assert abs(total - course["us"]) <= 2e-3 * course["us"], (each["way"], total, course)
            assert course["us"] >= course["compute_us"] and 0 <= course["hidden"] <= 1 and 0 < course["efficiency"] <= 1.05, course
    totals = {(each["way"], each["heads_over"]): each["forward"]["us"] + each["backward"]["us"] for each in line["ways"]}
    assert (line["fastest"]["way"], line["fastest"]["heads_over"]) == min(totals, key=totals.get), (line["fastest"], totals)


def test_one_rank_is_the_plain_kernel():
    line = explained(SPEC, *ARGS, "1x450GB/s")
    spec = [SPEC + " lse=ln", "--arch", "sm_90a", "--shape", "b=1,q=65536"]
    plain = explained(*spec)
    if plain["hinted_schedule"]:  # that of who says the sizes
        plain = explained(*spec, "--schedule", plain["hinted_schedule"])
    assert abs(line["one_rank"]["forward_us"] / plain["roofline"]["predicted_us"] - 1) < 1e-6, (line["one_rank"], plain["roofline"])
    assert abs(way(line, "ring")["forward"]["us"] / plain["roofline"]["predicted_us"] - 1) < 1e-6, line


def test_slow_networks_wait_and_fast_ones_do_not():
    for rate, waits in (("0.1GB/s", True), ("100TB/s", False)):
        ring = way(explained(SPEC, *ARGS, f"8x{rate}"), "ring")["forward"]
        assert (ring["waited_us"] > ring["compute_us"]) == waits and (ring["hidden"] > 0.99) != waits, (rate, ring)


def test_two_levels():
    line = explained(SPEC, "--arch", "h200", "--shape", "q=1048576", "--ranks", "8x450GB/s,16x50GB/s")
    assert line["ranks"] == 128 and line["hosts"] == 16 and line["gb_per_s"] == [450, 50], line
    assert "64 query heads cannot be divided among 128 ranks" in way(line, "ulysses")["refused"] and way(line, "ulysses")["forward"] is None, line
    assert way(line, "mesh", 8)["forward"]["bytes"] < way(line, "ring")["forward"]["bytes"] / 4, line


def test_text():
    text = flashjit("explain", SPEC, *ARGS, "8x450GB/s").out
    for says in (SPEC, "8 ranks of one host, 450 GB/s", "forward: one rank alone takes", "backward: one rank alone takes", "gather, zigzag", "ring, zigzag",
                 "mesh ", "ulysses", "fastest: ", "steps of ", "assumed\n"):
        assert says in text, (says, text)
    assert max(map(len, text.splitlines())) <= 120 and "of 132 SMs" not in text, text
    hosts = flashjit("explain", SPEC, *ARGS, "8x450GB/s,2x50GB/s").out
    assert "beside exchanges kernels have 124 of 132 SMs" in hosts, hosts
    window = flashjit("explain", 'fwd bf16 d=128 heads=8 mask="causal & window(1024, 0)"', *ARGS, "8x450GB/s").out
    assert "ring, contiguous" in window, window
    document = flashjit("explain", 'fwd bf16 d=128 heads=8 mask="causal & document(doc)"', *ARGS, "8x450GB/s").out
    assert "the mask reads doc" in document, document
    only = flashjit("explain", "fwd bf16 kv=e4m3 d=128 heads=8", *ARGS, "8x450GB/s").out
    assert "backward: not counted: " in only and "steps of" in only, only


def test_refusals():
    for ranks, says in (("", "COUNTxBANDWIDTH"), ("8", "'8' is not COUNTxBANDWIDTH"), ("0x450GB/s", "0 is not from 1 to 2048"), ("8x0GB/s", "bandwidth"),
                        ("8x1GB/s,2x1GB/s,2x1GB/s", "more than two levels"), ("2048x1GB/s,2x1GB/s", "4096 ranks")):
        refused("explain", SPEC, *ARGS, ranks, "--json", kind="invalid", says=["--ranks: ", says])
    refused("explain", SPEC, "--arch", "sm_90a", "--shape", "q=1000", "--ranks", "8x1GB/s", "--json", kind="invalid", says=["--shape: q=1000", "multiple of 16", "give q=992"])
    refused("explain", SPEC, "--arch", "sm_90a", "--ranks", "8x1GB/s", code=2, says="--shape")
    refused("explain", SPEC, *ARGS, "8x1GB/s", "--html", "x.html", code=2, says="--html")
    for spec, shape, what in (("fwd bf16 d=64 heads=4 layout=packed", "q=512+512", "layout=packed"), ("fwd bf16 d=64 heads=4 layout=paged(16)", "q=1024", "pages"),
                              ("fwd bf16 d=64 heads=4 blocks=128", "q=1024", "blocks="), ("fwd bf16 d=64 heads=4 dropout=0.1", "q=1024", "dropout"),
                              ("merge bf16 d=64 heads=4", "q=1024,parts=2", "does not attend"), ("fwd bf16 d=64 heads=4 k_lens", "q=1024", "k_lens"),
                              ("fwd bf16 d=128 heads=8 compute=e4m3", "q=1024", "several kernels")):
        refused("explain", spec, "--arch", "sm_90a", "--shape", shape, "--ranks", "8x1GB/s", "--json", kind="unsupported", says=["--ranks: ", what])


def test_the_tables_of_the_page():
    page = read(source("tools", "RANKS.md")).decode().splitlines()
    made = subprocess.run([sys.executable, "-B", source("tools", "ranks_table.py"), os.path.join(harness.ARGS.build, "bin", "flashjit")], capture_output=True,
                          text=True, timeout=240, check=True).stdout
    rows = [line for line in made.splitlines() if line]
    assert len(rows) == 20 and any("1024" in row for row in rows), made
    missing = [row for row in rows if row not in page]
    assert not missing, "tools/RANKS.md lacks what tools/ranks_table.py makes:\n" + "\n".join(missing)


if __name__ == "__main__":
    harness.main(globals())

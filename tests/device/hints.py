#!/usr/bin/env python3
"""Is a hint of the sizes ever slower than none? On a GPU: specs and sizes are drawn until a hint changes the schedule of
60 of them; both kernels of each are compiled, in parallel, and timed in turns with a cold L2 cache (`flashjit bench --against
unhinted`). Where a hint changes nothing, the kernel is the same. A line for each, the ratios, and how many are below 0.97.

  tests/device/hints.py [build] [--count 60] [--seed 47] [--seconds 0.4]
"""
import argparse
import concurrent.futures
import json
import os
import random
import statistics
import subprocess
import sys

WORSE = 0.97  # what two timings of one kernel may differ by

FORWARD = ["", ' mask="causal"', ' mask="window(1000, 0)"', ' score="softcap(30)"']
CACHES = ["", " layout=paged(16)", " layout=paged(64)", " kv=e4m3", " kv=e4m3 layout=paged(16)", ' layout=packed/paged(64) mask="causal"']


def power(draw, most):
    return int(2 ** draw.uniform(0, most))


def drawn(draw):
    """A spec and a shape of `flashjit bench`. Caches of at most 2^24 tokens times heads."""
    d, kv_heads = draw.choice([64, 128, 128, 256]), draw.choice([1, 2, 4, 8])
    heads = f"heads={kv_heads * draw.choice([1, 4, 8])}/{kv_heads}"
    dtype = draw.choice(["bf16", "fp16"])
    if draw.random() < 0.5:
        q, k = power(draw, 13), power(draw, 14) + 64
        k, b = max(q, k), power(draw, 4)
        while b > 1 and b * q * k > 1 << 28:
            b //= 2
        return f"fwd {dtype} d={d} {heads}{draw.choice(FORWARD)}", (b, q, k)
    words = draw.choice(CACHES)
    bound = draw.choice(["", " q_len=1", " q_len=1", " q_len<=8"])
    q = 1 if "=1" in bound else draw.randint(1, 8)
    b, k = power(draw, 6), power(draw, 16) + 64
    while b > 1 and b * k * kv_heads > 1 << 22:
        b //= 2
    if "kv=" in words:
        dtype += " kv=e4m3"
        words = words.replace(" kv=e4m3", "")
    return f"fwd {dtype} d={d} {heads}{words}{bound}", (b, q, k)


def sizes(spec, shape):
    b, q, k = shape
    if "packed" in spec:
        return "q=" + "+".join([str(q)] * b) + ",k=" + "+".join([str(k)] * b)
    return f"b={b},q={q},k={k}"


def flashjit(build, *arguments):
    run = subprocess.run([os.path.join(build, "bin", "flashjit"), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return lines, run.stderr.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", default="build")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=47)
    parser.add_argument("--seconds", type=float, default=0.4, help="of timing each")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--plan", action="store_true", help="only say what a hint changes: needs no GPU")
    options = parser.parse_args()
    draw, pool = random.Random(options.seed), concurrent.futures.ThreadPoolExecutor(os.cpu_count())

    def explained(case):
        lines, error = flashjit(options.build, "explain", case[0], "--arch", options.arch, "--shape", sizes(*case), "--json")
        return case, lines[0] if lines and lines[0]["ok"] else None, error

    changed, drawn_in_all, refused = [], 0, 0
    while len(changed) < options.count and drawn_in_all < 100 * options.count:
        batch = [drawn(draw) for _ in range(2 * (os.cpu_count() or 1))]
        for case, line, _ in pool.map(explained, batch):
            if len(changed) == options.count:
                break
            drawn_in_all += 1
            refused += line is None
            if line and line["hinted_schedule"]:
                changed.append((case, line))
    print(f"{drawn_in_all} drawn (seed {options.seed}), {refused} refused, a hint changes {len(changed)}", flush=True)
    if options.plan:
        for case, line in changed:
            print(f"  {case[0]}  {sizes(*case)[:60]}\n    {line['schedule']}\n    {line['hinted_schedule']}")
        return 0

    kernels = [(case[0], line[which]) for case, line in changed for which in ("schedule", "hinted_schedule")]
    compiled = list(pool.map(lambda kernel: flashjit(options.build, "compile", kernel[0], "--arch", options.arch, "--schedule", kernel[1], "--json"), kernels))
    print(f"{sum(bool(lines) and lines[0]['ok'] for lines, _ in compiled)} of {len(kernels)} kernels compiled", flush=True)
    ratios, failed = [], 0
    for case, line in changed:
        lines, error = flashjit(options.build, "bench", case[0], "--shape", sizes(*case), "--against", "unhinted", "--seconds",
                                str(options.seconds), "--target", "gpu", "--json")
        what = f"{case[0]}  {sizes(*case)[:60]}"
        if len(lines) != 2 or "times_fused" not in lines[1]:
            failed += 1
            print(f"failed   {what}: {error or lines}", flush=True)
            continue
        ratios.append(lines[1]["times_fused"])
        mark = " SLOWER" if ratios[-1] < WORSE else ""
        print(f"{ratios[-1]:7.3f}  {lines[0]['us']:9.1f} us hinted, {lines[1]['us']:9.1f} without  {what}{mark}", flush=True)
        if mark:
            print(f"         {lines[1]['schedule']}\n         {lines[0]['schedule']}", flush=True)
    if not ratios:
        return 1
    slower = sum(ratio < WORSE for ratio in ratios)
    print(f"speed with a hint over without: geometric mean {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}, "
          f"below {WORSE}: {slower} of {len(ratios)}; failed: {failed}")
    return slower > 0 or failed > 0


if __name__ == "__main__":
    sys.exit(main())

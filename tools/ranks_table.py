#!/usr/bin/env python3
"""This makes the tables of tools/RANKS.md: ways to share a sequence among up to 1,024 GPUs, as `flashjit explain
--ranks` predicts them.
  tools/ranks_table.py build/bin/flashjit"""

import json
import subprocess
import sys

SPEC = 'fwd bf16 d=128 heads=64/8 mask="causal"'
HOST = 8
WITHIN, BETWEEN = "450GB/s", "50GB/s"
# These are the tokens of all GPUs by their number: equally many for each, and one long sequence for all.
TABLES = [[(gpus, 8192 * gpus) for gpus in (8, 16, 32, 64, 128, 256, 512, 1024)],
          [(gpus, 1 << 20) for gpus in (8, 16, 32, 64, 128, 256, 512, 1024)]]
WAYS = ("gather", "ring", "ulysses", "mesh")


def network(gpus):
    return f"{HOST}x{WITHIN}" + (f",{gpus // HOST}x{BETWEEN}" if gpus > HOST else "")


def explained(flashjit, gpus, tokens):
    command = [flashjit, "explain", SPEC, "--arch", "h200", "--shape", f"q={tokens}", "--ranks", network(gpus), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def ms(us):
    return f"{us / 1e3:.0f}" if us >= 1e5 else f"{us / 1e3:.1f}"


def total(way):
    return way["forward"]["us"] + way["backward"]["us"]


def cell(ways):
    there = [way for way in ways if way["refused"] is None]
    if not there:
        return "-"
    best = min(there, key=total)
    return f"{ms(best['forward']['us'])} / {ms(best['backward']['us'])}"


def words(way):
    return f"mesh {way['heads_over']}x{way['ring_of']}" if way["way"] == "mesh" else way["way"]


def row(flashjit, gpus, tokens):
    line = explained(flashjit, gpus, tokens)
    best = min((way for way in line["ways"] if way["refused"] is None), key=total)
    shares = " / ".join(f"{best[key]['efficiency'] * 100:.0f}%" for key in ("forward", "backward"))
    cells = [cell([way for way in line["ways"] if way["way"] == name]) for name in WAYS]
    return "| " + " | ".join([str(gpus), f"{tokens >> 10}k", *cells, words(best), shares]) + " |"


def main(flashjit):
    for table in TABLES:
        print("| GPUs | tokens | " + " | ".join(WAYS) + " | fastest | of ideal |")
        print("| --- | --- | " + "--- | " * len(WAYS) + "--- | --- |")
        for gpus, tokens in table:
            print(row(flashjit, gpus, tokens))
        print()


if __name__ == "__main__":
    main(sys.argv[1])

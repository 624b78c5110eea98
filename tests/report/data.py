"""Reports to draw: the compiler's own candidates and what it refuses, with times drawn around the predicted ones."""

import math
import random

SPECS = [('fwd bf16 d=128 heads=16 mask="causal"', "b=4,q=4096,k=4096"), ('fwd bf16 d=64 heads=32/8', "b=2,q=8192,k=8192"),
         ('fwd fp16 d=72 heads=16 mask="q - k < 512 & k <= q" score="softcap(30)"', "b=1,q=2048,k=2048")]


def fields(schedule):
    pairs = [part.split("=") for part in schedule.split(",")]
    return {name: int(value) if value.isdigit() else value for name, value in pairs}


def candidate(explained, rng):
    """As a tuner would leave it: most are measured, slow ones stopped early, some without a time."""
    schedule, predicted = explained["schedule"], explained["predicted_us"]
    line = {"schedule": schedule, "fields": fields(schedule), "predicted_us": predicted, "us": None, "us_low": None, "us_high": None,
            "status": "measured", "registers": rng.choice([168, 216, 232, 240]), "smem_bytes": rng.randrange(60000, 230000), "why": None}
    kind = rng.random()
    if kind < 0.04:
        return line | {"status": "spills", "why": "ptxas: 48 bytes of spill stores; a schedule that spills is not run"}
    if kind < 0.06:
        return line | {"status": "failed", "registers": None, "why": "the compiler refused: setmaxnreg ignored"}
    if kind < 0.07:
        return line | {"status": "wrong", "why": "0.031 away from the reference, the limit is 0.0078"}
    us = predicted * math.exp(rng.gauss(0, 0.06))
    return line | {"us": us, "us_low": us * 0.995, "us_high": us * 1.006}


def spec_report(explained, spec, shape, seed, most=80):
    rng = random.Random(seed)
    legal = [c for c in explained["candidates"] if c["why_illegal"] is None]
    cut = {}
    for line in explained["candidates"]:
        if line["why_illegal"]:
            cut[line["why_illegal"]] = cut.get(line["why_illegal"], 0) + 1
    candidates = [candidate(c, rng) for c in sorted(legal, key=lambda c: c["predicted_us"])[:most]]
    measured = [c for c in candidates if c["status"] == "measured"]
    best, first = min(measured, key=lambda c: c["us"]), measured[0]
    for line in measured:
        if line["us"] > 1.3 * best["us"] and rng.random() < 0.5:
            line |= {"status": "stopped", "us_high": None, "why": "after 3 rounds 30 % behind the best"}
    # The default is one of the candidates: here the first choice, the best, or one that is slower.
    default = [first, best, max(measured[:9], key=lambda c: c["us"])][seed % 3]
    flops, intensity, balance = float(rng.randrange(20, 400)) * 1e9, rng.choice([30, 500, 1056]), 206
    peak = flops / best["us"] / 1e6 / 0.7 * max(1, balance / intensity)  # the best reaches 70 % of the roof
    return {"spec": spec, "shape": shape, "flops": flops, "bytes": flops / intensity, "peak_tflops": round(peak),
            "peak_tbs": round(peak / balance, 2), "default_us": default["us"], "default_schedule": default["schedule"], "best_us": best["us"],
            "best_low": best["us_low"], "best_high": best["us_high"],
            "best_schedule": best["schedule"], "first_choice_us": first["us"], "regret": first["us"] / best["us"] - 1, "tried": len(candidates),
            "space": len(legal), "cut": [{"why": why, "count": count} for why, count in sorted(cut.items())[:8]], "candidates": candidates}


MACHINE = {"gpu": "NVIDIA H200", "target": "sm_90a", "driver": "580.82.07", "date": "2026-11-21T19:40:00Z", "noise": 0.004, "clock_mhz": 1755,
           "temperature": 52}

COMMAND = "flashjit tune --sweep specs.txt --shape b=4,q=4096 --budget 10m --report tuned.html"


def report(explain, count=3, most=80):
    """`explain(spec, shape)` is the line of `flashjit explain --json`. Beyond the first three, specs repeat with other head counts."""
    known = [(spec, shape, explain(spec, shape)) for spec, shape in SPECS[:count]]
    specs = []
    for i in range(count):
        spec, shape, explained = known[i % len(known)]
        specs.append(spec_report(explained, spec if i < len(known) else spec.replace("d=", f"scale=0.{i} d="), shape, i, most))
    return {"machine": MACHINE, "command": COMMAND, "specs": specs}


SPARSE = {"machine": {"gpu": None, "target": "host", "noise": None}, "specs": [
    {"spec": "fwd f32 d=8 heads=1", "candidates": []},
    {"spec": "fwd f32 d=16 heads=1", "shape": "b=1,q=1,k=1", "default_us": None, "best_us": 12.5, "candidates": [{"schedule": "family=sync,tile_q=16", "us": 12.5, "status": "measured"}]},
    {"spec": "fwd f32 d=24 heads=1", "default_us": 10, "best_us": 10, "best_schedule": "family=sync,tile_q=16", "flops": 1e9, "bytes": 0, "candidates": [
        {"schedule": "family=sync,tile_q=16", "fields": {"family": "sync", "tile_q": 16}, "us": 10, "predicted_us": 8, "status": "measured"},
        {"schedule": "family=sync,tile_q=32", "fields": {"family": "sync", "tile_q": 32}, "us": None, "predicted_us": None, "status": "failed"},
        {"schedule": "family=sync,tile_q=64", "fields": {"family": "sync", "tile_q": 64}, "us": 0, "predicted_us": 9, "status": "wrong"}]},
    {"spec": "fwd f32 d=32 heads=1", "default_us": 10, "candidates": [
        {"schedule": "family=sync,tile_q=16", "fields": {"family": "sync", "tile_q": 16}, "predicted_us": 8, "status": "spills", "why": "12 bytes"}]},
]}

NASTY = "fwd bf16 d=64 heads=1 mask=\"q < k && k <= q\" </script><script>window.stolen = 1</script><!-- <img src=x onerror=window.stolen=1> & ' \u2028 \u00e9"
HOSTILE = {"machine": {"gpu": NASTY}, "command": NASTY, "specs": [{"spec": NASTY, "shape": NASTY, "default_us": 2, "best_us": 1, "best_schedule": NASTY, "cut": [{"why": NASTY, "count": 3}],
           "candidates": [{"schedule": NASTY, "fields": {"__proto__": "x", "constructor": NASTY, "family": NASTY}, "us": 1, "predicted_us": 1, "status": NASTY, "why": NASTY},
                          {"schedule": "b", "fields": {"constructor": "y"}, "us": 2, "predicted_us": 2, "status": "measured", "why": NASTY}]}]}

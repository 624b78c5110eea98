"""Rows that tools/compare.py keeps, and what tools/figures makes of them. Runs are made up: a table needs PyTorch and time."""

import json
import math
import os
import re
import subprocess
import sys

import harness
from harness import scratch, source, write


def compare():
    if source("tools") not in sys.path:
        sys.path.insert(0, source("tools"))
    from compare import record, rows
    return record, rows.forward_rows()


def result(times, ok=True):
    made = dict(schedule="family=hopper", ok=ok, limit=0.01, rms_limit=None)
    for side, ms in times.items():
        made.update({f"{side}_ms": ms, f"{side}_tflops": 1 / ms, f"{side}_max_err": math.nan, f"{side}_rms_err": 1e-4})
    return made


def kept(name, results, failed=(), commit="1234abcd", device="a card"):
    record, rows = compare()
    machine = dict(kind="machine", date="2026-01-02", gpu=device, seed=1)
    record.append(scratch(name), machine, dict(zip(rows, results)), failed, "tools/compare.py --record " + name, commit)
    return scratch(name)


def figures(*args, expect=0):
    done = subprocess.run([sys.executable, source("tools", "figures"), *args], capture_output=True, text=True, timeout=60, cwd=scratch(""))
    assert done.returncode == expect, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def summaries(*args):
    return [json.loads(line) for line in figures(*args, "--json").stdout.splitlines()]


def test_a_line_says_where_and_how():
    path = kept("one.jsonl", [result({"flashjit": 1.0, "cudnn": 1.5})])
    with open(path, encoding="utf-8") as file:
        (line,) = [json.loads(line) for line in file]
    _, rows = compare()
    assert line["device"] == "a card" and line["commit"] == "1234abcd" and line["date"] == "2026-01-02" and line["seed"] == 1, line
    assert line["command"] == "tools/compare.py --record one.jsonl" and line["table"] == "forward" and line["spec"] == rows[0].spec, line
    assert line["sides"]["cudnn"] == dict(ms=1.5, tflops=1 / 1.5, max_err=None, rms_err=1e-4), line
    assert "gpu" not in line and "kind" not in line, line


def test_runs_are_appended():
    kept("two.jsonl", [result({"flashjit": 1.0, "cudnn": 2.0})], commit="first")
    path = kept("two.jsonl", [result({"flashjit": 1.0, "cudnn": 3.0})], commit="second")
    assert [(row["commit"], round(row["mean"], 6)) for row in summaries(path)] == [("first", 2.0), ("second", 3.0)]


def test_a_commit_is_that_of_the_tree():
    record, _ = compare()
    assert record.commit_of(scratch("")) is None
    here = scratch("tree")
    os.mkdir(here)
    git = ["git", "-C", here, "-c", "user.name=n", "-c", "user.email=e"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    commit = record.commit_of(here)
    assert len(commit) == 8 and not commit.endswith("+"), commit
    write("tree/file", b"x")
    assert record.commit_of(here) == commit, "a file that is not tracked changes no commit"
    subprocess.run([*git, "add", "file"], check=True)
    assert record.commit_of(here) == commit + "+"


def test_means_are_geometric_and_of_each_peer():
    path = kept("means.jsonl", [result({"flashjit": 1.0, "cudnn": 2.0, "fa2": 4.0}), result({"flashjit": 2.0, "cudnn": 16.0})])
    rows = {row["peer"]: row for row in summaries(path)}
    assert set(rows) == {"cudnn", "fa2"}
    assert math.isclose(rows["cudnn"]["mean"], 4.0) and rows["cudnn"]["least"] == 2.0 and rows["cudnn"]["cases"] == 2, rows
    assert rows["fa2"]["cases"] == 1 and "wrong" not in rows["fa2"]["detail"], rows


def test_rows_that_were_wrong_or_not_run_are_counted_and_take_no_part():
    path = kept("wrong.jsonl", [result({"flashjit": 1.0, "cudnn": 2.0}), result({"flashjit": 1.0, "cudnn": 50.0}, ok=False)],
                failed=[dict(kind="failed", row="a row", error="refused")])
    (row,) = summaries(path)
    assert math.isclose(row["mean"], 2.0) and row["cases"] == 1 and "2 of the run wrong or not run" in row["detail"], row


def test_a_table_and_a_picture():
    path = kept("picture.jsonl", [result({"flashjit": 1.0, "cudnn": 2.0})], device="a <card>")
    table = figures(path, "--svg", "picture.svg").stdout
    assert table.splitlines()[2] == "| forward: bf16, commit 1234abcd, 1 shape | cudnn | 2.00 | 2.00 | a <card>, 2026-01-02 |", table
    with open(scratch("picture.svg"), encoding="utf-8") as file:
        picture = file.read()
    assert "a &lt;card&gt;" in picture and "<card>" not in picture and "2.00" in picture


def test_what_is_no_row_is_named():
    kept("good.jsonl", [result({"flashjit": 1.0})])
    assert "no row has a peer beside it" in figures("good.jsonl", expect=1).stderr
    write("bad.jsonl", open(scratch("good.jsonl"), "rb").read() + b'{"date": 1}\n')
    assert "bad.jsonl, line 2" in figures("bad.jsonl", expect=1).stderr
    for text in (b"[]\n", b"{\n", b"7\n"):
        write("bad.jsonl", text)
        assert "bad.jsonl, line 1" in figures("bad.jsonl", expect=1).stderr
    assert "none.jsonl" in figures("none.jsonl", expect=1).stderr
    assert "--svg" in figures("--svg", "x.svg", expect=2).stderr


def test_what_the_device_tests_gave():
    rows = [json.loads(line) for line in figures("--runs", "--json").stdout.splitlines()]
    assert len(rows) >= 77 and all(sorted(row) == ["cases", "commit", "date", "device", "failed", "largest_error", "seconds", "what"] for row in rows)
    assert all(row["date"][:2] == "20" and row["device"] != "same" for row in rows), rows
    lines = figures("--runs", "racecheck").stdout.splitlines()
    assert len(lines) == 2 + sum("racecheck" in json.dumps(row) for row in rows) and all("racecheck" in line for line in lines[2:]), lines
    figures("--runs", "--check", expect=2)


def test_what_was_tried_in_the_kernels():
    rows = [json.loads(line) for line in figures("--experiments", "--json").stdout.splitlines()]
    lines = [line for name in sorted(os.listdir(source("templates", "experiments"))) for line in open(source("templates", "experiments", name), encoding="utf-8")]
    ids = [row["id"] for row in map(json.loads, lines)]
    assert ids == [row["id"] for row in rows]
    fields = {"id", "topic", "what", "shapes", "figures", "setting", "follows", "command", "commit", "date", "device"}
    assert len(rows) >= 778 and len(set(ids)) == len(ids), [name for name in ids if ids.count(name) > 1]
    for row in rows:
        assert re.fullmatch(r"[a-z][a-z0-9-]*-[1-9]\d*", row["id"]) and fields >= set(row) >= {"id", "topic", "what", "date"} and all(row.values()), row
        assert re.match(r"20\d\d-\d\d-\d\d", row["date"]) and ("follows" not in row or ids.index(row["follows"]) < ids.index(row["id"])), row
    lines = figures("--experiments", "Decode loop").stdout.splitlines()
    assert len(lines) == 2 + sum("Decode loop" in json.dumps(row) for row in rows) > 80, lines
    assert [line.split(" | ")[0] for line in figures("--experiments", "built-4").stdout.splitlines()[2:]] == ["| built-2", "| built-3", "| built-4"]
    figures("--experiments", "--runs", expect=2)


if __name__ == "__main__":
    harness.main(globals())

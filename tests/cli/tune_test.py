"""flashjit tune on the host: results, records that decide, resuming after kill -9, files of records."""

import json
import os
import random
import re
import shlex
import signal
import subprocess

import harness
from harness import flashjit, need, read, refused, scratch, write

SPEC = "fwd fp32 d=32 heads=2 b=1 q_len=48 k_len=48"  # its assumed shape is its only shape
FIELDS = {"spec", "target", "schedule", "ok", "error", "shape", "default_us", "best_us", "best_schedule", "tried", "regret", "noise", "space"}


def records(path):
    with open(path, encoding="utf-8") as file:
        return [dict(field.split("=", 1) for field in line.rstrip("\n").split("\t")) for line in file if not line.startswith("#")]


def tuned_file():
    return scratch("store/v1/tuned.txt")


def tuned(*args, **options):
    """A tuning that decided something: on a busy machine it may take some attempts."""
    for seed in range(1, 9):
        line = flashjit("tune", *args, "--budget", "1s", "--seed", str(seed), "--json", **options).line()
        if line["recorded"]:
            return line
        assert "the machine is busy" in line["best_why"] and line["best_schedule"] == line["default_schedule"], line
    raise harness.Skip("the machine is too busy for a tuning to decide anything")


def test_json_table_and_report():
    need("host")
    run = flashjit("tune", SPEC, "--shape", "q=48", "--target", "host", "--budget", "1s", "--check", "--json", "--report", "r.html", "--report-json", "r.json")
    line = run.line()
    assert FIELDS <= set(line) and line["ok"] is True, line
    assert line["schedule"] == line["best_schedule"] and line["tried"] >= 2, line
    report = json.loads(read(scratch("r.json")))
    spec = report["specs"][0]
    assert report["machine"]["target"] == line["target"] and spec["spec"] == SPEC, report["machine"]
    measured = [c for c in spec["candidates"] if c["status"] in ("measured", "stopped")]
    assert len(measured) == line["tried"] and all(c["us_low"] <= c["us"] <= c["us_high"] for c in measured), spec
    # The best is the fastest, or is within what counts as a tie, or others are not faster for certain; it is said which.
    assert min(c["us"] for c in measured) == line["fastest_us"] and line["fastest_schedule"] in line["best_why"] + line["best_schedule"], spec
    if line["recorded"] and "for certain" not in line["best_why"]:
        assert line["best_us"] <= line["fastest_us"] * (1 + min(line["noise"], 0.02)), spec
        is_fastest = line["best_schedule"] == line["fastest_schedule"]
        assert is_fastest == line["best_why"].startswith("the fastest") and (is_fastest or line["best_why"].startswith(line["fastest_schedule"])), line
    assert spec["best_why"] == line["best_why"], spec
    assert spec["candidates"][0]["fields"]["family"] == "host", spec
    # What is said of the machine is true of a processor: two pipes of 16 products of pairs at 7 GHz, or a tile's 1024 products, are a core's most.
    machine = report["machine"]
    assert machine["processor"] and machine["threads"] >= 1 and not {"gpu", "units", "sms", "driver"} & set(machine), machine
    assert machine["clock_mhz"] is None and machine["temperature"] is None and line["clock_mhz"] is None, machine
    assert spec["peak_how"].startswith(f"measured on {machine['threads']} thread"), spec["peak_how"]
    assert 0 < spec["peak_tflops"] < machine["threads"] * 128 * 7e-3 and spec["peak_tbs"] > 0, spec
    page = read(scratch("r.html")).decode()
    # The command that made it stands in it, to be typed again.
    assert report["command"] == shlex.join(["flashjit", "tune", SPEC, "--shape", "q=48", "--target", "host", "--budget", "1s", "--check", "--json",
                                            "--report", "r.html", "--report-json", "r.json"]), report["command"]
    assert page.lstrip().lower().startswith("<!doctype html") and "fwd fp32 d=32 heads=2" in page
    text = flashjit("tune", SPEC, "--shape", "q=48", "--target", "host", "--budget", "1s").out
    assert "default" in text and "regret" in text and "1 spec: best over default" in text, text
    # What was measured beyond the list of legal schedules is said to be that, and each of the two defaults what it is.
    space = re.search(r"space +(\d+) schedules in the compiler's list, (\d+) of them legal; (\d+) measured(?:, of which (\d+) )?", text)
    listed, legal, measured, unlisted = (int(number or 0) for number in space.groups())
    assert listed >= legal >= measured - unlisted, text
    assert "prepare takes that is told no sizes" in text and "puts first for this shape" in text, text


def test_record_decides_and_can_be_removed():
    need("host")
    before = flashjit("run", SPEC, "--shape", "q=48", "--target", "host", "--json").line()
    assert not any("tuning record" in note for note in before["notes"]), before
    line = tuned(SPEC, "--shape", "q=48", "--target", "host")
    after = flashjit("run", SPEC, "--shape", "q=48", "--target", "host", "--json", "--check").line()
    assert after["schedule"] == line["best_schedule"], after
    assert any("tuning record" in note for note in after["notes"]), after
    # A record is taken by value: whatever legal schedule it names, the next process takes it, and the next one again.
    text = read(tuned_file()).decode()
    write("store/v1/tuned.txt", text.replace(line["best_schedule"], "family=host,tile_q=16,tile_kv=32").encode())
    for _ in range(2):
        other = flashjit("run", SPEC, "--shape", "q=48", "--target", "host", "--json", "--check").line()
        assert other["schedule"] == "family=host,tile_q=16,tile_kv=32", other
    # Illegal, foreign or damaged ones are as if they were not there.
    for bad in (text.replace("tile_kv=", "tile_kv=1"), text.replace("device=", "device=x"), text[:-20], "\0\xff\n" * 50):
        write("store/v1/tuned.txt", bad.encode("latin-1"))
        ignored = flashjit("run", SPEC, "--shape", "q=48", "--target", "host", "--json").line()
        assert ignored["schedule"] == before["schedule"], (bad, ignored)


def test_tuning_again_does_not_measure_the_record_as_default():
    need("host")
    first = flashjit("tune", SPEC, "--shape", "q=48", "--target", "host", "--budget", "1s", "--json").line()
    second = flashjit("tune", SPEC, "--shape", "q=48", "--target", "host", "--budget", "1s", "--json").line()
    assert first["default_schedule"] == second["default_schedule"], (first, second)


def test_pins_are_kept_and_not_recorded():
    need("host")
    line = flashjit("tune", SPEC, "--shape", "q=48", "--target", "host", "--budget", "1s", "--json", "--schedule", "tile_kv=64").line()
    assert "tile_kv=64" in line["best_schedule"], line
    assert not os.path.exists(tuned_file())


def test_what_cannot_be_tried_is_measured_all_the_same():
    need("host")
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (100,), }"
    write(scratch("t.npy"), b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(400))
    spec = 'fwd fp32 d=32 heads=2 score="s + t[k + n]" params="t: fp32[1], n: u32"'  # without a file nobody knows how large t is
    line = flashjit("tune", spec, "--shape", "q=48", "--target", "host", "--budget", "1s", "--param", f"t={scratch('t.npy')}", "--param", "n=3", "--json").line()
    assert line["ok"] and line["best_us"] > 0, line


def test_deterministic_keeps_its_numerics():
    need("host")
    spec = SPEC + " numerics=deterministic"
    line = flashjit("tune", spec, "--shape", "q=48", "--target", "host", "--budget", "1s", "--json", "--report-json", "r.json").line()
    keys = {c["fields"]["tile_kv"] for c in json.loads(read(scratch("r.json")))["specs"][0]["candidates"]}
    assert len(keys) == 1, keys
    assert line["default_schedule"].split("tile_kv=")[1] == line["best_schedule"].split("tile_kv=")[1], line


def test_sweep_file_and_shapes():
    need("host")
    write("sweep.txt", f"# a comment\nq=16 fwd fp32 d=16 heads=1\n{SPEC}\n\n  b=2,q=8,k=24   fwd bf16 d=16 heads=2  \n".encode())
    lines = flashjit("tune", "--sweep", "sweep.txt", "--shape", "q=48", "--target", "host", "--budget", "2s", "--json").lines()
    assert [line["shape"] for line in lines] == ["b=1,q=16,k=16", "b=1,q=48,k=48", "b=2,q=8,k=24"], lines
    kept = sum(line["recorded"] for line in lines)
    assert (len(records(tuned_file())) if os.path.exists(tuned_file()) else 0) == kept, lines


def test_sizes_that_a_spec_pins_need_no_shape():
    need("host")
    assert flashjit("tune", SPEC, "--target", "host", "--budget", "1s", "--json").line()["shape"] == "b=1,q=48,k=48"
    for spec in (SPEC.replace("b=1 ", ""), SPEC.replace("k_len=", "k_len<="), SPEC + " layout=packed"):
        refused("tune", spec, "--target", "host", says=["--shape: missing", "nor all in the spec"])


def test_sweep_of_a_shell():
    need("host")
    reader, writer = os.pipe()
    os.write(writer, f"q=16 {SPEC}\n".replace(" b=1 q_len=48 k_len=48", "").encode())
    os.close(writer)
    line = flashjit("tune", "--sweep", f"/dev/fd/{reader}", "--target", "host", "--budget", "1s", "--json", pass_fds=[reader]).line()
    os.close(reader)
    assert line["shape"] == "b=1,q=16,k=16", line


def test_report_that_cannot_be_written_costs_no_tuning():
    need("host")
    args = ["tune", SPEC, "--shape", "q=48", "--target", "host", "--budget", "1s", "--json"]
    for report in ("--report", "--report-json"):
        run = refused(*args, report, ".", kind="io", says="cannot be written")
        assert not any("best_us" in line for line in run.lines()), run
    assert flashjit(*args, "--report", scratch("r")).line()["ok"] and os.path.getsize(scratch("r"))


def test_killed_runs_go_on():
    need("host")
    specs = [f"fwd fp32 d={d} heads=2" for d in (8, 16, 24, 32, 40)]
    args = ["tune", *specs, "--shape", "q=16", "--shape", "q=32", "--target", "host", "--budget", "5s", "--json"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FLASHJIT_")}
    environment["FLASHJIT_CACHE_DIR"] = scratch("store")
    command = [os.path.join(harness.ARGS.build, "bin", "flashjit"), *args]
    moments = random.Random(5)
    finished, printed = 0, set()
    for _ in range(10):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err = process.communicate(timeout=moments.uniform(0.2, 3))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            out, err = process.communicate()
        lines = [json.loads(line) for line in out.decode().splitlines() if line.endswith("}")]
        now = {(line["spec"], line["shape"]) for line in lines}
        # What was done before is told first; the signal may come while it is.
        assert printed <= now or now <= printed and process.returncode == -signal.SIGKILL, (printed, now)
        printed |= now
        assert len(now) >= finished or process.returncode == -signal.SIGKILL, (finished, now)
        finished = max(finished, len(now))
        if process.returncode == 0:
            break
    run = flashjit(*args, env={"FLASHJIT_CACHE_DIR": scratch("store")})
    assert {(line["spec"], line["shape"]) for line in run.lines()} == {(s, f"b=1,q={q},k={q}") for s in specs for q in (16, 32)}, run
    # A run that was complete before it could be killed left its records, and the one above may have been undecided about the same.
    recorded = {(line["spec"], line["shape"]) for line in run.lines() if line["recorded"]}
    kept = {(record["spec"], record["shape"]) for record in records(tuned_file())} if os.path.exists(tuned_file()) else set()
    assert recorded <= kept, (recorded, kept)
    assert not [name for name in os.listdir(scratch("store/v1")) if name.endswith(".journal")]


def test_damaged_journal_costs_only_what_is_damaged():
    need("host")
    args = ["tune", SPEC, "fwd fp32 d=16 heads=1", "--shape", "q=48", "--target", "host", "--budget", "1500ms", "--json"]
    process = subprocess.Popen([os.path.join(harness.ARGS.build, "bin", "flashjit"), *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               env={**os.environ, "FLASHJIT_CACHE_DIR": scratch("store")})
    process.stdout.readline()  # the first spec is done
    process.send_signal(signal.SIGKILL)
    process.communicate()
    journals = [name for name in os.listdir(scratch("store/v1")) if name.endswith(".journal")]
    if not journals:
        raise harness.Skip("the run was complete before it could be killed")
    with open(scratch("store/v1/" + journals[0]), "ab") as file:
        file.write(b'{"key": "half a li')
    run = flashjit(*args)
    assert "going on" in run.err and len(run.lines()) == 2, run


def test_journal_of_another_shape_is_passed_over():
    need("host")
    args = ["tune", SPEC, "--shape", "q=48", "--target", "host", "--budget", "1s", "--records", scratch("own.txt"), "--json"]
    process = subprocess.Popen([os.path.join(harness.ARGS.build, "bin", "flashjit"), *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               env={**os.environ, "FLASHJIT_CACHE_DIR": scratch("store")})
    journals = []
    while process.poll() is None and not journals:
        journals = [name for name in os.listdir(scratch("")) if name.endswith(".journal")]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    if not journals:
        raise harness.Skip("the run was complete before it could be killed")
    key = f"{SPEC}\nb=1,q=48,k=48"
    strange = [{"key": key, "result": result} for result in ({}, {"spec": 1}, {"candidates": [7]}, {"spec": SPEC, "shape": "q=48", "best_us": "fast"})]
    for lines in ([*strange, {"key": [key]}, 7, None], [{"key": key, "result": {"spec": SPEC, "candidates": {}}}]):
        with open(scratch(journals[0]), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        run = flashjit(*args)
        assert "passing over " in run.err and f"{len(lines)} line" in run.err and len(run.lines()) == 1, run


def test_two_runs_of_one_command_do_not_mix():
    need("host")
    args = ["tune", SPEC, "--shape", "q=48", "--target", "host", "--budget", "20s"]
    process = subprocess.Popen([os.path.join(harness.ARGS.build, "bin", "flashjit"), *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               env={**os.environ, "FLASHJIT_CACHE_DIR": scratch("store")})
    while process.poll() is None and not (os.path.isdir(scratch("store/v1")) and any(n.endswith(".journal") for n in os.listdir(scratch("store/v1")))):
        pass
    run = flashjit(*args, expect=None)
    process.kill()
    process.communicate()
    assert run.code == 0 or "already running" in run.err, run


def test_export_and_merge():
    need("host")
    tuned(SPEC, "--shape", "q=48", "--target", "host")
    flashjit("tune", "--export", "all.txt")
    exported = records(scratch("all.txt"))
    assert any(r["spec"] == SPEC for r in exported), exported
    elsewhere = {"FLASHJIT_CACHE_DIR": scratch("elsewhere")}
    flashjit("tune", "--merge", "all.txt", env=elsewhere)
    after = flashjit("run", SPEC, "--shape", "q=48", "--target", "host", "--json", env=elsewhere).line()
    assert any("tuning record" in note for note in after["notes"]), after
    tuned(SPEC, "--shape", "q=48", "--target", "host", "--records", "own.txt", env=elsewhere)
    assert len(records(scratch("own.txt"))) == 1


def test_refusals():
    refused("tune", "--json", kind="invalid", says="no spec")
    refused("tune", SPEC.replace(" q_len=48", ""), "--json", "--target", "host", kind="invalid", says="--shape")
    refused("tune", SPEC, "--shape", "q=48", "--budget", "soon", "--target", "host", says="--budget")
    refused("tune", SPEC, "--shape", "q=49", "--target", "host", says="q=49")
    refused("tune", "--sweep", ".", "--shape", "q=5", "--target", "host", says=["--sweep: .: this is no file but a folder", "SHAPE SPEC"])
    os.mkfifo(scratch("pipe"))  # which nobody writes
    for path, kind in ((scratch("pipe"), "pipe"), ("/dev/zero", "device")):
        refused("tune", "--sweep", path, "--shape", "q=5", "--target", "host", "--json", kind="invalid", says=[f"--sweep: {path}: this is no file but a {kind}"])
    refused("tune", "--sweep", write("empty.txt", b"# nothing\n"), "--shape", "q=5", "--target", "host", says=["--sweep: ", "no line with a spec"])
    for option in ("--merge", "--records"):
        refused("tune", SPEC, "--shape", "q=48", "--target", "host", option, ".", says=".: this is no file but a folder; tuning records are a file")
    refused("tune", "--sweep", "absent.txt", "--target", "host", says="absent.txt")
    refused("tune", "fwd nonsense", "--shape", "q=1", "--target", "host", says="nonsense")
    refused("tune", "--merge", "absent.txt", says="absent.txt")
    if harness.has("host"):
        refused("tune", "fwd fp32 d=8 heads=1", "--shape", "q=0", "--target", "host", says="nothing to measure")


if __name__ == "__main__":
    harness.main(globals())

"""This keeps a run: a line of JSON for each row, with the device, the time, the commit and the command of the
measurement."""
import json
import pathlib
import platform
import subprocess

from compare.report import finite

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
MEASURED = ("ms", "tflops", "max_err", "rms_err")


def commit_of(repository):
    """Returns the commit of a tree, with a plus if tracked files have changed, or None if git does not know one."""
    def ask(*command):
        return subprocess.run(["git", "-C", repository, *command], capture_output=True, text=True, check=True).stdout.strip()

    try:
        return ask("rev-parse", "--short=8", "HEAD") + ("+" if ask("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def device_of(machine):
    """Returns the GPU, or the processor as Linux names it."""
    if "gpu" in machine:
        return machine["gpu"]
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def line_of(row, result, run):
    sides = [key.removesuffix("_ms") for key in result if key.endswith("_ms")]
    return {**run, "table": row.table, "row": row.name, "spec": row.spec, "shape": row.shape, "threads": row.threads or None,
            "schedule": result["schedule"], "ok": result["ok"], "limit": result["limit"], "rms_limit": result["rms_limit"],
            "sides": {side: {what: finite(result.get(f"{side}_{what}")) for what in MEASURED} for side in sides}}


def append(path, machine, results, failed, command, commit):
    """Keeps rows that could not be run as well: a table without them would look better than it is."""
    run = {key: value for key, value in machine.items() if key not in ("kind", "gpu")}
    run.update(device=device_of(machine), commit=commit or commit_of(REPOSITORY), command=command)
    lines = [line_of(row, result, run) for row, result in results.items()]
    lines += [{**run, "row": line["row"], "ok": False, "error": line["error"]} for line in failed]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)

#!/usr/bin/env python3
"""This compares FlashJIT with PyTorch, side by side in one process, through the C API.

  compare.py                           the forward table on a GPU: cuDNN and FlashAttention-2, as PyTorch ships them
  compare.py --table all --flex        grouped heads, windows, scores and packed documents too; FlexAttention beside them
  compare.py --table backward          gradients: cuDNN's and FlashAttention-2's, as PyTorch launches them
  compare.py --table training          ours over plain ones: deterministic, grouped heads, windows, documents, scores, dropout
  compare.py --table data              sinks, outliers, wide logits: is it as fast on them as on normal data?
  compare.py --table fp8               elements of 8 bits beside bf16, and calls that quantise first; the product of 8 bits beside all
  compare.py --table decode            one query for each sequence, replayed from CUDA graphs, in TB/s of K and V
  compare.py --table paged             the same through page tables of 16, 64 and 256 tokens, and with very uneven lengths
  compare.py --table mla               latents (576/512, 128 heads), contiguous and in pages, and over the time of reading them
  compare.py --table latents           caches of 8 bits, and other shapes; sparse_decode, sparse_prefill: keys that queries have chosen
  compare.py --table pages             pages that each query has chosen for each KV head, over dense keys; index: who chooses keys
  compare.py --table prefix            64 sequences that share 32k tokens: read for each, and once
  compare.py --table cache             caches of 8 bits, new tokens written and turned by the call, pieces of prompts on pages
  compare.py --table sparse --flex     blocks of keys that lists name, documents in a tensor and packed; sparse_backward: gradients
  compare.py --table mixed             prompts and single tokens in one launch, drafts in a tree
  compare.py --table parallel --ranks 2    flashjit.distributed on so many GPUs of this host: right, fast, as the model says; --ranks 1: its launches
  compare.py --table drawn             problems that nobody chose, drawn from --seed; drawn_backward: gradients; drawn_cache: caches
  compare.py --only d=128,mask=causal --schedule tile_q=128,tile_kv=64
  compare.py --only d=64,s=4096 --sweep schedules.txt    one schedule per line, fastest first
  compare.py --before OLD/libflashjit.so --no-peers    another build of ours on the same rows: faster, slower, other bits
  compare.py --hint                    as one who tells prepare the sizes, not as one who does not
  taskset -c 0,1 compare.py --cold     what compiling costs without the kernel store, on two cores; needs no PyTorch
  compare.py --cpu                     the host backend against PyTorch's CPU attention, fp32 and bf16
  compare.py --cpu --table backward    the same of gradients

Every row runs all sides on the same fresh random tensors, in rounds that alternate between them, and reports the
median time and the errors of each against float64 (sampled rows). GPU times are between CUDA events, with the L2
cache flushed before every launch. It prints JSON lines first, then Markdown: the rows, and the figures with what an
H200 must reach (LOW, HIGH and NO mark what does not). Exit code 1 means that a row could not be run or an error of
ours breaks the error rule: at most twice the error of softmax(q k) v computed with the same input type and fp32
inside, or four standard deviations of its roundings; for 8 bits also twice its root mean square. Exit code 2 means
wrong usage.
"""
import argparse
import os
import pathlib
import shlex
import sys
import time

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(1, str(REPOSITORY / "runtime" / "python"))

from compare import record, report, rows
from flashjit import Engine, FlashJitError
from flashjit.capi import Library


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=[*rows.GPU_TABLES, "parallel", "all"], default="forward", help="which rows (default: forward); all: those without backward, training, data, fp8, decode, paged, mla, latents, pages, index, prefix, mixed, cache, sparse and drawn ones")
    parser.add_argument("--ranks", type=int, help="GPUs of --table parallel, a process each (default: all of this host); 1: what several need of one")
    parser.add_argument("--cpu", action="store_true", help="the host backend against PyTorch on the CPU")
    parser.add_argument("--cold", action="store_true", help="only compile every row, each in an engine without stored kernels")
    parser.add_argument("--only", default="", help="rows to run: d=128,mask=causal,s=4096 (also heads=, score=, dtype=, ...)")
    parser.add_argument("--schedule", help="pins for every row")
    parser.add_argument("--hint", action="store_true", help="tell prepare the sizes of each row (default: what it chooses unasked)")
    parser.add_argument("--sweep", metavar="FILE", help="one schedule per line: time them all on every selected row")
    parser.add_argument("--flex", action="store_true", help="also FlexAttention, compiled: about 10 s more per row")
    parser.add_argument("--no-peers", action="store_true", help="ours alone")
    parser.add_argument("--before", metavar="LIB", help="another libflashjit.so, which takes part as a peer does")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the tensors, and of the rows of drawn tables (default: another one each time)")
    parser.add_argument("--count", type=int, default=50, help="rows of drawn tables (default: 50)")
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    parser.add_argument("--rounds", type=int, help="alternating rounds per row (default: 5)")
    parser.add_argument("--json", action="store_true", help="JSON lines only")
    parser.add_argument("--markdown", metavar="FILE", help="also write the Markdown there")
    parser.add_argument("--record", metavar="FILE", help="append a line of JSON for each row to FILE: tools/figures FILE makes a table and a picture of it")
    parser.add_argument("--commit", help="the commit that --record names (default: that of this tree, as git has it)")
    parser.add_argument("--lib", default=REPOSITORY / "build/lib/libflashjit.so", help="libflashjit.so")
    options = parser.parse_args()
    if options.cpu and options.table not in ("forward", "backward"):
        parser.error("--cpu: it has tables of its own; leave --table out, or use --table backward")
    if options.cpu and options.flex:
        parser.error("--flex: FlexAttention is measured on a GPU only; leave --cpu or --flex out")
    if options.no_peers and options.flex:
        parser.error("--no-peers: FlexAttention is a peer; leave one of the two out")
    if options.hint and (options.schedule or options.sweep):
        parser.error("--hint: it is for where nothing is pinned; leave --schedule and --sweep out")
    if options.before and (options.cold or options.sweep):
        parser.error("--before: it takes part in the tables only; leave --cold and --sweep out")
    if options.sweep and (options.cold or options.markdown):
        parser.error("--sweep: it prints JSON lines and nothing else; leave --cold and --markdown out")
    if options.record and (options.cold or options.sweep):
        parser.error("--record: it keeps rows of the tables; leave --cold and --sweep out")
    if options.commit and not options.record:
        parser.error("--commit: only --record writes it down; name a file with --record, or leave it out")
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds: {options.rounds}, must be at least 1")
    if options.count < 1:
        parser.error(f"--count: {options.count}, must be at least 1")
    if options.sweep and not os.path.isfile(options.sweep):
        parser.error(f"--sweep: there is no file {options.sweep}")
    for name, path in (("--markdown", options.markdown), ("--record", options.record)):
        if path and not pathlib.Path(path).resolve().parent.is_dir():
            parser.error(f"{name}: there is no folder for {path}")
    options.rounds = options.rounds or (2 if options.quick else 5)
    if options.ranks is not None and (options.table != "parallel" or options.ranks < 1):
        parser.error(f"--ranks: {options.ranks}; it is for --table parallel, and at least 1")
    if options.table == "parallel":
        return of_ranks(parser, options)
    options.budget = 200 if options.cpu else 20 if options.quick else 40
    options.tables = ("cpu" if options.table == "forward" else "cpu_backward",) if options.cpu else rows.ALL_TABLES if options.table == "all" else (options.table,)
    try:
        options.groups = rows.filtered([group for table in options.tables for group in rows.groups_of(table, options.seed, options.count)], options.only)
    except rows.BadFilter as error:
        parser.error(str(error))
    return options


def of_ranks(parser, options):
    """Runs the table of several processes: its rows have names, and some options mean nothing to them."""
    for name in ("cpu", "cold", "schedule", "hint", "sweep", "flex", "before", "markdown"):
        if getattr(options, name):
            parser.error(f"--{name}: --table parallel has rows of its own; leave it out")
    try:
        import torch
        from compare import parallel
    except ImportError as error:
        raise FlashJitError(f"PyTorch cannot be imported ({error}); install it for {sys.executable}") from None
    count = torch.cuda.device_count()
    options.ranks = options.ranks or count
    if not 1 <= options.ranks <= count:
        raise FlashJitError(f"--ranks: {options.ranks}, and this host has {count} GPUs")
    unknown = set(filter(None, options.only.split(","))) - set(parallel.PARTS)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(parallel.PARTS)}")
    options.budget, options.command = 20 if options.quick else 40, command_line()
    return options


def command_line():
    return shlex.join(["tools/compare.py", *sys.argv[1:]])


def keep(options, run):
    try:
        record.append(options.record, run.machine, run.results, run.failed, command_line(), options.commit)
    except OSError as error:
        raise FlashJitError(f"--record: {error}") from None


def show(options, machine, results, failed, figures, wanted):
    for item in figures:
        report.emit(item)
    text = report.markdown(command_line(), machine, results, failed, figures, wanted)
    if not options.json:
        print("\n" + text)
    if options.markdown:
        try:
            pathlib.Path(options.markdown).write_text(text, encoding="utf-8")
        except OSError as error:
            raise FlashJitError(f"--markdown: {error}") from None


def compare(options, library):
    try:
        import torch
    except ImportError as error:
        raise FlashJitError(f"PyTorch cannot be imported ({error}); install it for {sys.executable}") from None
    from compare.comparison import Comparison
    run = Comparison(options, library)
    run.machine["target"] = run.engine_for(options.groups[0][0]).target
    report.emit(run.machine)
    with torch.no_grad():
        if options.sweep:
            return run.sweep()
        figures = run.compare()
    if options.record:
        keep(options, run)
    show(options, run.machine, run.results, run.failed, figures, run.wanted)
    return run.good


def cold(options, library):
    """Compiles every row in an engine of its own that keeps nothing on the disk."""
    def engine(threads=0):
        return Engine("host" if options.cpu else "gpu", threads=threads, disk_cache=False, library=library)

    cores, times, failed = len(os.sched_getaffinity(0)), [], []
    machine = dict(kind="machine", date=time.strftime("%Y-%m-%d"), flashjit=library.version().decode(), target=engine().target,
                   cores=cores, hint=rows.HINTS[options.hint])
    report.emit(machine)
    for row in (row for group in options.groups for row in group):
        try:
            facts = engine(row.threads).prepare(row.spec, schedule=options.schedule, shape=row.shape if options.hint else None, workspace=True).facts
        except FlashJitError as error:
            failed.append(dict(kind="failed", row=row.name, error=str(error)))
            report.emit(failed[-1])
            continue
        times.append(facts["compile_ms"])
        report.emit(dict(kind="cold", row=row.name, **{key: facts[key] for key in (
            "compile_ms", "source", "schedule", "registers", "spill_bytes", "smem_bytes", "cubin_bytes")}))
    figures = report.cold_figures(times, cores, machine["target"] == "sm_90a") if times else []
    show(options, machine, {}, failed, figures, False)
    return not failed


def main():
    options = parse()
    if options.table == "parallel":
        from compare import parallel
        return 0 if parallel.compare(options) else 1
    library = Library(options.lib)
    return 0 if (cold if options.cold else compare)(options, library) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FlashJitError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        sys.exit(1)

"""This runs the selected rows: everybody on the same tensors, in turns."""
import concurrent.futures
import os
import sys
import time

import torch

from compare import report, rows
from compare.chosen_pages import PagesProblem, PagesReference
from compare.clock import CpuClock, GpuClock, graphed, product_rate, race
from compare.gradients import GradientProblem, GradientReference
from compare.indexing import IndexProblem, IndexReference
from compare.latents import LatentProblem, LatentReference
from compare.problem import Problem, Reference
from compare.sides import launches_of
from flashjit import Engine, FlashJitError
from flashjit.capi import Library

LOST = "the GPU reports an error that ends this process; the rows after this one were not run"


OF_TABLES = {**{table: (LatentProblem, LatentReference) for table in rows.LATENT_TABLES}, "pages": (PagesProblem, PagesReference),
             "index": (IndexProblem, IndexReference)}


def problem_of(row, device, engine):
    if row.table in OF_TABLES:
        return OF_TABLES[row.table][0](row, device)
    return (GradientProblem if row.backward else Problem)(row, device, engine)


def reference_of(problem, seed):
    if problem.row.table in OF_TABLES:
        return OF_TABLES[problem.row.table][1](problem, seed)
    return (GradientReference if problem.row.backward else Reference)(problem, seed)


class Comparison:
    def __init__(self, options, library):
        if not options.cpu and not torch.cuda.is_available():
            raise FlashJitError("PyTorch sees no GPU; --cpu compares on the processor")
        self.options, self.library, self.engines = options, library, {}
        self.before = Library(options.before) if options.before else None
        self.device = "cpu" if options.cpu else "cuda"
        self.results, self.failed, self.products, self.good = {}, [], [], True
        self.product_dtype = "e4m3" if options.table == "fp8" else "bf16"
        torch.manual_seed(options.seed)
        self.machine = dict(kind="machine", date=time.strftime("%Y-%m-%d"), flashjit=library.version().decode(),
                            torch=torch.__version__, seed=options.seed, hint=rows.HINTS[options.hint])
        self.wanted = False
        if not options.cpu:
            torch.zeros(1, device="cuda")  # The primary context exists from here on, for both sides.
            gpu = torch.cuda.get_device_properties(0).name
            self.machine.update(gpu=gpu, cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version())
            self.wanted = "H200" in gpu
        self.clock = CpuClock() if options.cpu else GpuClock()

    def engine_for(self, row, library=None):
        key = library or self.library, row.threads
        if key not in self.engines:
            self.engines[key] = Engine("host" if self.options.cpu else "gpu", threads=row.threads, library=key[0])
        if row.threads:
            torch.set_num_threads(row.threads)
        return self.engines[key]

    def hint(self, row):
        return row.shape if self.options.hint else None

    def prepare_ahead(self, pairs):
        """Compiles in parallel. A row that is refused reports that again when its turn comes."""
        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for library in filter(None, (self.library, self.before)):
                for row, schedule in pairs:
                    pool.submit(self.engine_for(row, library).prepare, row.spec, schedule=schedule, shape=self.hint(row),
                                workspace=library is self.library)  # An older library may not know it.

    def measure_product(self):
        self.products.append(product_rate(self.clock, self.options.rounds, self.options.budget, self.product_dtype))
        report.emit(dict(kind="product", dtype=self.product_dtype, tflops=self.products[-1]))

    def fail(self, row, error):
        self.failed.append(dict(kind="failed", row=row.name, error=str(error)))
        report.emit(self.failed[-1])

    def gpu_is_lost(self):
        """Returns whether the GPU is lost: after an illegal access nothing works any more in this process."""
        try:
            if not self.options.cpu:
                torch.cuda.synchronize()
            return False
        except RuntimeError:
            return True

    def set_up(self, row):
        """Returns (result so far, launch by side, reference)."""
        kernel = self.engine_for(row).prepare(row.spec, schedule=self.options.schedule, shape=self.hint(row), workspace=True)
        problem = problem_of(row, self.device, self.engine_for(row))
        stream = torch.cuda.Stream() if row.table in rows.IN_GRAPHS else None
        as_timed = (lambda launch: graphed(launch, stream)) if stream else (lambda launch: launch)
        launches = {"flashjit": as_timed(problem.launch_of(kernel, stream))}
        reference = reference_of(problem, seed=row.s + row.d)
        result = dict(kind="row", **row.shown(), spec=row.spec, limit=reference.limit, rms_limit=reference.rms_limit,
                      schedule=kernel.facts["schedule"], family=kernel.facts["family"])
        if row.kv:
            result["bf16_rms_err"] = reference.rms
        launches["flashjit"]()
        if not self.options.cpu:
            torch.cuda.synchronize()  # An error of ours must not show as one of a peer.
        if self.before:
            kernel = self.engine_for(row, self.before).prepare(row.spec, schedule=self.options.schedule, shape=self.hint(row))
            launches["before"] = as_timed(problem.launch_of(kernel, stream))
            result["same_bits_as_before"] = torch.equal(launches["flashjit"](), launches["before"]())
        if row.prefix:
            unshared = self.engine_for(row).prepare(row.unshared, schedule=self.options.schedule, shape=self.hint(row), workspace=True)
            launches["unshared"] = as_timed(problem.launch_of(unshared, stream, shared=False))
        if not self.options.no_peers:
            peers = launches_of(problem, self.options.flex, report.emit)
            launches.update({name: as_timed(launch) for name, launch in peers.items()})
        for name, launch in launches.items():
            result[name + "_max_err"], result[name + "_rms_err"] = reference.errors(launch())
        return result, launches, reference

    def run_group(self, group):
        """Runs rows that are compared with each other: all their sides race together."""
        if self.options.flex:
            torch.compiler.reset()  # Otherwise it gives up compiling after a few shapes.
        results, launches, references = {}, {}, {}
        for row in group:
            try:
                results[row], sides, references[row] = self.set_up(row)
            except (FlashJitError, RuntimeError) as error:
                self.fail(row, error)
                continue
            launches.update({(row, name): launch for name, launch in sides.items()})
        try:
            timed = {key: getattr(launch, "timed", launch) for key, launch in launches.items()}
            times = race(self.clock, timed, self.options.rounds, self.options.budget)
            for row, result in results.items():
                # It runs once more, after all those launches, because a race in a kernel does not show every time.
                again = references[row].errors(launches[row, "flashjit"]())
                first = result["flashjit_max_err"], result["flashjit_rms_err"]
                result["flashjit_max_err"], result["flashjit_rms_err"] = map(max, first, again)
                result["ok"] = references[row].allows(result["flashjit_max_err"], result["flashjit_rms_err"])
        except (FlashJitError, RuntimeError) as error:
            for row in results:
                self.fail(row, error)
            return
        for (row, name), ms in times.items():
            results[row][name + "_ms"], results[row][name + "_tflops"] = ms, row.flops / ms / 1e9
            results[row][name + "_tbs"] = row.kv_bytes / ms / 1e9
            if name != "flashjit":
                results[row]["over_" + name] = ms / results[row]["flashjit_ms"]
        for row, result in results.items():
            self.results[row] = result
            report.emit(result)

    def compare(self):
        """Returns the figures. Rows are in `results`, those that could not be run in `failed`."""
        groups = self.options.groups
        self.prepare_ahead([(row, self.options.schedule) for group in groups for row in group])
        forward = sum(group[0].table in ("forward", "fp8") for group in groups)  # These come first.
        product_before = {0, forward // 2, forward} if forward else {}
        for number, group in enumerate(groups):
            if number in product_before:
                self.measure_product()
            self.run_group(group)
            if self.gpu_is_lost():
                print(f"compare.py: {LOST}", file=sys.stderr)
                break
        else:
            if len(groups) in product_before:
                self.measure_product()
        self.good = not self.failed and all(result["ok"] for result in self.results.values())
        return report.figures(self.results, self.products, self.options.tables, self.wanted)

    def sweep(self):
        """Times every schedule of the file on every row. The first line of the answer is the fastest. Returns whether
        all are right."""
        with open(self.options.sweep, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
        schedules = list(dict.fromkeys(["", *(line for line in lines if line and not line.startswith("#"))]))
        for row in (row for group in self.options.groups for row in group):
            self.prepare_ahead([(row, schedule) for schedule in schedules])
            try:
                self.sweep_row(row, schedules)
            except (FlashJitError, RuntimeError) as error:
                self.fail(row, error)
            if self.gpu_is_lost():
                raise FlashJitError(LOST)
        return self.good and not self.failed

    def sweep_row(self, row, schedules):
        problem = problem_of(row, self.device, self.engine_for(row))
        reference = reference_of(problem, seed=1)
        launches, facts = {}, {}
        for schedule in schedules:
            name = schedule or "(default)"
            try:
                kernel = self.engine_for(row).prepare(row.spec, schedule=schedule)
                launch = problem.launch_of(kernel)
                error, rms = reference.errors(launch())
            except (FlashJitError, RuntimeError) as refused:
                report.emit(dict(kind="refused", **row.shown(), schedule=name, error=str(refused)))
                continue
            launches[name] = launch
            facts[name] = dict(max_err=error, rms_err=rms, limit=reference.limit, ok=reference.allows(error, rms),
                               full_schedule=kernel.facts["schedule"],
                               **{key: kernel.facts[key] for key in ("registers", "spill_bytes", "smem_bytes")})
        if not self.options.no_peers:
            launches.update(launches_of(problem, self.options.flex, report.emit))
        times = race(self.clock, launches, self.options.rounds, self.options.budget)
        for name, ms in sorted(times.items(), key=lambda item: item[1]):
            report.emit(dict(kind="sweep", **row.shown(), schedule=name, ms=ms, tflops=row.flops / ms / 1e9,
                             **facts.get(name, {})))
        self.good = self.good and all(fact["ok"] for fact in facts.values())

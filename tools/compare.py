#!/usr/bin/env python3
"""FlashJIT against PyTorch, side by side in one process, through the C API.

  compare.py                          the forward table on a GPU: FlashAttention-2 and cuDNN, as PyTorch ships them
  compare.py --only d=128,mask=causal --schedule tile_q=128,tile_kv=64
  compare.py --only d=64,s=4096 --sweep schedules.txt    one schedule per line, fastest first
  compare.py --cpu                    the host backend against PyTorch's CPU attention, fp32 and bf16

Every row runs all sides on the same fresh random tensors, in rounds that alternate between them, and reports the median
time and the largest error of each against float64 (sampled rows). JSON lines first, a Markdown table at the end. GPU times
are between CUDA events, with the L2 cache flushed before every launch. Exit code 1 when an error of ours breaks the error
rule: at most twice the error of softmax(q k) v computed with the same input type and fp32 inside.
"""
import argparse
import ctypes
import json
import math
import pathlib
import statistics
import sys
import time

import torch
import torch.nn.functional as F

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent


# ---- the C API (runtime/include/flashjit/flashjit.h) ----

class Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class Dtype(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", Device), ("ndim", ctypes.c_int32), ("dtype", Dtype),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class EngineOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("host", ctypes.c_int32), ("ordinal", ctypes.c_int32),
                ("target", ctypes.c_char_p), ("cache_dir", ctypes.c_char_p), ("no_disk_cache", ctypes.c_int32),
                ("threads", ctypes.c_int32)]


class Arguments(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t)] + [
        (name, ctypes.POINTER(Tensor))
        for name in ("q", "k", "v", "o", "lse", "max_logit", "sink", "offsets_q", "offsets_k")] + [
        ("max_q_len", ctypes.c_int64), ("max_k_len", ctypes.c_int64), ("params", ctypes.c_void_p),
        ("param_count", ctypes.c_int32)]


DTYPES = {torch.float32: (2, 32), torch.float16: (2, 16), torch.bfloat16: (4, 16)}
SPEC_NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


class FlashJitError(Exception):
    pass


class Library:
    def __init__(self, path):
        lib = self.lib = ctypes.CDLL(str(path))
        pointer = ctypes.c_void_p
        out = ctypes.POINTER(pointer)
        lib.flashjit_engine_create.argtypes = [ctypes.POINTER(EngineOptions), out, out]
        lib.flashjit_prepare.argtypes = [pointer, ctypes.c_char_p, ctypes.c_char_p, pointer, out, out]
        lib.flashjit_run.argtypes = [pointer, ctypes.POINTER(Arguments), pointer, out]
        lib.flashjit_engine_target.argtypes = lib.flashjit_kernel_facts.argtypes = [pointer]
        lib.flashjit_error_message.argtypes = lib.flashjit_error_detail.argtypes = [pointer]
        lib.flashjit_error_destroy.argtypes = [pointer]
        lib.flashjit_error_destroy.restype = None
        for name in ("engine_target", "kernel_facts", "error_message", "error_detail", "version"):
            getattr(lib, "flashjit_" + name).restype = ctypes.c_char_p

    def check(self, status, error):
        if status == 0:
            return
        text = self.lib.flashjit_error_message(error).decode()
        self.lib.flashjit_error_destroy(error)
        raise FlashJitError(text)


class Engine:
    def __init__(self, library, host, threads=0):
        self.library = library
        options = EngineOptions(struct_size=ctypes.sizeof(EngineOptions), host=int(host), threads=threads)
        self.handle, error = ctypes.c_void_p(), ctypes.c_void_p()
        status = library.lib.flashjit_engine_create(ctypes.byref(options), ctypes.byref(self.handle), ctypes.byref(error))
        library.check(status, error)
        self.target = library.lib.flashjit_engine_target(self.handle).decode()

    def prepare(self, spec, schedule=None):
        return Kernel(self, spec, schedule)


class Kernel:
    def __init__(self, engine, spec, schedule):
        self.library = engine.library
        self.handle, error = ctypes.c_void_p(), ctypes.c_void_p()
        status = self.library.lib.flashjit_prepare(engine.handle, spec.encode(), schedule.encode() if schedule else None, None,
                                                   ctypes.byref(self.handle), ctypes.byref(error))
        self.library.check(status, error)
        self.facts = json.loads(self.library.lib.flashjit_kernel_facts(self.handle).decode())

    def bind(self, q, k, v, o):
        """A function that launches on these tensors: everything but the call itself is done here."""
        kept = []

        def view(tensor):
            code, bits = DTYPES[tensor.dtype]
            shape = (ctypes.c_int64 * tensor.dim())(*tensor.shape)
            strides = (ctypes.c_int64 * tensor.dim())(*tensor.stride())
            place = Device(2, tensor.device.index or 0) if tensor.is_cuda else Device(1, 0)
            made = Tensor(tensor.data_ptr(), place, tensor.dim(), Dtype(code, bits, 1), shape, strides, 0)
            kept.extend([tensor, shape, strides, made])
            return ctypes.pointer(made)

        arguments = Arguments(struct_size=ctypes.sizeof(Arguments), q=view(q), k=view(k), v=view(v), o=view(o))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream if q.is_cuda else None)
        error = ctypes.c_void_p()
        call, reference, error_reference = self.library.lib.flashjit_run, ctypes.byref(arguments), ctypes.byref(error)

        def launch(kept=kept):
            status = call(self.handle, reference, stream, error_reference)
            if status:
                self.library.check(status, error)
            return o

        return launch


# ---- correctness ----

def sampled_rows(q, k, v, causal, seed, pairs=6, rows=48):
    """(batch, head, query indices, float64 result, result of the recipe) for a few heads."""
    b, h, n, d = q.shape
    generator = torch.Generator().manual_seed(seed)
    result = []
    for _ in range(min(pairs, b * h)):
        bi, hi = int(torch.randint(b, (1,), generator=generator)), int(torch.randint(h, (1,), generator=generator))
        index = torch.randint(n, (min(rows, n),), generator=generator).to(q.device)
        index[0], index[-1] = 0, n - 1
        hidden = torch.arange(k.shape[2], device=q.device)[None, :] > index[:, None] + k.shape[2] - n if causal else None

        def attend(real, rounded):
            s = (q[bi, hi, index].to(real) @ k[bi, hi].to(real).T) / math.sqrt(d)
            if hidden is not None:
                s = s.masked_fill(hidden, -math.inf)
            p = torch.softmax(s, dim=-1)
            return (p.to(q.dtype).to(real) if rounded else p) @ v[bi, hi].to(real)

        exact = attend(torch.float64, False)
        result.append((bi, hi, index, exact, attend(torch.float32, True).to(q.dtype)))
    return result


def largest_error(samples, output):
    worst = 0.0
    for bi, hi, index, exact, _ in samples:
        error = (output[bi, hi, index].double() - exact).abs().max().item()
        worst = math.inf if math.isnan(error) else max(worst, error)
    return worst


def recipe_error(samples):
    return max((recipe.double() - exact).abs().max().item() for _, _, _, exact, recipe in samples)


# ---- time ----

class GpuClock:
    def __init__(self, device):
        # Several times the L2 of any GPU: what the previous launch left there is gone.
        self.flush = torch.empty(256 << 20, dtype=torch.uint8, device=device)

    def samples(self, launch, budget_ms):
        for _ in range(2):
            launch()
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        launch()
        end.record()
        torch.cuda.synchronize()
        count = max(3, min(60, int(budget_ms / max(start.elapsed_time(end), 0.005))))
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for before, after in events:
            self.flush.zero_()
            before.record()
            launch()
            after.record()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) for before, after in events]


class CpuClock:
    def samples(self, launch, budget_ms):
        launch()
        start = time.perf_counter()
        launch()
        count = max(2, min(30, int(budget_ms / 1e3 / max(time.perf_counter() - start, 1e-6))))
        result = []
        for _ in range(count):
            start = time.perf_counter()
            launch()
            result.append((time.perf_counter() - start) * 1e3)
        return result


def race(clock, launches, rounds, budget_ms):
    """Median milliseconds of each; rounds alternate, so that a change of clocks or power meets everyone."""
    taken = {name: [] for name in launches}
    for _ in range(rounds):
        for name, launch in launches.items():
            taken[name] += clock.samples(launch, budget_ms)
    return {name: statistics.median(values) for name, values in taken.items()}


# ---- tables ----

def gpu_rows(quick):
    for d in (64, 128, 256):
        for mask in ("full", "causal"):
            for s in (4096,) if quick else (1024, 4096, 16384):
                yield dict(d=d, mask=mask, s=s, b=16384 // s, h=2048 // d, dtype=torch.bfloat16)


def cpu_rows(quick):
    for threads in (1, 16):
        for dtype in (torch.float32, torch.bfloat16):
            for d, s, mask in ((64, 1024, "causal"), (128, 2048, "causal"), (128, 2048, "full")):
                if not quick or d == 64:
                    yield dict(d=d, mask=mask, s=s, b=1, h=8, dtype=dtype, threads=threads)


def selected(row, only):
    if not only:
        return True
    for item in only.split(","):
        key, _, value = item.partition("=")
        if key not in row:
            sys.exit(f"--only: there is no column {key}; columns are {', '.join(row)}")
        shown = SPEC_NAMES[row[key]] if key == "dtype" else str(row[key])
        if shown != value:
            return False
    return True


def spec_of(row):
    text = f"fwd {SPEC_NAMES[row['dtype']]} d={row['d']} heads={row['h']} layout=bhsd"
    return text + (' mask="causal"' if row["mask"] == "causal" else "")


def flops(row):
    return 4.0 * row["b"] * row["h"] * row["s"] ** 2 * row["d"] * (0.5 if row["mask"] == "causal" else 1.0)


def tensors(row, device):
    shape = (row["b"], row["h"], row["s"], row["d"])
    return [torch.randn(shape, device=device, dtype=torch.float32).to(row["dtype"]) for _ in range(3)]


def peers_of(row, q, k, v):
    """Launchers of what this machine's PyTorch offers for the row."""
    causal = row["mask"] == "causal"
    if not q.is_cuda:
        return {"torch": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)}
    from torch.nn.attention import SDPBackend, sdpa_kernel
    made = {}
    for name, backend in (("fa2", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        def launch(backend=backend):
            with sdpa_kernel([backend]):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        try:
            with torch.no_grad():
                launch()
            made[name] = launch
        except RuntimeError as error:
            print(json.dumps(dict(kind="note", peer=name, error=str(error).splitlines()[0])), flush=True)
    return made


def shown_row(row):
    return {key: SPEC_NAMES[value] if key == "dtype" else value for key, value in row.items()}


def compare_row(row, engine, clock, options):
    device = "cpu" if options.cpu else "cuda"
    q, k, v = tensors(row, device)
    samples = sampled_rows(q, k, v, row["mask"] == "causal", seed=row["s"] + row["d"])
    limit = 2 * recipe_error(samples)
    result = dict(kind="row", **shown_row(row), limit=limit)
    o = torch.full_like(q, math.nan)
    kernel = engine.prepare(spec_of(row), options.schedule)
    launches = {"flashjit": kernel.bind(q, k, v, o)}
    launches.update(peers_of(row, q, k, v))
    for name, launch in launches.items():
        output = launch()
        result[name + "_err"] = largest_error(samples, output)
    for name, ms in race(clock, launches, options.rounds, options.budget).items():
        result[name + "_ms"] = ms
        result[name + "_gflops" if options.cpu else name + "_tflops"] = flops(row) / ms / (1e6 if options.cpu else 1e9)
        if name != "flashjit":
            result["over_" + name] = ms / result["flashjit_ms"]
    result["schedule"] = kernel.facts["schedule"]
    result["ok"] = result["flashjit_err"] <= limit
    return result


def sweep_row(row, engine, clock, options):
    """Times every schedule of the file on one row; the first line of the answer is the fastest."""
    device = "cpu" if options.cpu else "cuda"
    q, k, v = tensors(row, device)
    samples = sampled_rows(q, k, v, row["mask"] == "causal", seed=1)
    limit = 2 * recipe_error(samples)
    launches, facts = {}, {}
    schedules = [""] + [line.strip() for line in open(options.sweep) if line.strip() and not line.startswith("#")]
    for schedule in dict.fromkeys(schedules):
        name = schedule or "(default)"
        try:
            kernel = engine.prepare(spec_of(row), schedule)
            o = torch.full_like(q, math.nan)
            launch = kernel.bind(q, k, v, o)
            error = largest_error(samples, launch())
        except FlashJitError as failed:
            print(json.dumps(dict(kind="refused", **shown_row(row), schedule=name, error=str(failed))), flush=True)
            continue
        launches[name] = launch
        facts[name] = dict(error=error, ok=error <= limit, full_schedule=kernel.facts["schedule"],
                           registers=kernel.facts["registers"], spill_bytes=kernel.facts["spill_bytes"],
                           smem_bytes=kernel.facts["smem_bytes"])
    launches.update(peers_of(row, q, k, v))
    times = race(clock, launches, options.rounds, options.budget)
    for name, ms in sorted(times.items(), key=lambda item: item[1]):
        rate = dict(gflops=flops(row) / ms / 1e6) if options.cpu else dict(tflops=flops(row) / ms / 1e9)
        print(json.dumps(dict(kind="sweep", **shown_row(row), schedule=name, ms=ms, **rate, **facts.get(name, {}))), flush=True)
    return all(fact["ok"] for fact in facts.values())


def geometric_mean(values):
    return math.exp(sum(math.log(value) for value in values) / len(values))


def print_summary(rows, cpu):
    unit = "GFLOP/s" if cpu else "TFLOP/s"
    rate = "_gflops" if cpu else "_tflops"
    peers = [name for name in ("fa2", "cudnn", "torch") if any("over_" + name in row for row in rows)]
    keys = (["threads", "dtype"] if cpu else []) + ["d", "mask", "s"]
    head = keys + ["FlashJIT " + unit] + [f"{peer} {unit}" for peer in peers] + [f"over {peer}" for peer in peers]
    head += ["error / limit", "schedule"]
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        cells = [str(row[key]) for key in keys] + [f"{row['flashjit' + rate]:.0f}"]
        cells += [f"{row[peer + rate]:.0f}" if peer + rate in row else "-" for peer in peers]
        cells += [f"{row['over_' + peer]:.2f}" if "over_" + peer in row else "-" for peer in peers]
        cells += [f"{row['flashjit_err'] / row['limit']:.2f}" + ("" if row["ok"] else " WRONG"), row["schedule"]]
        print("| " + " | ".join(cells) + " |")
    print()
    groups = sorted({(row["threads"], row["dtype"]) for row in rows}) if cpu else [None]
    for peer in peers:
        for group in groups:
            ratios = [row["over_" + peer] for row in rows
                      if "over_" + peer in row and group in (None, (row.get("threads"), row.get("dtype")))]
            where = f" ({group[0]} threads, {group[1]})" if group else ""
            if ratios:
                print(f"over {peer}{where}: geometric mean {geometric_mean(ratios):.3f}, least {min(ratios):.3f}, {len(ratios)} rows")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", default=REPOSITORY / "build/lib/libflashjit.so", help="libflashjit.so")
    parser.add_argument("--cpu", action="store_true", help="the host backend against PyTorch on the CPU")
    parser.add_argument("--only", default="", help="rows to run: d=128,mask=causal,s=4096 (also threads=, dtype=)")
    parser.add_argument("--schedule", help="pins for every row")
    parser.add_argument("--sweep", help="file with one schedule per line: time them all on the selected rows")
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    parser.add_argument("--rounds", type=int, default=0, help="alternating rounds per row")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.budget = 200 if options.cpu else 20 if options.quick else 40
    torch.manual_seed(int(time.time()))

    library = Library(options.lib)
    machine = dict(kind="machine", flashjit=library.lib.flashjit_version().decode(), torch=torch.__version__,
                   date=time.strftime("%Y-%m-%d"))
    if not options.cpu:
        properties = torch.cuda.get_device_properties(0)
        torch.zeros(1, device="cuda")  # the primary context exists from here on, for both sides
        machine.update(gpu=properties.name, cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version())
    engines = {}

    def engine_for(threads):
        if threads not in engines:
            engines[threads] = Engine(library, options.cpu, threads)
        return engines[threads]

    machine["target"] = engine_for(1 if options.cpu else 0).target
    print(json.dumps(machine), flush=True)
    clock = CpuClock() if options.cpu else GpuClock("cuda")
    rows, good = [], True
    for row in cpu_rows(options.quick) if options.cpu else gpu_rows(options.quick):
        if not selected(row, options.only):
            continue
        if options.cpu:
            torch.set_num_threads(row["threads"])
        engine = engine_for(row.get("threads", 0))
        with torch.no_grad():
            if options.sweep:
                good = sweep_row(row, engine, clock, options) and good
                continue
            rows.append(compare_row(row, engine, clock, options))
        good = good and rows[-1]["ok"]
        print(json.dumps(rows[-1]), flush=True)
    if rows:
        print_summary(rows, options.cpu)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""flashjit.distributed runs on several GPUs of one host. This checks its results, and compares its speed with one GPU
that does as much work, and with the model."""
import dataclasses
import datetime
import json
import math
import os
import subprocess
import time

import torch
import torch.distributed as dist

import flashjit
import flashjit.distributed as fd
from flashjit.distributed.board import board_of
from flashjit.distributed.exchange import Message, swap
from compare import record, report
from compare.ranks import Clock, is_rank, start

HEADS, KV_HEADS, D, TOKENS = 64, 8, 128, 8192  # tokens of one GPU
CACHE = 1 << 20
WAYS = ("auto", "ring", "gather", "ulysses")


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    spec: str
    shape: str
    table: str = "parallel"
    threads: int = 0


# ---- results ----

def plain(q, k, v, sees):
    """Computes attention in float32, [batch, tokens, heads, d], on one GPU."""
    group = q.shape[2] // k.shape[2]
    q, k, v = q.transpose(1, 2), *(x.repeat_interleave(group, 2).transpose(1, 2) for x in (k, v))
    s = q @ k.mT / math.sqrt(q.shape[-1])
    at = torch.arange(q.shape[2], device=q.device)
    s = s.masked_fill(~sees(at[:, None], at), -math.inf)
    return (s.softmax(-1) @ v).transpose(1, 2)


def off(got, want):
    return ((got.float() - want.float()).norm() / want.float().norm()).item()


OFFSETS = [0, 300, 301, 1100, 1800]
MASKS = {"full": (dict(mask=None), lambda q, k: torch.ones_like(q + k, dtype=torch.bool)),
         "causal": (dict(mask="causal"), lambda q, k: k <= q),
         "window": (dict(mask="window(300, 0)"), lambda q, k: (k <= q) & (k >= q - 300)),
         "holes": (dict(mask="causal & (k % 64 < 40 | q - k < 64)"), lambda q, k: (k <= q) & ((k % 64 < 40) | (q - k < 64))),
         "documents": (dict(mask="causal", documents=OFFSETS), lambda q, k: (k <= q) & (number(q) == number(k)))}


def number(at):
    return sum((at >= begin).int() for begin in OFFSETS[1:])


def lists_of(tokens, size, device):
    """Returns words and a mask: a block of queries sees the first block of keys, the one before its own, and its own,
    up to each query."""
    rows = torch.arange(tokens // size, dtype=torch.int32, device=device)
    index = torch.stack((rows, torch.zeros_like(rows), (rows - 1).clamp(min=0)), 1)
    words = dict(mask="causal", blocks=size, block_index=index, block_count=torch.full_like(rows, 3))
    return words, lambda q, k: (k <= q) & ((k // size >= q // size - 1) | (k < size))


def checks(ranks, device, draw):
    """Yields a line for each way, order and mask, with errors of O and gradients by norm."""
    cases = [(way, order, mask, {}) for way in ("auto", "ring", "gather", "ulysses") for order in ("zigzag", "contiguous", "striped") for mask in MASKS]
    cases += [(way, "zigzag", "causal", dict(travel="e4m3")) for way in ("ring", "gather")]
    mesh = dist.init_device_mesh(device.type, (ranks // 2, 2)) if ranks % 2 == 0 else None
    cases += [("mesh", order, mask, dict(group=mesh)) for order in ("zigzag", "striped") for mask in MASKS if mesh]
    cases += [(way, order, lists, {}) for way in ("auto", "ring", "gather", "ulysses") for order in ("zigzag", "contiguous", "striped")
              for lists in ("lists on the GPU", "lists on the host")]
    for way, order, mask, words in cases:
        tokens, batch = 1024 * ranks, 1 if mask == "documents" else 2
        of_lists = mask.startswith("lists")
        words_of_mask, sees = (lists_of(tokens, 64 * ranks if order == "striped" else 128, device if mask.endswith("GPU") else "cpu") if of_lists
                               else MASKS[mask])
        torch.manual_seed(1)
        q, k, v, do = (draw(batch, tokens, heads, 64) for heads in (8, 2, 2, 8))
        for x in (q, k, v, do):
            dist.broadcast(x, 0)
        wide = [x.float().requires_grad_() for x in (q, k, v)]
        with torch.enable_grad():
            exact = plain(*wide, sees)
            exact.backward(do.float())
            share = lambda x: fd.shard(x, words.get("group"), order)
            own = [share(x).requires_grad_() for x in (q, k, v)]
            o = fd.attention(*own, how=way, order=order, **words_of_mask, **words)
            o.backward(share(do))
        errors = [off(o, share(exact.detach())), *(off(x.grad, share(w.grad)) for x, w in zip(own, wide))]
        limit = 0.06 if "travel" in words else 0.012
        yield dict(name=f"{way}, {order}, {mask}" + ", e4m3" * ("travel" in words), errors=errors, ok=max(errors) < limit)


def training(device, steps=100):
    """Returns the largest difference of the loss of a small decoder over ranks from that of one GPU, by its first loss."""
    heads, kv_heads, d, width, tokens = 8, 2, 64, 256, 1024

    def model():
        torch.manual_seed(5)
        layer = lambda: torch.nn.ModuleDict(dict(norm=torch.nn.LayerNorm(width), qkv=torch.nn.Linear(width, (heads + 2 * kv_heads) * d),
                                                 out=torch.nn.Linear(heads * d, width), up=torch.nn.Linear(width, 2 * width), down=torch.nn.Linear(2 * width, width)))
        return torch.nn.ModuleDict(dict(embed=torch.nn.Embedding(64, width), layers=torch.nn.ModuleList([layer(), layer()]), head=torch.nn.Linear(width, 64))).to(device)

    def losses(attention, pick, together):
        parts = model()
        optimizer = torch.optim.AdamW(parts.parameters(), lr=1e-3)
        generator, found = torch.Generator(device).manual_seed(9), []
        for _ in range(steps):
            text = torch.randint(64, (2, tokens + 1), generator=generator, device=device)
            text[:, 1::2] = text[:, :-1:2]  # There is something to learn: every other token equals the one before.
            x, wanted = parts.embed(pick(text[:, :-1])), pick(text[:, 1:])
            for layer in parts.layers:
                q, k, v = layer.qkv(layer.norm(x)).bfloat16().unflatten(2, (-1, d)).split((heads, kv_heads, kv_heads), dim=2)
                x = x + layer.out(attention(q, k, v).float().flatten(2))
                x = x + layer.down(torch.nn.functional.gelu(layer.up(x)))
            loss = torch.nn.functional.cross_entropy(parts.head(x).flatten(0, 1), wanted.flatten(), reduction="sum") / text[:, 1:].numel()
            optimizer.zero_grad()
            loss.backward()
            together([loss.detach(), *(p.grad for p in parts.parameters())])
            optimizer.step()
            found.append(loss.item())
        return torch.tensor(found)

    def summed(tensors):
        for x in tensors:
            dist.all_reduce(x)

    with torch.enable_grad():
        one = losses(lambda q, k, v: flashjit.attention(q, k, v, mask="causal"), lambda x: x, lambda tensors: None)
        many = losses(lambda q, k, v: fd.attention(q, k, v, mask="causal"), lambda x: fd.shard(x), summed)
    return ((one - many).abs().max() / one[0]).item(), one[0].item(), one[-1].item()


# ---- speed ----

def both_passes(call, tensors):
    """Returns (forward, forward and backward) as calls without arguments."""
    leaves = [x.requires_grad_() for x in tensors]
    do = torch.randn_like(tensors[0])

    def forward():
        with torch.no_grad():
            return call(*leaves)

    def both():
        with torch.enable_grad():
            call(*leaves).backward(do)
        for x in leaves:
            x.grad = None

    return forward, both


def causal_row(run, ranks, rank):
    """Times zigzag, beside one GPU alone with as much work, and beside the calls of a share whose keys are all here."""
    single = max(128, round(TOKENS * math.sqrt(ranks) / 128) * 128)
    work, alone = 2 * ranks * TOKENS ** 2 * HEADS * D, 2 * single ** 2 * HEADS * D
    row = Row(f"causal, {TOKENS} tokens a GPU", f'fwd bf16 d={D} heads={HEADS}/{KV_HEADS} mask="causal"', f"b=1,q={TOKENS * ranks},k={TOKENS * ranks}")
    half = TOKENS // 2
    k, v = (run.draw(1, TOKENS * ranks, KV_HEADS, D) for _ in range(2))

    def share(q, k, v):
        for at, end in ((0, (rank + 1) * half), (half, (2 * ranks - rank) * half)):
            flashjit.attention(q[:, at:at + half], k[:, :end], v[:, :end], mask="causal")

    sides = {"alone": both_passes(lambda *x: flashjit.attention(*x, mask="causal"), run.qkv(single))}
    sides |= {way: both_passes(lambda *x, way=way: fd.attention(*x, mask="causal", how=way), run.qkv(TOKENS)) for way in WAYS}
    sides["share"] = lambda q=run.qkv(TOKENS)[0]: share(q, k, v), None
    run.row(row, sides, {side: alone if side == "alone" else work for side in sides}, ways=True)


def documents_row(run, ranks, rank):
    """Times packed documents of very uneven lengths, causal, for each order of tokens."""
    tokens, generator = TOKENS * ranks, torch.Generator().manual_seed(3)
    lengths = []
    while sum(lengths) < tokens:
        lengths.append(min(tokens - sum(lengths), int(128 * 2 ** (7 * torch.rand(1, generator=generator).item()))))
    offsets = [sum(lengths[:at]) for at in range(len(lengths) + 1)]
    work = 2 * sum(length ** 2 for length in lengths) * HEADS * D / ranks
    row = Row(f"{len(lengths)} documents of {min(lengths)} to {max(lengths)} tokens, causal", f'fwd bf16 d={D} heads={HEADS}/{KV_HEADS} mask="causal & document(documents)"',
              f"b=1,q={tokens},k={tokens}")
    sides = {f"{way}_{order}": both_passes(lambda *x, way=way, order=order: fd.attention(*x, mask="causal", documents=offsets, how=way, order=order), run.qkv(TOKENS))
             for way in ("ring", "gather") for order in ("zigzag", "contiguous", "striped")}
    run.row(row, sides, dict.fromkeys(sides, work))


def exchange_row(run, ranks, rank):
    """Times a step's kernel and the exchange of its keys: each alone, and both."""
    row = Row("a step beside an exchange", f"fwd bf16 d={D} heads={HEADS}/{KV_HEADS} lse=ln", f"b=1,q={TOKENS},k={TOKENS // 2}")
    q, k, v = run.qkv(TOKENS)
    engine, spec = flashjit.Engine("gpu", rank), f"fwd bf16 d={D} heads={HEADS}/{KV_HEADS} lse=ln"
    half = TOKENS // 2
    tensors = {"q": q, "k": k[:, :half], "v": v[:, :half], "o": torch.empty_like(q), "lse": torch.empty(1, HEADS, TOKENS, device=run.device)}
    kernel, stream = engine.prepare(spec, workspace=True), torch.cuda.current_stream().cuda_stream
    launches = {sms: kernel.bind(tensors, stream=stream, sms=sms) for sms in (0, run.sms - 8)}
    room = [torch.empty_like(x) for x in (k, v)]
    exchange = lambda: swap("timing an exchange", dist.group.WORLD, Message((rank + 1) % ranks, (k, v)), Message((rank - 1) % ranks, room), 0)

    def beside(sms):
        transfer = exchange()
        launches[sms]()
        transfer.wait()

    def copied(launch):
        """Copies these keys by copy engines, as a gather reads them within a host."""
        shown = board.room((tuple(k.shape), tuple(v.shape)), k.dtype)
        for mine, x in zip(shown[rank], (k, v)):
            mine.copy_(x)
        board.show("timing copies")
        with board.copying():
            for into, other in zip(room, shown[(rank + 1) % ranks]):
                into.copy_(other)
        ready = board.copied()
        launch()
        torch.cuda.current_stream().wait_event(ready)

    board = board_of(dist.group.WORLD, run.device)
    by_copies = {"copies": lambda: copied(lambda: None), "both_copies": lambda: copied(launches[0])} if board else {}
    sides = {"all_sms": launches[0], "limited": launches[run.sms - 8], "exchange": lambda: exchange().wait(), "both_all_sms": lambda: beside(0), "both_limited": lambda: beside(run.sms - 8), **by_copies}
    run.row(row, {name: (call, None) for name, call in sides.items()}, {})
    bytes_sent = sum(x.numel() * x.element_size() for x in (k, v))
    run.gb_per_s = bytes_sent / run.results[row]["exchange_ms"] / 1e6


def decode_row(run, ranks, rank):
    row = Row(f"decode over {CACHE} keys", f"fwd bf16 d={D} heads={HEADS}/{KV_HEADS} q_len=1 k_lens", f"b=1,q=1,k={CACHE}")
    q = run.draw(1, 1, HEADS, D)
    dist.broadcast(q, 0)
    k, v = (run.draw(1, CACHE // ranks, KV_HEADS, D) for _ in range(2))
    lens = torch.full((1,), CACHE, dtype=torch.int32, device=run.device)
    whole = [fd.unshard(x, order="contiguous") for x in (k, v)]
    calls = {"alone": lambda: flashjit.attention(q, *whole), "ranks": lambda: fd.decode(q, k, v, cache_lens=lens)}
    error, graphs = off(calls["ranks"](), calls["alone"]()), {}
    for name, call in calls.items():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            o = call()
        graph.replay()
        error = max(error, off(o, calls["alone"]()))
        graphs[name] = graph
    sides = {"alone": graphs["alone"].replay, "ranks": graphs["ranks"].replay, "ranks_eager": calls["ranks"]}
    run.row(row, {name: (call, None) for name, call in sides.items()}, {}, error=error)


class Run:
    def __init__(self, options, rank, ranks, device):
        self.options, self.rank, self.ranks, self.device = options, rank, ranks, device
        self.sms = torch.cuda.get_device_properties(device).multi_processor_count
        self.clock, self.results, self.good = Clock(device, options.budget), {}, True
        # This is NVLink's rate by its maker, until an exchange was timed.
        self.gb_per_s = 450.0

    def draw(self, *shape):
        return torch.randn(*shape, device=self.device).bfloat16()

    def qkv(self, tokens):
        return [self.draw(1, tokens, heads, D) for heads in (HEADS, KV_HEADS, KV_HEADS)]

    def say(self, line):
        if self.rank == 0:
            report.emit(line)

    def row(self, row, sides, work, ways=False, error=None):
        """`sides` has (forward, both passes or None) by name; `work` counts operations of a forward on one GPU."""
        forward = self.clock.race({name: calls[0] for name, calls in sides.items()}, self.options.rounds)
        both = self.clock.race({name: calls[1] for name, calls in sides.items() if calls[1]}, self.options.rounds)
        result = dict(kind="row", table=row.table, name=row.name, ranks=self.ranks, schedule="", ok=error is None or error < 0.01, limit=0.01, rms_limit=None)
        for name, ms in forward.items():
            result[f"{name}_ms"] = ms
            if name in work:
                result[f"{name}_tflops"] = work[name] / ms / 1e9
            if name in both:
                result[f"{name}_backward_ms"] = both[name] - ms
                result[f"{name}_backward_tflops"] = 2.5 * work[name] / (both[name] - ms) / 1e9
        if error is not None:
            result["error"] = error
        if ways:
            result |= {"gb_per_s": self.gb_per_s, "predicted": self.predicted(row)}
        self.good &= result["ok"]
        self.results[row] = result
        self.say(result)

    def predicted(self, row):
        """Returns, by way, what `flashjit explain --ranks` predicts for forward and backward, if the program was built."""
        program = record.REPOSITORY / "build/bin/flashjit"
        if self.rank or not program.exists():
            return None
        line = subprocess.run([program, "explain", row.spec, "--arch", "h200", "--shape", row.shape.removeprefix("b=1,"), "--ranks", f"{self.ranks}x{self.gb_per_s:.0f}GB/s", "--json"],
                              capture_output=True, text=True, check=True).stdout
        return {way["way"]: [way[which]["us"] / 1e3 for which in ("forward", "backward")] for way in json.loads(line)["ways"] if way["way"] in WAYS and not way["refused"]}


ROWS = {"exchange": exchange_row, "causal": causal_row, "documents": documents_row, "decode": decode_row}
PARTS = ("checks", "training", *ROWS)


def compare(options):
    """Runs in one of the processes, or in the one that starts them."""
    if options.ranks == 1:
        from compare import parallel_steps
        flashjit.use_library(options.lib)
        machine = dict(kind="machine", date=time.strftime("%Y-%m-%d"), torch=torch.__version__, gpu=torch.cuda.get_device_name(), ranks=1)
        results, good = parallel_steps.compare(options, machine)
        if options.record:
            record.append(options.record, machine, results, [], options.command, options.commit)
        return good
    if not is_rank():
        return start(options.ranks) == 0
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)))
    torch.cuda.set_device(device)
    flashjit.use_library(options.lib)
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=120), device_id=device)
    run = Run(options, rank, ranks, device)
    machine = dict(kind="machine", date=time.strftime("%Y-%m-%d"), torch=torch.__version__, gpu=torch.cuda.get_device_name(), ranks=ranks)
    run.say(machine)
    only = options.only.split(",") if options.only else PARTS
    with torch.no_grad():
        if "checks" in only:
            for line in checks(ranks, device, run.draw):
                run.good &= line["ok"]
                run.say(dict(kind="check", **line))
        if "training" in only:
            difference, first, last = training(device)
            run.good &= difference < 1e-3
            run.say(dict(kind="training", difference=difference, first_loss=first, last_loss=last, ok=difference < 1e-3))
        for name in (name for name in ROWS if name in only):
            try:
                ROWS[name](run, ranks, rank)
            except flashjit.FlashJitError as error:  # All ranks make the same call.
                run.good = False
                run.say(dict(kind="failed", row=name, error=str(error)))
    if options.record and rank == 0:
        record.append(options.record, machine, run.results, [], options.command, options.commit)
    dist.barrier()
    dist.destroy_process_group()
    return run.good

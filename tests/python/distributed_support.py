"""What the tests of flashjit.distributed share: processes over Gloo on this machine, attention in float64 on one of them, and drawn problems."""

import datetime
import functools
import math
import os
import random
import signal
import sys
import time
import traceback


from support import Skip, find, harness, load, scratch


def processes(count, function, *arguments, dying=(), within=240):
    """Calls function(rank, *arguments) in so many processes, which are one group. Those in `dying` may end as they like."""
    torch = find("torch")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        raise Skip("a PyTorch without Gloo")
    place, started = scratch(f"group{time.monotonic_ns()}"), {}
    sys.stdout.flush()
    for rank in range(count):
        child = os.fork()  # before this process has made threads
        if child == 0:
            _child(torch, place, count, rank, function, arguments)
        started[child] = rank
    codes, deadline = {}, time.monotonic() + within
    while started and time.monotonic() < deadline:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            codes[started.pop(child)] = os.waitstatus_to_exitcode(status)
        else:
            time.sleep(0.005)
    for child in started:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert not started, f"ranks {sorted(started.values())} had not ended after {within} s"
    if harness.SKIP_CODE in codes.values():
        raise Skip("the host backend is not there")
    wrong = {rank: code for rank, code in codes.items() if code and rank not in dying}
    assert not wrong, f"exit codes by rank: {wrong}"


def _child(torch, place, count, rank, function, arguments):
    code = 1
    try:
        torch.set_num_threads(1)
        load()
        dist = torch.distributed
        dist.init_process_group("gloo", store=dist.FileStore(place, count), rank=rank, world_size=count, timeout=datetime.timedelta(seconds=120))
        function(rank, *arguments)
        code = 0
    except Skip:
        code = harness.SKIP_CODE
    except BaseException:
        print(f"rank {rank} of {count}:\n{traceback.format_exc()}", flush=True)
    finally:
        sys.stdout.flush()
        os._exit(code)


def reference(q, k, v, sees=None, score=None, scale=None, sink=None):
    """O and LSE in float64, [batch, tokens, heads, d], by the definition. sees(b, h, q, k) and score(s, b, h, q, k) take grids."""
    torch = find("torch")
    group = q.shape[2] // k.shape[2]
    q, k, v = q.double().transpose(1, 2), *(x.double().transpose(1, 2).repeat_interleave(group, 1) for x in (k, v))
    grid = [torch.arange(n).view([-1 if i == j else 1 for j in range(4)]) for i, n in enumerate((*q.shape[:3], k.shape[2]))]
    s = q @ k.transpose(2, 3) * (scale or 1 / math.sqrt(q.shape[-1]))
    s = score(s, *grid) if score else s
    if sees:
        s = s.masked_fill(~sees(*grid).expand(s.shape), -math.inf)
    if sink is not None:
        s = torch.cat((s, sink.double().view(1, -1, 1, 1).expand(*s.shape[:3], 1)), 3)
    hidden = (s == -math.inf).all(3, keepdim=True)
    lse = torch.logsumexp(s.masked_fill(hidden, 0), 3)
    p = torch.exp(s - lse.unsqueeze(3)).masked_fill(hidden, 0)
    o = p[..., :k.shape[2]] @ v
    return o.transpose(1, 2), lse.masked_fill(hidden.squeeze(3), -math.inf)


def close(got, wanted, limit, what, alone=None):
    """As a share of the largest element. What is beyond the limit is compared with what `alone` gives, one process in the same dtype: at most
    twice its error is right."""
    assert got.shape == wanted.shape, f"{what}: {tuple(got.shape)} and not {tuple(wanted.shape)}"
    if not got.numel():
        return
    finite = wanted.isfinite()
    assert (got.isfinite() == finite).all(), f"{what}: what is infinite or NaN differs"
    largest = max(1, wanted[finite].abs().max().item()) if finite.any() else 1
    error_of = lambda x: (x[finite].double() - wanted[finite].double()).abs().max().item() / largest if finite.any() else 0
    error = error_of(got)
    if error >= limit and alone is not None:
        limit = max(limit, 2 * error_of(alone()))
    assert error < limit, f"{what}: off by {error:.3g} of the largest, and {limit:.3g} is allowed"


MASKS = {
    None: None,
    "causal": lambda T, S, at: lambda b, h, q, k: k <= at(q),
    "window(9, 0)": lambda T, S, at: lambda b, h, q, k: (k >= at(q) - 9) & (k <= at(q)),
    "causal & window(5, 3)": lambda T, S, at: lambda b, h, q, k: (k >= at(q) - 5) & (k <= at(q)),
    "window(left, 4)": lambda T, S, at: lambda b, h, q, k: (k >= at(q) - 13) & (k <= at(q) + 4),
    "chunk(12) & causal": lambda T, S, at: lambda b, h, q, k: (k // 12 == at(q) // 12) & (k <= at(q)),
    "prefix(7)": lambda T, S, at: lambda b, h, q, k: (k < 7) | (k <= at(q)),
    "k <= qpos & (k % 3 != 1 | h % 2 == 0)": lambda T, S, at: lambda b, h, q, k: (k <= at(q)) & ((k % 3 != 1) | (h % 2 == 0)),
    "k > qpos": lambda T, S, at: lambda b, h, q, k: k > at(q),
}
SCALARS = {"window(left, 4)": {"left": 13}}
LIMITS = {"float32": 3e-5, "bfloat16": 0.016}


def drawn_lists(rng, sizes, batch, heads, kv_heads, T, S, sees):
    """Lists of blocks for attention(), with numbers twice, numbers that are none and counts beyond the room, and what they let through. A head
    sees few blocks, and there may be full ones, for which no mask is asked."""
    torch = find("torch")
    rows, columns = -(-T // sizes[0]), -(-S // sizes[1])
    of_batch, of_heads = rng.choice((1, batch)), rng.choice((1, kv_heads, heads))
    given, seen = {}, torch.zeros(batch, heads, T, S, dtype=torch.bool)
    grid = [torch.arange(n).view([-1 if i == j else 1 for j in range(4)]) for i, n in enumerate((batch, heads, T, S))]
    inside = (sees(*grid) if sees else torch.ones(1, 1, 1, 1, dtype=torch.bool)).expand(seen.shape)
    for name, is_there in (("block", True), ("full", rng.random() < 0.4)):
        if not is_there:
            continue
        room = rng.randint(1, 4)
        count, index = torch.zeros(of_batch, of_heads, rows, dtype=torch.int32), torch.zeros(of_batch, of_heads, rows, room, dtype=torch.int32)
        for b in range(of_batch):
            for h in range(of_heads):
                for row in range(rows):
                    count[b, h, row] = rng.randint(-1, room + 1)
                    index[b, h, row] = torch.tensor([rng.choice((row * sizes[0] // sizes[1], rng.randint(-1, columns))) for _ in range(room)])
        for b in range(batch):
            for h in range(heads):
                for row in range(rows):
                    at, q = (b % of_batch, h * of_heads // heads, row), slice(row * sizes[0], (row + 1) * sizes[0])
                    for number in index[at][:max(int(count[at]), 0)].tolist():
                        if 0 <= number < columns:
                            k = slice(number * sizes[1], (number + 1) * sizes[1])
                            seen[b, h, q, k] |= True if name == "full" else inside[b, h, q, k]
        given |= {f"{name}_count": count, f"{name}_index": index}
    if of_batch == 1 and rng.random() < 0.5:  # a batch that is left out
        given = {name: x[0] for name, x in given.items()}
    return given, lambda b, h, q, k: seen[b, h, q, k]


def listed_shares(rng, sizes, way, order, ranks, outer):
    """Tokens of a share, of queries and of keys, which lists of such blocks can be divided for."""
    unit = (2 if order == "zigzag" else 1) * outer
    some = lambda: 2 * rng.randint(20, max(24, 300 // ranks))
    whole = lambda size: unit * size * rng.choice((1, 1, 2) if unit * size < 300 else (1,)) // ranks
    free = way == "ulysses" or order == "striped"
    q_share = some() if free else whole(sizes[0])
    return q_share, q_share if rng.random() < 0.5 and sizes[0] == sizes[1] else some() if free or way == "gather" else whole(sizes[1])


def draw(seed, ranks, fixed=None, dtype=None):
    """A problem, as words for attention() and functions for the reference. `fixed`: words that are not drawn."""
    torch = find("torch")
    rng = random.Random(seed)
    fixed = fixed or {}
    way = fixed.get("how") or rng.choice(("ring", "ring", "gather", "ulysses", "auto"))
    kv_heads, group, d = rng.choice((1, 2, 3, 4)), rng.choice((1, 2, 4)), rng.choice((8, 16, 32))
    if way in ("ulysses", "mesh"):
        kv_heads, group = (ranks, rng.choice((1, 2))) if rng.random() < 0.7 else (1, ranks)
    order = fixed.get("order") or rng.choice(("zigzag", "zigzag", "contiguous", "striped"))
    unit = 2 if order == "zigzag" else 1
    most = rng.choice((16, 16, 480 // ranks))  # of several tiles, and of less than one
    q_share = unit * rng.randint(1, most // unit)
    k_share = q_share if rng.random() < 0.8 else unit * rng.randint(q_share // unit, (most + 4) // unit)
    of_lists = random.Random(-1 - seed)
    sizes = fixed["blocks"] if "blocks" in fixed else of_lists.choice((None, None, None, (64, 64), (128, 64)))
    if sizes:
        outer = fixed.get("outer", ranks)
        sizes = tuple(size * outer for size in sizes) if order == "striped" and way != "ulysses" else sizes
        q_share, k_share = listed_shares(of_lists, sizes, way, order, ranks, outer)
        kv_heads, group = (kv_heads, group) if way in ("ulysses", "mesh") else (min(kv_heads, 2), min(group, 2))
    top_left = rng.random() < 0.2
    dtype = dtype or rng.choice(("float32", "float32", "bfloat16"))
    batch, d_v, mask = rng.choice((1, 1, 2)), rng.choice((d, d, d + 8)), fixed["mask"] if "mask" in fixed else rng.choice(list(MASKS))
    T, S, heads = ranks * q_share, ranks * k_share, kv_heads * group
    shift = 0 if top_left else S - T
    at = lambda q: q + shift
    words = {"mask": mask, "order": order, "how": way, **SCALARS.get(mask, {})}
    if top_left:
        words["align"] = "top_left"
    sees = MASKS[mask] and MASKS[mask](T, S, at)
    generator = torch.Generator().manual_seed(seed)
    drawn = lambda *shape: torch.randn(shape, generator=generator)
    leaves = {"q": drawn(batch, T, heads, d), "k": drawn(batch, S, kv_heads, d), "v": drawn(batch, S, kv_heads, d_v)}
    leaves = {name: x.to(getattr(torch, dtype)) for name, x in leaves.items()}
    score, tensors = None, {}
    kind = rng.choice((None, None, "softcap", "alibi", "table", "heads", "bias"))
    if kind == "softcap":
        words["score"], score = "softcap(5)", lambda s, b, h, q, k: 5 * torch.tanh(s / 5)
    elif kind == "alibi":
        tensors["slope"] = drawn(heads) / 4
        words["score"], score = "alibi; softcap(8)", lambda s, b, h, q, k: 8 * torch.tanh((s + tensors["slope"].double()[h] * (k - at(q))) / 8)
    elif kind == "table":
        tensors["near"] = drawn(heads, 6)
        words["score"] = "s + near[h, min(abs(qpos - k), 5)]"
        score = lambda s, b, h, q, k: s + tensors["near"].double()[h, (at(q) - k).abs().clamp(max=5)]
    elif kind == "heads":
        tensors["factor"] = drawn(heads)
        words["score"], score = "s * factor[h]", lambda s, b, h, q, k: s * tensors["factor"].double()[h]
    elif kind == "bias":
        tensors["table"] = drawn(heads, T, S)
        words["score"], score = "s + table[h, q, k]", lambda s, b, h, q, k: s + tensors["table"].double()[h, q, k]
    if rng.random() < 0.3:
        tensors["sink"] = drawn(heads)
    if rng.random() < 0.3 and T == S:
        ends = sorted({0, T, *(rng.randrange(1, T + 1) for _ in range(3))})
        ids = torch.searchsorted(torch.tensor(ends), torch.arange(T), right=True)
        words["documents"] = ends if batch == 1 else ids.expand(batch, T).contiguous()
        before = sees
        sees = lambda b, h, q, k: (ids[q] == ids[k]) & (before(b, h, q, k) if before else True)
    if sizes:
        lists, sees = drawn_lists(of_lists, sizes, batch, heads, kv_heads, T, S, sees)
        tensors |= lists
        words["blocks"] = sizes[0] if sizes[0] == sizes[1] else sizes
    words["lse"], words["layout"] = rng.random() < 0.4, rng.choice(("bshd", "bhsd"))
    if rng.random() < 0.2:
        words["scale"] = 0.3
    differentiable = [name for name in ("sink", *tensors) if name in tensors and tensors[name].is_floating_point() and rng.random() < 0.6]
    return leaves, tensors, sorted(set(differentiable)), words, sees, score, dtype


def one_process(leaves, tensors, differentiable, words, do, dlse):
    """What flashjit.attention gives for the whole sequence: O, and gradients by the names of what they are of."""
    torch = find("torch")
    import flashjit
    leaves = {name: x.detach().clone().requires_grad_() for name, x in leaves.items()}
    tensors = {name: x.detach().clone().requires_grad_(name in differentiable) for name, x in tensors.items()}
    given = {name: value for name, value in words.items() if name not in ("how", "order", "layout", "documents", "lse")}
    if "documents" in words:
        ids, length = torch.as_tensor(words["documents"]), leaves["k"].shape[1]
        ids = torch.searchsorted(ids, torch.arange(length), right=True)[None] if ids.dim() == 1 else ids
        given |= {"mask": " & ".join(filter(None, (given["mask"] and f"({given['mask']})", "document(ids)"))), "ids": ids.int()}
    o, lse = flashjit.attention(*leaves.values(), **given, **tensors, lse=True)
    loss = (o.float() * do.float()).sum()
    (loss + (torch.where(lse.isfinite(), lse, 0) * dlse).sum() if words["lse"] else loss).backward()
    return {"o": o.detach()} | {name: x.grad for name, x in leaves.items()} | {name: tensors[name].grad for name in differentiable}


def compare(seed, rank, ranks, group=None, words=None, dtype=None):
    """One drawn problem on this rank, values and gradients, against one process."""
    torch = find("torch")
    import flashjit.distributed as fd
    leaves, tensors, differentiable, words, sees, score, dtype = draw(seed, ranks, words, dtype)
    order, limit = words["order"], LIMITS[dtype]
    what = f"seed {seed}, {ranks} ranks: {dict(words, documents='documents' in words)} {dtype} {[tuple(x.shape) for x in leaves.values()]} {list(tensors)}"
    wide = {name: x.double().requires_grad_() for name, x in leaves.items()}
    for name in differentiable:
        tensors[name].requires_grad_()
    o, lse = reference(*wide.values(), sees, score, words.get("scale"), tensors.get("sink"))
    generator = torch.Generator().manual_seed(seed + 1)
    do = torch.randn(o.shape, generator=generator).to(getattr(torch, dtype))
    dlse = torch.randn(lse.shape, generator=generator)
    gradient_of_lse = torch.where(lse.isfinite(), lse, 0) * dlse if words["lse"] else 0
    ((o * do.double()).sum() + (gradient_of_lse.sum() if words["lse"] else 0)).backward()
    wanted = {name: x.grad for name, x in wide.items()} | {name: tensors[name].grad for name in differentiable}

    share = lambda x, dim=1: fd.shard(x, group, order, dim)
    turned = (lambda x: x.transpose(1, 2).contiguous()) if words["layout"] == "bhsd" else lambda x: x
    alone = functools.cache(lambda: one_process(leaves, tensors, differentiable, words, do, dlse))
    own = {name: turned(share(x)).requires_grad_() for name, x in leaves.items()}
    given = {name: x.detach().clone().requires_grad_(x.requires_grad) for name, x in tensors.items()}
    try:
        made = fd.attention(*own.values(), group=group, **words, **given)
        got, got_lse = made if words["lse"] else (made, None)
        loss = (got.float() * turned(share(do)).float()).sum()
        if words["lse"]:
            close(got_lse, share(lse.detach(), 2), limit, f"{what}: lse")
            loss = loss + (torch.where(got_lse.isfinite(), got_lse, 0) * share(dlse, 2)).sum()
        close(turned(got.detach()), share(o.detach()), limit, f"{what}: o", lambda: share(alone()["o"]))
        loss.backward()
    except Exception as error:
        raise type(error)(f"{what}: {error}") from error
    for name, x in own.items():
        close(turned(x.grad), share(wanted[name]), limit, f"{what}: d{name}", lambda: share(alone()[name]))
    for name in differentiable:  # each rank has the part of its own queries, or heads
        torch.distributed.all_reduce(given[name].grad)
        close(given[name].grad, wanted[name], 4 * limit, f"{what}: d{name}", lambda: alone()[name])

"""attention() over ranks goes from its arguments to a way, and to autograd."""

from __future__ import annotations

import functools
from typing import Any, Callable, Literal, Mapping, NamedTuple, Sequence, Union, overload

import torch
import torch.distributed as dist
from torch import Tensor

from flashjit import calls
from flashjit.capi import InvalidError, UnsupportedError
from flashjit.distributed import heads, lists, parts
from flashjit.distributed.board import board_of
from flashjit.distributed.exchange import check_alike
from flashjit.distributed.gather import Gather
from flashjit.distributed.launches import sms_beside_exchanges
from flashjit.distributed.places import Group, Groups, Run, check_device, check_order, check_share, groups_of
from flashjit.distributed.ring import Ring
from flashjit.distributed.sights import sight_of
from flashjit.distributed.steps import DRAWN_TOGETHER, Problem
from flashjit.distributed.texts import SCALARS, Placed, placed, reads
from flashjit.values import flag, integer, shown, unread

WAYS = ("auto", "gather", "ring", "ulysses", "mesh")
# From this many query rows per KV head and rank on, a step of a ring takes longer than the exchange of the next keys.
_HIDES = 4096
# K and V of the sequence may take this share of a GPU's memory, one in _LITTLE, if nobody asks for a gather.
_LITTLE = 16
_WORDS = ("mask", "score", "lse", "group", "how", "order", "travel", "layout", "scale", "align", "documents", "blocks", "spec", "check", "sms", "sink",
          "seed", "offset", *lists.NAMES)
_NOT_HERE = {
    "k_lens": "pad the sequence, and hide what is behind it with a mask, as in k < n", "offsets_q": "give documents=, the offsets of the whole sequence",
    "offsets_k": "give documents=, the offsets of the whole sequence", "block_table": "use flashjit.distributed.decode",
}


class _Ways(NamedTuple):
    forward: Union[Ring, Gather]
    backward: Union[Ring, Gather]


class _Shared(torch.autograd.Function):
    """This is a ring or a gather. `names` are those of the parameters in `values`; the sink is one of them."""

    @staticmethod
    def forward(ctx: Any, ways: _Ways, names: Sequence[str], q: Tensor, k: Tensor, v: Tensor,
                *values: Tensor) -> tuple[Tensor, Tensor]:
        params = dict(zip(names, values))
        o, lse = ways.forward.forward(q, k, v, params)
        if "sink" in params:
            parts.add_sink(o, lse, params["sink"])
        o = o.to(q.dtype)
        ctx.save_for_backward(q, k, v, o, lse, *values)
        ctx.rest = ways.backward, names
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, do_: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise UnsupportedError("gradients have no gradients; leave create_graph=True out")
        q, k, v, o, lse, *values = ctx.saved_tensors
        way, names = ctx.rest
        params = dict(zip(names, values))
        do_ = torch.zeros_like(o) if do_ is None else do_.contiguous()
        named = {"q": q, "o": o, "do": do_, "lse": lse} | ({} if dlse is None else {"dlse": dlse.contiguous().view(-1).view(lse.shape)})
        wanted = [name for name, needed in zip(names, ctx.needs_input_grad[5:]) if needed and name != "sink"]
        made = way.backward(named, k, v, params, wanted)
        if "sink" in params and ctx.needs_input_grad[5 + names.index("sink")]:
            made["dsink"] = parts.gradient_of_sink(params["sink"], o, do_, lse, dlse)
        return None, None, made["dq"].to(q.dtype), made["dk"].to(k.dtype), made["dv"].to(v.dtype), *(
            made["d" + name].to(value.dtype) if "d" + name in made else None for name, value in zip(names, values))


_shared: Any = _Shared.apply


def _checked(q: Any, k: Any, v: Any, layout: str) -> tuple[Tensor, Tensor, Tensor]:
    """Checks these and returns them as [batch, tokens, heads, d]."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor) or type(x) not in (Tensor, torch.nn.Parameter):
            raise InvalidError(f"{name}: {shown(x)} is no plain tensor of PyTorch; of a DTensor give its local part, to_local()")
        if x.dim() != 4:
            raise InvalidError(f"{name}: has {x.dim()} dimensions, and shares have 4: batch, tokens, heads and d")
        if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise UnsupportedError(f"{name}: is {x.dtype}, and shares are float32, float16 or bfloat16; travel=\"e4m3\" sends keys in 8 bits")
        if x.dtype != q.dtype:
            raise InvalidError(f"{name}: is {x.dtype}, and q is {q.dtype}; convert one of them")
    return (q, k, v) if layout == "bshd" else (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))


def _check_params(params: Mapping[str, Any], heads_of_q: int) -> None:
    for name in params:
        if name in SCALARS:
            raise InvalidError(f"{name}: is a name that calls over ranks give to numbers of their own; choose another")
        if name in calls.OPERANDS and name not in ("sink", *lists.NAMES) or name in _NOT_HERE:
            raise UnsupportedError(f"{name}: has no meaning over ranks here; {_NOT_HERE.get(name, 'leave it out')}")
    if "sink" in params and (not isinstance(params["sink"], Tensor) or params["sink"].shape != (heads_of_q,)):
        raise InvalidError(f"sink: is {shown(params['sink'])}, and there are {heads_of_q} query heads; give a tensor of as many, all of them on "
                           "every rank")


def _check_spec(spec: str, travel: object) -> None:
    for field in spec.split():
        if field.partition("=")[0] not in ("numerics", "dropout"):
            raise UnsupportedError(f"spec: {field} is no field for calls over ranks: it is for one GPU; leave it out")
    if travel not in (None, "e4m3"):
        raise InvalidError(f'travel: {shown(travel)} is neither None, as the tensors are, nor "e4m3"')


def _drawn(spec: str, given: dict[str, Tensor], scalars: dict[str, float], order: str, lengths: tuple[int, int], groups: Groups,
           device: torch.device) -> dict[str, Tensor]:
    """Takes seed and offset of dropout out of the parameters. They become tensors, so that a call with other numbers
    counts as equal."""
    drops = any(field.startswith("dropout=") for field in spec.split())
    found: dict[str, Tensor] = {}
    for name in ("seed", "offset"):
        number = given.pop(name, None)
        if number is None and name in scalars:
            number = torch.full((1,), integer(name, scalars.pop(name)), dtype=torch.int64, device=device)
        if drops and number is None:
            raise InvalidError(f"{name}: missing, and spec has dropout; give the same number, or tensor int64 [1], on every rank")
        if number is not None and not drops:
            raise InvalidError(f"{name}: there is no dropout in spec; leave it out")
        if number is not None:
            found[name] = number
    chunks = groups.outer.size() * (2 if order == "zigzag" and groups.outer.size() > 1 else 1)
    if drops and groups.size > 1 and (order == "striped" or any(length // chunks % DRAWN_TOGETHER for length in lengths)):
        raise UnsupportedError(f"order: dropout draws for {DRAWN_TOGETHER} neighbours together, and order=\"{order}\" has chunks of {lengths[0] // chunks} queries and "
                               f"{lengths[1] // chunks} keys; use zigzag or contiguous, and pad chunks to a multiple of {DRAWN_TOGETHER} tokens")
    return found


def _ids(documents: Any, tokens: int, batch: int, device: torch.device) -> tuple[Tensor, list[int] | None]:
    """Returns the document of each token, [batch, tokens], and where documents begin, if the host knows it."""
    if isinstance(documents, Tensor) and documents.dim() != 1:
        if documents.shape != (batch, tokens):
            raise InvalidError(f"documents: is {tuple(documents.shape)}, and the whole sequence has {(batch, tokens)} tokens; every rank gives all of them")
        return documents.to(device, torch.int32), None
    if batch != 1:
        raise InvalidError(f"documents: offsets are of one sequence, and there is a batch of {batch}; give the number of each token's document, "
                           "[batch, tokens]")
    offsets = torch.as_tensor(documents, dtype=torch.int32)
    if offsets.is_cuda:
        return _numbered(offsets, tokens, device), None
    begins = [int(begin) for begin in offsets.tolist()]
    if begins[:1] != [0] or begins[-1] > tokens or sorted(begins) != begins:
        raise InvalidError(f"documents: offsets begin with 0, rise, and end at {tokens} tokens at most, and these are {shown(str(begins))}")
    return _known(tuple(begins), tokens, device), sorted(set(begins))


def _numbered(offsets: Tensor, tokens: int, device: torch.device) -> Tensor:
    at = torch.arange(tokens, dtype=torch.int32, device=device)
    return torch.searchsorted(offsets.to(device), at, right=True).to(torch.int32).unsqueeze(0)


@functools.lru_cache(16)
def _known(begins: tuple[int, ...], tokens: int, device: torch.device) -> Tensor:
    """Numbers the tokens by offsets that the host knows. The result is kept, because layers of a model ask for it
    again."""
    return _numbered(torch.tensor(begins, dtype=torch.int32), tokens, device)


def _listed(blocks: calls.Blocks, given: dict[str, Tensor], lengths: tuple[int, int], how: str, order: str, groups: Groups, q: Tensor,
            k: Tensor) -> lists.Lists | None:
    """Returns lists of blocks, after moving them to where q is."""
    found = lists.taken(blocks, given, q.shape[0], lengths[0], (q.shape[2], k.shape[2]))
    if found is not None:
        found = found if how == "ulysses" else lists.known(found, given, lengths, int(groups.outer.size()), order)
        given.update({name: given[name].to(q.device) for name in lists.NAMES if name in given})
    return found


@functools.lru_cache(256)
def _problem_of(mask: str | None, score: str | None, scale: float | None, top_left: bool, spec: str, lengths: tuple[int, int], order: str,
                begins: tuple[int, ...] | None, scalars: tuple[tuple[str, str, float], ...], travel: str | None,
                listed: lists.Lists | None = None) -> Problem:
    """Makes a problem. Each of `scalars` has its dtype, because 1 and 1.0 are equal keys, but different specs."""
    given = {name: value for name, _, value in scalars}
    sight = sight_of(mask, lengths, top_left, given, begins)._replace(lists=listed)
    return Problem(mask, score, scale, top_left, spec, lengths, order, sight, given, travel)


def _chosen(how: str, q: Tensor, k: Tensor, groups: Groups, problem: Problem) -> str:
    """Chooses the way of how="auto". DISTRIBUTED.md has the rule."""
    ranks = groups.size
    if how == "mesh" and groups.inner is None:
        raise InvalidError('how: "mesh" divides heads inside and tokens outside; give group= a DeviceMesh of two dimensions, or a pair (outer, inner)')
    if groups.inner is not None:
        if how not in ("auto", "mesh"):
            raise InvalidError(f'how: "{how}" is for one group of ranks, and group= has two dimensions; use "mesh", or name one of them')
        return "mesh"
    if how != "auto":
        return how
    is_divided = not problem.drops and q.shape[2] % ranks == 0 and k.shape[2] % ranks == 0 and problem.travel is None
    if not _fits(problem, "ring", ranks):
        # The way then tells what does not fit.
        return "gather" if _fits(problem, "gather", ranks) else "ulysses" if is_divided else "ring"
    if problem.sight.is_near():
        return "ring"
    if q.shape[1] * (q.shape[2] // max(1, k.shape[2])) >= _HIDES:
        return "both" if problem.travel is None and _has_room(k, ranks) else "ring"
    return "ulysses" if is_divided else "gather"


def _fits(problem: Problem, way: str, ranks: int) -> bool:
    return problem.lists is None or lists.misfit(problem.lists, way, problem.lengths, ranks, problem.order) is None


def _has_room(k: Tensor, ranks: int) -> bool:
    """Returns whether K and V of the sequence take little of a GPU's memory."""
    return k.is_cuda and 2 * ranks * k.numel() * k.element_size() <= torch.cuda.get_device_properties(k.device).total_memory // _LITTLE


def _of_one_device(q: Tensor, k: Tensor, v: Tensor, problem: Problem, params: Mapping[str, Any], with_lse: bool) -> Any:
    """Computes with all tokens of some heads, which are all here."""
    words = Placed(problem.mask, problem.score, {})
    if problem.heads_begin and problem.reads_heads:
        whole = Run(0, 1, q.shape[1], 0), Run(0, 1, k.shape[1], 0)
        words = placed(problem.mask, problem.score, *whole, problem.lengths, problem.top_left, *problem.heads_begin)
    given: dict[str, Any] = {**params, **problem.scalars, **words.scalars}
    if problem.lists is not None:
        given |= problem.lists.of_some(params, problem.heads_begin or (0, 0), (q.shape[2], k.shape[2])) | {"blocks": problem.lists.sizes}
    return calls.attention(q, k, v, words.mask, words.score, lse=with_lse, scale=problem.scale, align="top_left" if problem.top_left else None,
                           spec=problem.spec, **given)


def _over_heads(q: Tensor, k: Tensor, v: Tensor, problem: Problem, groups: Groups, params: Mapping[str, Any], with_lse: bool, sms: int) -> Any:
    """Divides heads (Ulysses), with a ring inside of a mesh."""
    group = groups.outer if groups.inner is None else groups.inner
    ranks, rank = int(group.size()), int(dist.get_rank(group))
    heads.check_heads(q.shape[2], k.shape[2], ranks)
    order = problem.order if groups.inner is None else "contiguous"
    q_heads, kv_begin = q.shape[2] // ranks, heads.first_kv_head(rank, k.shape[2], ranks)
    own = dict(params)
    if "sink" in own:
        own["sink"] = own["sink"][rank * q_heads:(rank + 1) * q_heads]
    q, k, v = heads.divided(group, order, q, k, v)
    begin = rank * q_heads, kv_begin
    if groups.inner is None:
        made = _of_one_device(q, k, v, problem.of_heads(*begin), own, with_lse)
    else:
        made = _over_tokens("ring", q, k, v, problem, groups.outer, own, with_lse, sms, begin)
    if not with_lse:
        return heads.rejoined(group, order, made)[0]
    o, lse = heads.rejoined(group, order, made[0], made[1].transpose(1, 2).unsqueeze(3))
    return o, lse.squeeze(3).transpose(1, 2)


def _over_tokens(way: str, q: Tensor, k: Tensor, v: Tensor, problem: Problem, group: Any, params: Mapping[str, Any],
                 with_lse: bool, sms: int, heads_begin: tuple[int, int] | None = None) -> Any:
    problem = problem if heads_begin is None else problem.of_heads(*heads_begin)
    # All ranks make the first call for a group, and ask for equal things by now.
    if way == "both":
        way = "ring" if board_of(group, q.device) is None else way
    forward = Ring(problem, group, sms) if way == "ring" else Gather(problem, group, sms)
    backward = Gather(problem, group, sms) if way == "gather" else Ring(problem, group, sms)
    o, lse = _shared(_Ways(forward, backward), tuple(params), q, k, v, *params.values())
    return (o, lse) if with_lse else o


@overload
def attention(q: Tensor, k: Tensor, v: Tensor, mask: str | None = None, score: str | None = None, *, lse: Literal[False] = False,
              group: Group = None, how: str = "auto", order: str = "zigzag", travel: str | None = None, layout: str = "bshd",
              scale: float | None = None, align: str | None = None, documents: Any = None, blocks: calls.Blocks = None, spec: str = "",
              check: str = "first", sms: int | None = None, **params: Any) -> Tensor: ...


@overload
def attention(q: Tensor, k: Tensor, v: Tensor, mask: str | None = None, score: str | None = None, *, lse: Literal[True],
              group: Group = None, how: str = "auto", order: str = "zigzag", travel: str | None = None, layout: str = "bshd",
              scale: float | None = None, align: str | None = None, documents: Any = None, blocks: calls.Blocks = None, spec: str = "",
              check: str = "first", sms: int | None = None, **params: Any) -> tuple[Tensor, Tensor]: ...


def attention(q: Tensor, k: Tensor, v: Tensor, mask: str | None = None, score: str | None = None, *, lse: bool = False, group: Group = None,
              how: str = "auto", order: str = "zigzag", travel: str | None = None, layout: str = "bshd", scale: float | None = None,
              align: str | None = None, documents: Any = None, blocks: calls.Blocks = None, spec: str = "", check: str = "first",
              sms: int | None = None, **params: Any) -> Any:
    """This is flashjit.attention where each rank of `group` has a share of the tokens: q, k and v are [batch, tokens /
    ranks, heads, d], or [batch, heads, tokens / ranks, d] with layout="bhsd", and so is the result. They have
    gradients.

    `mask` and `score` are about the whole sequence, and so are the tensors that they read, which every rank has
    whole. `order` decides which tokens a rank has: shard(), unshard() and positions() have the same word. `how` is
    "ring", "gather", "ulysses", "mesh" or "auto". `documents` has offsets of documents in the sequence, [documents +
    1], or the number of each token's document, [batch, tokens]; tokens see only their own document. `blocks` and the
    lists beside it are those of flashjit.attention, for the whole sequence. `sink` counts once. With travel="e4m3"
    keys and values go to other ranks in 8 bits. `check`: "first" compares the ranks' requests if they are new,
    "always" each time, and "never" not at all. `sms`: kernels beside an exchange run on at most this many of a GPU's
    SMs, by default on all but 8; 0 stands for all.

    >>> import torch, torch.distributed, flashjit.distributed as fd
    >>> if not torch.distributed.is_initialized():  # alone; torchrun has more of them
    ...     torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    >>> q, k, v = (fd.shard(torch.randn(1, 64, 4, 32)) for _ in range(3))
    >>> fd.attention(q, k, v, mask="causal & window(16, 0)").shape
    torch.Size([1, 64, 4, 32])
    >>> fd.attention(q, k, v, spec="append")
    Traceback (most recent call last):
    ...
    flashjit.capi.UnsupportedError: spec: append is no field for calls over ranks: it is for one GPU; leave it out
    """
    return outside_of_graphs(_attention)(q, k, v, mask, score, lse, group, how, order, travel, layout, scale, align, documents, blocks, spec, check,
                                         sms, params)


def outside_of_graphs(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile does not follow this: its graph ends before the call, and another one begins after it."""
    if torch.compiler.is_dynamo_compiling():
        disable: Any = torch._dynamo.disable
        return disable(function)  # type: ignore[no-any-return]
    return function


def _attention(q: Any, k: Any, v: Any, mask: str | None, score: str | None, lse: bool, group: Group, how: str, order: str, travel: str | None,
               layout: str, scale: float | None, align: str | None, documents: Any, blocks: calls.Blocks, spec: str, check: str,
               sms: int | None, params: Mapping[str, Any]) -> Any:
    groups, order = groups_of(group), check_order(order)
    if how not in WAYS:
        raise InvalidError(f"how: {shown(how)} is none of {', '.join(WAYS)}")
    if align not in (None, "bottom_right", "top_left"):
        raise InvalidError(f'align: {shown(align)} is neither "bottom_right" nor "top_left"')
    if layout not in ("bshd", "bhsd"):
        raise UnsupportedError(f"layout: {shown(layout)} is neither bshd nor bhsd; of packed sequences make a batch of one, with documents= as their "
                               "offsets")
    q, k, v = _checked(q, k, v, layout)
    _check_params(params, q.shape[2])
    calls.words_of(mask, score, flag("lse", lse), layout, scale, align, spec)
    _check_spec(spec, travel)
    lengths = q.shape[1] * groups.size, k.shape[1] * groups.size
    given, scalars = calls.split({name: value for name, value in params.items() if value is not None})
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise InvalidError(f"{name}: {type(value).__name__} is no tensor of PyTorch, and q is one; convert it")
    begins = None
    if documents is not None:
        if "documents" in reads(mask) | reads(score):
            raise InvalidError("documents: mask and score read a tensor of this name; give it another one")
        given["documents"], begins = _ids(documents, lengths[1], q.shape[0], q.device)
        mask = "document(documents)" if mask is None else f"({mask}) & document(documents)"
    listed = _listed(blocks, given, lengths, how, order, groups, q, k)
    drawn = _drawn(spec, given, scalars, order, lengths, groups, q.device)
    problem = _problem_of(mask, score, scale, align == "top_left", spec, lengths, order, None if begins is None else tuple(begins),
                          tuple((name, f"{calls.scalar_word(value)} {value!r}", value) for name, value in scalars.items()), travel, listed)
    for name in {*given, *scalars} - {"sink", *lists.NAMES} - reads(mask) - reads(score):
        raise unread(name, _WORDS, "is no word of attention() over ranks, and neither mask nor score reads it")
    given |= drawn
    way = _chosen(how, q, k, groups, problem)
    beside = sms_beside_exchanges(sms, q.device)
    _check_alike(q, k, v, given, problem, groups, way, check)
    if sms is None and way != "ulysses" and board_of(groups.outer, q.device) is not None:
        # Ranks of one host exchange for a small part of a step, which takes longer on fewer SMs.
        beside = 0
    made = _of_way(way, q, k, v, problem, groups, given, lse, beside)
    if layout == "bhsd":
        return (made[0].transpose(1, 2), made[1]) if lse else made.transpose(1, 2)
    return made


def _of_way(way: str, q: Tensor, k: Tensor, v: Tensor, problem: Problem, groups: Groups, params: Mapping[str, Any], with_lse: bool, sms: int) -> Any:
    if groups.size == 1:
        return _of_one_device(q, k, v, problem, params, with_lse)
    if problem.lists is not None:
        lists.check_fit(problem.lists, way, problem.lengths, int(groups.outer.size()), problem.order)
        if problem.drops:
            raise UnsupportedError("blocks: dropout draws by places, which calls with lists do not know; leave one of the two out")
    if way in ("ulysses", "mesh") and problem.drops:
        raise UnsupportedError(f'how: "{way}" divides heads, by which dropout draws; use how="ring" or how="gather"')
    if way == "ulysses" and problem.travel is not None:
        raise UnsupportedError(f'travel: "{problem.travel}" is for how="ring" and how="gather"; ulysses sends q and o, too, which stay as they are')
    if way in ("ulysses", "mesh"):
        return _over_heads(q, k, v, problem, groups, params, with_lse, sms)
    return _over_tokens(way, q, k, v, problem, groups.outer, params, with_lse, sms)


def _check_alike(q: Tensor, k: Tensor, v: Tensor, params: Mapping[str, Any], problem: Problem, groups: Groups, way: str, check: str) -> None:
    check_device(groups, q.device)
    for name, x in (("q", q), ("k", k)):
        check_share(name, x.shape[1] * groups.inner_size, groups.outer.size(), problem.order)
    needs_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, *params.values()) if isinstance(x, Tensor))
    facts: dict[str, object] = {
        "batch": q.shape[0], "tokens of q": q.shape[1], "tokens of k": k.shape[1], "heads of q": q.shape[2], "heads of k": k.shape[2],
        "d": q.shape[3], "d of v": v.shape[3], "dtype": str(q.dtype), "how": way, "order": problem.order, "mask": problem.mask or "",
        "score": problem.score or "", "travel": problem.travel or "", "blocks": "" if problem.lists is None else problem.lists.told(),
        "requires_grad": needs_gradient}
    check_alike(groups.outer, facts, q.device, check)
    if groups.inner is not None:
        check_alike(groups.inner, facts, q.device, check)

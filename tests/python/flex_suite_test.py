"""Functions of FlexAttention, each run by PyTorch in float64, number by number, and by FlashJIT: values and gradients."""

import flex_cases
from support import harness, refused
from torch_support import Setting, gradient_of, masked_softmax, recipe


def of_each(torch, function, counts, device, *score):
    """Runs the function for each query and key as PyTorch does, on numbers that do not know of one another."""
    for mapped in (3, 2, 1, 0):
        function = torch.vmap(function, in_dims=(*[0 for _ in score], *[0 if at == mapped else None for at in range(4)]))
    return function(*score, *(torch.arange(n, device=device) for n in counts))


def exact(torch, q, k, v, mask, score):
    """Attention by its definition."""
    counts = (*q.shape[:3], k.shape[2])
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    s = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    if score is not None:
        s = of_each(torch, score, counts, q.device, s)
    seen = of_each(torch, mask, counts, q.device) if mask is not None else None
    return masked_softmax(torch, s, None if seen is None else lambda *at: seen, ()) @ v


def results(setting, function, inputs, learned):
    """O, and the gradients of inputs and of tables."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    o = function(*inputs)
    found = setting.torch.autograd.grad((o * gradient_of(setting, o, 1)).sum(), [*inputs, *learned], allow_unused=True)
    return [o.detach(), *found]


def known(setting, q, k, v, mask, score):
    """What the error rule measures O and the gradients of inputs by."""
    torch, counts = setting.torch, (*q.shape[:3], k.shape[2])
    of_mask = mask and (lambda *at: of_each(torch, mask, counts, q.device))
    of_score = score and (lambda s, *at: of_each(torch, score, counts, q.device, s))
    return recipe(setting, q, k, v, of_mask, of_score, q.shape[-1] ** -0.5, 1)


def right(setting, name, mask, score, learned=(), lengths=(flex_cases.QUERIES, flex_cases.KEYS)):
    torch = setting.torch
    torch.manual_seed(5)
    shapes = [(flex_cases.BATCH, flex_cases.HEADS, n, flex_cases.WIDTH) for n in (lengths[0], lengths[1], lengths[1])]
    inputs = setting.tensors(*shapes)
    ours = results(setting, lambda *x: setting.ours.flex_attention(*x, score, mask), inputs, learned)
    if setting.gpu:
        score = flex_cases.on_cuda(torch).get(name, score)
    theirs = results(setting, lambda *x: exact(torch, *x, mask, score), [x.double() for x in inputs], learned)
    names = ["o", "dq", "dk", "dv", *(f"table {at}" for at in range(len(learned)))]
    if setting.gpu:  # in 16 bits an error is as large as the score makes it
        for what, *tensors in zip(names, ours, theirs, known(setting, *inputs, mask, score)):
            setting.judge(*tensors, f"{name}: {what}")
    for what, got, wanted in list(zip(names, ours, theirs))[4 if setting.gpu else 0:]:
        if wanted is not None or got is not None:
            setting.close(got, wanted, f"{name}: {what}")


def count_right(setting, kind, functions, learned=(), needed=0.95, **more):
    """Runs all, and says how many are right. A refusal must say why; a wrong result is an error."""
    said, wrong = {}, []
    for name, (mask, score) in functions.items():
        try:
            right(setting, name, mask, score, learned, **more)
        except setting.flashjit.UnsupportedError as error:
            said[name] = str(error)
        except Exception as error:  # of all, so that one run shows all that is wrong
            wrong.append(f"{kind} {name}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)
    for name, why in said.items():
        print(f"{kind} {name}: refused: {why}")
    print(f"{kind}: {len(functions) - len(said)} of {len(functions)} are right, {len(said)} refused")
    assert len(functions) - len(said) >= needed * len(functions), f"{len(said)} of {len(functions)} are refused"


def part(functions, at, count):
    """One of so many parts: all of them at once would take minutes."""
    return dict(list(functions.items())[at::count])


def masks_are_right(at):
    setting = Setting()
    masks = flex_cases.masks(setting.torch, flex_cases.tables(setting.torch, setting.device))
    assert len(masks) >= 80
    count_right(setting, "masks", {name: (mask, None) for name, mask in part(masks, at, 2).items()}, needed=1)


def test_masks():
    masks_are_right(0)


def test_more_masks():
    masks_are_right(1)


def scores_are_right(at):
    setting = Setting()
    tables = flex_cases.tables(setting.torch, setting.device)
    scores = flex_cases.scores(setting.torch, tables)
    assert len(scores) >= 113
    count_right(setting, "scores", {name: (None, score) for name, score in part(scores, at, 3).items()}, list(vars(tables.learned).values()), needed=1)


def test_scores():
    scores_are_right(0)


def test_more_scores():
    scores_are_right(1)


def test_yet_more_scores():
    scores_are_right(2)


def test_what_the_language_lacks():
    setting = Setting()
    q, k, v = setting.tensors(*[(1, 1, 9, 8)] * 3)
    for says, score in flex_cases.beyond(setting.torch, flex_cases.tables(setting.torch, setting.device)).values():
        refused(setting.flashjit.UnsupportedError, [says, "flex_cases.py"], setting.ours.flex_attention, q, k, v, score)


if __name__ == "__main__":
    harness.main(globals())

"""FlexAttention's functions as texts, and refusals where there is no counterpart."""

import functools
import math

from support import harness, refused
from torch_support import Setting

INF = float("inf")


def test_texts():
    """Each is what PyTorch computes, and nothing of it is left out."""
    setting = Setting()
    torch, trace = setting.torch, setting.ours.trace
    F = torch.nn.functional
    bytes_, ints, bools = (torch.zeros(9, dtype=dtype) for dtype in (torch.uint8, torch.int32, torch.bool))
    table, pairs = torch.zeros(9), torch.zeros(2, 9, 9)

    def alias(s, b, h, q, k):
        other = s
        other += 1
        return s

    def undecided(s, b, h, q, k):
        return s * 2 if s.ndim or s.dim() or s.shape or s.dtype != torch.float32 or s.numel() != 1 or s.device != q.device else s

    scores = (
        ("where(q >= k, s, -inf)", lambda s, b, h, q, k: s.where(q >= k, -INF)), ("s * 2", lambda s, *at: s.mul_(2)), ("s + 1", alias),
        ("where(s < -1.0, -1.0, s)", lambda s, *at: s.clamp_(min=-1)), ("s", undecided), ("where(s <= 0.0, 0.0, s)", lambda s, *at: F.relu(s, inplace=True)),
        ("s * sigmoid(s)", lambda s, *at: F.silu(s)), ("where(q < k, -5.0, s)", lambda s, b, h, q, k: s.masked_fill(q < k, -5)),
        ("s + where(q > k | q > 3, 1, 0)", lambda s, b, h, q, k: s + ((q > k) + (q > 3))), ("s + tensor0[b, q, k]", lambda s, b, h, q, k: s + pairs[b][q][k]),
        ("s + tensor0[1, q, 0] + tensor1[k]", lambda s, b, h, q, k: s + pairs[-1, q, -9] + table[k]), ("s * exp(float(q) * 0.6931471805599453)", lambda s, b, h, q, k: s * torch.exp2(q)),
        ("s - (q - k)", lambda s, b, h, q, k: s - (q - k)), ("s - -3 * (q + k)", lambda s, b, h, q, k: s - (-3) * (q + k)), ("2.5", lambda s, *at: torch.tensor(2.5)))
    masks = (
        ("tensor0[q] * tensor0[k] % 256 < 9", lambda b, h, q, k: bytes_[q] * bytes_[k] < 9), ("(tensor0[q] - 1) % 256 < 9", lambda b, h, q, k: bytes_[q] - 1 < 9),
        ("(tensor0[q] * 2 + 2147483648) % 4294967296 - 2147483648 < 9", lambda b, h, q, k: ints[q] * 2 < 9), ("where(tensor0[q] != 0, 1, 0) == where(q > k, 1, 0)", lambda b, h, q, k: bools[q] == (q > k)),
        ("q % 8 == k / 4", lambda b, h, q, k: (q & 7) == (k >> 2)), ("q / 4 % 2 * 4 > 0", lambda b, h, q, k: (q & 4) > 0), ("q - q % 8 <= k * 4", lambda b, h, q, k: (q & -8) <= (k << 2)),
        ("-1 - q < k", lambda b, h, q, k: ~q < k))
    for text, score in scores:
        found = trace(None, score)["score"]
        assert found == text, f"{found} and not {text}"
    for text, mask in masks:
        found = trace(mask)["mask"]
        assert found == text, f"{found} and not {text}"


def test_reads_in_an_index():
    setting = Setting()
    torch = setting.torch
    documents, starts, rows = torch.zeros(9, dtype=torch.int32), torch.zeros(4, dtype=torch.int32), torch.zeros(4, 2)
    place = "max(min(tensor0[{0}] % 4, min(tensor0[{0}], -1) + 4), tensor0[{0}])"  # PyTorch counts negative ones from the end
    text = setting.ours.trace(lambda b, h, q, k: k >= starts[documents[q]], lambda s, b, h, q, k: s + rows[documents[k]][1])
    assert (text["mask"], text["score"]) == (f"k >= tensor1[{place.format('q')}]", f"s + tensor2[{place.format('k')}, 1]"), text
    assert [text[f"tensor{at}"] is tensor for at, tensor in enumerate((documents, starts, rows))] == [True] * 3


def test_indices_outside_of_a_table():
    """What PyTorch refuses is not taken from elsewhere: not what lies before the first counted from the end, nor what 64 bits wrap around to."""
    setting = Setting()
    torch = setting.torch
    if setting.gpu:
        return  # where the kernel cuts an index
    q, k, v = setting.tensors(*[(1, 2, 9, 8)] * 3)
    table = torch.zeros(9)
    for low, high, offset in ((-9, 8, 0), (-10, 8, 0), (-9, 9, 0), (2**62, 2**62, -2**62), (2**63 - 1, 2**63 - 1, 1)):
        places = torch.linspace(-1, 1, 9).long()
        places[0], places[1] = low, high
        call = lambda: setting.ours.flex_attention(q, k, v, lambda s, b, h, q, k: s + table[places[k] + offset])
        if (low, high) == (-9, 8):
            call()
        else:
            refused(setting.flashjit.InvalidError, "runs from", call)


def test_masks_of_masks():
    setting = Setting()
    from torch.nn.attention.flex_attention import and_masks, noop_mask, or_masks
    causal, window = lambda b, h, q, k: q >= k, lambda b, h, q, k: q - k < 9
    for mask, text in ((and_masks(causal, window), "q >= k & q - k < 9"), (or_masks(causal, window), "q >= k | q - k < 9"), (noop_mask, "true"), (and_masks(causal, noop_mask), "q >= k")):
        found = setting.ours.trace(mask)["mask"]
        assert found == text, f"{found} and not {text}"


def test_what_is_refused():
    """With the name of what it is and the line, and never left out."""
    setting = Setting()
    torch, trace, unsupported = setting.torch, setting.ours.trace, setting.flashjit.UnsupportedError
    import numpy
    table, documents = torch.zeros(9), torch.zeros(9, dtype=torch.int64)
    if not hasattr(torch.ops.flashjit_test, "tanh"):
        torch.library.define("flashjit_test::tanh", "(Tensor x) -> Tensor")

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

    def without_gradient(s, b, h, q, k):
        with torch.no_grad():
            return s * 2

    def sets(s, b, h, q, k):
        table[q] = 1.0
        return s

    def branches(s, b, h, q, k):
        return s if q in (1, 2) else -s

    for says, score in (
            ("detach", lambda s, *at: s - s.detach()), ("no_grad", without_gradient), ("tanh", lambda s, *at: torch.ops.flashjit_test.tanh(s)), ("no_grad", lambda s, *at: Doubled.apply(s)),
            ("setitem", sets), ("float()", lambda s, *at: math.exp(s)), ("ufunc", lambda s, *at: numpy.exp(s)), ("len", lambda s, *at: s + len(s)), ("T:", lambda s, *at: s.T),
            ("requires_grad", lambda s, *at: s if s.requires_grad else -s), ("is_leaf", lambda s, *at: s if s.is_leaf else -s), ("item", lambda s, *at: s.item()), ("out=", lambda s, *at: torch.add(s, 1, out=s)),
            ("mul_", lambda s, b, h, q, k: s + q.mul_(0.5)), ("add_", lambda s, b, h, q, k: table.add_(q)), ("float16", lambda s, *at: s.to(torch.float16)), ("softmax", lambda s, *at: s.softmax(-1)),
            ("true", branches), ("dimensions", lambda s, b, h, q, k: s + table), ("outside", lambda s, b, h, q, k: s + torch.zeros(2, 9)[q][99]), ("subtracts no bools", lambda s, b, h, q, k: s + ((q > k) - (k > 3))),
            ("negates no bools", lambda s, b, h, q, k: s + -(q > k)), ("must be a bool", lambda s, b, h, q, k: torch.where(q, s, -s)), ("NoneType", lambda s, *at: None), ("64 bits", lambda s, b, h, q, k: s + documents[q] * documents[k]),
            ("a mask to PyTorch", lambda s, b, h, q, k: s + table[documents.byte()[q]]),
            ("no torch.float64 in the spec's language; use torch.float32",  # not in the line that the error shows
             lambda s, *at: s * torch.tensor(0.5, dtype=torch.float64))):
        refused(unsupported, [says, "flex_trace_test.py"] if says != "NoneType" else says, trace, None, score)


def negated_unless(asks):
    """Functions that take the other branch where a stand-in is no tensor."""
    return lambda s, *at: s * 2 if asks(s) else -s


def test_what_asks_whether_stand_ins_are_tensors():
    """It is refused with the line where the question is asked, and under torch.compile, too, where nobody notices. Questions about others
    are answered."""
    setting = Setting()
    torch, flex, unsupported = setting.torch, setting.ours.flex_attention, setting.flashjit.UnsupportedError
    q, k, v = setting.tensors(*[(1, 2, 9, 8)] * 3)

    def matched(s, *at):
        match s:
            case torch.Tensor():
                return s * 2
        return -s

    class Module:
        def __call__(self, s, *at):
            return -s if type(s) is not torch.Tensor else s * 2

        def method(self, s, *at):
            return s * 2 if isinstance(s, torch.Tensor) else -s

    questions = {"isinstance": negated_unless(lambda s: isinstance(s, torch.Tensor)), "is_tensor": negated_unless(torch.is_tensor),
                 "is_tensor ": lambda s, *at: s * 2 if torch.is_tensor(s) else -s, "type": negated_unless(lambda s: type(s) is torch.Tensor), "match": matched,
                 "class": negated_unless(lambda s: s.__class__ is torch.Tensor), "FloatTensor": negated_unless(lambda s: isinstance(s, torch.FloatTensor)),
                 "object": Module(), "method": Module().method, "partial": functools.partial(Module().method)}
    for name, score in questions.items():
        refused(unsupported, ["no tensor", "flex_trace_test.py"], flex, q, k, v, score)
        torch._dynamo.reset()
        refused(unsupported, ["no tensor", "flex_trace_test.py"], torch.compile(lambda q: flex(q, k, v, score), backend="eager"), q)
        torch._dynamo.reset()
        refused(torch._dynamo.exc.Unsupported, "isinstance, type or torch.is_tensor", torch.compile(lambda q: flex(q, k, v, score), backend="eager", fullgraph=True), q)

    def made_in_a_graph(q):
        doubled = q[0, 0, 0, :1] * 2
        return flex(q, k, v, lambda s, *at: s if isinstance(s, torch.Tensor) else s + doubled[0])

    torch._dynamo.reset()
    refused(torch._dynamo.exc.Unsupported, "isinstance, type or torch.is_tensor", torch.compile(made_in_a_graph, backend="eager", fullgraph=True), q)

    def of_others(s, b, h, q, k):
        return (s * 2 if isinstance(b, (int, torch.nn.Parameter)) else s) if False else s + (1 if isinstance(3, int) else 2)

    wanted = flex(q, k, v, lambda s, *at: s + 1)
    torch._dynamo.reset()
    for call in (flex, torch.compile(flex, backend="eager")):
        setting.close(call(q, k, v, of_others), wanted)


def test_detach_where_there_are_no_gradients():
    setting = Setting()
    with setting.torch.no_grad():
        assert setting.ours.trace(None, lambda s, *at: s - s.detach())["score"] == "s - s"


def test_loops_are_refused_before_the_text_is_made():
    setting = Setting()

    def doubled(s, b, h, q, k):
        for _ in range(60):
            s = s * s + s
        return s

    def nested(b, h, q, k):
        for _ in range(2000):
            q = abs(q - k)
        return q > 3

    refused(setting.flashjit.UnsupportedError, ["flex_trace_test.py", "4096", "s = s * s + s"], setting.ours.trace, None, doubled)
    refused(setting.flashjit.UnsupportedError, ["flex_trace_test.py", "nested", "q = abs(q - k)"], setting.ours.trace, nested)
    tables = [setting.torch.zeros(9) for _ in range(9)]
    refused(setting.flashjit.UnsupportedError, ["flex_trace_test.py", "tensor 9"], setting.ours.trace, None, lambda s, b, h, q, k: sum((t[k] for t in tables), s))


def test_options_of_flex_attention():
    setting = Setting()
    torch, flex = setting.torch, setting.ours.flex_attention
    from torch.nn.attention.flex_attention import AuxOutput, AuxRequest
    q, k, v = setting.tensors(*[(1, 2, 30, 8)] * 3)
    o, lse = flex(q, k, v, return_lse=True)
    found, aux = flex(q, k, v, return_aux=AuxRequest(lse=True), kernel_options={"BLOCK_M": 64, "fwd_num_warps": 4})
    assert isinstance(aux, AuxOutput) and aux.max_scores is None and torch.equal(aux.lse, lse) and torch.equal(o, found)
    found, aux = flex(q, k, v, return_aux=AuxRequest())
    assert aux == AuxOutput() and torch.equal(o, found)
    refused(setting.flashjit.UnsupportedError, ["max_scores"], flex, q, k, v, return_aux=AuxRequest(max_scores=True))
    refused(setting.flashjit.InvalidError, ["return_lse", "return_aux"], flex, q, k, v, return_lse=True, return_aux=AuxRequest(lse=True))
    refused(setting.flashjit.InvalidError, ["BLOCK_X", "BLOCK_M"], flex, q, k, v, kernel_options={"BLOCK_X": 64})
    refused(setting.flashjit.InvalidError, ["block_mask", "a Tensor of 2 dimensions is no function"], flex, q, k, v, block_mask=torch.ones(30, 30))
    refused(setting.flashjit.InvalidError, ["score_mod", "'alibi' is no function", "flashjit.attention"], flex, q, k, v, score_mod="alibi")


if __name__ == "__main__":
    harness.main(globals())

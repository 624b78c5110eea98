"""Messages for wrong words and values have the name, the value and the way out, before ctypes cuts anything."""

import math
import pickle

import support
from support import harness, load, refused
from torch_support import Setting


def arrays(flashjit, numpy):
    """Inputs of each way through the package: NumPy's arrays, PyTorch's tensors, and those with gradients."""
    q = numpy.random.default_rng(1).standard_normal((2, 9, 4, 16)).astype("float32")
    found = [q]
    try:
        import torch
    except ImportError:
        return found
    return found + [torch.from_numpy(q), torch.from_numpy(q.copy()).requires_grad_()]


def test_words_that_are_none():
    flashjit, numpy = load("numpy")
    for q in arrays(flashjit, numpy):
        for named, says in (
            ({"mask": "casual"}, ["casual", "did you mean `causal`"]),
            ({"spec": "dropuot=0.1"}, ["dropuot", "did you mean `dropout`"]),
            ({"maks": "causal"}, ["maks", "did you mean mask="]),
            ({"is_causal": True}, ["is_causal", 'did you mean mask="causal"']),
            ({"causal": True}, ["causal: is no word", 'did you mean mask="causal"']),
            ({"window": 3}, ["window: is no word", 'did you mean mask="window(left, right)"']),
            ({"mask": "sliding(3)"}, ["no function `sliding`", "window(l, r)"]),
            ({"dropout_p": 0.1}, ["dropout_p", "did you mean spec="]),
            ({"klens": q}, ["klens", "did you mean k_lens="]),
            ({"sinks": q}, ["sinks", "did you mean sink="]),
            ({"weights_of_mine": q}, ["weights_of_mine", "leave it out"]),
            ({"mask": "foo[k] > 0"}, ["unknown name `foo`", "pass foo=tensor"]),
            ({"score": "s * c"}, ["unknown name `c`", "pass c=tensor"]),
            ({"score": "alibi"}, ["slope", "pass slope=tensor"]),
            ({"spec": "layout=bhsd"}, ["spec: layout=bhsd", "an argument of attention()", 'layout="bhsd"']),
            ({"spec": "dropout=0.1 d=16"}, ["spec: d=16", "leave it out"]),
            ({"spec": 'params="c: fp32" score="s * c"'}, ["spec: params=", "by its name"]),
            ({"spec": "max_logit"}, ["spec: max_logit", "no tensor", "Kernel.run"]),
            ({"seed": 3}, ["seed", 'did you mean spec="dropout=0.1"']),
            ({"offset": 3}, ["offset", 'did you mean spec="dropout=0.1"']),
        ):
            for _ in range(2):
                message = refusal(flashjit.InvalidError, says, flashjit.attention, q, q, q, **named)
                assert "backward" not in message and "no_grad" not in message, message


def refusal(error, says, function, *arguments, **named):
    refused(error, says, function, *arguments, **named)
    try:
        function(*arguments, **named)
    except error as raised:
        return str(raised)


def test_values_of_another_kind():
    """A tensor in the wrong place is named, and never printed."""
    flashjit, numpy = load("numpy")
    for q in arrays(flashjit, numpy):
        for name in ("mask", "score", "lse", "layout", "scale", "align", "spec", "stream", "max_q_len", "max_k_len"):
            for value in (q, [q], {"a": 1}, object()):
                message = refusal(flashjit.InvalidError, name + ":", flashjit.attention, q, q, q, **{name: value})
                assert len(message) < 200 and "\n" not in message, message
        refused(flashjit.InvalidError, ["scale", "'x'"], flashjit.attention, q, q, q, scale="x")


def test_numbers_that_would_be_cut():
    flashjit, numpy = load("numpy")
    invalid, engine = flashjit.InvalidError, flashjit.Engine("host")
    for name, values in (("threads", (2**32 + 1, 1.5, "2", -1)), ("ordinal", (2**32, -1)), ("cache_max_bytes", (2**64 + 5, -1))):
        for value in values:
            refused(invalid, [name, str(value)], flashjit.Engine, "host", **{name: value})
    for name in ("timeout", "budget", "tune"):
        for value in (1e30, math.nan, math.inf, -3, "3"):
            refused(invalid, [name, str(value)], engine.prepare, "fwd fp32 d=16", **{name: value})
    from flashjit.values import milliseconds
    assert [milliseconds("timeout", x) for x in (0, 1e-9, 0.0014, 2)] == [0, 1, 1, 2000]  # 0 would be no limit
    refused(invalid, "capturing_stream", engine.prepare, "fwd fp32 d=16", capturing_stream=2**64 + 1)
    refused(invalid, "one path", flashjit.Engine, "host", bundles="kernels.fjb")
    for q in arrays(flashjit, numpy):
        for says, named in (
            (["n", str(2**60 + 1), "2^53"], {"mask": "k < n", "n": 2**60 + 1}),
            (["n", "2^53"], {"mask": "k < n", "n": 2**80}),
            (["c", "1e+300", "fp32"], {"score": "s * c", "c": 1e300}),
            (["max_q_len", str(2**64)], {"max_q_len": 2**64}),
            (["max_k_len", "-5"], {"max_k_len": -5}),
            (["stream", str(2**64 + 1)], {"stream": 2**64 + 1}),
            ("zero byte", {"mask": "k < n", "n\0x": 3}),
            ("UTF-8", {"mask": "k < n", "n\ud800": 3}),
        ):
            refused(invalid, says, flashjit.attention, q, q, q, **named)
    q = numpy.ones((2, 9, 4, 16), "float32")
    kernel = engine.prepare("fwd fp32 d=16 heads=4")
    refused(invalid, "zero byte", kernel.run, q=q, k=q, v=q, o=numpy.empty_like(q), **{"k\0": q})
    refused(invalid, "max_q_len", kernel.run, q=q, k=q, v=q, o=numpy.empty_like(q), max_q_len=2**63)
    refused(invalid, "zero byte", flashjit.explain, "fwd fp32 d=16\0", "sm_90a")


def test_values_that_would_be_ignored():
    """Each is refused, with the reason, whether the same call without it is known or not."""
    flashjit, numpy = load("numpy")
    for q in arrays(flashjit, numpy):
        for named, says in (
            ({"max_q_len": 3}, ["max_q_len: 3", "packed", "layout=bshd"]),
            ({"max_k_len": 1}, ["max_k_len: 1", "packed", "layout=bshd"]),
            ({"max_k_len": 1, "layout": "bhsd"}, ["max_k_len: 1", "layout=bhsd"]),
            ({"stream": 12345}, ["stream: 12345", "processor"]),
        ):
            for _ in range(3):
                refused(flashjit.InvalidError, says, flashjit.attention, q, q, q, **named)
                flashjit.attention(q, q, q)
    for named in ({"ordinal": 7}, {"bundles": ["/nowhere.fjb"]}, {"required": "/nowhere"}):
        refused(flashjit.InvalidError, [*(f"{name}: " for name in named), "leave it out"], flashjit.Engine, "host", **named)
    q = arrays(flashjit, numpy)[0]
    kernel = flashjit.Engine("host", ordinal=0, bundles=(), required=None).prepare("fwd fp32 d=16 heads=4")
    refused(flashjit.InvalidError, ["stream: 7", "processor"], kernel.run, q=q, k=q, v=q, o=numpy.empty_like(q), stream=7)


def test_words_of_another_kind_for_engines_and_the_command():
    """What is no text, no list, no flag or an option of the command is named before anybody trips over it."""
    flashjit, = load()
    invalid, engine = flashjit.InvalidError, flashjit.Engine("host")
    for spec in ("--help", "--export", " -h", 3, None):
        for function, arguments in ((flashjit.explain, ("sm_80",)), (flashjit.compile, ("sm_80",)), (engine.compile, ()),
                                    (engine.explain, ()), (engine.tune, ("b=1,q=64,k=64",)), (engine.prepare, ())):
            refused(invalid, ["spec", f": {spec!r} is "], function, spec, *arguments)
    refused(invalid, "spec: '--help'", flashjit.compile, ["fwd bf16 d=64", "--help"], "sm_80")
    for says, named in (("bundles: 3", {"bundles": 3}), ("bundles[1]: None", {"bundles": ["a.fjb", None]}), ("target: 3", {"target": 3})):
        refused(invalid, says, flashjit.Engine, "gpu", **named)
    for name in ("isolate_compiler", "tuned", "disk_cache", "jit"):
        for value in ("yes", 2, [1]):
            refused(invalid, f"{name}: ", flashjit.Engine, "host", **{name: value})
    refused(invalid, ["device=Host", "jit=false"], flashjit.Engine, "host", jit=False)
    for named in ({"verify": "x"}, {"workspace": "x"}, {"schedule": 3}, {"shape": 4}):
        refused(invalid, [f"{name}: {value!r}" for name, value in named.items()], engine.prepare, "fwd fp32 d=16", **named)


def test_what_the_library_says_is_said_in_words_of_python():
    flashjit, numpy = load("numpy")
    q, cache = numpy.ones((1, 3, 2, 8), "float32"), numpy.ones((1, 3, 2, 8), "int8")
    refused(flashjit.InvalidError, ["scale_k: it is a tensor", "pass scale_k=tensor"], flashjit.attention, q, cache, cache, scale_k=2.0)
    engine = flashjit.Engine("host")
    kernel = engine.prepare('fwd fp32 d=8 heads=2 params="o: fp32[4]" score="s * o[b, q, h, 0]"')
    refused(flashjit.InvalidError, ["params.o: missing", "another name in the spec"], kernel.run, q=q, k=q, v=q, o=numpy.empty_like(q))
    kernel = engine.prepare('fwd fp32 d=8 heads=2 params="left: u8, t: fp32[1]" mask="k >= qpos - left" score="s * t[h]"')
    for values, says in (({"left": numpy.array(3, "uint8"), "t": numpy.ones(2, "float32")}, ["left: the spec declares a scalar", "pass left.item()"]),
                         ({"t": numpy.ones(2, "float32")}, ["left: missing", "pass left=number"]),
                         ({"left": 3, "t": 2.0}, ["t: it is a tensor", "pass t=tensor"])):
        refused(flashjit.InvalidError, says, kernel.run, q=q, k=q, v=q, o=numpy.empty_like(q), **values)
    for dtype, says in (("uint8", "numpy.uint8(left.item())"), ("int32", "give left.item()")):
        refused(flashjit.InvalidError, [says, "left.view(1)"], flashjit.attention, q, q, q, mask="k >= qpos - left", left=numpy.array(3, dtype))
    error = flashjit.UnsupportedError("no", "unsupported", "a caret")
    assert (error.message, error.kind, error.detail, str(error)) == ("no", "unsupported", "a caret", "no\na caret")
    kinds = flashjit.InvalidError, flashjit.UnsupportedError, flashjit.MissingError
    assert [kind("no").kind for kind in kinds] == ["invalid", "unsupported", "not_found"]
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    engine.close()
    refused(flashjit.InvalidError, "this engine is closed; make another", engine.counters)


def test_dtypes_that_kernels_do_not_take():
    """The message has what the tensor is, and what this one may be."""
    flashjit, numpy = load("numpy")
    for q in arrays(flashjit, numpy):
        doubles, ints = (q.astype("float64"), q.astype("int32")) if isinstance(q, numpy.ndarray) else (q.double(), q.detach().int())
        floats = "convert it to one of float16, bfloat16, float32, float8_e4m3fn, float8_e5m2"
        refused(flashjit.InvalidError, ["q: is float64, which", floats], flashjit.attention, doubles, q, q)
        refused(flashjit.InvalidError, ["q: is int32, which", floats], flashjit.attention, ints, q, q)
        refused(flashjit.InvalidError, ["k: is int32, which", floats + ", int8"], flashjit.attention, q, ints, ints)
        refused(flashjit.InvalidError, ["t: is float64, which", "float32, int32, int64, uint32, uint8, bool"],
                flashjit.attention, q, q, q, score="s + t[b, k, h, 0]", t=doubles)
    q = numpy.ones((1, 9, 2, 16), "float32")
    refused(flashjit.InvalidError, ["q: is >f4, float32 in the byte order", 'q.astype("float32")'], flashjit.attention, q.astype(">f4"), q, q)
    refused(flashjit.InvalidError, "slope: is i32[1], and `alibi` reads fp32[1]; pass it as float32", flashjit.attention, q, q, q, score="alibi",
            slope=numpy.ones(2, "int32"))
    refused(flashjit.InvalidError, "dtype: `float32` is none of fp16, bf16, fp32, e4m3, e5m2, did you mean `fp32`?",
            flashjit.Engine("host").prepare, "fwd float32 d=16")


def test_names_and_dtypes_of_what_a_mask_reads():
    flashjit, numpy = load("numpy")
    q, doc = numpy.ones((1, 9, 2, 16), "float32"), numpy.zeros((1, 9), "int32")
    for begin, mask, given in (("docs: is no word of attention(), and neither mask nor score reads it; they read `doc`", "document(doc)", {"docs": doc}),
                               ("doc: is no word of attention(), and neither mask nor score reads it; they read `dcos`", "document(dcos)", {"doc": doc}),
                               ("doc: is i64[2], and `document` reads i32[2]; pass it as int32", "document(doc)", {"doc": doc.astype("int64")}),
                               ("doc: is i32[1], and `document` reads i32[2]; pass a tensor of 2 dimensions", "document(doc)", {"doc": doc[0]}),
                               ("mask: write `&` for `and`", "causal and k > 3", {}),
                               ("cu_seqlens: is no word of attention(), and neither mask nor score reads it; did you mean offsets_q= and",
                                "causal", {"cu_seqlens": doc}),
                               ("page_table: is no word of attention(), and neither mask nor score reads it; did you mean block_table=?", "causal",
                                {"page_table": doc}),
                               ("cache_seqlens: is no word of attention(), and neither mask nor score reads it; did you mean k_lens=?", "causal",
                                {"cache_seqlens": doc}),
                               ('window: is no word of attention(); did you mean mask="window(left, right)"?', "causal", {"window": (3, 0)}),
                               ("block_mask: is no word of attention(); did you mean flashjit.torch.flex_attention?", "causal",
                                {"block_mask": object()}),
                               ("clausal: is no word of attention(), and neither mask nor score reads it; leave it out", "causal & k < max(q, 9)",
                                {"clausal": doc})):
        refused(flashjit.InvalidError, begin, lambda mask=mask, given=given: flashjit.attention(q, q, q, mask=mask, **given))


def test_masks_that_are_no_texts():
    flashjit, numpy = load("numpy")
    q = numpy.ones((1, 9, 2, 16), "float32")
    for begin, words in (("mask: a ndarray of 2 dimensions is no text of the spec's language; a tensor is read by its name, as in mask=\"seen[b, q, k]",
                          {"mask": numpy.ones((9, 9), bool)}),
                         ("score: a ndarray of 2 dimensions is no text of the spec's language; a tensor is read by its name, as in score=\"s + bias",
                          {"score": numpy.ones((9, 9), "float32")}),
                         ("mask: a function is no text of the spec's language; FlexAttention's functions go through", {"mask": refused})):
        refused(flashjit.InvalidError, begin, lambda words=words: flashjit.attention(q, q, q, **words))


def test_errors_in_a_graph():
    """Dynamo says which of this package it is, and where graphs may be broken the call is made outside of them."""
    setting = Setting()
    torch, flashjit = setting.torch, setting.flashjit
    q, = setting.tensors((1, 9, 2, 32))
    call = lambda q: flashjit.attention(q, q, q, out=torch.empty_like(q))
    refused(torch._dynamo.exc.Unsupported, ["InvalidError", "out: given, and the call is traced"],
            torch.compile(call, fullgraph=True, backend="aot_eager"), q)
    torch._dynamo.reset()
    setting.close(torch.compile(call, backend="aot_eager")(q), call(q))
    scores = lambda q: flashjit.index(q, q[:, :, :1].contiguous(), torch.ones(1, 9, 2, device=setting.device))
    refused(torch._dynamo.exc.Unsupported, ["UnsupportedError", "only attention() is an operator of PyTorch"],
            torch.compile(scores, fullgraph=True, backend="aot_eager"), q)
    torch._dynamo.reset()
    setting.close(torch.compile(scores, backend="aot_eager")(q), scores(q))


def test_results_into_what_has_no_strides():
    setting = Setting()
    torch, flashjit = setting.torch, setting.flashjit
    q, = setting.tensors((2, 9, 2, 32))
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor(list(q), layout=layout)
        refused(flashjit.InvalidError, "out: is a nested tensor", flashjit.attention, q, q, q, out=nested)
    refused(flashjit.InvalidError, ["out: its layout is torch.sparse_coo", ".to_dense()"], flashjit.attention, q, q, q, out=q.to_sparse())


def test_a_time_limit_on_processors():
    """The answer comes in time, LLVM goes on, and the next prepare finds the kernel."""
    flashjit, = load()
    engine = flashjit.Engine("host", disk_cache=False)
    mask = "|".join(f"t[k+{i},q+{i}]>{i}" for i in range(1, 51))
    spec = f'fwd fp32 d=16 heads=4 mask="{mask}" params="t: i32[2]"'
    refused(flashjit.FlashJitError, "timeout: the kernel was not ready after 100 ms", engine.prepare, spec, timeout=0.1)
    assert engine.counters()["compiles"] == 0, "the answer came only with the kernel"
    assert engine.prepare(spec).run and engine.counters()["compiles"] == 1


def test_types_and_versions():
    flashjit, = load()
    assert flashjit.__version__ == flashjit.version() and flashjit.__version__.count(".") >= 2
    refused(AttributeError, "no_such_name", getattr, flashjit, "no_such_name")
    facts = flashjit.Engine("host").prepare("fwd fp32 d=16").facts
    assert set(facts) == set(flashjit.Facts.__annotations__), set(facts) ^ set(flashjit.Facts.__annotations__)


if __name__ == "__main__":
    harness.main(globals())

"""The package on arrays of NumPy, against a reference in float64."""

import copy
import functools
import math
import os
import pickle
import signal
import sys
import threading
import time
import weakref

import support
from support import Skip, harness, load, refused, scratch


def reference(numpy, q, k, v, hidden=None, score=None, layout="bshd"):
    """O and the LSE. `hidden`: a function of grids of b, h, q, k; `score`: of s and these."""
    if layout == "bshd":
        q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    q, k, v = (x.astype("float64") for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (numpy.repeat(x, group, axis=1) for x in (k, v))
    s = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1])
    at = numpy.ogrid[:s.shape[0], :s.shape[1], :s.shape[2], :s.shape[3]]
    if score:
        s = score(s, *at)
    if hidden:
        s = numpy.where(hidden(*at), -numpy.inf, s)
    largest = numpy.maximum(s.max(axis=-1, keepdims=True), -1e300)
    p = numpy.exp(s - largest)
    total = p.sum(axis=-1, keepdims=True)
    with numpy.errstate(divide="ignore"):
        lse = (numpy.log(total) + largest)[..., 0]
    o = p / numpy.maximum(total, 1e-300) @ v
    return (o.transpose(0, 2, 1, 3) if layout == "bshd" else o), lse


def setting(shape=(2, 33, 6, 16), kv=(2, 47, 2, 16), dtype="float32"):
    flashjit, numpy = load("numpy")
    random = numpy.random.default_rng(1)
    q = random.standard_normal(shape).astype(dtype)
    k, v = (random.standard_normal(kv).astype(dtype) for _ in "kv")
    return flashjit, numpy, q, k, v


def close(numpy, got, wanted, limit=2e-5):
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    error = numpy.abs(got.astype("float64") - wanted).max()
    assert error < limit, error


def test_masks_scores_and_layouts():
    flashjit, numpy, q, k, v = setting()
    causal = lambda b, h, i, j: j > i + 47 - 33
    close(numpy, flashjit.attention(q, k, v), reference(numpy, q, k, v)[0])
    o, lse = flashjit.attention(q, k, v, mask="causal", lse=True)
    wanted, wanted_lse = reference(numpy, q, k, v, causal)
    close(numpy, o, wanted)
    close(numpy, lse, wanted_lse)
    _, lse = flashjit.attention(q, k, v, mask="causal", lse="log2")
    close(numpy, lse, wanted_lse / math.log(2))
    o = flashjit.attention(*(x.transpose(0, 2, 1, 3) for x in (q, k, v)), mask="causal", layout="bhsd")
    close(numpy, o, wanted.transpose(0, 2, 1, 3))
    close(numpy, flashjit.attention(q, k, v, mask="causal", align="top_left"), reference(numpy, q, k, v, lambda b, h, i, j: j > i)[0])
    close(numpy, flashjit.attention(q, k, v, scale=0.5), reference(numpy, q * 2, k, v)[0])
    half = [x.astype("float16") for x in (q, k, v)]
    o = flashjit.attention(*half, mask="causal")
    assert o.dtype == "float16"
    close(numpy, o, reference(numpy, *half, causal)[0], 2e-3)
    o = flashjit.attention(*half, mask="causal", spec="out=fp32")
    assert o.dtype == "float32"


def test_caches_of_int8():
    """Their dtype says so, and a spec that says it too is the same."""
    flashjit, numpy, q, k, v = setting()
    scales = [numpy.abs(x).max((1, 3)) / 127 for x in (k, v)]
    rounded = [numpy.rint(x / s[:, None, :, None]).astype("int8") for x, s in zip((k, v), scales)]
    numbers = {name: s.astype("float32") for name, s in zip(("scale_k", "scale_v"), scales)}
    o = flashjit.attention(q, *rounded, mask="causal", **numbers)
    wide = (x * s[:, None, :, None] for x, s in zip(rounded, scales))
    close(numpy, o, reference(numpy, q, *wide, lambda b, h, i, j: j > i + 47 - 33)[0])
    assert (flashjit.attention(q, *rounded, mask="causal", spec="kv=int8", **numbers) == o).all()
    refused(flashjit.InvalidError, ["kv: e4m3 in spec", "k is int8", "leave it out"], flashjit.attention, q, *rounded, spec="kv=e4m3")
    refused(flashjit.InvalidError, ["kv: int8 in spec", "k is fp32", "convert k and v"], flashjit.attention, q, k, v, spec="kv=int8")


def test_parameters_by_their_names():
    flashjit, numpy, q, k, v = setting()
    slopes = numpy.arange(6, dtype="float32") / 8
    documents = numpy.arange(2 * 47, dtype="int32").reshape(2, 47) // 9 % 4
    for cap in (5.0, 9.0):  # another value is the same kernel
        o = flashjit.attention(q, k, v, mask="documents[b, q] == documents[b, k]", score="cap * tanh(s / cap) + slopes[h] * (k - q)",
                               slopes=slopes, documents=documents, cap=cap)
        close(numpy, o, reference(numpy, q, k, v, lambda b, h, i, j: documents[b, i] != documents[b, j],
                                  lambda s, b, h, i, j: cap * numpy.tanh(s / cap) + slopes[h] * (j - i))[0])
    allowed = numpy.random.default_rng(2).random((33, 47)) < 0.5
    o = flashjit.attention(q, k, v, mask="allowed[q, k] != 0 & k >= n", allowed=allowed, n=3)
    close(numpy, o, reference(numpy, q, k, v, lambda b, h, i, j: ~allowed[i, j] | (j < 3))[0])
    for n in (numpy.int64(3), numpy.uint8(3)):  # NumPy's numbers, as Python's
        close(numpy, flashjit.attention(q, k, v, mask="k >= n", n=n), reference(numpy, q, k, v, lambda b, h, i, j: j < 3)[0])
    o = flashjit.attention(q, k, v, score="s * c", c=numpy.float32(0.5))
    close(numpy, o, reference(numpy, q, k, v, None, lambda s, *at: s / 2)[0])
    o = flashjit.attention(q, k, v, score="alibi", slope=slopes, align="top_left")
    close(numpy, o, reference(numpy, q, k, v, None, lambda s, b, h, i, j: s + slopes[h] * (j - i))[0])


def test_types_of_numbers():
    """A bool, and a number whose type says that it is small, are u8: masks of them are computed with 32 bits."""
    flashjit, numpy, q, k, v = setting()
    from flashjit import calls, tensors
    views = {name: tensors.view(x, name) for name, x in (("q", q), ("k", k), ("v", v))}
    for n, word in ((True, "u8"), (numpy.bool_(True), "u8"), (numpy.uint8(1), "u8"), (1, "i32"), (numpy.int64(1), "i32"), (2**31, "i64"),
                    (1.0, "fp32"), (numpy.float32(1), "fp32")):
        _, scalars = calls.split({"n": n})
        assert f'params="n: {word}"' in calls.spec_of("fwd", 'mask="k >= n"', views, scalars), (n, word)
        close(numpy, flashjit.attention(q, k, v, mask="k >= n", n=min(n, 1)), reference(numpy, q, k, v, lambda b, h, i, j: j < 1)[0])


def test_parameters_that_are_called_like_fields():
    flashjit, numpy, q, k, v = setting()
    packed, offsets = [x.reshape(-1, *x.shape[2:]) for x in (q, k, v)], lambda n: numpy.array([0, n, 2 * n], dtype="int32")
    seen = numpy.array([7, 30], dtype="int32")
    o = flashjit.attention(*packed, layout="packed", mask="k < paged[b]", paged=seen, offsets_q=offsets(33), offsets_k=offsets(47),
                           max_q_len=33, max_k_len=47)
    close(numpy, o.reshape(q.shape), reference(numpy, q, k, v, lambda b, h, i, j: j >= seen[b])[0])
    from flashjit import calls, tensors
    views = {name: tensors.view(x[:, :1], name) for name, x in (("q", q), ("k", k), ("v", v))}
    assert "q_len=1" in calls.spec_of("fwd", 'mask="k < q_len + 9"', views, {}).split()
    assert "q_len=1" not in calls.spec_of("fwd", "q_len<=4", views, {}).split()


def test_operands_by_their_names():
    flashjit, numpy, q, k, v = setting()
    lengths = numpy.array([5, 40], dtype="int32")
    o = flashjit.attention(q, k, v, k_lens=lengths)
    close(numpy, o, reference(numpy, q, k, v, lambda b, h, i, j: j >= lengths[b])[0])
    sink = numpy.linspace(-1, 3, 6, dtype="float32")
    _, lse = flashjit.attention(q, k, v, sink=sink, lse=True)
    close(numpy, lse, numpy.logaddexp(reference(numpy, q, k, v)[1], sink[:, None]))
    packed = [numpy.ascontiguousarray(x.reshape(-1, *x.shape[2:])) for x in (q, k, v)]
    o = flashjit.attention(*packed, layout="packed", mask="causal", offsets_q=numpy.array([0, 33, 66], dtype="int32"),
                           offsets_k=numpy.array([0, 47, 94], dtype="int32"), max_q_len=33, max_k_len=47)
    close(numpy, o.reshape(q.shape), reference(numpy, q, k, v, lambda b, h, i, j: j > i + 14)[0])
    table = numpy.array([[0, 2, 4], [5, 3, 1]], dtype="int32")
    pool = numpy.zeros((2, 6, 16, 2, 16), "float32")
    for b in range(2):
        for at, page in enumerate(table[b]):
            rows = slice(16 * at, min(16 * at + 16, 47))
            pool[0, page, :rows.stop - rows.start], pool[1, page, :rows.stop - rows.start] = k[b, rows], v[b, rows]
    o = flashjit.attention(q, pool[0], pool[1], layout="paged(16)", block_table=table, k_lens=lengths)
    close(numpy, o, reference(numpy, q, k, v, lambda b, h, i, j: j >= lengths[b])[0])


def test_strides_and_alignment():
    flashjit, numpy, q, k, v = setting()
    together = numpy.random.default_rng(3).standard_normal((2, 33, 3, 4, 24)).astype("float32")
    views = [together[:, :, i, :, :16] for i in range(3)]
    close(numpy, flashjit.attention(*views), reference(numpy, *views)[0])
    odd = [numpy.zeros(x.size + 1, "float32")[1:].reshape(x.shape) for x in (q, k, v)]
    for to, x in zip(odd, (q, k, v)):
        to[:] = x
    close(numpy, flashjit.attention(*odd), reference(numpy, q, k, v)[0])
    out = numpy.full((2, 33, 6, 20), 7, "float32")
    assert flashjit.attention(q, k, v, out=out[..., :16]).base is out
    close(numpy, out[..., :16], reference(numpy, q, k, v)[0])
    assert (out[..., 16:] == 7).all()
    one = flashjit.attention(q[:, :1], k, v, mask="causal")
    close(numpy, one, reference(numpy, q[:, :1], k, v)[0])


def test_whatever_speaks_dlpack():
    flashjit, numpy, q, k, v = setting()

    class Other:
        """An array of somebody else: NumPy's, behind the protocol."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __array_namespace__(self):
            return type("namespace", (), {"from_dlpack": staticmethod(lambda made: Other(numpy.from_dlpack(made)))})

    o, lse = flashjit.attention(Other(q), Other(k), Other(v), mask="causal", lse=True, align="top_left")
    assert isinstance(o, Other) and isinstance(lse, Other)
    close(numpy, o.array, reference(numpy, q, k, v, lambda b, h, i, j: j > i)[0])

    class Versioned(Other):
        def __dlpack__(self, **options):
            assert options == {"max_version": (1, 0)}
            return super().__dlpack__(**options)

    class Older(Other):
        def __dlpack__(self):
            return super().__dlpack__()

    for kind in (Versioned, Older):
        close(numpy, flashjit.attention(kind(q), kind(k), kind(v)).array, reference(numpy, q, k, v)[0])
    frozen = q.copy()
    frozen.flags.writeable = False
    close(numpy, flashjit.attention(Versioned(frozen), k, v).array, reference(numpy, q, k, v)[0])
    refused(flashjit.InvalidError, "read-only", flashjit.attention, Versioned(q), k, v, out=Versioned(frozen))

    class Elsewhere(Other):
        def __dlpack_device__(self):
            return 10, 0  # ROCm

    refused(flashjit.InvalidError, ["q", "copy it"], flashjit.attention, Elsewhere(q), Elsewhere(k), Elsewhere(v))


def test_bfloat16_of_others():
    """NumPy has it by ml_dtypes, and JAX has arrays of it."""
    flashjit, numpy, q, k, v = setting()
    try:
        import ml_dtypes
    except ImportError as error:
        raise Skip(f"no ml_dtypes ({error})") from None
    half = [x.astype(ml_dtypes.bfloat16) for x in (q, k, v)]
    wanted, wanted_lse = reference(numpy, *half)
    kinds = [lambda x: x]
    try:
        import jax.numpy
        kinds.append(jax.numpy.asarray)
    except ImportError as error:
        print(f"no jax ({error})")
    for kind in kinds:
        given = [kind(x) for x in half]
        o, lse = flashjit.attention(*given, lse=True)
        assert type(o) is type(given[0]) and o.dtype == ml_dtypes.bfloat16, (type(o), o.dtype)
        close(numpy, numpy.asarray(o), wanted, 2e-2)
        close(numpy, numpy.asarray(lse), wanted_lse, 2e-2)
    eight = [x.astype(ml_dtypes.float8_e4m3fn) for x in (q, k, v)]
    refused(flashjit.InvalidError, "no bf16", flashjit.attention, *eight)  # O would be e4m3, as NumPy has the type of Q alone


def test_what_is_refused():
    flashjit, numpy, q, k, v = setting()
    attention, invalid = flashjit.attention, flashjit.InvalidError
    for says, arguments, named in (
        (["q", "3 dimensions", "layout=bshd"], (q[0], k, v), {}),
        (["k", "3 dimensions"], (q, k[0], v), {}),
        (["v", "3 dimensions"], (q, k, v[0]), {}),
        ("64", (q, numpy.zeros((2, 47, 2, 64), "float32"), v), {}),
        ("batch", (q, k[:1], v[:1]), {}),
        ("46", (q, k, v[:, :46]), {}),
        (["5", "KV heads"], (q, numpy.zeros((2, 47, 5, 16), "float32"), numpy.zeros((2, 47, 5, 16), "float32")), {}),
        (["v: is fp16", "convert"], (q, k, v.astype("float16")), {}),
        (["float64", "convert"], (q.astype("float64"), k, v), {}),
        ([">f4", "convert"], (q.astype(">f4"), k, v), {}),
        (["q.data", "multiple of 4 bytes"], (numpy.frombuffer(bytes(q.nbytes + 1), "uint8")[1:].view("float32").reshape(q.shape), k, v), {}),
        ("contiguous", (q[..., ::2], k[..., ::2], v[..., ::2]), {}),
        ("no tensor", ([[[[1.0]]]], k, v), {}),
        ("no tensor", (q, 3, v), {}),
        ("masked", (numpy.ma.masked_array(q, q > 0), k, v), {}),
        ("`out`", (q, k, v), {"o": q}),
        ("v_in_k", (q, k, None), {}),
        ("casual", (q, k, v), {"mask": "casual"}),
        ("language", (q, k, v), {"mask": lambda b, h, i, j: j <= i}),
        ("language", (q, k, v), {"mask": 'causal" lse=ln mask="causal'}),
        ("lse", (q, k, v), {"lse": "log10"}),
        ("layout", (q, k, v), {"layout": "bshq"}),
        ("w", (q, k, v), {"w": 3.0}),
        ("w", (q, k, v), {"w": "3"}),
        ("w.item()", (q, k, v), {"score": "s * w", "w": numpy.ones((), "float32")}),
        ("w", (q, k, v), {"score": "s + w[k]", "w": numpy.zeros(46, "float32")}),
        ("offsets_q", (q.reshape(-1, 6, 16), k.reshape(-1, 2, 16), v.reshape(-1, 2, 16)), {"layout": "packed"}),
        ("o.shape[3]", (q, k, v), {"out": numpy.zeros((2, 33, 6, 8), "float32")}),
        ("o", (q, k, v), {"out": q}),
        ("out", (q, k, v), {"out": numpy.broadcast_to(numpy.float32(0), q.shape)}),
    ):
        refused(invalid, says, attention, *arguments, **named)
    refused(invalid, "seed", attention, q, k, v, spec="dropout=0.1")
    refused(invalid, "zero byte", attention, q, k, v, mask="causal", spec="numerics=fast\0")
    close(numpy, attention(q, k, v), reference(numpy, q, k, v)[0])


def test_nothing_to_do():
    flashjit, numpy, q, k, v = setting()
    assert flashjit.attention(q[:0], k[:0], v[:0]).shape == (0, 33, 6, 16)
    assert flashjit.attention(q[:, :0], k, v).shape == (2, 0, 6, 16)
    o, lse = flashjit.attention(q, k[:, :0], v[:, :0], lse=True)
    assert (o == 0).all() and (lse == -numpy.inf).all()
    none = numpy.zeros((0, 5, 2, 64), "float32")  # what rounds its tensors first has memory of its own
    assert flashjit.attention(none, none, none, spec="compute=e5m2").shape == none.shape


def test_engine_and_kernel():
    flashjit, numpy, q, k, v = setting()
    engine = flashjit.Engine("host", disk_cache=False, threads=1)
    kernel = engine.prepare('fwd fp32 d=16 heads=6/2 mask="causal" lse=ln', schedule="tile_q=64")
    o, lse = numpy.empty_like(q), numpy.empty((2, 6, 33), "float32")
    launch = kernel.bind({"q": q, "k": k, "v": v, "o": o, "lse": lse})
    for _ in range(2):
        o[:] = 0
        launch()
        close(numpy, o, reference(numpy, q, k, v, lambda b, h, i, j: j > i + 14)[0])
    gradients = {"dq": numpy.empty_like(q), "dk": numpy.empty_like(k), "dv": numpy.empty_like(v)}
    engine.prepare('bwd fp32 d=16 heads=6/2 mask="causal"').run(q=q, k=k, v=v, o=o, lse=lse, do=numpy.ones_like(o), **gradients)
    step = numpy.random.default_rng(4).standard_normal(v.shape) * 1e-3
    sums = [reference(numpy, q, k, v + sign * step, lambda b, h, i, j: j > i + 14)[0].sum() for sign in (-1, 1)]
    assert abs((gradients["dv"] * step).sum() - (sums[1] - sums[0]) / 2) < 1e-5
    assert kernel.facts["schedule"].count("tile_q=64") == 1 and "tile_q=64" in repr(kernel)
    assert engine.counters()["compiles"] == 2
    refused(flashjit.InvalidError, "lse", kernel.run, q=q, k=k, v=v, o=o)
    refused(flashjit.InvalidError, "o: is read-only", kernel.run, q=q, k=k, v=v, lse=lse, o=numpy.broadcast_to(numpy.float32(0), q.shape))
    refused(flashjit.InvalidError, "neither", flashjit.Engine, "cpu")
    refused(flashjit.InvalidError, "zero byte", engine.prepare, "fwd fp32 d=16", schedule="tile_q=64\0")
    for owner in (engine, kernel):
        assert copy.copy(owner) is owner and copy.deepcopy([owner])[0] is owner  # a handle is given back once
        refused(flashjit.InvalidError, "pickled", pickle.dumps, owner)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        refused(flashjit.InvalidError, ["launch", "bind them again"], copied, launch)
    refused(flashjit.InvalidError, ["heads: 0", "nothing to compute"], flashjit.attention, q[:, :, :0], k[:, :, :0], v[:, :, :0])
    engine.close()
    launch()  # prepared kernels stay usable
    refused(flashjit.InvalidError, "closed", engine.prepare, "fwd fp32 d=16")


def test_a_launch_keeps_its_tensors():
    """The caller may use its dict for the next thing."""
    flashjit, numpy, q, k, v = setting()
    kernel = flashjit.Engine("host", threads=1).prepare("fwd fp32 d=16 heads=6/2")
    values = {"q": q.copy(), "k": k.copy(), "v": v.copy(), "o": numpy.empty_like(q)}
    kept = [weakref.ref(array) for array in values.values()]
    o = values["o"]
    launch = kernel.bind(values)
    values["q"] = None
    values.clear()
    assert all(array() is not None for array in kept)
    launch()
    close(numpy, o, reference(numpy, q, k, v)[0])


def test_read_only_arrays_are_never_written():
    """Caches that `append` writes into, what quantize makes, gradients of parameters; and what is read may be read-only."""
    flashjit, numpy, *_ = setting()
    engine = flashjit.Engine("host", threads=1)

    def ones(*shape, dtype="float32", frozen=False):
        array = numpy.ones(shape, dtype)
        array.flags.writeable = not frozen
        return array

    def check(spec, frozen, **shapes):
        kernel = engine.prepare(spec)
        for name in shapes:
            arrays = {of: ones(*shape, frozen=of == name) for of, shape in shapes.items()}
            if name in frozen:
                refused(flashjit.InvalidError, f"{name}: is read-only", kernel.run, **arrays)
            else:
                kernel.run(**arrays)
            assert (arrays[name] == 1).all() or name not in frozen, f"{spec}: {name}"

    cache, row = (1, 16, 1, 8), (1, 1, 1, 8)
    check("fwd fp32 d=8 heads=1 append lse=ln", "k v o lse".split(), q=row, k=cache, v=cache, k_new=row, v_new=row, o=row, lse=(1, 1, 1))
    check('bwd fp32 d=8 heads=1 params="t: fp32[1]" score="s + t[h]" sink grads="t, sink"', "dq dk dv dt dsink".split(),
          **{name: row for name in "q k v o do dq dk dv".split()}, lse=(1, 1, 1), t=(1,), sink=(1,), dt=(1,), dsink=(1,))
    check("merge fp32 d=8 heads=1 lse=ln", ("o", "lse"), o_parts=(2, *row), lse_parts=(2, 1, 1, 1), o=row, lse=(1, 1, 1))
    scale, y = ones(1, 1, frozen=True), ones(1, 2, 1, 16, dtype="uint8", frozen=True)
    for says, of_scale, of_y in (("scale: is read-only", scale, y.copy()), ("y: is read-only", scale.copy(), y)):
        refused(flashjit.InvalidError, says, engine.prepare("quantize fp32 d=16 heads=1").run, x=ones(1, 2, 1, 16), scale=of_scale, y=of_y)
    assert (scale == 1).all()
    q, k, v = ones(*row), ones(*cache), ones(*cache)
    numpy.save(scratch("cache.npy"), k)
    for k in (numpy.frombuffer(bytes(v.nbytes), "float32").reshape(cache), numpy.load(scratch("cache.npy"), mmap_mode="r")):
        before = k.copy()
        refused(flashjit.InvalidError, "k: is read-only", flashjit.attention, q, k, v, k_new=q, v_new=q)
        assert (k == before).all()
    o = flashjit.attention(q, v.copy(), v.copy(), k_new=q, v_new=q)
    assert o.shape == row
    from flashjit.specs import written_by
    assert written_by('bwd fp32 d=8 mask="k < append & q != grads" grads=t') == {"dq", "dk", "dv", "dt"}


# Whoever prepares kernels by hand says what calls bring; `attention` brings what is needed.
def test_attention_says_that_it_brings_a_workspace():
    flashjit, numpy, q, k, v = setting()
    said, prepare = [], flashjit.Engine.prepare

    def watched(engine, spec, **options):
        said.append(options.get("workspace", False))
        return prepare(engine, spec, **options)
    flashjit.Engine.prepare = watched
    try:
        flashjit.attention(q[..., :8].copy(), k[..., :8].copy(), v[..., :8].copy(), scale=0.4321)
    finally:
        flashjit.Engine.prepare = prepare
    assert said == [True], said
    engine = flashjit.Engine("host", disk_cache=False, threads=1)
    for workspace in (False, True):
        assert engine.prepare("fwd fp32 d=16 heads=2", shape="b=1,q=1,k=5000", workspace=workspace).facts["spec"] == "fwd fp32 d=16 heads=2"


def test_explain_compile_and_tune():
    flashjit, numpy, *_ = setting()
    engine = flashjit.Engine("host")
    kernel = engine.prepare("fwd fp32 d=16 heads=2")
    plan = kernel.explain(shape="b=1,q=64,k=64")
    assert repr(plan) == str(plan) and kernel.facts["schedule"] in plan
    for explained in (kernel.explain, functools.partial(engine.explain, "fwd fp32 d=16 heads=2"),
                      functools.partial(flashjit.explain, "fwd bf16 d=64", "sm_90a")):
        assert "--all says the rest" in explained() and "program forward" in explained(all=True, html=scratch("explained.html"))
        assert b"<html" in harness.read(scratch("explained.html"))
        os.remove(scratch("explained.html"))
    found = engine.tune("fwd fp32 d=16 heads=2", "b=1,q=64,k=64", budget="1s")
    assert found["best_us"] > 0 and "family=host" in found["best_schedule"]
    found.report(scratch("tuned.html"))
    assert b"<html" in harness.read(scratch("tuned.html"))
    assert engine.compile("fwd fp32 d=24 heads=2")[0]["spec"] == "fwd fp32 d=24 heads=2"
    refused(flashjit.InvalidError, "pad with zeros to d=104", flashjit.compile, "fwd bf16 d=100", "sm_90a")
    refused(flashjit.InvalidError, "sm_1", flashjit.explain, "fwd bf16 d=64", "sm_1")


def test_threads():
    flashjit, numpy, q, k, v = setting()
    wrong = []

    def work(heads):
        for length in range(20, 40):
            o = flashjit.attention(q[:, :, :heads], k[:, :length], v[:, :length], mask="causal")
            wanted = reference(numpy, q[:, :, :heads], k[:, :length], v[:, :length], lambda b, h, i, j: j > i + length - 33)[0]
            wrong.append(numpy.abs(o - wanted).max())

    threads = [threading.Thread(target=work, args=(heads,)) for heads in (2, 2, 4, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 80 and max(wrong) < 2e-5, wrong


def test_a_signal_while_an_engine_is_made():
    """Its handler runs in the thread that makes the engine, and may call attention."""
    flashjit, numpy, q, k, v = setting()
    calls = sys.modules["flashjit.calls"]
    seen = []

    def make(*arguments):
        if not seen:
            seen.append(None)
            signal.raise_signal(signal.SIGUSR1)
        return flashjit.Engine(*arguments)

    calls._engines.clear()
    calls.Engine = make
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(flashjit.attention(q, k, v)))
    signal.alarm(60)  # instead of waiting for ever
    o = flashjit.attention(q, k, v)
    signal.alarm(0)
    assert len(seen) == 2 and numpy.array_equal(seen[1], o) and len(calls._engines) == 1


def test_any_blank_stands_between_fields():
    flashjit, numpy, q, k, v = setting()
    o, lse = flashjit.attention(q, k, v, lse=True)
    for spec in ("numerics=deterministic\tlse=ln", "\nlse=ln"):
        found = flashjit.attention(q, k, v, spec=spec)
        assert len(found) == 2 and numpy.array_equal(found[0], o) and numpy.array_equal(found[1], lse), spec


def test_an_engine_that_is_closed_while_others_prepare():
    flashjit, numpy, q, k, v = setting()
    for delay in range(4):
        engine, outcomes = flashjit.Engine("host", disk_cache=False), []

        def work(d):
            try:
                outcomes.append(engine.prepare(f"fwd fp32 d={d}").facts["spec"])
            except flashjit.InvalidError as error:
                outcomes.append(error.message)

        threads = [threading.Thread(target=work, args=(d,)) for d in (8, 16, 24)]
        for thread in threads:
            thread.start()
        time.sleep(0.03 * delay)
        engine.close()
        for thread in threads:
            thread.join()
        assert len(outcomes) == 3 and all("d=" in text or "closed" in text for text in outcomes), outcomes


if __name__ == "__main__":
    harness.main(globals())

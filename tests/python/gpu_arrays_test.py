"""The package on a GPU's arrays that are not PyTorch's: CuPy's through DLPack, and JAX's, which are for reading alone."""

from numpy_test import reference
from support import Skip, harness, load, refused


class Setting:
    """fp16, since CuPy has no bf16."""

    def __init__(self):
        self.flashjit, self.numpy, self.cupy = load("numpy", "cupy", device="gpu")
        random = self.numpy.random.default_rng(1)
        self.q, self.k, self.v = (self.cupy.asarray(random.standard_normal(shape).astype("float16"))
                                  for shape in ((2, 133, 8, 64), (2, 1500, 2, 64), (2, 1500, 2, 64)))

    def close(self, got, wanted, limit=2e-3):
        assert isinstance(got, self.cupy.ndarray) and got.shape == wanted.shape, (type(got), got.shape, wanted.shape)
        error = self.numpy.abs(self.cupy.asnumpy(got).astype("float64") - wanted).max()
        assert error < limit, error

    def wanted(self, q=None, hidden=None, score=None):
        arrays = (self.cupy.asnumpy(x) for x in (self.q if q is None else q, self.k, self.v))  # which leaves NumPy's as they are
        return reference(self.numpy, *arrays, hidden, score)


def test_masks_scores_and_layouts():
    setting = Setting()
    cupy, attention, q, k, v = setting.cupy, setting.flashjit.attention, setting.q, setting.k, setting.v
    slopes = cupy.arange(8, dtype="float32") / 8
    o, lse = attention(q, k, v, mask="causal & k >= n", score="s + slopes[h] * (k - qpos) * 0.01", lse=True, slopes=slopes, n=3)
    by_head = cupy.asnumpy(slopes).reshape(1, 8, 1, 1)
    wanted, wanted_lse = setting.wanted(hidden=lambda b, h, i, j: (j > i + 1367) | (j < 3),
                                        score=lambda s, b, h, i, j: s + by_head * (j - i - 1367) * 0.01)
    setting.close(o, wanted)
    setting.close(lse, wanted_lse)
    o = cupy.empty((2, 8, 133, 64), "float32")
    assert attention(*(x.transpose(0, 2, 1, 3) for x in (q, k, v)), layout="bhsd", out=o) is o
    setting.close(o, setting.wanted()[0].transpose(0, 2, 1, 3))
    refused(setting.flashjit.InvalidError, "memory", attention, q, cupy.asnumpy(k), v)


def test_streams_and_workspaces():
    setting = Setting()
    cupy, q = setting.cupy, setting.q
    one = q[:, -1:].copy()  # decoding, whose kernels need a workspace
    wanted = [setting.wanted(x)[0] for x in (q, one)]
    stream = cupy.cuda.Stream(non_blocking=True)
    for _ in range(20):
        with stream:
            late = [cupy.zeros_like(x) for x in (q, one)]
            cupy.random.random(1 << 22)  # takes a while, and what follows must wait for it
            for to, x in zip(late, (q, one)):
                to += x
            results = [setting.flashjit.attention(x, setting.k, setting.v) for x in late]
            results = [x + 0 for x in results]
        stream.synchronize()
        for got, want in zip(results, wanted):
            setting.close(got, want)


def test_several_devices():
    setting = Setting()
    cupy = setting.cupy
    count = cupy.cuda.runtime.getDeviceCount()
    if count < 2:
        raise Skip("fewer than two GPUs that CuPy can use")
    for device in range(count):
        with cupy.cuda.Device(device):
            q, k, v = (cupy.asarray(cupy.asnumpy(x)) for x in (setting.q, setting.k, setting.v))
        for queries in (q, q[:, -1:]):
            o = setting.flashjit.attention(queries, k, v)  # the current device is the first
            assert o.device.id == device
            with cupy.cuda.Device(device):
                setting.close(o, setting.wanted(cupy.asnumpy(queries))[0])


def test_arrays_of_jax():
    """Its arrays cannot be written to: PyTorch's tensors, or CuPy's arrays, can be made of them without a copy."""
    setting = Setting()
    try:
        import jax.numpy
    except ImportError as error:
        raise Skip(f"no jax ({error})") from None
    theirs = [jax.numpy.asarray(setting.cupy.asnumpy(x)) for x in (setting.q, setting.k, setting.v)]
    if theirs[0].__dlpack_device__()[0] != 2:
        raise Skip("jax sees no GPU")
    refused(setting.flashjit.InvalidError, ["jax", "from_dlpack"], setting.flashjit.attention, *theirs)
    setting.close(setting.flashjit.attention(*map(setting.cupy.from_dlpack, theirs)), setting.wanted()[0])


if __name__ == "__main__":
    harness.main(globals())

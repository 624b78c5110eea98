"""FlashJIT from Python through its C API and ctypes: on PyTorch's tensors, which come as DLPack capsules, or on arrays of ctypes.

    attention.py libflashjit.so torch    on a GPU: against PyTorch's own attention, and in a CUDA graph
    attention.py libflashjit.so host     on the processor

Exit code 77: something is missing, and the last line says what."""
import ctypes
import sys
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint64, c_void_p


class Device(ctypes.Structure):
    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class Dtype(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device", Device), ("ndim", c_int32), ("dtype", Dtype), ("shape", POINTER(c_int64)),
                ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


class EngineOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("host", c_int32), ("ordinal", c_int32), ("target", c_char_p), ("cache_dir", c_char_p),
                ("no_disk_cache", c_int32), ("threads", c_int32), ("cache_max_bytes", c_uint64)]


class Arguments(ctypes.Structure):
    _fields_ = ([("struct_size", c_size_t)] +
                [(name, POINTER(Tensor)) for name in ("q", "k", "v", "o", "lse", "max_logit", "sink", "offsets_q", "offsets_k")] +
                [("max_q_len", c_int64), ("max_k_len", c_int64), ("params", c_void_p), ("param_count", c_int64)])


class FlashJit:
    def __init__(self, path, **options):
        self.lib = ctypes.CDLL(path)
        for name in ("engine_target", "kernel_facts", "error_message", "status_name"):
            getattr(self.lib, "flashjit_" + name).restype = c_char_p
        self.engine = c_void_p()
        options = EngineOptions(struct_size=ctypes.sizeof(EngineOptions), **options)
        self.call("engine_create", byref(options), byref(self.engine))

    def call(self, name, *arguments):
        error = c_void_p()
        status = getattr(self.lib, "flashjit_" + name)(*arguments, byref(error))
        if status:
            text = self.lib.flashjit_error_message(error).decode()
            self.lib.flashjit_error_destroy(error)
            if status == 3:  # FLASHJIT_NOT_FOUND
                skip(text)
            raise RuntimeError(f"{self.lib.flashjit_status_name(status).decode()}: {text}")

    def prepare(self, spec):
        kernel = c_void_p()
        self.call("prepare", self.engine, spec.encode(), None, byref(kernel))
        return kernel

    def run(self, kernel, stream=None, **tensors):
        """Tensors are kept by the caller; what is made here only has to live during the call."""
        arguments = Arguments(struct_size=ctypes.sizeof(Arguments), **{name: ctypes.pointer(t) for name, t in tensors.items()})
        self.call("run", kernel, byref(arguments), c_void_p(stream))


def skip(reason):
    print("skipped:", reason)
    sys.exit(77)


def from_torch(tensor):
    """The DLTensor at the beginning of the DLManagedTensor in PyTorch's capsule, and the capsule, which keeps it."""
    from torch.utils.dlpack import to_dlpack
    capsule = to_dlpack(tensor)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]
    seen = Tensor.from_address(pointer(capsule, b"dltensor"))
    seen.capsule = capsule
    return seen


def on_torch(path):
    try:
        import torch
    except ImportError:
        skip("no PyTorch on this machine")
    if not torch.cuda.is_available():
        skip("no GPU that PyTorch can use")
    library = FlashJit(path, ordinal=torch.cuda.current_device())
    kernel = library.prepare('fwd bf16 d=128 heads=8/2 mask="causal"')
    make = lambda heads: torch.randn(2, 300, heads, 128, device="cuda", dtype=torch.bfloat16)
    q, k, v, o = make(8), make(2), make(2), make(8)
    tensors = {name: from_torch(t) for name, t in (("q", q), ("k", k), ("v", v), ("o", o))}
    library.run(kernel, torch.cuda.current_stream().cuda_stream, **tensors)
    wide = lambda t: t.transpose(1, 2).float().repeat_interleave(8 // t.shape[2], dim=1)
    expected = torch.nn.functional.scaled_dot_product_attention(wide(q), wide(k), wide(v), is_causal=True).transpose(1, 2)
    error = (o.float() - expected).abs().max().item()
    eager = o.clone()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        library.run(kernel, torch.cuda.current_stream().cuda_stream, **tensors)
    o.zero_()
    graph.replay()
    torch.cuda.synchronize()
    same = torch.equal(o, eager)
    print(f"{library.lib.flashjit_engine_target(library.engine).decode()}: largest error {error:.4f}, replay has the same bits: {same}")
    return error < 0.03 and same


def on_host(path):
    library = FlashJit(path, host=1)
    kernel = library.prepare('fwd fp32 d=32 heads=2 mask="causal"')
    tokens, heads, d = 5, 2, 32
    shape = (c_int64 * 4)(1, tokens, heads, d)
    make = lambda step: (ctypes.c_float * (tokens * heads * d))(*[i * step % 3 for i in range(tokens * heads * d)])
    arrays = {"q": make(0.5), "k": make(0.25), "v": make(0.125), "o": make(0)}
    library.run(kernel, **{name: Tensor(ctypes.addressof(array), Device(1, 0), 4, Dtype(2, 32, 1), shape)
                           for name, array in arrays.items()})
    print(f"{library.lib.flashjit_engine_target(library.engine).decode()}: o[0] = {arrays['o'][0]}")
    return list(arrays["o"][:heads * d]) == list(arrays["v"][:heads * d])  # the first token sees itself alone


if __name__ == "__main__":
    sys.exit(0 if {"torch": on_torch, "host": on_host}[sys.argv[2]](sys.argv[1]) else 1)

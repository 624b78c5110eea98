"""The C API (runtime/include/flashjit/flashjit.h) through ctypes. Tensors are PyTorch's, but PyTorch is not imported here."""
import ctypes
import json


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
                ("threads", ctypes.c_int32), ("cache_max_bytes", ctypes.c_uint64)]


class PrepareOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("schedule", ctypes.c_char_p), ("capturing_stream", ctypes.c_void_p),
                ("timeout_ms", ctypes.c_int64), ("budget_ms", ctypes.c_int64), ("cancel", ctypes.c_void_p),
                ("shape", ctypes.c_char_p)]


class Param(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("tensor", ctypes.POINTER(Tensor)), ("scalar", ctypes.c_double)]


# Operands of the first version. Later ones are given by their names alone, as parameters are.
FIELDS = ("q", "k", "v", "o", "lse", "max_logit", "sink", "offsets_q", "offsets_k")


class Arguments(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t)] + [(name, ctypes.POINTER(Tensor)) for name in FIELDS] + [
        ("max_q_len", ctypes.c_int64), ("max_k_len", ctypes.c_int64), ("params", ctypes.POINTER(Param)),
        ("param_count", ctypes.c_int64), ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_int64)]


DTYPES = {"torch.float32": (2, 32), "torch.float16": (2, 16), "torch.bfloat16": (4, 16), "torch.int32": (0, 32), "torch.int64": (0, 64)}


def dropped_share(dropout):
    """What `dropout` of a spec drops: so many of 256 weights."""
    return int(256 * dropout + 0.5) / 256


class FlashJitError(Exception):
    pass


class Library:
    def __init__(self, path):
        try:
            lib = self.lib = ctypes.CDLL(str(path))
        except OSError as error:
            raise FlashJitError(f"--lib: {error}; build it with tools/try, or name another libflashjit.so") from None
        pointer = ctypes.c_void_p
        out = ctypes.POINTER(pointer)
        lib.flashjit_engine_create.argtypes = [ctypes.POINTER(EngineOptions), out, out]
        lib.flashjit_prepare.argtypes = [pointer, ctypes.c_char_p, ctypes.POINTER(PrepareOptions), out, out]
        lib.flashjit_run.argtypes = [pointer, ctypes.POINTER(Arguments), pointer, out]
        self.workspace_bytes = getattr(lib, "flashjit_workspace_bytes", None)  # None: a version before it
        if self.workspace_bytes:
            self.workspace_bytes.argtypes = [pointer, ctypes.POINTER(Arguments), ctypes.POINTER(ctypes.c_int64), out]
        lib.flashjit_engine_target.argtypes = lib.flashjit_kernel_facts.argtypes = [pointer]
        lib.flashjit_error_message.argtypes = lib.flashjit_error_destroy.argtypes = [pointer]
        lib.flashjit_error_destroy.restype = None
        for name in ("engine_target", "kernel_facts", "error_message", "version"):
            getattr(lib, "flashjit_" + name).restype = ctypes.c_char_p

    def version(self):
        return self.lib.flashjit_version().decode()

    def check(self, status, error):
        if status == 0:
            return
        text = self.lib.flashjit_error_message(error).decode()
        self.lib.flashjit_error_destroy(error)
        raise FlashJitError(text)


class Engine:
    def __init__(self, library, host=False, threads=0, disk_cache=True):
        self.library = library
        options = EngineOptions(struct_size=ctypes.sizeof(EngineOptions), host=int(host), threads=threads,
                                no_disk_cache=int(not disk_cache))
        self.handle, error = ctypes.c_void_p(), ctypes.c_void_p()
        status = library.lib.flashjit_engine_create(ctypes.byref(options), ctypes.byref(self.handle), ctypes.byref(error))
        library.check(status, error)
        self.target = library.lib.flashjit_engine_target(self.handle).decode()

    def prepare(self, spec, schedule=None, shape=None):
        return Kernel(self, spec, schedule, shape)


class Kernel:
    def __init__(self, engine, spec, schedule, shape):
        self.library = engine.library
        self.handle, error = ctypes.c_void_p(), ctypes.c_void_p()
        options = PrepareOptions(struct_size=ctypes.sizeof(PrepareOptions), schedule=schedule.encode() if schedule else None,
                                 shape=shape.encode() if shape else None)
        status = self.library.lib.flashjit_prepare(engine.handle, spec.encode(), ctypes.byref(options), ctypes.byref(self.handle),
                                                   ctypes.byref(error))
        self.library.check(status, error)
        self.facts = json.loads(self.library.lib.flashjit_kernel_facts(self.handle).decode())

    def bind(self, operands, params, longest=0, stream=None):
        """A function that launches on these tensors, both by their names: everything but the call itself is done here."""
        kept = []

        def view(tensor):
            code, bits = DTYPES[str(tensor.dtype)]
            shape = (ctypes.c_int64 * tensor.dim())(*tensor.shape)
            strides = (ctypes.c_int64 * tensor.dim())(*tensor.stride())
            place = Device(2, tensor.device.index or 0) if tensor.is_cuda else Device(1, 0)
            made = Tensor(tensor.data_ptr(), place, tensor.dim(), Dtype(code, bits, 1), shape, strides, 0)
            kept.extend([tensor, shape, strides, made])
            return ctypes.pointer(made)

        fields = {name: view(tensor) for name, tensor in operands.items() if name in FIELDS}
        named = [item for item in operands.items() if item[0] not in FIELDS] + list(params.items())
        given = [Param(name.encode(), view(tensor)) for name, tensor in named]
        kept.append(given)
        arguments = Arguments(struct_size=ctypes.sizeof(Arguments), max_q_len=longest, max_k_len=longest,
                              params=(Param * len(given))(*given), param_count=len(given), **fields)
        error, needed = ctypes.c_void_p(), ctypes.c_int64()
        if self.library.workspace_bytes:
            status = self.library.workspace_bytes(self.handle, ctypes.byref(arguments), ctypes.byref(needed), ctypes.byref(error))
            self.library.check(status, error)
        if needed.value:
            kept.append(operands["o"].new_empty(needed.value, dtype=operands["o"].dtype))
            arguments.workspace, arguments.workspace_bytes = kept[-1].data_ptr(), needed.value
        stream = ctypes.c_void_p(stream)
        call, reference, error_reference = self.library.lib.flashjit_run, ctypes.byref(arguments), ctypes.byref(error)

        def launch(kept=kept):
            status = call(self.handle, reference, stream, error_reference)
            if status:
                self.library.check(status, error)
            return operands["o"]

        return launch

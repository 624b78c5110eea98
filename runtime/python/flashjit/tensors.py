"""The C API takes tensors of others: PyTorch's, NumPy's arrays, and every object that speaks DLPack. This imports none
of their libraries."""

from __future__ import annotations

import ctypes
import functools
import sys
from ctypes import c_char_p, c_int64, c_uint64, c_void_p
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence

from flashjit.capi import Device, Dtype, InvalidError, Tensor, UnsupportedError, array

HOST, CUDA = 1, 2  # These are DLPack's device types.

# Each name has code and bits of DLPack, and the spec's word.
DTYPES = {
    "float16": (2, 16, "fp16"), "bfloat16": (4, 16, "bf16"), "float32": (2, 32, "fp32"), "float8_e4m3fn": (10, 8, "e4m3"),
    "float8_e5m2": (12, 8, "e5m2"), "int8": (0, 8, "int8"), "int32": (0, 32, "i32"), "int64": (0, 64, "i64"),
    "uint32": (1, 32, "u32"), "uint8": (1, 8, "u8"), "bool": (6, 8, "u8"),
}
_WORDS = {(code, bits): word for code, bits, word in DTYPES.values()}
# These are the names of NumPy and PyTorch, by the spec's word.
NAMES = {word: name for name, (_, _, word) in reversed(DTYPES.items())}
_COMPUTED = ("float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2")
_READ = ("float16", "bfloat16", "float32", "int32", "int64", "uint32", "uint8", "bool")  # Masks and scores read these.
_TAKEN = {"q": _COMPUTED, "k": (*_COMPUTED, "int8"), "v": (*_COMPUTED, "int8"), "o": _COMPUTED[:3], "out": _COMPUTED[:3]}


class View(NamedTuple):
    """This is a tensor in the C API's structure, with the properties that a spec needs."""

    tensor: Tensor
    dtype: str  # the spec's word
    shape: tuple[int, ...]
    writable: bool = True


def _torch() -> Any:
    return sys.modules.get("torch")


def is_torch(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_numpy(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def refuse_gradients(values: Mapping[str, Any]) -> None:
    """Refuses gradients, and graphs of torch.compile, in calls that neither of them sees."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if torch.compiler.is_dynamo_compiling():
        raise UnsupportedError("the call is traced, and only attention() is an operator of PyTorch; call this outside of torch.compile")
    if not torch.is_grad_enabled():
        return
    for name, value in values.items():
        if isinstance(value, torch.Tensor) and value.requires_grad:
            raise InvalidError(f"{name}: has requires_grad, and a Kernel gives no gradients; use flashjit.attention, give {name}.detach(), or call "
                               "under torch.no_grad()")


def notice_of_changes(values: Iterable[Any]) -> Callable[[], None] | None:
    """Returns a function that tells autograd that these were written to, and that what it kept of them is lost. Returns
    None if PyTorch has none of them."""
    changed = [value for value in values if is_torch(value) and not value.is_inference()]
    return functools.partial(_torch().autograd.graph.increment_version, changed) if changed else None


def make(address: int, device: tuple[int, int], dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], kept: object = None) -> View:
    code, bits, word = DTYPES[dtype]
    tensor = Tensor(address, Device(*device), len(shape), Dtype(code, bits, 1))
    resize(tensor, shape, strides)
    tensor.kept = kept
    return View(tensor, word, shape)


def resize(tensor: Tensor, shape: Sequence[int], strides: Sequence[int]) -> None:
    """Resizes a tensor without changing the number of its dimensions."""
    sizes = array(c_int64, len(shape))
    tensor.shape, tensor.strides = sizes(*shape), sizes(*strides)


def view(value: Any, name: str, stream: int | None = None) -> View:
    """Returns a view of `value`, without a copy. The value must live as long as the view."""
    if isinstance(value, View):
        return value
    if is_torch(value):
        return _view_torch(value, name)
    if is_numpy(value):
        return _view_numpy(value, name)
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        return _view_dlpack(value, name, stream)
    if hasattr(value, "item"):  # This is a number of NumPy.
        raise one_number(name)
    raise InvalidError(f"{name}: {type(value).__name__} is no tensor; give one of PyTorch or NumPy, or anything with __dlpack__")


def one_number(name: str, dtype: str = "") -> InvalidError:
    """`dtype` is that of a tensor, in the library's words. Python's ints are i32, so the message has to name a u8."""
    item = f"numpy.uint8({name}.item())" if dtype == "u8" else f"{name}.item()"
    return InvalidError(f"{name}: is one number, and neither int nor float; give {item}, or {name}.view(1), which is read as {name}[0] and "
                        "may have a gradient")


def nested(name: str) -> InvalidError:
    return InvalidError(f"{name}: is a nested tensor, which has no strides; give its values, with layout=\"packed\" and the offsets as "
                        "offsets_q and offsets_k")


def not_strided(name: str, layout: object) -> InvalidError:
    return InvalidError(f"{name}: its layout is {layout}, and kernels read strided tensors; use .to_dense()")


def no_stream(stream: int) -> InvalidError:
    return InvalidError(f"stream: {stream} is a CUDA stream, and the call runs on a processor; leave it out")


def _dtype_error(name: str, dtype: object) -> InvalidError:
    return InvalidError(f"{name}: is {dtype}, which kernels do not take for it; convert it to one of {', '.join(_TAKEN.get(name, _READ))}")


def check_computed(name: str, dtype: str) -> None:
    """Checks the dtype of q, k and v, in the spec's word."""
    if NAMES[dtype] not in _TAKEN[name]:
        raise _dtype_error(name, NAMES[dtype])


def _view_torch(value: Any, name: str) -> View:
    torch = _torch()
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise _dtype_error(name, dtype)
    if value.is_nested:
        raise nested(name)
    if value.layout is not torch.strided:
        raise not_strided(name, value.layout)
    if value.device.type not in ("cpu", "cuda"):
        raise InvalidError(f"{name}: lies on {value.device}; move it to cpu or cuda")
    if value.is_neg():  # The sign is not in memory.
        raise InvalidError(f"{name}: is a view that negates; use .resolve_neg()")
    try:
        address = value.data_ptr()
    except RuntimeError:
        raise InvalidError(f"{name}: has no memory of its own; give a tensor that has") from None
    return make(address, torch_device(value.device), dtype, tuple(value.shape), tuple(value.stride()))


def torch_device(device: Any) -> tuple[int, int]:
    return (HOST, 0) if device.type == "cpu" else (CUDA, device.index)


def _view_numpy(value: Any, name: str) -> View:
    dtype, size = value.dtype.name, value.dtype.itemsize
    if dtype not in DTYPES:
        raise _dtype_error(name, dtype)
    if not value.dtype.isnative:
        raise InvalidError(f'{name}: is {value.dtype.str}, {dtype} in the byte order of other machines; convert it with {name}.astype("{dtype}")')
    if hasattr(value, "mask"):
        raise InvalidError(f"{name}: is a masked array, and kernels do not see its mask; use .filled()")
    if any(stride % size for stride in value.strides):
        raise InvalidError(f"{name}: strides of {value.strides} bytes are no multiples of its {size} byte elements; use numpy.ascontiguousarray")
    made = make(value.__array_interface__["data"][0], (HOST, 0), dtype, value.shape, tuple(stride // size for stride in value.strides))
    return made._replace(writable=bool(value.flags.writeable))


def _pointer(capsule: object, name: bytes) -> int:
    function = ctypes.pythonapi.PyCapsule_GetPointer
    function.restype, function.argtypes = c_void_p, [ctypes.py_object, c_char_p]
    return int(function(capsule, name))


# A DLManagedTensorVersioned has these offsets, behind version, context and deleter. The lowest flag means that the
# tensor is read-only.
_FLAGS, _TENSOR = 24, 32


def _view_dlpack(value: Any, name: str, stream: int | None) -> View:
    """Finds the DLTensor in a DLManagedTensorVersioned or, for libraries that do not know it, at the beginning of a
    DLManagedTensor. The capsule, which is not consumed, frees it in the end."""
    kind = value.__dlpack_device__()[0]
    if kind not in (HOST, CUDA):
        raise InvalidError(f"{name}: lies on a device of DLPack's type {int(kind)}; copy it to the processor or a CUDA GPU")
    # 1 is CUDA's default stream, which is meant if none is given.
    options = {"stream": stream or 1} if kind == CUDA else {}
    try:
        capsule = value.__dlpack__(max_version=(1, 0), **options)
    except TypeError:
        capsule = value.__dlpack__(**options)
    versioned = "dltensor_versioned" in repr(capsule)
    address = _pointer(capsule, b"dltensor_versioned" if versioned else b"dltensor")
    # JAX's arrays never change, but it does not say so here.
    writable = not (versioned and c_uint64.from_address(address + _FLAGS).value & 1 or type(value).__module__.startswith("jax"))
    tensor = Tensor.from_address(address + _TENSOR if versioned else address)
    tensor.kept = (value, capsule)
    key = tensor.dtype.code, tensor.dtype.bits
    if key not in _WORDS or tensor.dtype.lanes != 1:
        raise _dtype_error(name, f"DLPack's type code {key[0]} of {key[1]} bits")
    return View(tensor, _WORDS[key], tuple(tensor.shape[:tensor.ndim]), writable)


def current_stream(like: Any) -> int | None:
    """Returns the stream on which the caller of PyTorch or CuPy works, or None on processors and for other libraries."""
    if is_torch(like):
        return int(_torch().cuda.current_stream(like.device).cuda_stream) if like.is_cuda else None
    if type(like).__module__.startswith("cupy"):
        return int(sys.modules["cupy"].cuda.get_current_stream(like.device.id).ptr)
    return None


def new_bytes(like: Any, count: int, stream: int | None = None) -> tuple[int, object]:
    """Returns memory for a workspace of a call on this stream, where `like` lies: its address, at a multiple of 256,
    and the object that keeps it."""
    more = count + 255
    kept: Any
    if is_torch(like):
        kept = _torch().empty(more, dtype=_torch().uint8, device=like.device)
        address = kept.data_ptr()
        # Otherwise the memory would be given to others when the call is made, not when it is done.
        if stream and stream != current_stream(like):
            kept.record_stream(_torch().cuda.ExternalStream(stream, device=like.device))
    elif not is_numpy(like) and like.__dlpack_device__()[0] == CUDA:
        if not type(like).__module__.startswith("cupy"):
            raise InvalidError(f"workspace: this kernel needs {count} bytes of it, and {type(like).__module__} has no way to "
                               "give them; use PyTorch's or CuPy's tensors, made by their from_dlpack")
        cupy = sys.modules["cupy"]
        with like.device, cupy.cuda.ExternalStream(stream or 0):  # The memory belongs to this stream then.
            kept = cupy.empty(more, dtype="uint8")
        address = kept.data.ptr
    else:
        kept = ctypes.create_string_buffer(more)
        address = ctypes.addressof(kept)
    return -(-address // 256) * 256, kept

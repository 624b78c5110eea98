"""This module is the C API (flashjit/flashjit.h) through ctypes: its structures, the library, and its errors as
exceptions."""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any


class Device(ctypes.Structure):
    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class Dtype(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class Tensor(ctypes.Structure):
    """This is a DLTensor. Its attribute `kept` keeps the memory that it points to."""

    _fields_ = [("data", c_void_p), ("device", Device), ("ndim", c_int32), ("dtype", Dtype), ("shape", POINTER(c_int64)),
                ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]
    kept: object


class EngineOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("host", c_int32), ("ordinal", c_int32), ("target", c_char_p),
                ("cache_dir", c_char_p), ("no_disk_cache", c_int32), ("threads", c_int32), ("cache_max_bytes", c_uint64),
                ("bundles", POINTER(c_char_p)), ("bundle_count", c_int64), ("required", c_char_p), ("record", c_char_p),
                ("override_dir", c_char_p), ("isolate_compiler", c_int64), ("untuned", c_int64), ("trusted_list", c_char_p),
                ("no_jit", c_int64)]


class PrepareOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("schedule", c_char_p), ("capturing_stream", c_void_p), ("timeout_ms", c_int64),
                ("budget_ms", c_int64), ("cancel", c_void_p), ("shape", c_char_p), ("tune_ms", c_int64), ("verify", c_int64),
                ("workspace", c_int64)]


class Param(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("tensor", POINTER(Tensor)), ("scalar", c_double)]


# flashjit_arguments has fields for these tensors. Others are given by their names, as parameters are.
FIELDS = ("q", "k", "v", "o", "lse", "max_logit", "sink", "offsets_q", "offsets_k")


class Arguments(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), *((name, POINTER(Tensor)) for name in FIELDS), ("max_q_len", c_int64),
                ("max_k_len", c_int64), ("params", POINTER(Param)), ("param_count", c_int64), ("workspace", c_void_p),
                ("workspace_bytes", c_int64), ("sms", c_int64)]


class Counters(ctypes.Structure):
    NAMES = ("memory_hits", "disk_hits", "layer_hits", "bundle_hits", "misses", "compiles", "compile_failures", "waits",
             "private_compiles", "bad_entries", "not_persisted", "evictions", "bytes_read", "bytes_written",
             "quick_kernels", "replaced_kernels")
    _fields_ = [("struct_size", c_size_t), *((name, c_int64) for name in NAMES), ("lookup_us", c_int64 * 32),
                ("compile_us", c_int64 * 32)]


@functools.cache
def array(of: Any, count: int) -> Any:
    """Returns the type of such an array. ctypes forgets the types that nobody keeps, and making one takes longer than a
    launch."""
    return of * count


class FlashJitError(Exception):
    """FlashJIT refused something, or could not do it. The library's own words are `message`, `kind`, the word of
    flashjit_status, and `detail`, a caret, a log, or empty. They are the exception's arguments, and there is no
    __init__: Dynamo could not follow one, and would report that instead of what is wrong."""

    usual_kind = "invalid"

    @property
    def message(self) -> str:
        return str(self.args[0])

    @property
    def kind(self) -> str:
        return str(self.args[1]) if len(self.args) > 1 else self.usual_kind

    @property
    def detail(self) -> str:
        return str(self.args[2]) if len(self.args) > 2 else ""

    def __str__(self) -> str:
        return f"{self.message}\n{self.detail}" if self.detail else self.message


class InvalidError(FlashJitError, ValueError):
    """The input is wrong."""


class UnsupportedError(FlashJitError, NotImplementedError):
    """The request is legal, but no kernel of this build or target does it."""

    usual_kind = "unsupported"


class MissingError(FlashJitError):
    """A library, a device or a kernel is missing."""

    usual_kind = "not_found"


_ERRORS: dict[int, type[FlashJitError]] = {1: InvalidError, 2: UnsupportedError, 3: MissingError}


def _in_words_of_python(message: str) -> str:
    """Puts an error into words of Python, where tensors and numbers are given by their names, and a name is one
    argument."""
    named, _, what = message.partition(": ")
    kind, _, name = named.partition(".")
    if kind == "params" and "missing" in what and name in FIELDS:
        return f"{message}; {name}= is a tensor of the call, so give the parameter another name in the spec"
    if kind == "params" and "missing" in what:
        return f"{message}; pass {name}=tensor, or a number"
    if kind == "scalars" and "missing" in what:
        return f"{message}; pass {name}=number"
    if kind == "params" and "declares a scalar" in what:
        return f"{name}: the spec declares a scalar, and a tensor was given; pass {name}.item(), or declare a tensor of one element and read {name}[0]"
    if kind == "scalars" and ("it is a tensor" in what or "declares a tensor" in what):
        return f"{name}: it is a tensor, and a number was given; pass {name}=tensor"
    return message


class Library:
    """This is libflashjit.so, opened."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            self.lib = lib = ctypes.CDLL(self.path)
        except OSError as error:
            raise MissingError(f"{error}; build it with tools/try, or name another libflashjit.so") from None
        out = POINTER(c_void_p)
        functions: dict[str, tuple[Any, list[Any]]] = {
            "engine_create": (c_int32, [POINTER(EngineOptions), out, out]),
            "engine_destroy": (None, [c_void_p]),
            "engine_target": (c_char_p, [c_void_p]),
            "engine_counters": (c_int32, [c_void_p, POINTER(Counters), out]),
            "prepare": (c_int32, [c_void_p, c_char_p, POINTER(PrepareOptions), out, out]),
            "kernel_destroy": (None, [c_void_p]),
            "kernel_facts": (c_char_p, [c_void_p]),
            "run": (c_int32, [c_void_p, POINTER(Arguments), c_void_p, out]),
            "workspace_bytes": (c_int32, [c_void_p, POINTER(Arguments), POINTER(c_int64), out]),
            "error_message": (c_char_p, [c_void_p]),
            "error_detail": (c_char_p, [c_void_p]),
            "error_destroy": (None, [c_void_p]),
            "status_name": (c_char_p, [c_int32]),
            "version": (c_char_p, []),
        }
        for name, (result, arguments) in functions.items():
            try:
                function = getattr(lib, "flashjit_" + name)
            except AttributeError:
                raise MissingError(f"{self.path} has no flashjit_{name}: it is no libflashjit.so, or one of an older "
                                   "version; build it with tools/try") from None
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    engine_create: Any
    engine_destroy: Any
    engine_target: Any
    engine_counters: Any
    prepare: Any
    kernel_destroy: Any
    kernel_facts: Any
    run: Any
    workspace_bytes: Any
    error_message: Any
    error_detail: Any
    error_destroy: Any
    status_name: Any
    version: Any

    def error(self, status: int, error: c_void_p) -> FlashJitError:
        """Makes the exception for a status that is not 0. Releases `error`."""
        kind, message, detail = (text.decode(errors="replace") for text in (
            self.status_name(status), self.error_message(error), self.error_detail(error)))
        self.error_destroy(error)
        error.value = None
        return _ERRORS.get(status, FlashJitError)(_in_words_of_python(message), kind, detail)

    def call(self, name: str, *arguments: object) -> None:
        error = c_void_p()
        status = getattr(self, name)(*arguments, byref(error))
        if status:
            raise self.error(status, error)

    @property
    def command(self) -> str:
        """Returns the path of the program `flashjit` that was built or installed with this library."""
        return os.path.join(os.path.dirname(os.path.dirname(self.path)), "bin", "flashjit")


_library: Library | None = None


def _library_paths() -> list[str]:
    here = os.path.dirname(os.path.abspath(__file__))
    clone = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    return [os.path.join(here, "lib", "libflashjit.so"), os.path.join(clone, "build", "lib", "libflashjit.so")]


def library() -> Library:
    """Returns the library of this process: the one that use_library() named, else that of the wheel or of the build
    folder of this clone, or the one that the loader finds."""
    global _library
    if _library is None:
        _library = Library(next((path for path in _library_paths() if os.path.exists(path)), "libflashjit.so.1"))
    return _library


def use_library(path: str | os.PathLike[str]) -> None:
    """Takes this libflashjit.so. It has to be called before the first engine is made."""
    global _library
    if _library is not None and _library.path != os.fspath(path):
        raise InvalidError(f"use_library: {_library.path} is in use already; call it before everything else")
    _library = Library(path)


def version() -> str:
    """Returns the library's version as "major.minor.patch"."""
    return str(library().version().decode())

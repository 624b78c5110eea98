"""Engine and Kernel are as in C++."""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_char_p, c_int64, c_void_p
from typing import Any, Callable, Mapping, Sequence, TypedDict

from flashjit import capi, command, specs, tensors
from flashjit.capi import FIELDS, Arguments, InvalidError, Library, Param
from flashjit.values import address, c_string, encoded, flag, integer, milliseconds, number, shown


class _Owner:
    """This object owns a handle of the library, which is given back once. Threads may share it, so copies are the same
    object."""

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: object) -> Any:
        return self

    def __reduce__(self) -> Any:
        raise InvalidError(f"{self!r}: cannot be pickled, it belongs to this process; prepare it again in the other one")


class _EngineHandle(c_void_p):
    """The handle is given back with its last reference, if it has to be: an engine may be closed while another thread
    prepares."""

    destroy: Callable[[c_void_p], None] | None = None

    def __del__(self) -> None:
        if self.destroy is not None:
            self.destroy(self)


class Engine(_Owner):
    """Prepares kernels for one GPU, or for the processor. Any number of threads may use it.

    >>> import flashjit, numpy
    >>> engine = flashjit.Engine("host")
    >>> kernel = engine.prepare('fwd fp32 d=8 heads=2 mask="causal"')
    >>> q = k = v = numpy.ones((1, 5, 2, 8), dtype="float32")
    >>> o = numpy.empty_like(q)
    >>> kernel.run(q=q, k=k, v=v, o=o)
    >>> float(o.min()), float(o.max())
    (1.0, 1.0)
    """

    def __init__(self, device: str = "gpu", ordinal: int = 0, *, target: str | None = None,
                 cache_dir: str | os.PathLike[str] | None = None, disk_cache: bool = True, cache_max_bytes: int = 0,
                 threads: int = 0, bundles: Sequence[str | os.PathLike[str]] = (), required: str | os.PathLike[str] | None = None,
                 record: str | os.PathLike[str] | None = None, override_dir: str | os.PathLike[str] | None = None,
                 isolate_compiler: bool = False, tuned: bool = True, trusted_list: str | os.PathLike[str] | None = None,
                 jit: bool = True, library: Library | None = None) -> None:
        self._handle: _EngineHandle | None = None
        if device not in ("gpu", "host"):
            raise InvalidError(f'device: "{device}" is neither "gpu" nor "host"')
        if isinstance(bundles, (str, os.PathLike)):
            raise InvalidError(f"bundles: {str(bundles)!r} is one path; give a list of them")
        for name, value in (("ordinal", ordinal), ("bundles", bundles), ("required", required)):
            if device == "host" and value:
                raise InvalidError(f'{name}: {shown(value)} is for GPUs, and device="host" has one engine and no bundles; leave it out')
        self.library, self.device, self.ordinal = library or capi.library(), device, integer("ordinal", ordinal, 0, 2**31 - 1)
        try:
            paths = [c_string(f"bundles[{at}]", path) for at, path in enumerate(bundles)]
        except TypeError:
            raise InvalidError(f"bundles: {shown(bundles)} is no list of paths") from None
        options = capi.EngineOptions(
            struct_size=ctypes.sizeof(capi.EngineOptions), host=device == "host", ordinal=ordinal, target=encoded("target", target),
            cache_dir=encoded("cache_dir", cache_dir), no_disk_cache=not flag("disk_cache", disk_cache),
            cache_max_bytes=integer("cache_max_bytes", cache_max_bytes, 0, 2**64 - 1), threads=integer("threads", threads, -2**31, 2**31 - 1),
            bundles=capi.array(c_char_p, len(paths))(*paths), bundle_count=len(paths), required=encoded("required", required),
            record=encoded("record", record), override_dir=encoded("override_dir", override_dir),
            isolate_compiler=flag("isolate_compiler", isolate_compiler), untuned=not flag("tuned", tuned),
            trusted_list=encoded("trusted_list", trusted_list), no_jit=not flag("jit", jit))
        handle = _EngineHandle()
        self.library.call("engine_create", byref(options), byref(handle))
        if device == "host":
            handle.destroy = self.library.engine_destroy
        self._handle = handle
        self.target: str = self.library.engine_target(handle).decode()

    def __repr__(self) -> str:
        return f"<flashjit.Engine {self.device} {self.ordinal}: {self.target}>"

    def _open_handle(self) -> _EngineHandle:
        handle = self._handle
        if handle is None:
            raise InvalidError("this engine is closed; make another")
        return handle

    def close(self) -> None:
        """Gives everything back. On a GPU all launches must have finished, and graphs that hold them must not be
        launched again. So only this call closes engines of GPUs; those of processors also close with their last
        reference."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.destroy = self.library.engine_destroy

    def prepare(self, spec: str, *, schedule: str | None = None, shape: str | None = None, capturing_stream: int | None = None,
                timeout: float = 0, budget: float = 0, tune: float = 0, verify: bool = False, workspace: bool = False) -> Kernel:
        """Finds or makes the kernel for a spec. Times are in seconds; flashjit.hpp explains each option. `workspace`
        means that calls will bring the memory that `workspace_bytes` asks for, so a hint (`shape`) or a tuning may
        give a kernel that needs some.

        >>> import flashjit
        >>> flashjit.Engine("host").prepare("fwd fp32 d=100")
        Traceback (most recent call last):
        ...
        flashjit.capi.InvalidError: d: 100 is not a multiple of 8; pad with zeros to d=104
        """
        engine = self._open_handle()
        spec = specs.checked(spec)
        options = capi.PrepareOptions(
            struct_size=ctypes.sizeof(capi.PrepareOptions), schedule=encoded("schedule", schedule), shape=encoded("shape", shape),
            verify=flag("verify", verify), workspace=flag("workspace", workspace),
            capturing_stream=address("capturing_stream", capturing_stream), timeout_ms=milliseconds("timeout", timeout),
            budget_ms=milliseconds("budget", budget), tune_ms=milliseconds("tune", tune))
        handle = c_void_p()
        self.library.call("prepare", engine, c_string("spec", spec), byref(options), byref(handle))
        return Kernel(self, handle, specs.written_by(spec))

    def counters(self) -> dict[str, int]:
        """Returns what this engine has done so far, by the names of flashjit.hpp."""
        counters = capi.Counters(struct_size=ctypes.sizeof(capi.Counters))
        self.library.call("engine_counters", self._open_handle(), byref(counters))
        return {name: getattr(counters, name) for name in capi.Counters.NAMES}

    def explain(self, spec: str, *, schedule: str | None = None, shape: str | None = None, all: bool = False,  # noqa: A002
                html: str | os.PathLike[str] | None = None) -> command.Text:
        """Explains the plan for a spec on this device, why, and what limits it; flashjit.explain has the words for the rest."""
        return command.explain(spec, self.target, schedule=schedule, shape=shape, all=all, html=html, of=self.library)

    def compile(self, specs: str | Sequence[str], *, schedule: str | None = None) -> list[dict[str, Any]]:
        """Compiles for this device into the kernel store, and returns a dict of facts for each kernel."""
        return command.compile(specs, self.target, schedule=schedule, of=self.library)

    def tune(self, spec: str, shape: str, *, budget: str = "10s", schedule: str | None = None) -> command.Tuning:
        """Measures schedules for such sizes, and remembers the fastest. prepare finds it if its `shape` names such
        sizes."""
        return command.tune(spec, shape, target=self.device, budget=budget, schedule=schedule, of=self.library)


class Facts(TypedDict):
    """The library knows this about a kernel. Registers and shared memory are 0 if it is no kernel of a GPU."""

    spec: str
    target: str
    schedule: str
    family: str
    key: str
    source: str
    compile_ms: float
    registers: int
    spill_bytes: int
    smem_bytes: int
    threads: int
    cubin_bytes: int
    notes: list[str]
    layer: str
    miss: str
    weights: str


class Kernel(_Owner):
    """This is a prepared kernel. Any number of threads may run it. `written` has the names of the tensors that its
    calls write."""

    def __init__(self, engine: Engine, handle: c_void_p, written: frozenset[str]) -> None:
        self.engine, self.handle, self.library, self.written = engine, handle, engine.library, written

    def __del__(self) -> None:
        # The engine keeps its kernels, so that launches under way are not hurt.
        self.library.kernel_destroy(self.handle)

    @property
    def facts(self) -> Facts:
        """Returns `spec`, `target`, `schedule`, `family`, `registers`, `notes` and more, as flashjit.h lists them."""
        import json
        facts: Facts = json.loads(self.library.kernel_facts(self.handle))
        return facts

    def __repr__(self) -> str:
        facts = self.facts
        return f"<flashjit.Kernel {facts['spec']} ({facts['target']}, {facts['schedule']})>"

    def explain(self, *, shape: str | None = None, all: bool = False, html: str | os.PathLike[str] | None = None) -> command.Text:  # noqa: A002
        """Explains the plan of this kernel, why, and what limits it; flashjit.explain has the words for the rest."""
        facts = self.facts
        return command.explain(facts["spec"], facts["target"], schedule=facts["schedule"], shape=shape, all=all, html=html, of=self.library)

    def bind(self, values: Mapping[str, Any], *, max_q_len: int = 0, max_k_len: int = 0, stream: int | None = None,
             like: Any = None, sms: int = 0) -> Launch:
        """Returns a launch on these tensors, which may be called often: everything but the call itself is done here. A
        workspace is memory of the kind of `like`, which is `q`, `o` or `x`. With `sms` the loop runs on at most this
        many of the GPU's SMs, so that others, such as a collective beside it, find some free; 0 stands for all."""
        tensors.refuse_gradients(values)
        views, scalars = {}, {}
        if like is None:
            like = next((values[name] for name in ("q", "o", "x") if values.get(name) is not None), None)
        stream = tensors.current_stream(like) if stream is None else address("stream", stream)
        if stream is not None and self.engine.device == "host":
            raise tensors.no_stream(stream)
        for name, value in values.items():
            value = number(name, value)
            if value is None:
                continue
            if isinstance(value, (int, float)) and name not in FIELDS:
                scalars[name] = float(value)
                continue
            views[name] = tensors.view(value, name, stream)
            if not views[name].writable and name in self.written:
                raise InvalidError(f"{name}: is read-only, and the call writes to it; give an array of your own")
        launch = Launch(self, views, scalars, max_q_len, max_k_len, stream, sms)
        launch.kept = list(values.values())  # The dict is not kept, because the caller may use it again.
        launch.notice = tensors.notice_of_changes(value for name, value in values.items() if name in self.written)
        if launch.needed:
            launch.set_workspace(*tensors.new_bytes(like, launch.needed, stream))
        return launch

    def run(self, *, max_q_len: int = 0, max_k_len: int = 0, stream: int | None = None, sms: int = 0, **values: Any) -> None:
        """Launches on tensors and scalars that go by their names in the spec. A GPU works asynchronously on `stream`, a
        CUDA stream as a number, else on PyTorch's or CuPy's current one if q, o or x is theirs. On processors the
        result is there on return."""
        self.bind(values, max_q_len=max_q_len, max_k_len=max_k_len, stream=stream, sms=sms)()


class Launch:
    """These are the arguments of a call in the C API's structures. Calls of one launch may not run at the same time if
    it has a workspace."""

    def __init__(self, kernel: Kernel, views: Mapping[str, tensors.View], scalars: Mapping[str, float], max_q_len: int = 0,
                 max_k_len: int = 0, stream: int | None = None, sms: int = 0) -> None:
        self.kernel, self.tensors, self.scalars = kernel, {name: view.tensor for name, view in views.items()}, {}
        self.kept: object = None
        self.notice: Callable[[], None] | None = None  # It is called when the launch has written.
        pointer = ctypes.pointer
        named = [Param(c_string("params", name), pointer(tensor), 0) for name, tensor in self.tensors.items() if name not in FIELDS]
        params = capi.array(Param, len(named) + len(scalars))(*named, *(Param(c_string("params", name), None, value) for name, value in scalars.items()))
        for at, name in enumerate(scalars, len(named)):
            self.scalars[name] = params[at]
        fields: dict[str, Any] = {name: pointer(tensor) for name, tensor in self.tensors.items() if name in FIELDS}
        self.arguments = Arguments(ctypes.sizeof(Arguments), max_q_len=integer("max_q_len", max_q_len),
                                   max_k_len=integer("max_k_len", max_k_len), params=params, param_count=len(params),
                                   sms=integer("sms", sms, -2**63), **fields)
        self.error = c_void_p()
        self.run: Callable[..., int] = kernel.library.run
        self.handle, self.stream = kernel.handle, c_void_p(stream)
        self.references = byref(self.arguments), byref(self.error)
        self.measure()

    def __reduce__(self) -> Any:
        raise InvalidError(f"this launch of {self.kernel!r} can neither be copied nor pickled, it holds addresses of tensors; bind them again")

    def measure(self) -> None:
        """Measures the workspace that the launch's sizes need."""
        needed = c_int64()
        self.kernel.library.call("workspace_bytes", self.handle, self.references[0], byref(needed))
        self.needed = needed.value

    def set_workspace(self, address: int, kept: object = None) -> None:
        self.arguments.workspace, self.arguments.workspace_bytes, self.workspace = address, self.needed, kept

    def __call__(self) -> None:
        status = self.run(self.handle, self.references[0], self.stream, self.references[1])
        if status:
            raise self.kernel.library.error(status, self.error)
        if self.notice is not None:
            self.notice()

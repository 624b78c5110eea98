"""FlashJIT makes attention kernels, generated for exactly your problem and your GPU or processor.

`attention` computes attention on tensors of PyTorch, NumPy, and every library that speaks DLPack, and `index` finds
the keys that it should read. `Engine` and `Kernel` are below them. `flashjit.torch` has functions for PyTorch only:
scaled_dot_product_attention, FlexAttention's functions, transformers. `flashjit.distributed` is for sequences that
lie on several GPUs or processes.
"""

from flashjit.calls import attention
from flashjit.capi import FlashJitError, InvalidError, MissingError, UnsupportedError, use_library, version
from flashjit.command import compile, explain, tune
from flashjit.engine import Engine, Facts, Kernel
from flashjit.indexing import index

__all__ = ["Engine", "Facts", "FlashJitError", "InvalidError", "Kernel", "MissingError", "UnsupportedError", "attention", "compile", "explain",
           "index", "tune", "use_library", "version"]


def __getattr__(name: str) -> str:
    """`__version__` opens the library, which importing does not."""
    if name == "__version__":
        return version()
    raise AttributeError(f"module 'flashjit' has no attribute '{name}'")

"""FlashJIT: attention kernels, generated for exactly your problem and your GPU or processor.

`attention` computes it on tensors of PyTorch, NumPy, and whatever speaks DLPack. `Engine` and `Kernel` are below it. What is for
PyTorch alone is in `flashjit.torch`: scaled_dot_product_attention, FlexAttention's functions, transformers.
"""

from flashjit.calls import attention
from flashjit.capi import FlashJitError, InvalidError, MissingError, UnsupportedError, use_library, version
from flashjit.command import compile, explain, tune
from flashjit.engine import Engine, Kernel

__all__ = ["Engine", "FlashJitError", "InvalidError", "Kernel", "MissingError", "UnsupportedError", "attention", "compile", "explain",
           "tune", "use_library", "version"]

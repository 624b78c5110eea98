"""Attention runs over several processes, each of which has a share of the tokens: on any process group of
torch.distributed, NCCL's on GPUs and Gloo's on processors. runtime/DISTRIBUTED.md tells when to use which way.

    import flashjit.distributed as fd

    q, k, v = (fd.shard(x, order="zigzag") for x in (q, k, v))           # or made of tokens that were sharded so
    o = fd.attention(q, k, v, mask="causal", how="ring", order="zigzag")
"""

from flashjit.distributed.cache import decode
from flashjit.distributed.call import attention
from flashjit.distributed.context import context_parallel, context_parallel_unshard, set_rotate_method
from flashjit.distributed.exchange import ExchangeError
from flashjit.distributed.places import positions, shard, unshard

__all__ = ["ExchangeError", "attention", "context_parallel", "context_parallel_unshard", "decode", "positions", "set_rotate_method", "shard",
           "unshard"]

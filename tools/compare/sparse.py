"""Tensors leave out scores: lists name blocks of keys, or a tensor has the numbers of documents. This module has their
tensors, and the launches of peers that have such kernels."""
import functools
import importlib.util

import torch


def params_of(row, device):
    """Returns the tensors of a call beside q, k and v."""
    if row.documents:
        numbers = torch.repeat_interleave(torch.arange(len(row.documents)), torch.tensor(row.documents))
        return {"doc": numbers.to(device, torch.int32)[None]}
    blocks = -(-row.s // row.block)
    index = torch.rand(1, row.heads, blocks, blocks, device=device).argsort(-1)[..., :row.listed].sort(-1).values.to(torch.int32)
    count = torch.full(index.shape[:-1], row.listed, dtype=torch.int32, device=device)
    return {"block_count": count, "block_index": index.contiguous()}


def kept(problem):
    """Returns [heads, blocks of queries, blocks of keys]: which blocks are in the lists."""
    index = problem.params["block_index"][0].long()
    return torch.zeros(*index.shape[:-1], index.shape[-2], dtype=torch.bool, device=index.device).scatter_(-1, index, True)


def hidden(problem, head, q, k):
    """Returns which of queries [n, 1] and keys [m] are hidden from each other."""
    if problem.row.documents:
        doc = problem.params["doc"][0]
        return doc[q] != doc[k]
    return ~kept(problem)[head][q // problem.row.block, k // problem.row.block]


def lists_of_queries(problem):
    """Returns (count, index) of the blocks of queries that read each block of keys."""
    by_keys = kept(problem).transpose(1, 2)
    return by_keys.sum(-1, dtype=torch.int32)[None].contiguous(), by_keys.byte().argsort(dim=-1, descending=True, stable=True).to(torch.int32)[None].contiguous()


def flat(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients])


def timed(launch, gradients):
    """Returns a launch whose result is made of gradients when it is looked at, and not while it is timed."""
    launch.timed = gradients
    return launch


def flex(problem):
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
    row, device = problem.row, problem.q.device
    if row.documents:
        doc = problem.params["doc"][0]
        block_mask = create_block_mask(lambda b, h, q, k: (doc[q] == doc[k]) & (q >= k), None, None, row.s, row.s, device=device)
        options = None
    else:
        count, index = problem.params["block_count"], kept(problem).byte().argsort(dim=-1, descending=True, stable=True).to(torch.int32)[None]
        block_mask = BlockMask.from_kv_blocks(torch.zeros_like(count), index, count, index, BLOCK_SIZE=row.block)
        options = dict(fwd_BLOCK_M=64, fwd_BLOCK_N=64, bwd_BLOCK_M1=32, bwd_BLOCK_N1=64, bwd_BLOCK_M2=64, bwd_BLOCK_N2=32) if row.block == 64 else None
    compiled = functools.partial(torch.compile(flex_attention, dynamic=False), block_mask=block_mask, kernel_options=options)
    if not row.backward:
        return lambda: compiled(problem.q, problem.k, problem.v)
    inputs = [tensor.detach().requires_grad_() for tensor in (problem.q, problem.k, problem.v)]
    with torch.enable_grad():
        o = compiled(*inputs)
    gradients = lambda: torch.autograd.grad(o, inputs, problem.do, retain_graph=True)
    return timed(lambda: flat(gradients()), gradients)


def fa4(problem):
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch
    from flash_attn.cute.interface import _flash_attn_bwd, _flash_attn_fwd
    row, scale = problem.row, problem.row.d ** -0.5
    by_tokens = lambda tensor: tensor.transpose(1, 2).contiguous()
    q, k, v = map(by_tokens, (problem.q, problem.k, problem.v))

    def lists(count, index):
        none = torch.zeros_like(count)
        return BlockSparseTensorsTorch(none, none[..., None].contiguous(), count, index, block_size=(row.block, row.block))

    own = lists(problem.params["block_count"], problem.params["block_index"])
    forward = lambda: _flash_attn_fwd(q, k, v, softmax_scale=scale, block_sparse_tensors=own, return_lse=True)
    if not row.backward:
        return timed(lambda: forward()[0].transpose(1, 2), forward)
    o, lse = forward()[:2]
    do, others = by_tokens(problem.do), lists(*lists_of_queries(problem))
    gradients = lambda: _flash_attn_bwd(q, k, v, o, do, lse, scale, False, 0.0, block_sparse_tensors=others)[:3]
    return timed(lambda: flat(gradient.transpose(1, 2) for gradient in gradients()), gradients)


def cudnn_blocks(problem):
    from cudnn.block_sparse_attention import block_sparse_attention_backward, block_sparse_attention_forward
    row, index = problem.row, problem.params["block_index"]
    sizes = dict(sparse_block_size=row.block, softmax_scale=row.d ** -0.5, block_sparse_num=row.listed)
    forward = lambda: block_sparse_attention_forward(problem.q, problem.k, problem.v, index, **sizes)
    if not row.backward:
        return timed(lambda: forward()["o_tensor"], forward)
    made = forward()
    gradients = lambda: block_sparse_attention_backward(problem.do, problem.q, problem.k, problem.v, made["o_tensor"], made["lse_tensor"], index, **sizes)
    return timed(lambda: flat(gradients()[name] for name in ("dq_tensor", "dk_tensor", "dv_tensor")), gradients)


def flashinfer_blocks(problem):
    from flashinfer import VariableBlockSparseAttentionWrapper
    row, device = problem.row, problem.q.device
    wrapper = VariableBlockSparseAttentionWrapper(torch.empty(128 << 20, dtype=torch.uint8, device=device), backend="cake")
    mask = kept(problem)
    sizes = torch.full(mask.shape[:2], row.block, dtype=torch.int32, device=device)
    wrapper.plan(mask, sizes, sizes, row.heads, row.heads, row.d, q_data_type=problem.q.dtype)
    o = torch.empty(row.heads * row.s, 1, row.d, device=device, dtype=problem.q.dtype)
    launch = lambda: wrapper.run(problem.q[0], problem.k[0], problem.v[0], out=o)
    return timed(lambda: launch().view_as(problem.q), launch)


def makers_of(problem, with_flex):
    """Returns name -> a function that makes a launch, for each peer that is installed."""
    row, made = problem.row, {}
    if row.packed:
        return made
    if with_flex:
        made["flex"] = lambda: flex(problem)
    if row.block:
        for name, module, maker, takes in (("fa4", "flash_attn", fa4, row.block == 128 or not row.backward), ("cudnn_blocks", "cudnn", cudnn_blocks, True),
                                           ("flashinfer_blocks", "flashinfer", flashinfer_blocks, row.block == 64 and not row.backward)):
            if takes and importlib.util.find_spec(module):
                made[name] = lambda maker=maker: maker(problem)
    return made

"""A user would pick these instead of us: attention as this machine's PyTorch has it, on the tensors of a Problem."""
import importlib.util

import torch
import torch.nn.functional as F

from compare import indexing, latents as latent_sides, sparse
from compare.gradients import backward_of
from compare.rows import LATENT_TABLES, SOFTCAP, SPARSE_TABLES, WINDOW


def sdpa(problem, backend=None):
    row = problem.row
    # It takes no elements of 8 bits.
    q, k, v = (x.bfloat16() if row.dtype == "e4m3" else x for x in (problem.q, problem.k, problem.v))
    causal = row.mask == "causal"
    grouped = {"enable_gqa": True} if row.heads != row.kv_heads else {}

    def launch():
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, **grouped)

    if backend is None:
        return launch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    backend = getattr(SDPBackend, backend)

    def launch_backend():
        with sdpa_kernel([backend]):
            return launch()

    return launch_backend


def flex(problem):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    row = problem.row
    slope, table = problem.params.get("slope"), problem.params.get("table")
    score = {"softcap": lambda s, b, h, q, k: SOFTCAP * torch.tanh(s / SOFTCAP),
             "alibi": lambda s, b, h, q, k: s + slope[h] * (k - q),
             "bias_bf16": lambda s, b, h, q, k: s + table[h, q, k],
             "bias_fp32": lambda s, b, h, q, k: s + table[h, q, k]}.get(row.score)
    mask = {"causal": lambda b, h, q, k: q >= k, "window": lambda b, h, q, k: (q >= k) & (q - k < WINDOW)}.get(row.mask)
    block_mask = create_block_mask(mask, None, None, row.s, row.s, device=problem.q.device) if mask else None
    compiled = torch.compile(flex_attention, dynamic=False)
    grouped = row.heads != row.kv_heads
    return lambda: compiled(problem.q, problem.k, problem.v, score_mod=score, block_mask=block_mask, enable_gqa=grouped)


def flashinfer(problem):
    """Runs FlashInfer's decode over the same pages, planned ahead."""
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper
    row, device = problem.row, problem.q.device
    pages = torch.tensor([len(own) for own in problem.pages], dtype=torch.int32, device=device)
    starts = torch.nn.functional.pad(pages.cumsum(0, dtype=torch.int32), (1, 0))
    last = problem.k_lens - (pages - 1) * row.page
    indices = torch.cat(problem.pages)
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(256 << 20, dtype=torch.uint8, device=device), "NHD", use_cuda_graph=True, use_tensor_cores=True,
        paged_kv_indptr_buffer=torch.empty_like(starts), paged_kv_indices_buffer=torch.empty_like(indices),
        paged_kv_last_page_len_buffer=torch.empty_like(last))
    wrapper.plan(starts, indices, last, row.heads, row.kv_heads, row.d, row.page, q_data_type=problem.q.dtype,
                 kv_data_type=problem.q.dtype)
    return lambda: wrapper.run(problem.q[:, :, 0], (problem.pools["k"], problem.pools["v"]))[:, :, None]


def latents(problem):
    """Runs the query heads as queries of one head: by memory-efficient attention, and by two products with a softmax."""
    row = problem.row
    q = problem.q.view(row.b, 1, row.heads, row.d)

    def efficient():
        from torch.nn.attention import SDPBackend, sdpa_kernel
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):
            return F.scaled_dot_product_attention(q, problem.k, problem.v).transpose(1, 2)

    def products():
        return (torch.softmax(q @ problem.k.transpose(2, 3) * row.d ** -0.5, dim=-1) @ problem.v).transpose(1, 2)

    return {"efficient": lambda: efficient, "products": lambda: products}


def flashmla(problem):
    """Runs DeepSeek's decode over the same pages, planned ahead."""
    from flash_mla import flash_mla_with_kvcache, get_mla_metadata
    row = problem.row
    plan, splits = get_mla_metadata(problem.k_lens, row.heads // row.kv_heads, row.kv_heads)
    q = problem.q.transpose(1, 2)
    return lambda: flash_mla_with_kvcache(q, problem.pools["k"], problem.block_table, problem.k_lens, row.d_v, plan,
                                          splits)[0].transpose(1, 2)


def launches_of(problem, with_flex, report):
    """Returns name -> launch, after a first call of each. A launch that fails, or that this row is not for, is left out
    and reported."""
    row = problem.row
    makers = {}
    if row.table in SPARSE_TABLES:
        makers = sparse.makers_of(problem, with_flex)
    elif row.table in LATENT_TABLES:
        makers = latent_sides.makers_of(problem)
    elif row.table == "index":
        makers = indexing.makers_of(problem)
    elif row.table == "cpu":
        makers["torch"] = lambda: sdpa(problem)
    elif row.table == "cpu_backward":
        makers["torch"] = lambda: backward_of(problem)
    # These rows compare ours with ours.
    elif row.table in ("training", "cache", "pages", "drawn_cache") or row.compute:
        pass
    elif row.backward:
        makers["cudnn"] = lambda: backward_of(problem, "CUDNN_ATTENTION")
        makers["fa2"] = lambda: backward_of(problem, "FLASH_ATTENTION")
    elif row.v_in_k:
        makers = latents(problem)
        if row.page and importlib.util.find_spec("flash_mla"):
            makers["flashmla"] = lambda: flashmla(problem)
    elif not row.lengths and not row.dropout:
        if row.mask != "window" and row.score == "plain":
            makers["cudnn"] = lambda: sdpa(problem, "CUDNN_ATTENTION")
            if not row.page:
                makers["fa2"] = lambda: sdpa(problem, "FLASH_ATTENTION")
        if with_flex:
            makers["flex"] = lambda: flex(problem)
    if row.page and not row.v_in_k and row.table not in ("pages", "index") and importlib.util.find_spec("flashinfer"):
        makers["flashinfer"] = lambda: flashinfer(problem)
    made = {}
    for name, maker in makers.items():
        try:
            launch = maker()
            launch()
            made[name] = launch
        except Exception as error:  # Whatever a peer's compiler raises, the row goes on without it.
            report(dict(kind="note", row=row.name, peer=name, error=(str(error).splitlines() or [type(error).__name__])[0]))
    return made

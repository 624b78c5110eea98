"""This is the attention of DeepSeek V3.2 over a cache in pages, from indexer to output: rows of 8 bits are made, all
keys of a token are scored, and the latents of the best are read. Each step is a call whose results the next one
reads as they are. Then everything is computed once more in float64.

    indexed.py libflashjit.so [TOKENS]    with PyTorch, on a GPU if there is one

Exit code 77: something is missing, and the last line says what."""
import math
import sys

import flashjit

PAGE, HEADS, BEST = 64, 16, 96  # The model has 128 heads, and reads 2048 keys.
INDEX_HEADS, INDEX_DIM, LATENT, VALUE = 64, 128, 576, 512
PAGES = f"packed/paged({PAGE})"


class Calls:
    """These are the kernels. A page holds the latents of its tokens. Beside them the keys of the indexer lie in equal
    pages."""

    def __init__(self, device):
        engine = flashjit.Engine("gpu" if device == "cuda" else "host")
        self.latents = engine.prepare(f"quantize bf16 out=latent656 d={LATENT}")
        # Rotated rows have no large columns. A token is a sequence of its own here, so it has its own scale.
        self.keys = engine.prepare(f"quantize bf16 d={INDEX_DIM} rotate")
        self.queries = engine.prepare(f"quantize bf16 d={INDEX_DIM} heads={INDEX_HEADS} rotate")
        self.attend = engine.prepare(
            f"fwd bf16 kv=latent656 d={LATENT}/{VALUE} heads={HEADS}/1 layout={PAGES} select=keys({BEST}) scale={LATENT ** -0.5} v_in_k")


def exact(torch, call, lengths, q_lens, table, wide_latents):
    """Computes the right lists and O, in float64, from the rows of 8 bits. A kernel's list may differ where scores do
    not."""
    latents = wide_latents.double()
    index_keys = call["k"].double() * call["scale_k"][..., None].double()
    o, begin, doubts = [], 0, []
    for b, (length, q_len) in enumerate(zip(lengths, q_lens)):
        rows = (table[b].long()[:, None] * PAGE + torch.arange(PAGE, device=table.device)).flatten()[:length]
        keys, values = index_keys.view(-1, INDEX_DIM)[rows], latents.view(-1, LATENT)[rows]
        for token in range(begin, begin + q_len):
            seen = length - q_len + token - begin + 1
            products = (call["q"][token].double() @ keys[:seen].T).clamp(min=0)
            scores = call["weights"][token].double() @ products
            best = scores.topk(min(BEST, seen)).indices
            listed = call["key_index"][token, 0, :call["key_count"][token, 0]].long()
            places = torch.isin(rows[:seen], listed).nonzero().flatten()
            assert len(places) == len(best) == len(listed), "each row that is listed is one that the token sees"
            doubts.append(((scores[best].min() - scores[places].min()) / scores.abs().max()).item())
            s = call["queries"][token].double() @ values[places].T * LATENT ** -0.5
            o.append(s.softmax(-1) @ values[places][:, :VALUE])
        begin += q_len
    return torch.stack(o), max(doubts)


def widened(torch, pool):
    """Converts rows of latent656 to numbers: 512 e4m3 with four scales, and 64 bf16."""
    rows = pool.view(-1, 656)
    narrow = rows[:, :512].contiguous().view(torch.float8_e4m3fn).float().view(-1, 4, 128)
    scales = rows[:, 512:528].contiguous().view(torch.float32)
    return torch.cat([(narrow * scales[..., None]).view(-1, 512).bfloat16(), rows[:, 528:].contiguous().view(torch.bfloat16)], 1)


def main(tokens):
    try:
        import torch
    except ImportError:
        print("skipped: no PyTorch on this machine")
        sys.exit(77)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, device=device).bfloat16()
    empty = lambda *shape, dtype=torch.float32: torch.empty(*shape, device=device, dtype=dtype)
    ints = lambda values: torch.tensor(values, device=device, dtype=torch.int32)
    calls = Calls(device)

    # There are two sequences: one reads the end of its prompt, one decodes a token.
    lengths, q_lens = [tokens, tokens // 2], [min(7, tokens), 1]
    of_sequence = math.ceil(tokens / PAGE)
    pages, new = 2 * of_sequence, sum(q_lens)
    table = torch.randperm(pages, device=device).int().view(2, of_sequence)

    pool, index_pool, key_scales = empty(pages, PAGE, 1, 656, dtype=torch.uint8), empty(pages, PAGE, 1, INDEX_DIM, dtype=torch.float8_e4m3fn), empty(pages, PAGE, 1)
    calls.latents.run(x=draw(pages, PAGE, 1, LATENT), y=pool)
    calls.keys.run(x=draw(pages * PAGE, 1, 1, INDEX_DIM), y=index_pool.view(-1, 1, 1, INDEX_DIM), scale=key_scales.view(-1, 1))

    index_q, query_scales = empty(new, INDEX_HEADS, INDEX_DIM, dtype=torch.float8_e4m3fn), empty(new, INDEX_HEADS)
    calls.queries.run(x=draw(new, 1, INDEX_HEADS, INDEX_DIM), y=index_q.view(new, 1, INDEX_HEADS, INDEX_DIM), scale=query_scales)
    weights = torch.randn(new, INDEX_HEADS, device=device) * query_scales * INDEX_HEADS ** -0.5 * INDEX_DIM ** -0.5

    where = {"offsets_q": ints([0, q_lens[0], new]), "block_table": table, "k_lens": ints(lengths)}
    call = {"q": index_q, "k": index_pool, "scale_k": key_scales, "weights": weights}
    key_index, key_count = flashjit.index(**call, **where, best=BEST, mask="causal", layout=PAGES, spec="token_scales", max_q_len=max(q_lens))
    lists = {"key_index": key_index, "key_count": key_count}

    queries, o = draw(new, HEADS, LATENT), empty(new, HEADS, VALUE, dtype=torch.bfloat16)
    calls.attend.run(q=queries, k=pool, o=o, **lists)

    wanted, doubt = exact(torch, {**call, **lists, "queries": queries}, lengths, q_lens, table, widened(torch, pool))
    error = (o.double() - wanted).abs().max().item()
    print(f"{new} tokens, {BEST} of up to {tokens} keys: largest error {error:.1e}, scores that were passed over {max(doubt, 0):.1e} of the largest above")
    return error < 0.01 and doubt < 1e-3


if __name__ == "__main__":
    flashjit.use_library(sys.argv[1])
    sys.exit(0 if main(int(sys.argv[2]) if len(sys.argv) > 2 else 1000) else 1)

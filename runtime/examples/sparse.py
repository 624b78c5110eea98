"""One layer of attention is trained on documents of many lengths, none of them packed or padded by hand. A tensor has
the number of each token's document, and hidden keys are skipped, forward and backward. Then blocks of queries get
lists of the blocks of keys that they see.

    sparse.py libflashjit.so [TOKENS]    with PyTorch, on a GPU if there is one

Exit code 77: something is missing, and the last line says what."""
import sys
import time

import flashjit


def train(torch, name, device, tokens, heads, d, seen, **words):
    """Trains twenty steps towards copying the token before, where `words` let it. `seen` is the same mask for PyTorch."""
    torch.manual_seed(1)
    x = torch.randn(1, tokens, heads * d, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    wanted = torch.roll(x, 1, dims=1)
    layer = torch.nn.Linear(heads * d, 3 * heads * d, bias=False, device=device, dtype=x.dtype)
    optimizer = torch.optim.Adam(layer.parameters(), lr=2e-3)
    losses, begin = [], 0.0
    for step in range(21):
        q, k, v = layer(x).view(1, tokens, 3, heads, d).unbind(2)
        o = flashjit.attention(q, k, v, **words)
        loss = (o.reshape(x.shape) - wanted).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == 0:
            begin = time.perf_counter()  # The kernels have been made.
    with torch.no_grad():
        last = min(tokens, 512)  # It counts queries.
        wide = [t.transpose(1, 2).float() for t in (q[:, -last:], k, v)]
        exact = torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=seen(torch.arange(tokens - last, tokens, device=device)[:, None],
                                                                                       torch.arange(tokens, device=device)))
        error = (o[:, -last:].transpose(1, 2).float() - exact).abs().max().item()
    print(f"{name}: loss {losses[0]:.3f} to {losses[-1]:.3f}, largest error {error:.1e}, {50 * (time.perf_counter() - begin):.1f} ms a step")
    return losses[-1] < losses[0] and error < 0.05


def main(tokens):
    try:
        import torch
    except ImportError:
        print("skipped: no PyTorch on this machine")
        sys.exit(77)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)

    ends = torch.sort(torch.randperm(tokens)[:tokens // 200]).values
    doc = torch.bucketize(torch.arange(tokens), ends, right=True).to(torch.int32).to(device)[None]
    seen = lambda q, k: (doc[0, q] == doc[0, k]) & (q >= k)
    done = train(torch, "documents", device, tokens, 4, 64, seen, mask="document(doc) & causal", doc=doc)

    blocks = (tokens + 127) // 128
    keep = ((torch.rand(4, blocks, blocks) < 0.1) | torch.eye(blocks, dtype=torch.bool)).to(device)
    count, index = keep.sum(-1, dtype=torch.int32), keep.byte().argsort(-1, descending=True).to(torch.int32)
    seen = lambda q, k: keep[:, q // 128, k // 128] & (q >= k)
    return train(torch, "blocks", device, tokens, 4, 64, seen, mask="causal", blocks=128, block_count=count, block_index=index) and done


if __name__ == "__main__":
    flashjit.use_library(sys.argv[1])
    sys.exit(0 if main(int(sys.argv[2]) if len(sys.argv) > 2 else 1024) else 1)

// Which query tile of which head of which sequence a block works on, and where its rows start.
#pragma once

#include "config.gen.cuh"
#include "templates/device.cuh"

namespace flashjit {

struct Sequence {
  int b, h, hk;  // batch index, query head, KV head
  int q_len, k_len;
  Int64 q_token, k_token;  // packed: first token; dense: 0
};

struct WorkItem {
  Sequence seq;
  int tile;  // query tile
};

__device__ inline Sequence sequence_of(const KernelParams& p, int b, int h) {
  Sequence seq;
  seq.b = b;
  seq.h = h;
  seq.hk = h / (config.heads_q / config.heads_kv);
  if (config.packed) {
    seq.q_token = p.offsets_q[b];
    seq.k_token = p.offsets_k[b];
    seq.q_len = p.offsets_q[b + 1] - static_cast<int>(seq.q_token);
    seq.k_len = p.offsets_k[b + 1] - static_cast<int>(seq.k_token);
  } else {
    seq.q_token = seq.k_token = 0;
    seq.q_len = p.q_len;
    seq.k_len = p.k_len;
  }
  return seq;
}

// Blocks are numbered so that those which run together share K and V in L2 (natural), or so that the query tiles with
// the most keys start first and the last wave is short (longest first: with a causal mask the last tiles have most).
__device__ inline WorkItem work_item(const KernelParams& p) {
  const int block = blockIdx.x;
  const int heads = config.heads_q * p.batch;
  const int tile = config.longest_first ? p.tiles_q - 1 - block / heads : block % p.tiles_q;
  const int head = config.longest_first ? block % heads : block / p.tiles_q;
  return {sequence_of(p, head / config.heads_q, head % config.heads_q), tile};
}

// The element offset of a token's row for this sequence and head.
__device__ inline Int64 row_offset(const Strides& s, const Sequence& seq, int head, Int64 token) {
  return (config.packed ? 0 : seq.b * s.batch) + head * s.head + token * s.token;
}

// Where the LSE and the maximum of query q lie.
__device__ inline Int64 result_row(const KernelParams& p, const Sequence& seq, int q) {
  return (config.packed ? seq.q_token : seq.b * p.row_stride_batch) + seq.h * p.row_stride_head + q;
}

}  // namespace flashjit

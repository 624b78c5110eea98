// Which query tile of which head of which sequence a block works on, and where its rows start.
#pragma once

#include "config.gen.cuh"
#include "device.cuh"

namespace flashjit {

struct Sequence {
  int b, h, hk;        // batch index, query head, KV head
  int q_len, k_len;
  Int64 q_token, k_token;  // packed: first token; dense: 0
};

struct WorkItem {
  Sequence seq;
  int tile;  // query tile
};

// Read anew at every call: the epilogue asks for its work item again, which is cheaper than holding it in registers during
// the loop.
__device__ inline int block_index() {
  int block;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
  return block;
}

// Blocks are numbered so that those which run together share K and V in L2 (natural), or so that the query tiles with
// the most keys start first and the last wave is short (longest first: with a causal mask the last tiles have most).
__device__ inline WorkItem work_item(const KernelParams& p) {
  const int block = block_index();
  const int heads = config.heads_q * p.batch;
  WorkItem item;
  int head;
  if (config.longest_first) {
    item.tile = p.tiles_q - 1 - block / heads;
    head = block % heads;
  } else {
    item.tile = block % p.tiles_q;
    head = block / p.tiles_q;
  }
  Sequence& seq = item.seq;
  seq.b = head / config.heads_q;
  seq.h = head % config.heads_q;
  seq.hk = seq.h / (config.heads_q / config.heads_kv);
  if (config.packed) {
    seq.q_token = p.offsets_q[seq.b];
    seq.k_token = p.offsets_k[seq.b];
    seq.q_len = p.offsets_q[seq.b + 1] - static_cast<int>(seq.q_token);
    seq.k_len = p.offsets_k[seq.b + 1] - static_cast<int>(seq.k_token);
  } else {
    seq.q_token = seq.k_token = 0;
    seq.q_len = p.q_len;
    seq.k_len = p.k_len;
  }
  return item;
}

// The first row of this sequence and head: base + element offset.
__device__ inline Int64 row_offset(const Strides& s, const Sequence& seq, int head, Int64 token) {
  return (config.packed ? 0 : seq.b * s.batch) + head * s.head + token * s.token;
}

}  // namespace flashjit

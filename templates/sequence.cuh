// Which query tile of which head of which sequence a block works on, how long that sequence is, and where its rows are.
// The last two are answered here and nowhere else: a new source of lengths, or another way to find rows, is a case of
// find_lengths, or of the functions below it and of hopper/rows.cuh.
#pragma once

#include "config.gen.cuh"
#include "templates/device.cuh"

namespace flashjit {

struct Sequence {
  int b, h, hk;  // batch index, query head, KV head
  int q_len, k_len;
  Int64 q_token, k_token;  // its first rows among packed ones, else 0
};

// ---- where lengths come from ----

enum class LengthsFrom { launch, offsets };  // the same for all sequences; from one offset to the next
constexpr LengthsFrom kLengthsFrom = config.sequences == Sequences::packed ? LengthsFrom::offsets : LengthsFrom::launch;

__device__ inline void find_lengths(Sequence& seq, const KernelParams& p) {
  if constexpr (kLengthsFrom == LengthsFrom::offsets) {
    seq.q_len = p.offsets_q[seq.b + 1] - static_cast<int>(seq.q_token);
    seq.k_len = p.offsets_k[seq.b + 1] - static_cast<int>(seq.k_token);
  } else {
    seq.q_len = p.q_len;
    seq.k_len = p.k_len;
  }
  if constexpr (config.k_lens) seq.k_len = min(max(p.k_lens[seq.b], 0), seq.k_len);
}

// ---- how rows are found ----

enum class Rows { strided, packed };  // each batch index has its own; all one after the other
constexpr Rows kRows = config.sequences == Sequences::packed ? Rows::packed : Rows::strided;

__device__ inline void find_rows(Sequence& seq, const KernelParams& p) {
  if constexpr (kRows == Rows::packed) {
    seq.q_token = p.offsets_q[seq.b];
    seq.k_token = p.offsets_k[seq.b];
  } else {
    seq.q_token = seq.k_token = 0;
  }
}

__device__ inline Int64 row_offset(const Strides& s, const Sequence& seq, int head, Int64 token) {
  return (kRows == Rows::packed ? 0 : seq.b * s.batch) + head * s.head + token * s.token;
}

// The element offset of the row of query q in Q or O, and of key k in K or V.
__device__ inline Int64 query_row(const Strides& s, const Sequence& seq, int head, int q) {
  return row_offset(s, seq, head, seq.q_token + q);
}
__device__ inline Int64 key_row(const Strides& s, const Sequence& seq, int k) {
  return row_offset(s, seq, seq.hk, seq.k_token + k);
}

// Where the LSE and the maximum of query q lie.
__device__ inline Int64 result_row(const KernelParams& p, const Sequence& seq, int q) {
  return (kRows == Rows::packed ? seq.q_token : seq.b * p.row_stride_batch) + seq.h * p.row_stride_head + q;
}

// ---- which tile ----

constexpr bool kLongestFirst = config.order == TileOrder::longest_first;

struct WorkItem {
  Sequence seq;
  int tile;  // query tile
};

__device__ inline Sequence sequence_of(const KernelParams& p, int b, int h) {
  Sequence seq;
  seq.b = b;
  seq.h = h;
  seq.hk = h / group_size(config);
  find_rows(seq, p);
  find_lengths(seq, p);
  return seq;
}

// Blocks are numbered so that those which run together share K and V in L2 (natural), or so that the query tiles with
// the most keys start first and the last wave is short (longest first: with a causal mask the last tiles have most).
__device__ inline WorkItem work_item(const KernelParams& p) {
  const int block = blockIdx.x;
  const int heads = config.heads_q * p.batch;
  const int tile = kLongestFirst ? p.tiles_q - 1 - block / heads : block % p.tiles_q;
  const int head = kLongestFirst ? block % heads : block / p.tiles_q;
  return {sequence_of(p, head / config.heads_q, head % config.heads_q), tile};
}

}  // namespace flashjit

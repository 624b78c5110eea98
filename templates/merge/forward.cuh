// Puts together the results of attention for parts of the keys: the outputs of a row are weighted by the exponentials
// of their LSE. Reading them once limits the speed.
#pragma once

#include "templates/merge/layout.h"
#include "templates/row_algebra.cuh"
#include "templates/words.cuh"

namespace flashjit {

constexpr int kColumns = merge_columns(config), kPieces = merge_pieces(config);
// The factor from LSE, of parts and of the result, to powers of two.
constexpr float kLseLog2 = config.lse == Lse::log2 ? 1.0f : kLog2e;

// A row of the result, and the first of the thread's columns.
struct Piece {
  Int64 b;
  int q, h, column;
};

// The columns that a thread has.
struct Columns {
  float x[kColumns];
};

__device__ inline Columns load_part(const void* part, Int64 at) {
  Words<16, config.copy_bytes> words;
  words.load(static_cast<const Bits<config.element>*>(part) + at);
  Columns c;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    if constexpr (config.element == Element::f32) {
      c.x[i] = __uint_as_float(words.words[i]);
    } else {
      const u16 bits = static_cast<u16>(words.words[i / 2] >> i % 2 * 16);
      c.x[i] = config.element == Element::bf16 ? float_from_bf16(bits) : float_from_f16(bits);
    }
  }
  return c;
}

// O has elements of its own size, and the same alignment.
__device__ inline void store_columns(void* o, Int64 at, const Columns& c) {
  Words<kColumns * size_of(config.output), config.copy_bytes> out;
#pragma unroll
  for (int i = 0; i < kColumns * size_of(config.output) / 4; ++i) {
    if constexpr (config.output == Element::f32) out.words[i] = __float_as_uint(c.x[i]);
    else out.words[i] = pack<config.output>(c.x[2 * i], c.x[2 * i + 1]);
  }
  out.store(static_cast<Bits<config.output>*>(o) + at);
}

// Returns the first part of a sequence that counts. With a shared prefix all parts but the last hold keys that
// sequences share. A sequence that has fewer keys before its queries shares none.
__device__ inline int first_part(const KernelParams& p, Int64 b) {
  if constexpr (!config.shared_prefix) return 0;
  return Int64{p.k_lens[b]} - p.q_len < *p.shared_prefix ? max(p.k_len - 1, 0) : 0;
}

__device__ inline void store_largest(const KernelParams& p, const Piece& at, int first, Int64 row) {
  const PartStrides& of_max = p.max_parts_stride;
  const float* maxima = p.max_parts + at.b * of_max.batch + at.h * of_max.head + at.q * of_max.token;
  float largest = -kInfinity;
  for (int part = first; part < p.k_len; ++part) largest = fmaxf(largest, maxima[part * of_max.part]);
  p.max_logit[row] = largest;
}

// Merges the parts of a piece, except those with an LSE of -infinity, which have seen no key.
__device__ inline void merge_piece(const KernelParams& p, const Piece& at) {
  const PartStrides& of_lse = p.lse_parts_stride;
  const PartStrides& of_o = p.o_parts_stride;
  const float* lse = p.lse_parts + at.b * of_lse.batch + at.h * of_lse.head + at.q * of_lse.token;
  const Int64 first = at.b * of_o.batch + at.h * of_o.head + at.q * of_o.token + at.column;
  const int first_of_row = first_part(p, at.b);
  float reference = -kInfinity;
  for (int part = first_of_row; part < p.k_len; ++part) reference = fmaxf(reference, lse[part * of_lse.part]);
  const float subtracted = reference == -kInfinity ? 0.0f : reference;
  Columns o;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) o.x[i] = 0;
  float sum = 0;
#pragma unroll 1
  for (int begin = first_of_row; begin < p.k_len; begin += config.tile_kv) {
    float weights[config.tile_kv];
    Columns parts[config.tile_kv];  // The loads of these parts are under way together.
#pragma unroll
    for (int i = 0; i < config.tile_kv; ++i) {
      const int part = begin + i;
      const float own = part < p.k_len ? lse[part * of_lse.part] : -kInfinity;
      weights[i] = exp2_approx((own - subtracted) * kLseLog2);
      if (own != -kInfinity) parts[i] = load_part(p.o_parts, first + part * of_o.part);
    }
#pragma unroll
    for (int i = 0; i < config.tile_kv; ++i) {
      if (weights[i] == 0) continue;
      sum += weights[i];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) o.x[j] += parts[i].x[j] * weights[i];
    }
  }
  const float factor = sum == 0 ? 0.0f : 1.0f / sum;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) o.x[i] *= factor;
  store_columns(p.o, at.b * p.o_stride.batch + at.h * p.o_stride.head + at.q * p.o_stride.token + at.column, o);
  if constexpr (config.lse != Lse::none || config.max_logit) {
    if (at.column != 0) return;
    const Int64 row = at.b * p.row_stride_batch + at.h * p.row_stride_head + at.q;
    if constexpr (config.max_logit) store_largest(p, at, first_of_row, row);
    if constexpr (config.lse != Lse::none) p.lse[row] = sum == 0 ? -kInfinity : reference + log2_approx(sum) / kLseLog2;
  }
}

// A block has the rows of some queries, or, where there are more heads than it has rows, of some heads of one query.
__device__ inline void merge_parts(const KernelParams& p) {
  constexpr int kHeads = config.heads_q < config.tile_q ? config.heads_q : config.tile_q;  // The heads of a block.
  constexpr int kQueries = config.tile_q / kHeads, kChunks = (config.heads_q + kHeads - 1) / kHeads;
  const int chunk = blockIdx.x % kChunks, tile = blockIdx.x / kChunks % p.tiles_q;
  Piece at = {blockIdx.x / kChunks / p.tiles_q, 0, 0, 0};
  for (int i = threadIdx.x; i < kQueries * kHeads * kPieces; i += kMergeThreads) {
    at.column = i % kPieces * kColumns;
    at.h = chunk * kHeads + i / kPieces % kHeads;
    at.q = tile * kQueries + i / kPieces / kHeads;
    if (at.h < config.heads_q && at.q < p.q_len) merge_piece(p, at);
  }
}

}  // namespace flashjit

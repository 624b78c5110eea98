// The launch for a mask beside lists of keys (mask= and select=keys(N) in a spec): it copies the lists, and writes -1 in place of
// keys that the mask hides. Loops read the copy, and know of no mask.
#pragma once

#include "templates/key_lists/layout.h"
#include "templates/sequence.cuh"
#include "variant.gen.cuh"

namespace flashjit {

// A block has a piece of the list of a query and KV head. Lists lie [query, KV head, entry].
__device__ inline void write_shown_keys(const KernelParams& params, int* shown_keys) {
  constexpr int kPieces = (config.selected + kShownEntries - 1) / kShownEntries;
  const int piece = static_cast<int>(blockIdx.x) % kPieces, list = static_cast<int>(blockIdx.x) / kPieces;
  Sequence seq = {};
  seq.b = list / config.heads_kv;
  find_rows(seq, params);
  seq.hk = list % config.heads_kv;
  seq.h = seq.hk * (config.heads_q / config.heads_kv);
  seq.q_len = params.queries_of_sequence;
  seq.k_len = params.key_rows;
  const int* const given = chosen_list(params, seq);
  int* const shown = shown_keys + static_cast<Int64>(list) * config.selected;
  const int end = min((piece + 1) * kShownEntries, config.selected);
#pragma unroll 1
  for (int i = piece * kShownEntries + static_cast<int>(threadIdx.x); i < end; i += kShownThreads) {
    const int key = __ldg(given + i);
    const bool is_there = static_cast<u32>(key) < static_cast<u32>(params.key_rows);
    shown[i] = is_there && Variant::list_shows(params, seq, static_cast<int>(seq.q_token), key) ? key : -1;
  }
}

}  // namespace flashjit

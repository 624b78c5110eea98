// The launch for a mask beside lists of keys or pages (mask= and select= in a spec). It copies the lists, and writes -1
// in place of keys that the mask hides. Loops read the copy, which has each key of a page by itself, and know of no
// mask.
#pragma once

#include "templates/key_lists/layout.h"
#include "templates/sequence.cuh"
#include "variant.gen.cuh"

namespace flashjit {

// Rows of a pool have no position in a sequence, so the call gives the positions of keys and of queries.
constexpr bool kGivesPositions = config.page_size > 0;
constexpr int kKeysOfEntry = config.keys_of_entry;

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
  int query = static_cast<int>(seq.q_token);
  const int* positions = nullptr;
  bool is_somewhere = true;
  if constexpr (kGivesPositions) {
    const Strides& s = params.q_positions_stride;
    query = __ldg(params.q_positions + seq.b * s.batch + seq.q_token * s.token);
    positions = params.k_positions + list_begin(params.k_positions_stride, seq);
    is_somewhere = is_position(query);
    seq.q_len = seq.k_len = is_somewhere ? query + 1 : 1;  // These keys existed when the query was the newest token.
  }
  const int* const given = chosen_list(params, seq);
  int* const shown = shown_keys + static_cast<Int64>(list) * config.selected;
  const int end = min((piece + 1) * kShownEntries, config.selected);
#pragma unroll 1
  for (int i = piece * kShownEntries + static_cast<int>(threadIdx.x); i < end; i += kShownThreads) {
    const int entry = i / kKeysOfEntry, of_entry = i % kKeysOfEntry, number = __ldg(given + entry);
    const int numbers = kKeysOfEntry > 1 ? params.pages : params.key_rows;
    bool is_there = is_somewhere && static_cast<u32>(number) < static_cast<u32>(numbers);
    const int key = number * kKeysOfEntry + of_entry;
    int position = key;
    if constexpr (kGivesPositions) {
      const int first = __ldg(positions + entry);
      is_there = is_there && is_position(first) && is_position(first + of_entry);
      position = first + of_entry;
    }
    shown[i] = is_there && Variant::list_shows(params, seq, query, position) ? key : -1;
  }
}

}  // namespace flashjit

// The launch that merges the lists of pages of a sequence's queries (select=pages(N) with a few queries, as drafts are).
// Loops read the merged list, for all of these queries at a time, so that a page which several queries have chosen is
// read once.
#pragma once

#include "templates/key_lists/layout.h"
#include "templates/sequence.cuh"

namespace flashjit {

constexpr MergedLists kMerged = merged_lists(config);

// The entries of the lists of all queries, one list after the other, and what is known of them.
struct GivenEntries {
  int page[kMerged.entries];    // -1 where no page exists or the entry is behind its list's count
  int tokens[kMerged.entries];  // The number of tokens of the page that count.
  int first[kMerged.entries];   // The entry that all entries of the same page are merged into.
  int number[kMerged.entries];  // Its number in the merged list.

  __device__ void load(const KernelParams& params, Sequence seq, int entry) {
    const int index = entry % config.selected;
    seq.q_token = entry / config.selected;
    page[entry] = -1;
    if (seq.q_token >= params.q_len) return;
    const int all = params.key_count ? list_length(params, seq) : config.selected * config.page_size;
    const int given = __ldg(chosen_list(params, seq) + index);
    tokens[entry] = min(all - index * config.page_size, config.page_size);
    if (tokens[entry] > 0 && static_cast<u32>(given) < static_cast<u32>(params.pages)) page[entry] = given;
  }

  // A page that is in a list twice counts twice, so it is two pages: entries are merged if as many entries of their
  // own lists have the same page before them.
  __device__ void find_first(int entry) {
    first[entry] = -1;
    if (page[entry] < 0) return;
    int before = 0;
    for (int i = entry / config.selected * config.selected; i < entry; ++i) before += page[i] == page[entry];
    int seen = 0;
    for (int i = 0; i <= entry; ++i) {
      if (i % config.selected == 0) seen = 0;
      if (page[i] == page[entry] && seen++ == before) {
        first[entry] = i;
        return;
      }
    }
  }

  // Returns how many entries before this one begin an entry of the merged list.
  __device__ int numbered_before(int entry) const {
    int count = 0;
    for (int i = 0; i < entry; ++i) count += first[i] == i;
    return count;
  }
};

// A block merges the lists of a sequence and KV head.
__device__ inline void write_merged_lists(const KernelParams& params, int* merged_lists) {
  __shared__ GivenEntries given;
  const int number = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  Sequence seq = {};
  seq.b = number / config.heads_kv;
  seq.hk = number % config.heads_kv;
  for (int entry = thread; entry < kMerged.entries; entry += kMergeThreads) given.load(params, seq, entry);
  __syncthreads();
  for (int entry = thread; entry < kMerged.entries; entry += kMergeThreads) given.find_first(entry);
  __syncthreads();
  int* const list = merged_lists + static_cast<Int64>(number) * kMerged.ints;
  int* const tokens = list + kMerged.tokens;
  for (int entry = thread; entry < kMerged.entries; entry += kMergeThreads) {
    for (int q = 0; q < config.merged_queries; ++q) tokens[entry * config.merged_queries + q] = 0;
    list[kMerged.rooms + entry] = 0;
    if (given.first[entry] != entry) continue;
    given.number[entry] = given.numbered_before(entry);
    list[given.number[entry]] = given.page[entry];
  }
  if (thread == 0) list[kMerged.count] = given.numbered_before(kMerged.entries) * config.page_size;
  __syncthreads();
  for (int entry = thread; entry < kMerged.entries; entry += kMergeThreads) {
    if (given.page[entry] < 0) continue;
    const int merged = given.number[given.first[entry]];
    tokens[merged * config.merged_queries + entry / config.selected] = given.tokens[entry];
    atomicMax(list + kMerged.rooms + merged, given.tokens[entry]);
  }
}

}  // namespace flashjit

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
  static constexpr int kWords = (kMerged.entries + 31) / 32;
  int page[kMerged.entries];    // -1 where no page exists or the entry is behind its list's count
  int tokens[kMerged.entries];  // The number of tokens of the page that count.
  int first[kMerged.entries];   // The entry that all entries of the same page are merged into.
  u32 begins[kWords];           // It has a bit for each entry that is its own first one.

  __device__ void load(const KernelParams& params, Sequence seq, int entry) {
    const int index = entry % config.selected;
    seq.q_token = entry / config.selected;
    page[entry] = -1;
    if (seq.q_token >= params.q_len) return;
    const int given = __ldg(chosen_list(params, seq) + index);
    const int all = params.key_count ? list_length(params, seq) : config.selected * config.page_size;
    tokens[entry] = min(all - index * config.page_size, config.page_size);
    if (tokens[entry] > 0 && static_cast<u32>(given) < static_cast<u32>(params.pages)) page[entry] = given;
  }

  // Returns how many of these entries have the page.
  __device__ int count(int begin, int end, int wanted) const {
    int count = 0;
#pragma unroll 8
    for (int i = begin; i < end; ++i) count += page[i] == wanted;
    return count;
  }
  // A page that is in a list twice counts twice, so it is two pages: entries are merged if as many entries of their
  // own lists have the same page before them.
  __device__ int find_first(int entry) const {
    const int own = page[entry], own_list = entry / config.selected * config.selected;
    if (own < 0) return -1;
    const int before = count(own_list, entry, own);
    for (int list = 0; list < own_list; list += config.selected) {
      if (count(list, list + config.selected, own) <= before) continue;
      int at = list;
      for (int left = before;; ++at) {
        if (page[at] == own && left-- == 0) return at;
      }
    }
    return entry;
  }

  // Returns the number of an entry in the merged list, if it begins one there.
  __device__ int number(int entry) const {
    int count = __popc(begins[entry / 32] & (1u << entry % 32) - 1);
    for (int word = 0; word < entry / 32; ++word) count += __popc(begins[word]);
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
  int* const list = merged_lists + static_cast<Int64>(number) * kMerged.ints;
  int* const tokens = list + kMerged.tokens;
  for (int entry = thread; entry < kMerged.entries; entry += kMergeThreads) given.load(params, seq, entry);
  for (int i = thread; i < kMerged.entries * config.merged_queries; i += kMergeThreads) tokens[i] = 0;
  for (int i = thread; i < kMerged.entries; i += kMergeThreads) list[kMerged.rooms + i] = 0;
  __syncthreads();
  for (int entry = thread; entry < round_up(kMerged.entries, 32); entry += kMergeThreads) {
    const bool is_there = entry < kMerged.entries;
    const int first = is_there ? given.find_first(entry) : -1;
    if (is_there) given.first[entry] = first;
    const u32 begins = __ballot_sync(0xffffffff, is_there && first == entry);
    if (thread % 32 == 0) given.begins[entry / 32] = begins;
  }
  __syncthreads();
  for (int entry = thread; entry < kMerged.entries; entry += kMergeThreads) {
    const int first = given.first[entry];
    if (first < 0) continue;
    const int merged = given.number(first);
    if (first == entry) list[merged] = given.page[entry];
    tokens[merged * config.merged_queries + entry / config.selected] = given.tokens[entry];
    atomicMax(list + kMerged.rooms + merged, given.tokens[entry]);
  }
  if (thread == 0) {
    int count = 0;
    for (const u32 word : given.begins) count += __popc(word);
    list[kMerged.count] = count * config.page_size;
  }
}

}  // namespace flashjit

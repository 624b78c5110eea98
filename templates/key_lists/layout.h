// Lists of keys that a mask cuts (key_lists/shown.cuh), and lists of pages that are merged (key_lists/merged.cuh). Host
// and device share this file.
#pragma once

#include "templates/kernel_config.h"

namespace flashjit {

// A block has this number of entries of a list.
constexpr int kShownThreads = 128, kShownEntries = 1024;

// A call gives positions in sequences. No sequence has more positions; a key at any other number is hidden.
constexpr int kMostPositions = (1 << 30) - 1;
constexpr bool is_position(int given) { return given >= 0 && given < kMostPositions; }

// A block merges the lists of a sequence and KV head, and compares all of their entries with each other.
constexpr int kMergeThreads = 128;

// The merged list of a sequence and KV head, in ints: [ pages | rooms | tokens | count ]. A room is the number of tokens
// of a page that some query sees, `tokens` are those that each query sees, and the count is of tokens, as if each page
// had all of them.
struct MergedLists {
  int entries = 1, rooms = 0, tokens = 0, count = 0, ints = 0;
};
constexpr MergedLists merged_lists(const KernelConfig& c) {
  MergedLists m;
  if (c.merged_queries == 0) return m;
  m.entries = m.rooms = c.selected * c.merged_queries;
  m.tokens = m.rooms + m.entries;
  m.count = m.tokens + m.entries * c.merged_queries;
  m.ints = m.count + 1;
  return m;
}

}  // namespace flashjit

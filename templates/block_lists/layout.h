// The states of blocks that lists of a call make. Host and device share them.
#pragma once

#include "templates/kernel_params.h"

namespace flashjit {

// In a listed block the mask decides what is seen, and in a full block everything is seen. A block in both lists is
// full.
constexpr unsigned char kBlockLeftOut = 0, kBlockListed = 1, kBlockFull = 2;

constexpr int kBlockStateThreads = 128;

// Gives a state to the blocks of one list: every `step`th of its numbers, from `first` on. Numbers of no block among
// the `columns` are passed over, and a count is clamped to the room that the list has.
constexpr void mark_blocks(const BlockLists& lists, Int64 b, Int64 head, Int64 row, int columns, unsigned char state,
                           int first, int step, unsigned char* states) {
  if (lists.count == nullptr) return;
  const Int64 *of_count = lists.count_stride, *of_index = lists.index_stride;
  const int given = lists.count[b * of_count[0] + head * of_count[1] + row * of_count[2]];
  const int count = given < lists.most ? given : lists.most;
  const int* const index = lists.index + b * of_index[0] + head * of_index[1] + row * of_index[2];
  for (int i = first; i < count; i += step) {
    const int column = index[i * of_index[3]];
    if (column >= 0 && column < columns) states[column] = state;
  }
}

}  // namespace flashjit

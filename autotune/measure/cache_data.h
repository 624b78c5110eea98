// A drawn problem with lengths or pages has more than numbers on the device: k_lens, block_table, and NaN in all of K
// and V that nobody may read. Tensors are contiguous, whether they were drawn or read.
#pragma once

#include <cstdint>
#include <vector>

#include "autotune/measure/problem.h"

namespace flashjit {

// Returns how many pages a pool is drawn with: those that the lengths need, and one that no sequence has.
std::int64_t drawn_pages(const AttentionSpec& spec, const ProblemShape& shape);

void set_ints(NamedTensor& tensor, const std::vector<std::int32_t>& values);
void set_number(NamedTensor& tensor, std::int64_t value);
void set_lengths(NamedTensor& k_lens, const ProblemShape& shape);
// Fills the tensor with cosines or sines, as its name says, of the usual angles.
void set_angles(NamedTensor& table);
// Returns the number of keys that sequences of such a problem share: half of the shortest one, in whole pages, without
// keys that are appended.
std::int32_t drawn_prefix(const AttentionSpec& spec, const ProblemShape& shape);
// Every sequence gets pages of its own, in no order, except for the pages of a shared prefix. The numbers behind its
// length are no pages. With head_tables each head has its pages anywhere in the pool.
void set_table(NamedTensor& block_table, const AttentionSpec& spec, const ProblemShape& shape, std::uint64_t seed);

// Makes lists of keys or of pages. Each query has as many as there is room for, in no order and no number twice, drawn
// from the rows where its sequence would lie. If there are fewer, -1 follows.
void set_chosen(NamedTensor& index, const AttentionSpec& spec, const ProblemShape& shape, std::uint64_t seed);
// Queries are the last tokens of their sequences. `k_positions` goes with the lists of the same seed.
void set_positions(NamedTensor& positions, const AttentionSpec& spec, const ProblemShape& shape, std::uint64_t seed);

// Makes lists of blocks: each row has about an eighth of the blocks, and another eighth that is full, in no order.
void set_blocks(NamedTensor& tensor, const ProblemShape& shape, const AttentionSpec& spec, std::uint64_t seed);

// Makes scales of drawn numbers: near 1, or near 1/64 for ints, whose elements are random bits.
void set_scales(NamedTensor& scales, const AttentionSpec& spec);

// Finds the rows of sequences in K, or in Q, which has no lengths and no table: these are then null. It does not know
// packed tensors.
class RowLocator {
 public:
  RowLocator(const AttentionSpec& spec, const NamedTensor& k, const NamedTensor* k_lens,
             const NamedTensor* block_table);
  std::int64_t room() const { return room_; }
  std::int64_t length(std::int64_t b) const;
  // Returns the first element of the row of a key below length(b).
  std::int64_t row(std::int64_t b, std::int64_t hk, std::int64_t key) const;

 private:
  const NamedTensor *k_lens_, *table_;
  // These are strides. For pages, batch_ is that of one page.
  std::int64_t page_size_, table_heads_, room_ = 0, batch_ = 0, head_ = 0, token_ = 0;
};

// Writes NaN into all rows of K or V that belong to no sequence, or will do so only when they are appended.
void poison_unused(NamedTensor& tensor, const AttentionSpec& spec, const NamedTensor* k_lens,
                   const NamedTensor* block_table, const ProblemShape& shape);

// Poisons rows that no query has in its list.
void poison_unchosen(NamedTensor& tensor, const AttentionSpec& spec, const NamedTensor& index,
                     const NamedTensor* key_count);

}  // namespace flashjit

// A drawn problem with lengths or pages has more on the device than numbers: k_lens, block_table, and NaN in all of K
// and V that nothing may look at. Tensors are contiguous, as drawn and read ones are.
#pragma once

#include <cstdint>
#include <vector>

#include "autotune/measure/problem.h"

namespace flashjit {

// Pages that a pool is drawn with: those that the lengths need, and one that no sequence has.
std::int64_t drawn_pages(const AttentionSpec& spec, const ProblemShape& shape);

void set_ints(NamedTensor& tensor, const std::vector<std::int32_t>& values);
void set_number(NamedTensor& tensor, std::int64_t value);
void set_lengths(NamedTensor& k_lens, const ProblemShape& shape);
// Cosines or sines, by its name, of the usual angles.
void set_angles(NamedTensor& table);
// Keys that sequences of such a problem share: half of the shortest, in whole pages, and none that is appended.
std::int32_t drawn_prefix(const AttentionSpec& spec, const ProblemShape& shape);
// Every sequence has pages of its own, but for those of a shared prefix, in no order; behind its length the numbers are
// none. With head_tables each head has its pages anywhere in the pool.
void set_table(NamedTensor& block_table, const AttentionSpec& spec, const ProblemShape& shape, std::uint64_t seed);

// Lists of keys or of pages: each query has as many as there is room for, no number twice, in no order, of those that lie where
// its sequence would have its own. Where these are fewer, -1 follows.
void set_chosen(NamedTensor& index, const AttentionSpec& spec, const ProblemShape& shape, std::uint64_t seed);
// Queries are the last tokens of their sequences; `k_positions` goes with the lists of the same seed.
void set_positions(NamedTensor& positions, const AttentionSpec& spec, const ProblemShape& shape, std::uint64_t seed);

// Lists of blocks: of each row about an eighth of the blocks, and another eighth that is full, in no order.
void set_blocks(NamedTensor& tensor, const ProblemShape& shape, const AttentionSpec& spec, std::uint64_t seed);

// Drawn numbers as scales: near 1, or near 1/64 of ints, whose elements are random bits.
void set_scales(NamedTensor& scales, const AttentionSpec& spec);

// Where the rows of sequences lie in K, or in Q, which has no lengths and no table: null. Not those of packed tensors.
class RowLocator {
 public:
  RowLocator(const AttentionSpec& spec, const NamedTensor& k, const NamedTensor* k_lens,
             const NamedTensor* block_table);
  std::int64_t room() const { return room_; }
  std::int64_t length(std::int64_t b) const;
  // The first element of the row of a key below length(b).
  std::int64_t row(std::int64_t b, std::int64_t hk, std::int64_t key) const;

 private:
  const NamedTensor *k_lens_, *table_;
  std::int64_t page_size_, table_heads_, room_ = 0, batch_ = 0, head_ = 0,
                                         token_ = 0;  // strides; of pages, batch_ is that of one
};

// NaN into all rows of K or V that are no row of a sequence, or will be one only when it is appended.
void poison_unused(NamedTensor& tensor, const AttentionSpec& spec, const NamedTensor* k_lens,
                   const NamedTensor* block_table, const ProblemShape& shape);

// Poisons rows that no query has in its list.
void poison_unchosen(NamedTensor& tensor, const AttentionSpec& spec, const NamedTensor& index,
                     const NamedTensor* key_count);

}  // namespace flashjit

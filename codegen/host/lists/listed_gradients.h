// If queries have lists of keys, several queries add to a row of the gradients of K and V. Each query is a sequence of
// its own for kernels. Their shares are kept for a while, in rows of floats, and added up in the order of the queries,
// so that the number of workers changes nothing.
#pragma once

#include <cstdint>
#include <span>

#include "codegen/host/backend.h"
#include "codegen/host/problem.h"

namespace flashjit::host {

// The share of a query and a KV head is dK, times the scale, and then dV, for each key of the list that has a row.
struct ListedShare {
  std::int64_t b = 0, hk = 0;  // The sequence that the query is.
  const float* rows = nullptr;
};

class ListedGradients {
 public:
  ListedGradients(const AttentionSpec& spec, const KernelParams& params) : spec_(spec), params_(params) {}

  // Returns the floats of a row of a share, and of the sums.
  std::int64_t row_floats() const { return spec_.d_qk + spec_.d_v; }
  std::int64_t share_bytes(std::int64_t keys) const { return keys * row_floats() * 4; }
  std::int64_t bytes() const { return rows() * spec_.heads_kv * row_floats() * 4; }

  // `memory` has bytes() bytes. All sums become 0, including those of keys that nobody has chosen.
  void begin(char* memory, const ParallelFor& parallel);
  // Shares come in the order of their sequences.
  void add(const Problem& problem, std::span<const ListedShare> shares, const ParallelFor& parallel) const;
  // Writes the sums to dK and dV. With v_in_k both go to dK.
  void store(const ParallelFor& parallel) const;

 private:
  // Returns the rows of K, of all its sequences.
  std::int64_t rows() const { return std::int64_t{params_.pages} * params_.key_rows; }
  std::int64_t rows_of_item() const;
  std::int64_t items_of_sequence() const { return (params_.key_rows + rows_of_item() - 1) / rows_of_item(); }
  float* sums_of(std::int64_t sequence, std::int64_t hk, std::int64_t row) const {
    return sums_ + ((sequence * spec_.heads_kv + hk) * params_.key_rows + row) * row_floats();
  }
  // Calls visit(sequence, KV head, first row, end) for shares of all rows, on any worker.
  template <class Visit>
  void each_item(const ParallelFor& parallel, const Visit& visit) const;
  void store_row(void* gradient, Dtype dtype, std::int64_t at, const float* row, int d) const;

  const AttentionSpec& spec_;
  const KernelParams& params_;
  float* sums_ = nullptr;
};

}  // namespace flashjit::host

// This code decides which weights dropout drops, by the definition in compiler/SPEC.md ("Dropout"). It is written
// plainly, and apart from what kernels use.
#pragma once

#include <cstdint>

#include "autotune/reference/semantics.h"
#include "compiler/spec/spec.h"
#include "flashjit/flashjit.hpp"

namespace flashjit::reference {

class Dropout {
 public:
  Dropout() = default;  // It drops nothing.
  Dropout(double p, std::uint64_t seed, std::uint64_t offset);
  // Sets where the first query and the first key of a call stand in the whole sequence.
  void begin_at(std::int64_t query, std::int64_t key) { q_begin_ = query, k_begin_ = key; }

  bool drops(const Position& at) const;
  // Returns the factor that multiplies the weights that are kept.
  double factor() const { return 256.0 / (256 - dropped_); }

 private:
  int dropped_ = 0;  // number of dropped weights among 256
  std::int64_t q_begin_ = 0, k_begin_ = 0;
  std::uint32_t key_[4] = {};
};

// Returns the dropout of a call. Its seed and offset are numbers, or tensors that can be read here.
Dropout dropout_of(const AttentionSpec& spec, const Arguments& arguments);

}  // namespace flashjit::reference

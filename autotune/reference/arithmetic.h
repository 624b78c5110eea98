// What forward and backward share: logits, and sums in fp32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "autotune/reference/semantics.h"
#include "compiler/spec/spec.h"

namespace flashjit::reference {

struct Logit {
  std::int64_t k;
  double value;
  double error;      // standard deviation of what fp32 arithmetic makes of it
  double doubt = 0;  // how far elements in doubt may move it
};

float sum_in_pairs(const float* terms, std::size_t count);

// What is kept of sums of products: fp32. Of products of 8 bits tensor cores align the terms, and cut them off 13 bits
// below the largest.
constexpr double unit_of_sums(Dtype weights) { return size_of(weights) == 1 ? 0x1p-13 : 0x1p-24; }

// `scales`: of the elements of Q and K. `unit`: of the sum. `doubt`: how far the sum may be off beside that.
Logit logit_of(const AttentionSpec& spec, const Semantics& semantics, const Position& at, const double* query,
               const float* key, double scales, double unit, double doubt = 0);

}  // namespace flashjit::reference

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
  double error;  // standard deviation of what fp32 arithmetic makes of it
};

float sum_in_pairs(const float* terms, std::size_t count);

// `key_scale`: of the elements of K.
Logit logit_of(const AttentionSpec& spec, const Semantics& semantics, const Position& at, const double* query,
               const float* key, double key_scale);

}  // namespace flashjit::reference

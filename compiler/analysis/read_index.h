// This file says which scores read one element of a parameter: over these its gradient is a sum. For kernels that write
// gradients of parameters (ReadGradient in compiler/language/gradient.h).
#pragma once

#include "compiler/language/expr.h"

namespace flashjit {

// Facts that are not proven are false for `apart`, and true for `by`. A scalar is one element for all.
struct ReadIndex {
  // Within a sequence and head.
  bool by_q = false, by_k = false;  // the element changes with the query, with the key
  bool apart = false;  // and differs wherever one of these differs that it changes with: no two sums meet in an element
  bool plain = false;  // indices are variables, each once
  // Never the same element for two sequences, two query heads, two KV heads.
  bool own_b = false, own_h = false, own_hk = false;
};

ReadIndex read_index(const Expr& read);  // a Load or Scalar

}  // namespace flashjit

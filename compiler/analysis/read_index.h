// Which scores read one element of a parameter. The gradient of that element is a sum over them, so kernels that write
// gradients of parameters need it (ReadGradient in compiler/language/gradient.h).
#pragma once

#include "compiler/language/expr.h"

namespace flashjit {

// Facts that are not proven are false for `apart`, and true for `by`. A scalar is one element for all scores.
struct ReadIndex {
  // The next facts hold within a sequence and head.
  bool by_q = false, by_k = false;  // The element changes with the query, with the key.
  // The element differs wherever a position differs with which it changes, so no two sums meet in an element.
  bool apart = false;
  bool plain = false;  // The indices are variables, each once.
  // Two sequences, two query heads, two KV heads never read the same element.
  bool own_b = false, own_h = false, own_hk = false;
};

ReadIndex read_index(const Expr& read);  // `read` is a Load or Scalar.

}  // namespace flashjit

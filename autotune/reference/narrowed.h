// Q, K and V are rounded to 8 bits by the definition of quantize. Attention with `compute=` is held against attention
// to these rounded tensors, by its definition.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "autotune/reference/arithmetic.h"
#include "autotune/reference/reference.h"
#include "compiler/spec/spec.h"
#include "flashjit/flashjit.hpp"

namespace flashjit::reference {

class Narrowed {
 public:
  // Rounds Q, K and V of a spec with `compute=`. Outputs are those of `arguments`.
  Narrowed(const AttentionSpec& given, const Arguments& arguments);
  // Makes Q, K and V for a call of `spec`, which has them in 8 bits, from numbers as `given` has them.
  Narrowed(const AttentionSpec& given, const AttentionSpec& spec, const Arguments& arguments);
  Narrowed(const Narrowed&) = delete;  // Tensors point into this object.

  const AttentionSpec& spec() const { return spec_; }
  const Arguments& arguments() const { return arguments_; }
  const Doubts& doubts() const { return doubts_; }

 private:
  enum class Of { queries, keys, values };
  // `given` has the rope and rotation of this tensor. A token before position 0 turns as at position 0.
  void narrow(const AttentionSpec& given, const Arguments& call, Of of, std::int64_t first_position,
              std::vector<float>& doubts);

  AttentionSpec spec_;
  Arguments arguments_;
  Doubts doubts_;
  std::list<std::vector<std::uint8_t>> elements_;
  std::list<std::vector<float>> scales_;
};

// Adds how far elements in doubt may move the results of a row whose O and LSE are known.
void add_doubts(ExactRow& row, const std::vector<Logit>& logits, const std::vector<float>& values,
                const std::vector<float>& value_scale);

}  // namespace flashjit::reference

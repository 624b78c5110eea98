// What attention with `compute=` is held against: Q, K and V rounded to 8 bits by the definition of quantize, and
// attention by its definition to these.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "autotune/reference/reference.h"
#include "compiler/spec/spec.h"
#include "flashjit/flashjit.hpp"

namespace flashjit::reference {

class Narrowed {
 public:
  // Those of a spec with `compute=`. Outputs are those of `arguments`.
  Narrowed(const AttentionSpec& spec, const Arguments& arguments);
  Narrowed(const Narrowed&) = delete;  // tensors point into it

  const AttentionSpec& spec() const { return spec_; }
  const Arguments& arguments() const { return arguments_; }
  const Doubts& doubts() const { return doubts_; }

 private:
  // `given`: with the rope and rotation of this tensor. `offsets`: of its tokens, if they are packed. A token before
  // position 0 turns as there.
  void narrow(const AttentionSpec& given, const Arguments& call, Tensor& tensor, const Tensor& offsets,
              const char* scale, std::int64_t first_position, std::vector<float>& doubts);

  AttentionSpec spec_;
  Arguments arguments_;
  Doubts doubts_;
  std::list<std::vector<std::uint8_t>> elements_;
  std::list<std::vector<float>> scales_;
};

}  // namespace flashjit::reference

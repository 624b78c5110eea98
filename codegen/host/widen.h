// Elements of 8 bits: rows of Q, K and V as the generated code reads them. Exact; scales are applied elsewhere.
#pragma once

#include <array>
#include <cstdint>

#include "compiler/spec/dtype.h"

namespace flashjit::host {

// The number that a byte stands for.
float value_of_code(Dtype dtype, std::uint8_t code);

class Widener {
 public:
  Widener(Dtype from, Dtype to);
  // `count` rows of `columns` elements, `step` from one to the next: to `target`, where the addresses in `rows` point then.
  void widen(const void** rows, std::int64_t count, int columns, char* target, std::int64_t step = 1) const;

 private:
  int bytes_;
  std::array<std::uint32_t, 256> bits_;  // of each code
};

}  // namespace flashjit::host

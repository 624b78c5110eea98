// Widens elements of 8 bits: rows of Q, K and V become what the generated code reads. This is exact; scales are applied
// elsewhere.
#pragma once

#include <array>
#include <cstdint>

#include "compiler/spec/dtype.h"

namespace flashjit::host {

// Returns the number that a byte stands for.
float value_of_code(Dtype dtype, std::uint8_t code);

class Widener {
 public:
  Widener(Dtype from, Dtype to);
  // Widens `count` rows of `columns` elements, `step` apart, to `target`. The addresses in `rows` point there
  // afterwards.
  void widen(const void** rows, std::int64_t count, int columns, char* target, std::int64_t step = 1) const;

 private:
  int bytes_;
  std::array<std::uint32_t, 256> bits_;  // The bits for each code.
};

}  // namespace flashjit::host

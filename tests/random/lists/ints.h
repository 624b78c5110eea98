// Elements of lists and tables, which are i32.
#pragma once

#include <cstdint>

#include "tests/random/case.h"

namespace flashjit::testing_random {

inline std::int32_t& int_at(CaseTensor& tensor, std::int64_t offset) {
  return reinterpret_cast<std::int32_t*>(tensor.data())[offset];
}
inline void put(CaseTensor& tensor, std::int64_t offset, std::int64_t value) {
  int_at(tensor, offset) = static_cast<std::int32_t>(value);
}

}  // namespace flashjit::testing_random

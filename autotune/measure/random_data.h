// Tensors that are not given get these contents. Equal seeds and names give equal values on every machine, with any
// number of threads.
#pragma once

#include <cstdint>
#include <string_view>

#include "compiler/result.h"
#include "autotune/measure/problem.h"

namespace flashjit {

// Contents decides, so that measurements are about tensors as users have them:
//   Plain      floats: normal with mean 0 and deviation 1; signed ints of 32 and 64 bits: as Documents; other ints:
//              random bits
//   Documents  four documents, equally long: 0 0 .. 1 1 .. 2 2 .. 3 3
//   Tree       sets of ancestors, where 0 is the root, and the children of n are 2 n + 1 and 2 n + 2
//   Slopes     as Contents says
// Only Plain depends on seed and name.
void fill_random(NamedTensor& tensor, std::uint64_t seed);
// Returns the range of the ints that are drawn in this way.
IntInterval range_of_random(Dtype dtype, Contents contents);

}  // namespace flashjit

// Contents of tensors that are not given. The same seed and name give the same values on every machine, with any number
// of threads.
#pragma once

#include <cstdint>
#include <string_view>

#include "compiler/result.h"
#include "autotune/measure/problem.h"

namespace flashjit {

// By Contents, so that what is measured is what users have:
//   Plain      floats: normal with mean 0 and deviation 1; signed ints of 32 and 64 bits: as Documents; other ints:
//              random bits
//   Documents  four of them, equally long: 0 0 .. 1 1 .. 2 2 .. 3 3
//   Tree       every node has two children: 0 is the root, and the children of n are 2 n + 1 and 2 n + 2
//   Slopes     as Contents says
// Only Plain depends on seed and name.
void fill_random(NamedTensor& tensor, std::uint64_t seed);
// Returns the range of the ints that are drawn so.
IntInterval range_of_random(Dtype dtype, Contents contents);

}  // namespace flashjit

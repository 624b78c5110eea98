// Random contents of tensors. The same seed and name give the same values on every machine, with any number of threads.
#pragma once

#include <cstdint>
#include <string_view>

#include "compiler/result.h"
#include "autotune/problem.h"

namespace flashjit {

// Floats: normal with mean 0 and deviation 1. 32- and 64-bit signed ints: runs of 0 0 .. 1 1 .. 2 2 .. 3 3 along the last
// dimension, which is what document ids look like. Other ints: random bits.
void fill_random(NamedTensor& tensor, std::uint64_t seed);

}  // namespace flashjit

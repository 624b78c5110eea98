// The fixed cases: what has to work whatever the random generator happens to draw. Same checks as a random case.
#pragma once

#include <span>

#include "tests/random/spec_generator.h"

namespace flashjit::testing_random {

std::span<const FixedCase> forward_cases();
std::span<const FixedCase> decode_cases();
std::span<const FixedCase> narrow_cases();
std::span<const FixedCase> backward_cases();

}  // namespace flashjit::testing_random

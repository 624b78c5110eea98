// A row of a table of pairs as a case: tensors for its spec, of uneven lengths.
#pragma once

#include <string>

#include "tests/random/case.h"

namespace flashjit::testing_random {

// The spec must parse.
Case make_pair_case(const std::string& spec);

}  // namespace flashjit::testing_random

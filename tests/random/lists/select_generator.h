// Lists of keys or pages for some of the drawn cases.
#pragma once

#include "compiler/spec/spec.h"
#include "flashjit/flashjit.hpp"
#include "tests/random/case.h"

namespace flashjit::testing_random {

// Now and then the case of a forward or a backward with `select=` and lists, without a mask, or as it is.
Case draw_selected(Case c, Device device);
// For a row of a table, whose spec selects: a case of the spec that base_of() gives becomes one of `spec`.
AttentionSpec base_of_selected(const AttentionSpec& spec);
Case take_selected(Case c, const AttentionSpec& spec);

}  // namespace flashjit::testing_random

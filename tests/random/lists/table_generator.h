// Tables with a line for each KV head, and lists of keys and pages, for some of the drawn cases.
#pragma once

#include "compiler/spec/spec.h"
#include "flashjit/flashjit.hpp"
#include "tests/random/case.h"

namespace flashjit::testing_random {

// Now and then the case as that of a spec with `select=` (select_generator.h), or with `head_tables` where it has a block table.
Case draw_lists(Case c, Device device);
// For a row of a table, whose spec has `head_tables`: the case of that spec without them becomes one with.
Case take_head_tables(Case c);

}  // namespace flashjit::testing_random

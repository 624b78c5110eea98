// The launch that `v_transposed` in a spec adds to a plan whose other launches read rows of V. It makes these rows
// before them.
#pragma once

#include <string>

#include "compiler/plan.h"

namespace flashjit {

struct Shape;

// Adds the launch, and memory for the rows, which the launches of the family then read in place of the call's V.
void add_value_rows(Plan& plan);

// Returns the text of `explain`; empty: there is no such launch.
std::string describe_value_rows(const Plan& plan);

// Predicts how long the launches behind it wait for it, in microseconds.
double value_rows_us(const AttentionSpec& spec, const Target& target, const Shape& shape);

}  // namespace flashjit

// The launch that `append` in a spec adds to a plan of any family. It comes before all others.
#pragma once

#include <string>

#include "compiler/plan.h"

namespace flashjit {

struct Shape;

// Adds the launch, and memory for rotated rows of Q, which the launches of the family then read in place of the call's.
void add_append(Plan& plan);

// Returns the text of `explain`; empty: there is no such launch.
std::string describe_append(const Plan& plan);

// Returns the bytes that the launch reads and writes, and about how long the other launches wait for it.
double append_bytes(const AttentionSpec& spec, const Shape& shape);
double append_us(const AttentionSpec& spec, const Target& target, const Shape& shape);

}  // namespace flashjit

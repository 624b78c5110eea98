// The launch that `append` in a spec adds to a plan, whatever its family: it comes before all others.
#pragma once

#include <string>

#include "compiler/plan.h"

namespace flashjit {

struct Shape;

// The launch, and memory for rotated rows of Q, which the launches of the family then read in place of the call's.
void add_append(Plan& plan);

// For `explain`; nothing where there is none.
std::string describe_append(const Plan& plan);

// The bytes that the launch reads and writes, and about how long the others wait for it.
double append_bytes(const AttentionSpec& spec, const Shape& shape);
double append_us(const AttentionSpec& spec, const Target& target, const Shape& shape);

}  // namespace flashjit

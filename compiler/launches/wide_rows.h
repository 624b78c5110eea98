// The launch that a cache of latents (kv=latent656) adds to a plan whose other launches read K of 16 bits. It widens
// the rows before them.
#pragma once

#include <string>

#include "compiler/plan.h"

namespace flashjit {

struct Shape;

// Adds the launch, and memory for as many rows as K has, which the launches of the family then read in place of the
// call's.
void add_wide_rows(Plan& plan);

// Returns the text of `explain`; empty: there is no such launch.
std::string describe_wide_rows(const Plan& plan);

// Predicts how long the launches behind it wait for it, in microseconds.
double wide_rows_us(const AttentionSpec& spec, const Target& target, const Shape& shape);

}  // namespace flashjit

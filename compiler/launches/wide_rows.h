// The launch that a cache of latents (kv=latent656) adds to a plan whose launches read K of 16 bits: it widens rows before
// them.
#pragma once

#include <string>

#include "compiler/plan.h"

namespace flashjit {

struct Shape;

// The launch, and memory for as many rows as K has, which the launches of the family then read in place of the call's.
void add_wide_rows(Plan& plan);

// For `explain`; nothing where there is none.
std::string describe_wide_rows(const Plan& plan);

// Predicts how long the launches behind it wait for it, in microseconds.
double wide_rows_us(const AttentionSpec& spec, const Target& target, const Shape& shape);

}  // namespace flashjit

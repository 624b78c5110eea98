// The choices that a spec makes, as words of its text: what the table of pairs (pair_table.h) combines.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compiler/families/family.h"
#include "compiler/spec/spec.h"

namespace flashjit::testing_random {

// One choice. The first value is what a spec has that does not say anything about it.
struct Factor {
  std::string name;
  std::vector<std::string> values;  // words of a spec; may be empty
};

// The specs of one operation that a family may compute.
struct SpecKind {
  Family family;
  Operation operation;

  std::string name() const;  // "hopper fwd"
};
// All of them on GPUs, or on processors.
std::vector<SpecKind> spec_kinds(bool gpu);

// The choices of such specs. Flags come from the table of flags, so that a new one takes part as soon as it has a row there.
std::vector<Factor> factors_of(Operation operation);

// The number of a value for each factor.
using Choices = std::vector<std::size_t>;

// Choices that a family needs before it computes anything at all: latents for mla, 8 bits for sync_narrow.
Choices first_choices(const FamilyRow& family, const std::vector<Factor>& factors);

std::string spec_of(Operation operation, const std::vector<Factor>& factors, const Choices& choices);

}  // namespace flashjit::testing_random

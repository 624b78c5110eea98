// The options of a spec that a loop could pass over in silence, by name: the flags, and fields that are more than a
// bool. The families (FamilyRow) and the reference (autotune/reference) list the names that they honour, and all others
// are refused.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "compiler/spec/flags.h"
#include "compiler/spec/spec.h"

namespace flashjit {

// Returns all names, flags first.
std::vector<std::string_view> spec_options(std::span<const SpecFlag> flags = kSpecFlags);

// Returns the first option that the spec asks for and `honoured` does not list, in words that specs have; empty: all
// are listed. A spec with compute= is computed by several kernels (compiler/narrowing.h), so each component is checked,
// not the spec.
std::string_view first_unhonoured(const AttentionSpec& spec, std::span<const std::string_view> honoured,
                                  std::span<const SpecFlag> flags = kSpecFlags);

}  // namespace flashjit

// The options of a spec that a loop could pass over in silence, by name: the flags, and fields that are more than a
// bool. Who computes specs lists the names that it honours, and all others are refused: the families (FamilyRow) and the
// reference (autotune/reference).
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "compiler/spec/flags.h"
#include "compiler/spec/spec.h"

namespace flashjit {

// All names, flags first.
std::vector<std::string_view> spec_options(std::span<const SpecFlag> flags = kSpecFlags);

// The first thing that the spec asks for and `honoured` does not list, in words that specs have; empty: everything is
// listed. A spec with compute= is computed by several kernels (compiler/narrowing.h): each component is asked, not the spec.
std::string_view first_unhonoured(const AttentionSpec& spec, std::span<const std::string_view> honoured,
                                  std::span<const SpecFlag> flags = kSpecFlags);

}  // namespace flashjit

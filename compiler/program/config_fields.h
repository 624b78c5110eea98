// One row for each field of KernelConfig: what a spec makes of it, and how generated code writes it down.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "compiler/spec/spec.h"
#include "templates/kernel_config.h"

namespace flashjit {

struct ConfigField {
  std::string_view name;  // "heads_q", "hopper.warpgroups"
  // From the spec alone; null: from an analysis (program/config.cpp), or from a schedule (a family's `configure`).
  void (*set)(KernelConfig& config, const AttentionSpec& spec) = nullptr;
  std::string (*literal)(const KernelConfig& config) = nullptr;
  bool (*is_default)(const KernelConfig& config) = nullptr;
  // Written down even at its default, because a reader looks for it; null: never.
  bool (*always)(const AttentionSpec& spec) = nullptr;
};

// The rows are in the order of printing. Fields that specs ask for by a word alone come from spec/flags.h.
std::span<const ConfigField> problem_fields();
std::span<const ConfigField> schedule_fields();

}  // namespace flashjit

// One row for each field of KernelConfig: how a spec sets it, and how generated code writes it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "compiler/spec/spec.h"
#include "templates/kernel_config.h"

namespace flashjit {

struct ConfigField {
  std::string_view name;  // It is "heads_q", or "hopper.warpgroups".
  // Sets the field from the spec alone. It is null if an analysis (program/config.cpp) or a schedule (a family's
  // `configure`) sets the field.
  void (*set)(KernelConfig& config, const AttentionSpec& spec) = nullptr;
  std::string (*literal)(const KernelConfig& config) = nullptr;
  bool (*is_default)(const KernelConfig& config) = nullptr;
  // Returns whether the field is written even at its default, because a reader looks for it. Null means never.
  bool (*always)(const AttentionSpec& spec) = nullptr;
};

// The rows are in the order of printing. Fields that specs set by a word alone come from spec/flags.h.
std::span<const ConfigField> problem_fields();
std::span<const ConfigField> schedule_fields();

}  // namespace flashjit

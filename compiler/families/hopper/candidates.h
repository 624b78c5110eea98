// The hopper family's part of candidates.h, and what it shares with the others.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "compiler/spec/schedule.h"
#include "compiler/spec/spec.h"
#include "compiler/spec/target.h"
#include "templates/kernel_config.h"

namespace flashjit {

// What checks of schedules return: true, and the reason where somebody asks. Nobody does for most candidates of a plan,
// and to put the reasons into words was a fifth of the time that a plan takes.
template <class... Arguments>
bool refuse(std::string* why, fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  if (why) *why = fmt::format(text, std::forward<Arguments>(arguments)...);
  return true;
}

// Registers a consumer thread needs at its peak, estimated.
int hopper_registers(const AttentionSpec& spec, const KernelConfig& sizes);

// For a complete schedule of the family on a target that runs it.
bool refuses_hopper(const AttentionSpec& spec, const Target& target, const Schedule& schedule, std::string* why);

void enumerate_hopper(const AttentionSpec& spec, const Target& target, const Schedule& pins,
                      std::vector<Schedule>& out);

}  // namespace flashjit

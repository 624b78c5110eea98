// The hopper family's part of candidates.h.
#pragma once

#include <string>
#include <vector>

#include "compiler/schedule.h"
#include "compiler/spec.h"
#include "compiler/target.h"
#include "templates/kernel_config.h"

namespace flashjit {

// Registers a consumer thread needs at its peak, estimated.
int hopper_registers(const AttentionSpec& spec, const KernelConfig& sizes);

// For a complete schedule of the family on a target that runs it.
std::string why_illegal_hopper(const AttentionSpec& spec, const Target& target, const Schedule& schedule);

void enumerate_hopper(const AttentionSpec& spec, const Target& target, const Schedule& pins, std::vector<Schedule>& out);

}  // namespace flashjit

// The part of verify() for programs with a producer and consumers.
#pragma once

#include <cstdint>
#include <functional>

#include "compiler/program/ir.h"

namespace flashjit {

// Returns whether a program, or a launch, consists of roles.
bool has_roles(const std::vector<Statement>& body);

// Executes all roles on the rings of shared memory, for several lengths. Every slot must be awaited before it is filled
// or read, and released once, in its turn, after the last product that reads it. Registers belong to products until
// these are waited for, and nobody may wait for ever. `seed` decides what a kernel decides only when it runs.
Result<void> check_roles(const Program& program, std::uint64_t seed = 1);

// This does so for one scenario. `on_step` sees every statement that a consumer executes, in the order of execution.
struct Scenario;
struct RoleTrace;
struct Step;
Result<void> run_roles(const Program& program, const Scenario& scenario,
                       const std::function<void(const RoleTrace&, const Step&)>& on_step);

}  // namespace flashjit

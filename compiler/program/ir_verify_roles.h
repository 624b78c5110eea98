// The part of verify() for programs with a producer and consumers.
#pragma once

#include <cstdint>
#include <functional>

#include "compiler/program/ir.h"

namespace flashjit {

// Does a program, or a launch, consist of roles?
bool has_roles(const std::vector<Statement>& body);

// Executes all roles on the rings of shared memory, for several lengths: every slot is awaited before it is filled or read,
// and released once, in its turn, after the last product that reads it; registers belong to products until these are waited
// for; and nobody waits for ever. `seed`: of what is decided when a kernel runs.
Result<void> check_roles(const Program& program, std::uint64_t seed = 1);

// The same of one scenario: `on_step` sees every statement that a consumer executes, in the order in which they come about.
struct Scenario;
struct RoleTrace;
struct Step;
Result<void> run_roles(const Program& program, const Scenario& scenario,
                       const std::function<void(const RoleTrace&, const Step&)>& on_step);

}  // namespace flashjit

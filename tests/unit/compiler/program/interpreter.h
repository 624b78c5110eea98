// Runs printed programs on small tiles in float64: what their consumers make of a few items.
#pragma once

#include <string>

#include "compiler/program/ir.h"
#include "compiler/program/roles.h"

namespace flashjit::testing {

// Empty: all items have the reference's O, or the reference's gradients. Else what is wrong: a protocol that is broken, or an
// element that is off.
std::string interpret(const Program& program, const Scenario& scenario);
std::string interpret_backward(const Program& program, const Scenario& scenario);
std::string interpret_backward_roles(const Program& program, const Scenario& scenario);  // of warpgroups
std::string interpret_mla(const Program& program, const Scenario& scenario);
std::string interpret_decode(const Program& program, const Scenario& scenario);

}  // namespace flashjit::testing

// Final program -> the configuration of a kernel loop.
#pragma once

#include "compiler/program/ir.h"
#include "compiler/plan.h"

namespace flashjit {

// Fills config, smem_bytes and threads of the plan from the program. Every attribute must be one that the loop honours,
// with a value that it honours; otherwise the error names the attribute.
Result<void> select_template(Program& program, Plan& plan);

}  // namespace flashjit

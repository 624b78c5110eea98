// A plan becomes a cubin here: its source, its key, and code that the store or the compiler has.
#pragma once

#include "runtime/compile/compile.h"

namespace flashjit {

Result<Compiled> compile_plan(Plan plan, const CompileOptions& options);
// Only looks in the store. If the kernel is not there, the result has no binary, and Facts::miss tells what was looked
// at.
Result<Compiled> find_plan(Plan plan, const CompileOptions& options);

}  // namespace flashjit

// One plan to one cubin: its source, its key, and code that the store or the compiler has.
#pragma once

#include "runtime/compile/compile.h"

namespace flashjit {

Result<Compiled> compile_plan(Plan plan, const CompileOptions& options);
// Only looks in the store. Without a binary: it is not there, and Facts::miss says what was looked at.
Result<Compiled> find_plan(Plan plan, const CompileOptions& options);

}  // namespace flashjit

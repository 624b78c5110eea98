// The search goes from the cost model's choice to a kernel. It passes over schedules whose kernels turn out bad.
#pragma once

#include <functional>

#include "runtime/compile/compile.h"

namespace flashjit {

using CompilePlan = std::function<Result<Compiled>(Plan plan)>;

// Compiles `first` or the next best. A schedule whose kernel spills registers is passed over while another candidate of
// its family is left; if all of them spill, the one that spills least is taken. A kernel that its family rejects,
// because of what the compiler made of it, is never taken, and the next family follows. If the pins exclude that
// family, this is error Unsupported. Facts::notes tells which schedules were passed over, and why. Other errors are
// those of `compile`.
Result<Compiled> search_kernel(const Plan& first, const CompileOptions& options, const CompilePlan& compile);

}  // namespace flashjit

// From the cost model's choice to a kernel: schedules whose kernels turn out bad are passed over.
#pragma once

#include <functional>

#include "runtime/compile/compile.h"

namespace flashjit {

using CompilePlan = std::function<Result<Compiled>(Plan plan)>;

// `first` or the next best. A schedule whose kernel spills registers is passed over while another candidate of its
// family is left; of those that all spill the one that spills least is taken. Kernels of a family that cannot do with
// what the compiler made of them are never taken, and the next family follows; where the pins exclude it: error
// Unsupported. What was passed over, and why, is in Facts::notes. Other errors are those of `compile`.
Result<Compiled> search_kernel(const Plan& first, const CompileOptions& options, const CompilePlan& compile);

}  // namespace flashjit

// From the cost model's choice to a kernel: schedules whose kernels turn out bad are passed over.
#pragma once

#include <functional>

#include "runtime/compile/compile.h"

namespace flashjit {

using CompilePlan = std::function<Result<Compiled>(Plan plan)>;

// Compiles `first` or the next best. A schedule whose kernel spills registers is passed over while another candidate of
// its family is left; if all of them spill, the one that spills least is taken. A kernel whose family cannot do with
// what the compiler made of it is never taken, and the next family follows; where the pins exclude that family: error
// Unsupported. Facts::notes says which schedules were passed over, and why. Other errors are those of `compile`.
Result<Compiled> search_kernel(const Plan& first, const CompileOptions& options, const CompilePlan& compile);

}  // namespace flashjit

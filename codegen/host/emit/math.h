// Emits elementary functions on fp32 vectors (or scalars), as polynomials.
#pragma once

#include <limits>

#include "codegen/host/emit/ir.h"

namespace flashjit::host {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns 2^x within 2 ulp; 2^-inf = 0, and NaN stays NaN. Results below 2^-126 may be 0. x must not exceed 127.
Value* exp2(Ir& ir, Value* x);
Value* exp(Ir& ir, Value* x);
Value* log(Ir& ir, Value* x);
Value* tanh(Ir& ir, Value* x);
Value* sigmoid(Ir& ir, Value* x);

// These convert vectors of `lanes`. A value of a 16-bit type is <lanes x i16> in memory.
Value* widen(Ir& ir, Value* raw, Dtype from);    // Converts raw elements, <n x i16> or <n x float>, to <n x float>.
Value* narrow(Ir& ir, Value* values, Dtype to);  // Converts <n x float> to raw elements, rounded to nearest even.

Value* sum_lanes(Ir& ir, Value* vector);
Value* max_lanes(Ir& ir, Value* vector);  // It ignores NaN lanes.

}  // namespace flashjit::host

// Turns an Expr into CUDA, for the functions of variant.gen.cuh.
#pragma once

#include <string>
#include <vector>

#include "compiler/language/expr.h"

namespace flashjit {

// This is a scalar that is no parameter, and its spelling.
struct NamedScalar {
  Param param;
  std::string text;
};

// The context gives the spelling of leaves in the generated function.
struct CudaExprContext {
  const std::vector<Param>* params = nullptr;  // The order of the parameter block: extra[i] is (*params)[i].
  bool wide_ints = false;                      // Ints are `long long` instead of `int`.
  bool symbolic = false;  // s and k may have the types of templates/symbolic.cuh, and tanh is math's.
  const std::vector<NamedScalar>* scalars = nullptr;
};

// Returns the body of a function that returns `expr`: one readable `const` line per shared or long sub-expression,
// indented by two spaces, then `return ...;`. Leaves are spelled q k b h hk q_len k_len s q_lo q_hi k_lo k_hi.
// Parameters are read with the helpers of templates/extra_params.cuh: scalar_i32(params, i), load_f16(params, i,
// index...) and so on.
std::string cuda_function_body(const Expr& expr, const CudaExprContext& context);

// Returns the body of a function that returns a struct of `values`. They must have been simplified by one Simplifier,
// as gradients_of() does, so that what they share is written once.
std::string cuda_function_body(const std::vector<Expr>& values, const CudaExprContext& context);

// Returns the body of a function that returns where the gradient of `read`, a Load or Scalar, is in
// KernelParams::d_extra[gradient].
std::string cuda_gradient_element_body(const Expr& read, int gradient, const CudaExprContext& context);
// Returns the body of a function that returns where `read`, a Load, is in its tensor.
std::string cuda_input_element_body(const Expr& read, const CudaExprContext& context);

// Returns the body of a function that prefetches what `loads` will read.
std::string cuda_prefetch_body(const std::vector<Expr>& loads, const CudaExprContext& context);

// Returns the body of a function that shows `visit` the outer indices of each of `inputs`
// (compiler/analysis/score_inputs.h).
std::string cuda_visit_inputs(const std::vector<Expr>& inputs, const CudaExprContext& context);

}  // namespace flashjit

// Expr -> CUDA: what variant.gen.cuh is made of.
#pragma once

#include <string>
#include <vector>

#include "compiler/language/expr.h"

namespace flashjit {

// A scalar that is no parameter, and how it is spelled.
struct NamedScalar {
  Param param;
  std::string text;
};

// Says how leaves are spelled in the generated function.
struct CudaExprContext {
  const std::vector<Param>* params = nullptr;  // the parameter block's order: extra[i] is (*params)[i]
  bool wide_ints = false;                      // ints are `long long` instead of `int`
  bool symbolic = false;  // s and k may be of the types of templates/symbolic.cuh, and tanh is math's
  const std::vector<NamedScalar>* scalars = nullptr;
};

// The body of a function that returns `expr`: one readable `const` line per shared or long sub-expression, indented by
// two spaces, then `return ...;`. Leaves are spelled q k b h hk q_len k_len s q_lo q_hi k_lo k_hi; parameters are read
// with the helpers of templates/extra_params.cuh: scalar_i32(params, i), load_f16(params, i, index...) and so on.
std::string cuda_function_body(const Expr& expr, const CudaExprContext& context);

// The same for a function that returns a struct of `values`. They are simplified, and by one Simplifier, so that what
// they share is written once: gradients_of() gives such.
std::string cuda_function_body(const std::vector<Expr>& values, const CudaExprContext& context);

// The body of a function that returns where the gradient of `read`, a Load or Scalar, is in KernelParams::d_extra[gradient].
std::string cuda_gradient_element_body(const Expr& read, int gradient, const CudaExprContext& context);
// The same of where `read`, a Load, is in its tensor.
std::string cuda_input_element_body(const Expr& read, const CudaExprContext& context);

// The body of a function that asks for what `loads` will read.
std::string cuda_prefetch_body(const std::vector<Expr>& loads, const CudaExprContext& context);

// The body of a function that shows `visit` the outer indices of each of `inputs` (compiler/analysis/score_inputs.h).
std::string cuda_visit_inputs(const std::vector<Expr>& inputs, const CudaExprContext& context);

}  // namespace flashjit

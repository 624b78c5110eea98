// Generated files are put together from these pieces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "codegen/cuda/expr.h"

namespace flashjit {

// Makes text safe for a // comment. A user's text goes through here, so that nothing in it can end the line or continue
// it.
std::string comment_text(std::string_view text);

// Returns the first line of a file other than the one that describes the kernel.
std::string short_header(std::string_view what);

// Returns the leaves of `exprs` that are members of seq, as locals.
std::string locals(const std::vector<Expr>& exprs, const CudaExprContext& context);

// Returns one function of a structure.
std::string function(std::string_view comment, std::string_view declaration, const std::string& body);
std::string body_of(const Expr& expr, const CudaExprContext& context);

}  // namespace flashjit

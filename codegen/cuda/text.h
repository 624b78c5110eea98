// Pieces that generated files are put together from.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "codegen/cuda/expr.h"

namespace flashjit {

// Makes text for a // comment. A user's text goes through here, so that nothing in it can end the line or continue it.
std::string comment_text(std::string_view text);

// Returns the first line of a file that is not the one which says what the kernel is.
std::string short_header(std::string_view what);

// The leaves of `exprs` that live in seq, as locals.
std::string locals(const std::vector<Expr>& exprs, const CudaExprContext& context);

// One function of a structure.
std::string function(std::string_view comment, std::string_view declaration, const std::string& body);
std::string body_of(const Expr& expr, const CudaExprContext& context);

}  // namespace flashjit

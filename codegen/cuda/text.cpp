#include "codegen/cuda/text.h"

#include <algorithm>

#include <fmt/format.h>

namespace flashjit {

std::string comment_text(std::string_view text) {
  std::string clean;
  for (char c : text) clean += c >= ' ' && c <= '~' && c != '\\' ? c : ' ';
  return clean;
}

std::string short_header(std::string_view what) { return fmt::format("// {} Generated: see config.gen.cuh.\n", what); }

std::string locals(const std::vector<Expr>& exprs, const CudaExprContext& context) {
  std::string text;
  for (const Variable v : {Variable::B, Variable::H, Variable::Hk, Variable::QLen, Variable::KLen}) {
    if (std::ranges::none_of(exprs, [&](const Expr& expr) { return uses(expr, v); })) continue;
    text += fmt::format("  const {0} {1} = seq.{1};\n", context.wide_ints ? "Int64" : "int", name(v));
  }
  return text;
}

std::string function(std::string_view comment, std::string_view declaration, const std::string& body) {
  std::string text = "\n";
  for (const std::string& piece : {fmt::format("// {}\n__device__ static {} {{\n", comment, declaration), body}) {
    for (std::size_t begin = 0; begin < piece.size();) {
      const std::size_t end = piece.find('\n', begin) + 1;
      text += "  " + piece.substr(begin, end - begin);
      begin = end;
    }
  }
  return text + "  }\n";
}

std::string body_of(const Expr& expr, const CudaExprContext& context) {
  return locals({expr}, context) + cuda_function_body(expr, context);
}

}  // namespace flashjit

#include "compiler/language/gradient.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "compiler/language/named.h"
#include "tests/unit/compiler/expr_random.h"

namespace flashjit {
namespace {

struct Score {
  std::vector<Param> params = {{"c", Dtype::F32, 0},  {"d", Dtype::F32, 0}, {"t", Dtype::F32, 1},
                               {"w", Dtype::BF16, 2}, {"n", Dtype::I32, 0}, {"doc", Dtype::I32, 2}};
  Expr expr, mask;

  explicit Score(std::string_view text, std::string_view mask_text = {}) {
    if (!text.empty()) expr = parsed(text, true);
    if (!mask_text.empty()) mask = parsed(mask_text, false);
  }
  Expr parsed(std::string_view text, bool score) {
    const Result<Expr> parsed = parse_expr(text, {&params, true, score});
    EXPECT_TRUE(parsed) << text << ": " << (parsed ? "" : parsed.error().message + "\n" + parsed.error().detail);
    return parsed ? *parsed : Expr();
  }
  Result<ScoreGradients> gradients(const std::vector<std::string>& wanted = {}) const {
    return gradients_of(expr, mask, wanted);
  }
};

std::string by_s(std::string_view text) {
  const Result<ScoreGradients> gradients = Score(text).gradients();
  EXPECT_TRUE(gradients) << text << ": " << (gradients ? "" : gradients.error().message);
  return gradients ? print(gradients->by_s) : "";
}

TEST(Gradient, ByTheScore) {
  static const char* const kRows[][2] = {
      {"", "1.0"},
      {"s", "1.0"},
      {"alibi", "1.0"},
      {"s + c * q - t[k]", "1.0"},
      {"c * q", "0.0"},
      {"s - s", "0.0"},
      {"s * 0.0 + c", "0.0"},
      {"3 - s / 2 + s", "0.5"},
      {"softcap(50)", "1.0 - tanh(s * 0.02) * tanh(s * 0.02)"},
      {"softcap(c)", "1.0 - tanh(s * (1.0 / c)) * tanh(s * (1.0 / c))"},
      {"softcap(49)", "x"},
      {"c * tanh(s / c)", "x"},
      {"tanh(s / 8)", "x"},
      {"alibi; softcap(30)", "x"},
      {"exp(s)", "exp(s)"},
      {"exp(-s * s)", "x"},
      {"log(s * 3)", "x"},
      {"log(1 + exp(s))", "x"},
      {"sqrt(s)", "0.5 / sqrt(s)"},
      {"sigmoid(s)", "sigmoid(s) * (1.0 - sigmoid(s))"},
      {"s * sigmoid(s)", "x"},
      {"s * s * s", "x"},
      {"1 / s", "x"},
      {"s / (s + c)", "x"},
      {"abs(s)", "x"},
      {"max(s, 0)", "x"},
      {"max(c, s)", "x"},
      {"min(max(s, -5), 5)", "x"},
      {"max(s, c * s)", "x"},
      {"max(s * 2, s * 3)", "x"},
      {"where(k < q, s, -inf)", "x"},
      {"where(k < q, s * 2, s * 4)", "x"},
      {"where(s > 0, sqrt(s), 0)", "x"},
      {"sqrt(where(s > 0, s, 0))", "x"},
      {"where(k < q, s, exp(s))", "x"},
      {"where(s < c, 1, 0)", "0.0"},
  };
  for (const auto& [text, expected] : kRows) EXPECT_EQ(by_s(text), expected) << text;
}

}  // namespace
}  // namespace flashjit

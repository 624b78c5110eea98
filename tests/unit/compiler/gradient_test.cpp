#include "compiler/language/gradient.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "compiler/spec/spec.h"

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

ScoreGradients gradients(std::string_view text, const std::vector<std::string>& wanted = {}) {
  const Result<ScoreGradients> gradients = Score(text).gradients(wanted);
  EXPECT_TRUE(gradients) << text << ": " << (gradients ? "" : gradients.error().message);
  return gradients ? *gradients : ScoreGradients();
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
      {"where(s < c, 1, 0)", "0.0"},
      {"3 - s / 2 + s", "0.5"},
      {"-(-s * c)", "c"},
      // What divides and multiplies again is left out, and so is what is 1 but for the rounding of 1/49.
      {"softcap(50)", "1.0 - tanh(s * 0.02) * tanh(s * 0.02)"},
      {"softcap(49)", "1.0 - tanh(s * 0.020408163) * tanh(s * 0.020408163)"},
      {"softcap(c)", "1.0 - tanh(s * (1.0 / c)) * tanh(s * (1.0 / c))"},
      {"c * tanh(s / c)", "1.0 - tanh(s / c) * tanh(s / c)"},
      {"tanh(s / 8)", "0.125 * (1.0 - tanh(s / 8.0) * tanh(s / 8.0))"},
      {"s * t[h]; softcap(30)", "(1.0 - tanh(s * t[h] * 0.033333335) * tanh(s * t[h] * 0.033333335)) * t[h]"},
      {"exp(s)", "exp(s)"},
      {"exp(-s * s)", "-2.0 * exp(-s * s) * s"},
      {"log(s + c)", "1.0 / (s + c)"},
      {"sqrt(s)", "0.5 / sqrt(s)"},
      {"sigmoid(s)", "sigmoid(s) * (1.0 - sigmoid(s))"},
      {"s * sigmoid(s)", "sigmoid(s) + s * (sigmoid(s) * (1.0 - sigmoid(s)))"},
      {"s * s * s", "2.0 * s * s + s * s"},
      {"c / s", "-(1.0 / s * (c / s))"},
      {"s / (s + c)", "1.0 / (s + c) * (1.0 - s / (s + c))"},
      {"abs(s)", "where(s != 0.0, where(s > 0.0, 1.0, -1.0), 0.0)"},
      // A number is not NaN; a parameter may be.
      {"max(s, 0)", "where(s >= 0.0, where(s == 0.0, 0.5, 1.0), 0.0)"},
      {"min(5, s)", "where(s <= 5.0, where(s == 5.0, 0.5, 1.0), 0.0)"},
      {"max(c, s)", "where(max(c, s) == s, where(max(c, s) == c, 0.5, 1.0), 0.0)"},
      {"max(s, s + c)", "1.0"},
      {"max(s * 2, s * 3)",
       "where(max(s * 2.0, s * 3.0) == s * 2.0, where(max(s * 2.0, s * 3.0) == s * 3.0, 2.5, 2.0), 3.0)"},
      {"where(k < q, s, -inf)", "where(k < q, 1.0, 0.0)"},
      {"where(k < q, -inf, s)", "where(q <= k, 1.0, 0.0)"},
      {"where(k < q, s, s + 1)", "1.0"},
      {"where(k < q, s * c, s * 4 * c)", "where(k < q, 1.0, 4.0) * c"},
      {"where(k < q, s, exp(s))", "where(k < q, 1.0, exp(s))"},
      {"where(s > 0, sqrt(s), 0)", "where(s > 0.0, 0.5 / sqrt(s), 0.0)"},
      {"sqrt(where(s > 0, s, 0))", "where(s > 0.0, 0.5 / sqrt(where(s > 0.0, s, 0.0)), 0.0)"},
  };
  for (const auto& [text, expected] : kRows) EXPECT_EQ(print(gradients(text).by_s), expected) << text;
}

// Of what is read, one after the other: "read: derivative".
TEST(Gradient, ByParameters) {
  struct Row {
    const char* text;
    std::vector<std::string> wanted, expected;
  };
  const Row rows[] = {
      {"s * c", {"c"}, {"c: s"}},
      {"alibi", {"slope"}, {"slope[h]: float(k + q_len - q - k_len)"}},
      {"bias(x, bf16)", {"x"}, {"x[h, q, k]: 1.0"}},
      {"s + t[k] * t[q] + t[k]", {"t"}, {"t[k]: t[q] + 1.0", "t[q]: t[k]"}},
      {"s + t[k] - t[min(k, 3)]", {"t"}, {"t[k]: 1.0", "t[min(k, 3)]: -1.0"}},
      {"s * d + c * w[h, k]", {"w", "d"}, {"w[h, k]: c", "d: s"}},
      {"where(t[k] > 0, s * c, s) + t[q]", {"t", "c"}, {"t[q]: 1.0", "c: where(t[k] > 0.0, s, 0.0)"}},
      {"c * tanh(s / c)", {"c"}, {"c: tanh(s / c) - (1.0 - tanh(s / c) * tanh(s / c)) * (s / c)"}},
      {"bias(x); softcap(50)",
       {"x"},
       {"x[h, q, k]: 1.0 - tanh((s + x[h, q, k]) * 0.02) * tanh((s + x[h, q, k]) * 0.02)"}},
  };
  for (const Row& row : rows) {
    std::vector<std::string> found;
    for (const ReadGradient& term : gradients(row.text, row.wanted).by_params)
      found.push_back(print(term.read) + ": " + print(term.derivative));
    EXPECT_EQ(found, row.expected) << row.text;
  }
}

TEST(Gradient, Refused) {
  struct Row {
    const char *text, *mask;
    std::vector<std::string> wanted;
    const char* message;
  };
  const Row rows[] = {
      {"s * c", "", {"q"}, "no parameter `q`; the float parameters that it reads are c"},
      {"s * n", "", {"c"}, "no parameter `c`, nor any other float; leave it out"},
      {"", "", {"c"}, "no parameter `c`"},
      {"s * n", "", {"n"}, "`n` holds ints (i32), which have no gradient"},
      {"s", "doc[b, q] == doc[b, k]", {"doc"}, "`doc` holds ints (i32)"},
      {"s", "t[k] > 0", {"t"}, "`t` is read by the mask alone"},
      {"where(t[k] > 0, s, c)", "", {"t"}, "does not change with `t` but where it decides"},
      {"s + t[k] - t[k]", "", {"c"}, "no parameter `c`"},
      {"s * c", "", {"c", "c"}, "`c` stands there twice"},
  };
  for (const Row& row : rows) {
    const Result<ScoreGradients> gradients = Score(row.text, row.mask).gradients(row.wanted);
    ASSERT_FALSE(gradients) << row.text;
    EXPECT_NE(gradients.error().message.find(row.message), std::string::npos) << gradients.error().message;
    EXPECT_EQ(gradients.error().message.find("grads: "), 0u) << gradients.error().message;
    EXPECT_EQ(gradients.error().kind, ErrorKind::Invalid);
  }
  EXPECT_TRUE(Score("s + t[k]", "t[k] > 0").gradients({{"t"}}));
}

float at(const Expr& expr, float s, std::int64_t q = 0, float c = NAN) {
  const std::vector<Param> params = {{"c", Dtype::F32, 0}};
  const ParamValue value = {&c, {}, {}};
  Environment environment;
  environment.s = s;
  environment.variables[static_cast<int>(Variable::Q)] = q;
  environment.params = &params;
  environment.values = &value;
  return evaluate(expr, environment).real;
}

TEST(Gradient, WhereFunctionsBend) {
  struct Row {
    const char* text;
    float s, expected;
    float c = NAN;
  };
  const Row rows[] = {
      {"abs(s)", 0, 0},
      {"abs(s)", -0.0f, 0},
      {"sqrt(abs(s))", 0, 0},
      {"max(s, 0)", 0, 0.5f},
      {"max(s, 0)", -1e-30f, 0},
      {"min(max(s, -5), 5)", -5, 0.5f},
      {"max(s, c)", 2, 0.5f, 2},
      {"max(s, c)", 2, 1},  // NaN is left out
      {"min(c, s)", 2, 1},
      {"max(2 * s, 4 * s)", 0, 3},
      {"max(s * s, c)", NAN, 0, 1},
      {"where(s > 0, 2 * s, 3 * s)", 0, 3},
      {"sqrt(s)", 0, INFINITY},
      {"log(s)", 0, INFINITY},
      {"exp(s)", -INFINITY, 0},
      {"softcap(50)", INFINITY, 0},
      {"softcap(c)", 3, 0, 0},
  };
  for (const Row& row : rows)
    EXPECT_EQ(at(gradients(row.text).by_s, row.s, 0, row.c), row.expected) << row.text << " at " << row.s;
}

// What is hidden, or does not change, has derivative 0 whatever it is multiplied by.
TEST(Gradient, NoNanOfWhatIsHidden) {
  static const char* const kZero[] = {
      "where(s > 0, sqrt(s), 0)",
      "sqrt(where(s > 0, s, 0))",
      "sqrt(max(s, 0))",
      "log(max(s, 0))",
      "where(s > 0, 1 / s, 0)",
      "1 / where(s > 0, s, 0)",
      "where(s > 0, log(s), 1)",
      "sqrt(sqrt(max(s, 0)))",
      "sqrt(where(s > 0, s, 0) + max(s, 0))",
      "where(q > 0, s, sqrt(where(s > 0, exp(s), 0)))",
      "sqrt(where(s > 0, where(q > 0, exp(s), s), 0))",
      "sqrt(abs(max(s, 0)))",
      "where(s > 0, where(s > -1, sqrt(s), s), c)",
      "exp(where(s < 0, c, s)) * c",
  };
  for (const char* text : kZero) {
    const Expr by_s = gradients(text).by_s;
    EXPECT_EQ(at(by_s, -2), 0) << text << " gives " << print(by_s);
    EXPECT_TRUE(at(by_s, 2, 0, 1) != 0) << text;
  }
}

// Softcap in a kernel: scale the score, take tanh, scale again; its derivative adds three operations.
TEST(Gradient, SharesWithTheScore) {
  std::set<const Node*> nodes;
  const auto collect = [&](const Expr& expr, auto&& again) -> void {
    if (!nodes.insert(expr.get()).second) return;
    for (const Expr& arg : expr->args) again(arg, again);
  };
  const auto functions = [&] {
    return std::ranges::count_if(nodes, [](const Node* n) { return n->op == Op::Tanh || n->op == Op::Exp; });
  };
  const ScoreGradients softcap = gradients("softcap(50)");
  collect(softcap.score, collect);
  EXPECT_EQ(nodes.size(), 6u);
  collect(softcap.by_s, collect);
  EXPECT_EQ(nodes.size(), 9u);
  EXPECT_EQ(functions(), 1);

  nodes.clear();
  const ScoreGradients all = gradients("s + t[h] * (k - q); softcap(50); s * exp(c * s); softcap(20)", {"t", "c"});
  collect(all.score, collect);
  const std::size_t score = nodes.size();
  collect(all.by_s, collect);
  for (const ReadGradient& term : all.by_params) collect(term.derivative, collect);
  EXPECT_EQ(functions(), 3);
  EXPECT_LT(nodes.size(), score * 5 / 2);
}

TEST(Gradient, DoesNotExplode) {
  // Each stage reads the one before twice: 2^11 operations written out.
  std::string squares = "s * s", choices = "where(s > q, s * 2, tanh(s))";
  for (int i = 0; i < 9; ++i) squares += "; s * s + c";
  for (int i = 0; i < 4; ++i) choices += "; where(s > k, s * s, s + c)";
  for (const std::string& text : {squares, choices}) {
    const ScoreGradients found = gradients(text, {"c"});
    EXPECT_LT(node_count(found.by_s), 5 * node_count(found.score)) << text;
    EXPECT_LT(node_count(found.by_params.at(0).derivative), 6 * node_count(found.score)) << text;
  }
}

TEST(Gradient, Limits) {
  std::string factors = "(s + 1)", reads = "s";
  for (int i = 2; i < 150; ++i) factors += " * (s + " + std::to_string(i) + ")";
  for (int i = 0; i < 17; ++i) reads += " + t[k + " + std::to_string(i) + "]";
  const Result<ScoreGradients> large = Score(factors).gradients();
  ASSERT_FALSE(large);
  EXPECT_NE(large.error().message.find("derivative of the score by s has more than 512 operations"), std::string::npos)
      << large.error().message;
  const Result<AttentionSpec> spec = parse_spec("bwd bf16 d=64 score=\"" + factors + "\"");
  ASSERT_TRUE(spec) << spec.error().message;
  const Result<void> supported = check_supported(*spec);  // before anything is compiled
  ASSERT_FALSE(supported);
  EXPECT_EQ(supported.error().message, large.error().message);
  const Result<ScoreGradients> many = Score(reads).gradients({{"t"}});
  ASSERT_FALSE(many);
  EXPECT_NE(many.error().message.find("17 times, above 16"), std::string::npos) << many.error().message;
}

}  // namespace
}  // namespace flashjit

#include <cmath>

#include <gtest/gtest.h>

#include "compiler/language/expr.h"

namespace flashjit {
namespace {

struct At {
  std::int64_t q, k, b, h, q_len, k_len;
};

Environment environment_at(const At& at) {
  Environment environment;
  const auto set = [&](Variable v, std::int64_t value) { environment.variables[static_cast<int>(v)] = value; };
  set(Variable::Q, at.q);
  set(Variable::K, at.k);
  set(Variable::B, at.b);
  set(Variable::H, at.h);
  set(Variable::QLen, at.q_len);
  set(Variable::KLen, at.k_len);
  return environment;
}

constexpr std::int32_t kDocuments[2][8] = {{0, 0, 0, 1, 1, 2, 2, 2}, {5, 4, 4, 4, 4, 4, 1, 1}};
constexpr std::int64_t kTree[2][4][1] = {{{1}, {3}, {5}, {9}}, {{1}, {2}, {7}, {15}}};

std::int64_t block_of(std::int64_t position, std::int64_t n) {
  return static_cast<std::int64_t>(std::floor(1.0 * position / n));
}

// Each mask as its documentation says it, written again in C++. `pos`: the position of the query among the keys.
struct NamedMask {
  const char* text;
  bool (*expected)(const At&, std::int64_t pos);
};
constexpr NamedMask kNamedMasks[] = {
    {"causal", [](const At& a, std::int64_t pos) { return !(a.k > pos); }},
    {"causal_top_left", [](const At& a, std::int64_t) { return !(a.k > a.q); }},
    {"causal_bottom_right", [](const At& a, std::int64_t) { return a.k_len - a.k >= a.q_len - a.q; }},
    {"window(2, 1)", [](const At& a, std::int64_t pos) { return a.k + 2 >= pos && a.k - 1 <= pos; }},
    {"window(-1, 1)", [](const At& a, std::int64_t pos) { return a.k - 1 <= pos; }},
    {"window(2, -1)", [](const At& a, std::int64_t pos) { return a.k + 2 >= pos; }},
    {"window(-1, -1)", [](const At&, std::int64_t) { return true; }},
    {"chunk(3)", [](const At& a, std::int64_t pos) { return block_of(pos, 3) == block_of(a.k, 3); }},
    {"prefix(2)", [](const At& a, std::int64_t pos) { return a.k < 2 || a.k <= pos; }},
    {"document(ids)",
     [](const At& a, std::int64_t pos) {
       return kDocuments[a.b][std::max<std::int64_t>(pos, 0)] == kDocuments[a.b][a.k];
     }},
    {"tree(words)",
     [](const At& a, std::int64_t) {
       const std::int64_t context = a.k_len - a.q_len;
       return a.k < context || (kTree[a.b][a.q][0] >> (a.k - context)) % 2 == 1;
     }},
    {"!causal | window(0, 0)", [](const At& a, std::int64_t pos) { return a.k >= pos; }},
};

TEST(ExprEval, NamedMasks) {
  for (const NamedMask& row : kNamedMasks) {
    for (const bool bottom_right : {true, false}) {
      std::vector<Param> params;
      const Result<Expr> mask = parse_expr(row.text, {&params, bottom_right, false});
      ASSERT_TRUE(mask) << row.text << ": " << mask.error().message;
      const bool tree = std::string_view(row.text) == "tree(words)";
      ParamValue value = tree ? ParamValue{kTree, {2, 4, 1}, {4, 1, 1}} : ParamValue{kDocuments, {2, 8}, {8, 1}};
      for (std::int64_t q_len : {1, 4}) {
        for (std::int64_t k_len : {2, 4, 8}) {
          if (tree && k_len < q_len) continue;
          for (At at{0, 0, 0, 0, q_len, k_len}; at.b < 2; ++at.b) {
            for (at.q = 0; at.q < q_len; ++at.q) {
              for (at.k = 0; at.k < k_len; ++at.k) {
                Environment environment = environment_at(at);
                environment.params = &params;
                environment.values = &value;
                const std::int64_t position = bottom_right ? at.q + at.k_len - at.q_len : at.q;
                if (position >= 8) continue;
                EXPECT_EQ(evaluate(*mask, environment).integer != 0, row.expected(at, position))
                    << row.text << " q=" << at.q << "/" << q_len << " k=" << at.k << "/" << k_len << " b=" << at.b;
              }
            }
          }
        }
      }
    }
  }
}

float score_at(std::string_view text, const At& at, float s, const void* data, const ParamValue& shape,
               bool bottom_right = true) {
  std::vector<Param> params;
  const Result<Expr> score = parse_expr(text, {&params, bottom_right, true});
  EXPECT_TRUE(score) << text << ": " << (score ? "" : score.error().message);
  if (!score) return NAN;
  Environment environment = environment_at(at);
  environment.s = s;
  ParamValue value = shape;
  value.data = data;
  environment.params = &params;
  environment.values = &value;
  return evaluate(*score, environment).real;
}

TEST(ExprEval, NamedScores) {
  const At at{2, 3, 1, 1, 4, 6};
  const float slopes[] = {0.5f, 0.25f};
  EXPECT_FLOAT_EQ(score_at("alibi", at, 1.5f, slopes, {nullptr, {2}, {1}}), 1.5f + 0.25f * (3 - 4));
  EXPECT_FLOAT_EQ(score_at("alibi", at, 1.5f, slopes, {nullptr, {2}, {1}}, false), 1.5f + 0.25f * (3 - 2));
  EXPECT_NEAR(score_at("softcap(30)", at, 45.0f, nullptr, {}), 30 * std::tanh(1.5), 1e-5);
  EXPECT_NEAR(score_at("softcap(30); alibi", at, 45.0f, slopes, {nullptr, {2}, {1}}), 30 * std::tanh(1.5) - 0.25, 1e-5);
  EXPECT_NEAR(score_at("alibi; softcap(30)", at, 45.0f, slopes, {nullptr, {2}, {1}}), 30 * std::tanh(44.75 / 30), 1e-5);
  EXPECT_NEAR(score_at("s * 2; s + 1; s * s", at, 3.0f, nullptr, {}), 49, 1e-5);
  float bias[2 * 4 * 6];
  for (int i = 0; i < 48; ++i) bias[i] = static_cast<float>(i);
  EXPECT_FLOAT_EQ(score_at("bias(x)", at, 0.5f, bias, {nullptr, {2, 4, 6}, {24, 6, 1}}), 0.5f + 24 + 12 + 3);
  const std::uint16_t halves[] = {0x3c00, 0xbc00, 0x7bff, 0x0001, 0xfc00, 0x8000, 0x3555, 0x5640};
  const float half_values[] = {1, -1, 65504, 5.9604645e-8f, -INFINITY, -0.0f, 0.333251953125f, 100};
  for (std::int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(score_at("bias(x, fp16)", {0, i, 0, 0, 1, 8}, 0, halves, {nullptr, {1, 1, 8}, {8, 8, 1}}),
              half_values[i]);
  }
  const std::uint16_t bfloats[] = {0x3f80, 0xc2c8, 0x7f80};
  const float bfloat_values[] = {1, -100, INFINITY};
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(score_at("bias_b(x, bf16)", {0, i, 0, 0, 1, 3}, 0, bfloats, {nullptr, {1, 1, 1, 3}, {3, 3, 3, 1}}),
              bfloat_values[i]);
  }
}

TEST(ExprEval, FloorDivision) {
  const int rows[][4] = {{7, 2, 3, 1}, {-7, 2, -4, 1}, {-8, 2, -4, 0}, {-1, 64, -1, 63}, {0, 5, 0, 0}, {63, 64, 0, 63}};
  for (const auto& [a, b, quotient, remainder] : rows) {
    EXPECT_EQ(evaluate(Expr::integer(a) / Expr::integer(b), {}).integer, quotient) << a << "/" << b;
    EXPECT_EQ(evaluate(Expr::integer(a) % Expr::integer(b), {}).integer, remainder) << a << "%" << b;
  }
}

TEST(ExprEval, ReadsOutsideAreZero) {
  std::vector<Param> params = {{"t", Dtype::I32, 1}};
  const Result<Expr> mask = parse_expr("t[k - 5] == 0", {&params, true, false});
  ASSERT_TRUE(mask);
  const std::int32_t data[] = {7, 7};
  const ParamValue value = {data, {2}, {1}};
  Environment environment;
  environment.params = &params;
  environment.values = &value;
  for (std::int64_t k : {0, 4, 5, 6, 7, 1000}) {
    environment.variables[static_cast<int>(Variable::K)] = k;
    EXPECT_EQ(evaluate(*mask, environment).integer != 0, k < 5 || k > 6) << k;
  }
}

TEST(ExprEval, IndicesThatAreLookedUpAreCut) {
  std::vector<Param> params = {{"t", Dtype::I32, 1}, {"a", Dtype::I32, 1}};
  const Result<Expr> mask = parse_expr("t[a[k] - 1] == 9", {&params, true, false});
  ASSERT_TRUE(mask);
  const std::int32_t t[] = {7, 8, 9}, a[] = {0, 1, 2, 3, 4, 1 << 30};
  const ParamValue values[] = {{t, {3}, {1}}, {a, {6}, {1}}};
  Environment environment;
  environment.params = &params;
  environment.values = values;
  for (std::int64_t k = 0; k < 6; ++k) {
    environment.variables[static_cast<int>(Variable::K)] = k;
    EXPECT_EQ(evaluate(*mask, environment).integer != 0, k >= 3) << k;
  }
}

}  // namespace
}  // namespace flashjit

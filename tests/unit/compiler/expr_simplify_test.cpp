#include <bit>

#include <gtest/gtest.h>

#include "compiler/language/expr.h"
#include "compiler/analysis/interval.h"
#include "tests/unit/compiler/expr_random.h"

namespace flashjit {
namespace {

bool same_value(const Value& a, const Value& b) {
  if (a.type != b.type) return false;
  if (a.type != Type::Float) return a.integer == b.integer;
  return std::bit_cast<std::uint32_t>(a.real) == std::bit_cast<std::uint32_t>(b.real) ||
         (std::isnan(a.real) && std::isnan(b.real));
}

Expr parsed(std::string_view text, bool score = false) {
  std::vector<Param> params = {{"n", Dtype::I32, 0}, {"x", Dtype::F32, 0}};
  const Result<Expr> expr = parse_expr(text, {&params, true, score});
  EXPECT_TRUE(expr) << text << ": " << (expr ? "" : expr.error().message);
  return expr ? *expr : Expr();
}

TEST(ExprSimplify, Table) {
  static const char* const kMasks[][2] = {
      {"k < q & true", "k < q"},
      {"k < q | true", "true"},
      {"false | k < q", "k < q"},
      {"k < q & k < q", "k < q"},
      {"k <= q & k <= q + 3", "k <= q"},
      {"k <= q | k <= q + 3", "k <= q + 3"},
      {"!(k < q)", "q <= k"},
      {"!!bit(n, 3)", "bit(n, 3)"},
      {"bit(n, 3) & !bit(n, 3)", "false"},
      {"bit(5, 2)", "true"},
      {"k + 1 <= q", "k < q"},
      {"k < q + 1", "k <= q"},
      {"k + 2 < q + 5", "k < q + 3"},
      {"q - k >= 0", "k <= q"},
      {"q + h - q < k", "h < k"},
      {"k + 0 < q * 1", "k < q"},
      {"k - k < n", "n > 0"},
      {"2 * 3 + 1 < k", "k > 7"},
      {"-7 / 2 == -4", "true"},
      {"-7 % 4 == 1", "true"},
      {"k * 64 / 64 < q", "k < q"},
      {"(k * 64 + 5) % 64 == q", "5 == q"},
      {"k / 4 / 8 < q", "k / 32 < q"},
      {"min(k, k + 1) < q", "k < q"},
      {"max(k, max(3, 5)) < q", "max(k, 5) < q"},
      {"where(true, k, q) < h", "k < h"},
      {"where(k < q, true, false)", "k < q"},
      {"where(!(x < 1), k, q) < h", "where(x < 1.0, q, k) < h"},
      {"abs(abs(k)) < q", "abs(k) < q"},
      // A NaN is neither smaller nor not smaller.
      {"!(x < 1.0)", "!x < 1.0"},
      {"x == x", "x == x"},
      {"x * 0 == x - x", "x * 0.0 == x - x"},
  };
  for (const auto& [text, expected] : kMasks) {
    EXPECT_TRUE(same(simplify(parsed(text)), parsed(expected)))
        << text << " gives " << print(simplify(parsed(text))) << ", not " << expected;
  }
  static const char* const kScores[][2] = {
      {"softcap(50)", "50.0 * tanh(s * 0.02)"},
      {"s + 1.0 * 2.0", "s + 2.0"},
      {"s * 1.0", "s"},
      {"s + 0.0", "s + 0.0"},  // -0.0 + 0.0 is 0.0
      {"s - 0.0", "s"},
      {"--s", "s"},
  };
  for (const auto& [text, expected] : kScores) {
    EXPECT_TRUE(same(simplify(parsed(text, true)), parsed(expected, true)))
        << text << " gives " << print(simplify(parsed(text, true)));
  }
}

// Folding this would hide the overflow from check_ranges.
TEST(ExprSimplify, LeavesOverflowVisible) {
  const Expr expr = simplify(parsed("k < 9223372036854775807 + 1"));
  EXPECT_EQ(print(expr), "k < 9223372036854775807 + 1");
}

// Multiplied out, parts of a sum could leave 64 bits that its value stays within.
TEST(ExprSimplify, MakesNoOverflow) {
  const VariableRanges ranges = default_ranges(2, 4, 2, 4096, 4096);
  for (const char* text :
       {"k_len <= 72039246744072 * (k - (q + k_len - q_len)) * 22", "2251799813685248 * (k - k_len) < 5"}) {
    const Expr expr = parsed(text);
    ASSERT_TRUE(check_ranges(expr, ranges)) << text;
    EXPECT_TRUE(check_ranges(simplify(expr), ranges)) << print(simplify(expr));
  }
  // Where nothing can overflow they are.
  EXPECT_EQ(print(simplify(parsed("k < 8 * (q + k_len - q_len) * 2"))), "k < q * 16 + k_len * 16 - q_len * 16");
}

TEST(ExprSimplify, KeepsTheValue) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  testing::RandomExprs random(seed);
  testing::RandomExprs::World world;
  for (int i = 0; i < 4000; ++i) {
    const Expr expr = random.make(static_cast<Type>(i % 3), 1 + i % 5);
    ASSERT_TRUE(expr);
    const Expr simple = simplify(expr);
    ASSERT_TRUE(simple);
    ASSERT_EQ(simple->type, expr->type);
    for (int j = 0; j < 6; ++j) {
      random.fill(world);
      const Value a = evaluate(expr, world.environment), b = evaluate(simple, world.environment);
      ASSERT_TRUE(same_value(a, b)) << "seed " << seed << "\n"
                                    << print(expr) << "\n"
                                    << print(simple) << "\n"
                                    << a.integer << " " << a.real << " and " << b.integer << " " << b.real;
    }
  }
}

TEST(ExprSimplify, IsStable) {
  const auto stays = [](const Expr& expr) {
    const Expr once = simplify(expr), twice = simplify(once);
    EXPECT_TRUE(same(twice, once)) << print(expr) << "\n" << print(once) << "\n" << print(twice);
    return same(twice, once);
  };
  stays(parsed("k * k - k < 1"));  // what is compared with zero only by the rule for integers
  stays(parsed("1 - k * k <= -k"));
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  testing::RandomExprs random(seed);
  for (int i = 0; i < 2000; ++i) {
    if (!stays(random.make(static_cast<Type>(i % 3), 1 + i % 5))) break;
  }
}

TEST(ExprSimplify, SharesEqualParts) {
  const Expr expr = simplify(parsed("window(100, 5) & chunk(64)"));
  // q + k_len - q_len is written four times and kept once.
  std::size_t written = expr->tree_nodes;
  EXPECT_LT(node_count(expr), written / 2);
}

}  // namespace
}  // namespace flashjit

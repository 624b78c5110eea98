#include "compiler/analysis/interval.h"

#include <random>

#include <gtest/gtest.h>

#include "compiler/analysis/interval_ranges.h"
#include "compiler/analysis/range_program.h"
#include "tests/unit/compiler/expr_random.h"

namespace flashjit {
namespace {

Expr parsed(std::string_view text, bool score = false) {
  std::vector<Param> params = {{"n", Dtype::I32, 0},     {"far", Dtype::I64, 0},  {"byte", Dtype::U8, 1},
                               {"words", Dtype::I64, 1}, {"lens", Dtype::I32, 1}, {"bias4", Dtype::F32, 4}};
  const Result<Expr> expr = parse_expr(text, {&params, true, score});
  EXPECT_TRUE(expr) << text << ": " << (expr ? "" : expr.error().message);
  return expr ? *expr : Expr();
}

// Batch 4, 8 query heads, 2 KV heads, up to 100 queries and 1000 keys.
VariableRanges ranges() { return default_ranges(4, 8, 2, 100, 1000); }

IntInterval prepared_interval(const Expr& expr, const std::vector<Param>& params,
                              const std::vector<std::int64_t>& scalars, const VariableRanges& of = ranges()) {
  RangeProgram program(params);
  const int slot = program.add(expr);
  std::vector<IntInterval> values(static_cast<std::size_t>(program.slots()));
  const auto range_of_read = [&](int param, std::span<const IntInterval>) {
    return range_of(params[static_cast<std::size_t>(param)].dtype);
  };
  program.evaluate(of, scalars.data(), range_of_read, values.data());
  return values[static_cast<std::size_t>(slot)];
}

TEST(Interval, Table) {
  struct Row {
    const char* comparison;  // its left side is what is looked at
    std::int64_t lo, hi;
  };
  static const Row kRows[] = {
      {"q < 0", 0, 99},
      {"k_len < 0", 0, 1000},
      {"q + k < 0", 0, 1098},
      {"q - k < 0", -999, 99},
      {"-h < 0", -7, 0},
      {"h * -3 < 0", -21, 0},
      {"h * b < 0", 0, 21},
      {"(q - 50) / 7 < 0", -8, 7},
      {"(q - 50) % 7 < 0", 0, 6},
      {"h % 100 < 0", 0, 7},
      {"abs(q - 50) < 0", 0, 50},
      {"min(q, 10) < 0", 0, 10},
      {"max(q, 10) < 0", 10, 99},
      {"where(h < 2, q, -5) < 0", -5, 99},
      // What only holds because q < q_len and k < k_len.
      {"q - q_len < 0", -100, -1},
      {"q + k_len - q_len < 0", -100, 999},
      {"max(q + k_len - q_len, 0) < 0", 0, 999},
      {"k + q_len - k_len < 0", -1000, 99},
      {"q / 64 * 64 - q < 0", -63, 0},
  };
  for (const Row& row : kRows) {
    const Expr expr = parsed(row.comparison)->args[0];
    RangeAnalysis analysis(ranges());
    EXPECT_EQ(analysis.of(expr), (IntInterval{row.lo, row.hi})) << row.comparison;
    EXPECT_TRUE(analysis.ok()) << row.comparison << ": " << analysis.problem();
    EXPECT_EQ(prepared_interval(expr, {}, {}), (IntInterval{row.lo, row.hi})) << row.comparison;
  }
}

// What a launch knows of its scalars: the values.
TEST(Interval, OfScalars) {
  struct Row {
    const char* comparison;
    std::int64_t n, lo, hi;
  };
  static const Row kRows[] = {
      {"n < 0", -3, -3, -3},
      {"n < 0", 4000000000, 4000000000, 4000000000},
      {"k + n < 0", -1, -1, 998},
      {"k * n < 0", -2, -1998, 0},
      {"min(n, 7) < 0", -5, -5, -5},
      {"min(max(n, 0), 7) < 0", 100, 7, 7},
      {"k % max(n, 1) < 0", 4, 0, 3},
      {"(k + n) / 10 < 0", -5, -1, 99},
      {"where(k < n, n, 2) < 0", 9, 2, 9},
      {"n - n < 0", 1000, 0, 0},
      {"q / max(n, 1) * max(n, 1) - q < 0", 8, -7, 0},
  };
  const Param n{"n", Dtype::I32, 0};
  for (const Row& row : kRows) {
    const IntInterval range = prepared_interval(parsed(row.comparison)->args[0], {{n}}, {row.n});
    EXPECT_EQ(range, (IntInterval{row.lo, row.hi})) << row.comparison << " with n=" << row.n;
  }
}

TEST(Interval, Refusals) {
  static const char* const kRows[][2] = {
      {"k * 9223372036854775807 < q", "can leave 64 bits; use smaller constants"},
      {"k + far < q", "`far` is i64, which may be any number of 64 bits: make it i32"},
      {"abs(words[b]) < q", "`words` is i64, which may be any number of 64 bits: make it i32"},
      {"k * k * k * k * k * k * k < q", "can leave 64 bits"},
      {"k * k * k * k * k * k * min(max(far, 0), 1000) < q", "can leave 64 bits; use smaller constants"},
      {"k / n < q", "the divisor `n` of `/` can be negative, and must be positive; write max(n, 1)"},
      {"k % q < 3", "the divisor `q` of `%` can be 0"},
      {"k / (0 - 3) < q", "`/` is negative, and must be positive; negate both sides"},
      {"k / -2 < q", "the divisor `-2` of `/` is negative, and must be positive; negate both sides"},
      {"k / -h < q", "the divisor `-h` of `/` is never positive, and must be positive; negate both sides"},
      {"k % -2 < q", "the divisor `-2` of `%` is negative, and must be positive; negate it"},
      {"k % 0 < q", "the divisor `0` of `%` is 0, and must be positive; use 1 or more"},
      {"bit(n, k)", "bit() takes a bit number from 0 to 63, but `k` can be 999; write (k) % 64"},
      {"bit(n, q - k)", "can be negative"},
  };
  for (const auto& [text, says] : kRows) {
    const Result<void> checked = check_ranges(parsed(text), ranges());
    ASSERT_FALSE(checked) << text;
    EXPECT_EQ(checked.error().kind, ErrorKind::Invalid);
    EXPECT_NE(checked.error().message.find(says), std::string::npos) << text << ": " << checked.error().message;
  }
  for (const char* text : {"k / max(n, 1) < q", "k % (q + 1) < 3", "bit(n, k % 64)", "tree(t)",
                           "k * 4611686018427387 < q", "words[b] < q", "far / 3 < q", "far % 64 == 3"}) {
    const Result<void> checked = check_ranges(parsed(text), ranges());
    EXPECT_TRUE(checked) << text << ": " << checked.error().message;
  }
}

TEST(Interval, Fits32Bits) {
  const VariableRanges largest = default_ranges(1 << 20, 256, 256, kMaxTokens, kMaxTokens);
  for (const char* text : {"causal", "causal_top_left", "window(4096, 4096)", "chunk(512)", "prefix(100)",
                           "document(ids)", "tree(t)", "abs(q - k) < n", "byte[b] < k", "bit(far, 3)"}) {
    EXPECT_FALSE(wide_subexpression(parsed(text), largest)) << text;
  }
  for (const char* text : {"k + n < q", "k * 3 < q", "words[b] < k", "far < k", "k < 3000000000", "q * k < 100"}) {
    EXPECT_TRUE(wide_subexpression(parsed(text), largest)) << text;
  }
  EXPECT_FALSE(wide_subexpression(parsed("q * k < 100"), default_ranges(1, 1, 1, 30000, 30000)));
  EXPECT_FALSE(wide_subexpression(parsed("bias_b(x)", true), largest));
}

TEST(Interval, TheWidePartIsTheFirstThatDoesNotFit) {
  const VariableRanges largest = default_ranges(1 << 20, 256, 256, kMaxTokens, kMaxTokens);
  static const char* const kRows[][2] = {
      {"causal & k + n < q & k * 3 < q", "k + n"},
      {"min(k + (lens[b] - 1), 5) < q", "lens[b] - 1"},
      {"words[b] + 1 - 2 < k", "words[b]"},
      {"bit(words[b], 3) & q * k < 100", "q * k"},
  };
  for (const auto& [text, part] : kRows) {
    const Expr found = wide_subexpression(parsed(text), largest);
    ASSERT_TRUE(found) << text;
    EXPECT_EQ(print(found), part) << text;
  }
}

// Every value that can be evaluated lies in the interval.
TEST(Interval, ContainsEveryValue) {
  const unsigned seed = std::random_device{}();
  testing::RandomExprs random(seed);
  testing::RandomExprs::World world;
  int checked = 0;
  for (int i = 0; i < 3000; ++i) {
    const Expr expr = random.make(Type::Int, 1 + i % 4);
    const VariableRanges ranges = default_ranges(8, 8, 8, 40, 50);
    RangeAnalysis analysis(ranges);
    const IntInterval interval = analysis.of(expr);
    if (!analysis.ok() || !params_of(expr).empty()) continue;
    ++checked;
    ASSERT_EQ(prepared_interval(expr, {}, {}, ranges), interval) << "seed " << seed << "\n" << print(expr);
    for (int j = 0; j < 10; ++j) {
      random.fill(world);
      auto& v = world.environment.variables;
      const auto at = [&](Variable variable) -> std::int64_t& { return v[static_cast<int>(variable)]; };
      at(Variable::QLen) = 1 + random.pick(40);
      at(Variable::KLen) = 1 + random.pick(50);
      at(Variable::Q) = random.pick(static_cast<int>(at(Variable::QLen)));
      at(Variable::K) = random.pick(static_cast<int>(at(Variable::KLen)));
      at(Variable::B) = random.pick(8);
      at(Variable::H) = random.pick(8);
      at(Variable::Hk) = random.pick(1 + static_cast<int>(at(Variable::H)));
      const std::int64_t value = evaluate(expr, world.environment).integer;
      ASSERT_GE(value, interval.lo) << "seed " << seed << "\n" << print(expr);
      ASSERT_LE(value, interval.hi) << "seed " << seed << "\n" << print(expr);
    }
  }
  EXPECT_GT(checked, 300);
}

}  // namespace
}  // namespace flashjit

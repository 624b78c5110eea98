#include <functional>

#include <gtest/gtest.h>

#include "compiler/analysis/interval.h"
#include "tests/unit/compiler/expr_random.h"

namespace flashjit {
namespace {

const Param kScalar = {"n", Dtype::I32, 0};

Expr parsed(std::string_view text, bool bottom_right = true) {
  std::vector<Param> params = {{"n", Dtype::I32, 0}, {"lens", Dtype::I32, 1}};
  const Result<Expr> expr = parse_expr(text, {&params, bottom_right, false});
  EXPECT_TRUE(expr) << text << ": " << (expr ? "" : expr.error().message + "\n" + expr.error().detail);
  return expr ? *expr : Expr();
}

void set(Environment& environment, Variable variable, std::int64_t value) {
  environment.variables[static_cast<int>(variable)] = value;
}

struct Visible {
  std::int64_t q_len, k_len;
  std::vector<char> bits;
  bool operator()(std::int64_t q, std::int64_t k) const { return bits[static_cast<std::size_t>(q * k_len + k)] != 0; }
};

Visible brute_force(const Expr& mask, Environment environment, std::int64_t q_len, std::int64_t k_len) {
  Visible visible{q_len, k_len, std::vector<char>(static_cast<std::size_t>(q_len * k_len))};
  set(environment, Variable::QLen, q_len);
  set(environment, Variable::KLen, k_len);
  for (std::int64_t q = 0; q < q_len; ++q) {
    for (std::int64_t k = 0; k < k_len; ++k) {
      set(environment, Variable::Q, q);
      set(environment, Variable::K, k);
      visible.bits[static_cast<std::size_t>(q * k_len + k)] = evaluate(mask, environment).integer != 0;
    }
  }
  return visible;
}

struct Limits {
  std::int64_t kv_begin, kv_end, full_begin, full_end;
};

Limits limits_of(const TileAnalysis& tiles, const Environment& environment) {
  const auto value = [&](const Expr& e) { return evaluate(e, environment).integer; };
  return {value(tiles.kv_begin), value(tiles.kv_end), value(tiles.full_begin), value(tiles.full_end)};
}

// The law: nothing visible outside [kv_begin, kv_end), nothing hidden inside [full_begin, full_end). Returns what
// breaks it.
std::string violation(const TileAnalysis& tiles, const Visible& visible, Environment environment, std::int64_t q_lo,
                      std::int64_t q_hi) {
  set(environment, Variable::QLen, visible.q_len);
  set(environment, Variable::KLen, visible.k_len);
  set(environment, Variable::QLo, q_lo);
  set(environment, Variable::QHi, q_hi);
  const Limits at = limits_of(tiles, environment);
  for (std::int64_t x : {at.kv_begin, at.kv_end, at.full_begin, at.full_end}) {
    if (x < 0 || x > visible.k_len) return "a limit outside 0..k_len: " + std::to_string(x);
  }
  for (std::int64_t q = q_lo; q <= q_hi; ++q) {
    for (std::int64_t k = 0; k < visible.k_len; ++k) {
      const std::string place = " at q=" + std::to_string(q) + " k=" + std::to_string(k);
      if (visible(q, k) && (k < at.kv_begin || k >= at.kv_end)) return "visible outside the hull" + place;
      if (!visible(q, k) && k >= at.full_begin && k < at.full_end) return "hidden inside the full range" + place;
    }
  }
  for (std::int64_t q = q_lo; q <= q_hi && tiles.row_is_range; ++q) {
    set(environment, Variable::QLo, q);
    set(environment, Variable::QHi, q);
    const Limits row = limits_of(tiles, environment);
    for (std::int64_t k = 0; k < visible.k_len; ++k) {
      if (visible(q, k) != (k >= row.kv_begin && k < row.kv_end)) {
        return "a row that is no range at q=" + std::to_string(q) + " k=" + std::to_string(k);
      }
    }
  }
  for (std::int64_t tile : {1, 2, 3}) {
    for (std::int64_t k_lo = 0; k_lo < visible.k_len; k_lo += tile) {
      bool any = false, every = true;
      for (std::int64_t k = k_lo; k < k_lo + tile; ++k) {
        for (std::int64_t q = q_lo; q <= q_hi; ++q) {
          const bool sees = k < visible.k_len && visible(q, k);
          any = any || sees;
          every = every && sees;
        }
      }
      const TileClass kind = classify(tiles, environment, q_lo, q_hi, k_lo, k_lo + tile - 1);
      const std::string place = " at tile " + std::to_string(k_lo) + " of " + std::to_string(tile);
      if (any && kind == TileClass::Empty) return "skips a visible key" + place;
      if (!every && kind == TileClass::Full) return "calls a partly hidden tile full" + place;
    }
  }
  return {};
}

TEST(IntervalTiles, SoundForRandomMasks) {
  const unsigned seed = std::random_device{}();
  testing::RandomExprs random(seed);
  testing::RandomExprs::World world;
  int understood = 0, ranges = 0;
  for (int i = 0; i < 800; ++i) {
    const Expr mask = random.mask(i % 4);
    ASSERT_TRUE(mask);
    if (!check_ranges(mask, default_ranges(64, 64, 64, 64, 64))) continue;
    const TileAnalysis tiles = analyse_tiles(mask);
    ranges += tiles.row_is_range;
    understood += tiles.kv_begin->op != Op::IntConst || tiles.kv_end->op != Op::Variable;
    for (int j = 0; j < 4; ++j) {
      random.fill(world);
      for (auto& x : world.environment.variables) x = random.pick(4);
      set(world.environment, Variable::Hk,
          random.pick(1 + static_cast<int>(world.environment.variables[static_cast<int>(Variable::H)])));
      const std::int64_t q_len = 1 + random.pick(8), k_len = random.pick(12);
      const Visible visible = brute_force(mask, world.environment, q_len, k_len);
      for (std::int64_t q_lo = 0; q_lo < q_len; ++q_lo) {
        const std::int64_t q_hi = std::min<std::int64_t>(q_len - 1, q_lo + random.pick(4));
        const std::string broken = violation(tiles, visible, world.environment, q_lo, q_hi);
        ASSERT_EQ(broken, "") << "seed " << seed << "\n"
                              << print(mask) << "\nq_len=" << q_len << " k_len=" << k_len << " q_lo=" << q_lo
                              << " q_hi=" << q_hi << "\nkv [" << print(tiles.kv_begin) << ", " << print(tiles.kv_end)
                              << ")\nfull [" << print(tiles.full_begin) << ", " << print(tiles.full_end)
                              << ")\nmay_see " << print(tiles.may_see);
      }
    }
  }
  EXPECT_GT(understood, 160) << "most random masks should give limits of their own";
  EXPECT_GT(ranges, 20) << "some should be found to be ranges";
}

// Where the hull and the full range are exactly the first and last visible key, and the keys that all queries see.
TEST(IntervalTiles, ExactForNamedMasks) {
  static const char* const kMasks[] = {
      "causal",
      "causal_top_left",
      "causal_bottom_right",
      "window(3, 0)",
      "window(2, 2)",
      "window(-1, 2)",
      "window(2, -1)",
      "window(0, 0)",
      "chunk(4)",
      "chunk(3)",
      "prefix(0)",
      "prefix(5)",
      "causal & window(3, 0)",
      "causal & chunk(4)",
      "causal & window(5, 2) & chunk(3)",
      "q >= k & q - k < 4",
      "!(k > q)",
      "k / 3 == q / 3",
      "abs(qpos - k) <= 2",
      "k < lens[b]",
      "k < lens[b] & causal",
      "k < lens[b] | causal",
      "q + 1 > k * 2",
      "-k >= -q",
      "k >= 3 & k < 7",
      "true",
      "window(n, n)",
      "h < 2 & causal | h >= 2 & window(2, 0)",
      "where(h < 2, causal, chunk(4))",
      "k <= qpos / 4 * 4 + 3",
      "min(k, 6) <= q & k < 8",
      "k / 2 * 2 <= qpos",
  };
  for (const char* text : kMasks) {
    for (const bool bottom_right : {true, false}) {
      const Expr mask = parsed(text, bottom_right);
      const TileAnalysis tiles = analyse_tiles(mask);
      EXPECT_FALSE(tiles.may_see) << text << ": " << print(tiles.may_see);
      testing::RandomExprs random(1);
      testing::RandomExprs::World world;
      random.fill(world);
      const std::int32_t n = 3;
      const std::int32_t lens[4] = {5, 0, 2, 9};
      const std::vector<Param> params = {kScalar, {"lens", Dtype::I32, 1}};
      const ParamValue values[] = {{&n, {}, {}}, {lens, {4}, {1}}};
      Environment environment;
      environment.params = &params;
      environment.values = values;
      for (std::int64_t q_len = 1; q_len <= 9; q_len += 2) {
        for (std::int64_t k_len = 0; k_len <= 11; ++k_len) {
          set(environment, Variable::B, k_len % 4);
          set(environment, Variable::H, k_len % 3);
          const Visible visible = brute_force(mask, environment, q_len, k_len);
          for (std::int64_t q_lo = 0; q_lo < q_len; ++q_lo) {
            for (std::int64_t q_hi = q_lo; q_hi < q_len; ++q_hi) {
              ASSERT_EQ(violation(tiles, visible, environment, q_lo, q_hi), "") << text;
              std::int64_t first = -1, last = -1, full = 0;
              for (std::int64_t k = 0; k < k_len; ++k) {
                bool any = false, every = true;
                for (std::int64_t q = q_lo; q <= q_hi; ++q) {
                  any = any || visible(q, k);
                  every = every && visible(q, k);
                }
                if (any && first < 0) first = k;
                if (any) last = k;
                full += every;
              }
              Environment at = environment;
              set(at, Variable::QLen, q_len);
              set(at, Variable::KLen, k_len);
              set(at, Variable::QLo, q_lo);
              set(at, Variable::QHi, q_hi);
              const Limits limits = limits_of(tiles, at);
              const std::string place = std::string(text) + " q_len=" + std::to_string(q_len) +
                                        " k_len=" + std::to_string(k_len) + " rows " + std::to_string(q_lo) + ".." +
                                        std::to_string(q_hi);
              if (first < 0) {
                ASSERT_GE(limits.kv_begin, limits.kv_end) << place;
              } else {
                ASSERT_EQ(limits.kv_begin, first) << place;
                ASSERT_EQ(limits.kv_end, last + 1) << place;
              }
              ASSERT_EQ(std::max<std::int64_t>(limits.full_end - limits.full_begin, 0), full) << place;
            }
          }
        }
      }
    }
  }
}

// Kernels take the mask of a tile from two comparisons a row where this is true.
TEST(IntervalTiles, RowsThatAreRanges) {
  for (const char* mask :
       {"true", "causal", "causal_top_left", "window(1024, 0)", "causal & window(1023, 0)", "causal & chunk(2048)",
        "prefix(512)", "k < lens[b] & causal", "h < 2 & causal | h >= 2 & window(2, 0)", "window(n, n)"}) {
    EXPECT_TRUE(analyse_tiles(parsed(mask)).row_is_range) << mask;
  }
  for (const char* mask :
       {"k < 4 | window(1024, 0)", "(q - k) % 128 == 0", "document(ids) & causal", "tree(words)", "k != q"}) {
    EXPECT_FALSE(analyse_tiles(parsed(mask)).row_is_range) << mask;
  }
  EXPECT_TRUE(analyse_tiles(Expr()).row_is_range);
}

// These texts end up in kernels and are read in a profiler.
TEST(IntervalTiles, ShortResults) {
  struct Row {
    const char* mask;
    const char* limits[4];
    const char* may_see;
  };
  static const Row kRows[] = {
      {"true", {"0", "k_len", "0", "k_len"}, ""},
      {"causal", {"0", "max(q_hi + k_len - q_len + 1, 0)", "0", "max(q_lo + k_len - q_len + 1, 0)"}, ""},
      {"causal_top_left", {"0", "min(q_hi + 1, k_len)", "0", "min(q_lo + 1, k_len)"}, ""},
      {"window(1024, 0)",
       {"max(q_lo + k_len - q_len - 1024, 0)", "max(q_hi + k_len - q_len + 1, 0)",
        "max(q_hi + k_len - q_len - 1024, 0)", "max(q_lo + k_len - q_len + 1, 0)"},
       ""},
      {"k < 4 | window(1024, 0)",
       {"0", "min(max(q_hi + k_len - q_len + 1, 4), k_len)", "max(q_hi + k_len - q_len - 1024, 0)",
        "max(q_lo + k_len - q_len + 1, 0)"},
       "k_lo < 4 | k_hi >= q_lo + k_len - q_len - 1024"},
      {"tree(words)", {"0", "k_len", "0", "max(k_len - q_len, 0)"}, ""},
      {"document(ids) & causal", {"0", "max(q_hi + k_len - q_len + 1, 0)", "0", "0"}, ""},
      {"(q - k) % 128 == 0", {"0", "k_len", "0", "0"}, ""},
      {"k < lens[b]", {"0", "max(min(lens[b], k_len), 0)", "0", "max(min(lens[b], k_len), 0)"}, ""},
      {"false", {"0", "0", "0", "0"}, ""},
  };
  for (const Row& row : kRows) {
    const TileAnalysis tiles = analyse_tiles(parsed(row.mask));
    EXPECT_EQ(print(tiles.kv_begin), row.limits[0]) << row.mask;
    EXPECT_EQ(print(tiles.kv_end), row.limits[1]) << row.mask;
    EXPECT_EQ(print(tiles.full_begin), row.limits[2]) << row.mask;
    EXPECT_EQ(print(tiles.full_end), row.limits[3]) << row.mask;
    EXPECT_EQ(print(tiles.may_see), row.may_see) << row.mask;
  }
  const TileAnalysis none = analyse_tiles(Expr());
  EXPECT_EQ(print(none.full_end), "k_len");
}

TEST(IntervalTiles, HolesAreSkipped) {
  const TileAnalysis tiles = analyse_tiles(parsed("k < 4 | window(1024, 0)"));
  Environment environment;
  set(environment, Variable::QLen, 8192);
  set(environment, Variable::KLen, 8192);
  EXPECT_EQ(classify(tiles, environment, 4096, 4223, 0, 127), TileClass::Mixed);
  for (std::int64_t k_lo = 128; k_lo + 127 < 4096 - 1024; k_lo += 128) {
    EXPECT_EQ(classify(tiles, environment, 4096, 4223, k_lo, k_lo + 127), TileClass::Empty) << k_lo;
  }
  EXPECT_EQ(classify(tiles, environment, 4096, 4223, 3072, 3199), TileClass::Mixed);
  EXPECT_EQ(classify(tiles, environment, 4096, 4223, 3200, 3327), TileClass::Full);
  EXPECT_EQ(classify(tiles, environment, 4096, 4223, 3968, 4095), TileClass::Full);
  EXPECT_EQ(classify(tiles, environment, 4096, 4223, 4096, 4223), TileClass::Mixed);
  EXPECT_EQ(classify(tiles, environment, 4096, 4223, 4224, 4351), TileClass::Empty);
}

// Where a limit cannot be computed without overflow, everything is a sound answer.
TEST(IntervalTiles, OverflowGivesEverything) {
  std::vector<Param> params = {{"far", Dtype::I64, 0}};
  const Result<Expr> mask = parse_expr("q - k <= far", {&params, true, false});
  ASSERT_TRUE(mask);
  ASSERT_TRUE(check_ranges(*mask, default_ranges(1, 1, 1, 1024, 1024)));
  const TileAnalysis tiles = analyse_tiles(*mask);
  EXPECT_EQ(print(tiles.kv_begin), "0");
  EXPECT_EQ(print(tiles.full_end), "0");
}

TEST(IntervalTiles, HostileNestingEnds) {
  std::string text = "k";
  for (int i = 0; i < 60; ++i) text = "abs(" + text + " - 1)";
  const TileAnalysis tiles = analyse_tiles(parsed(text + " < q"));
  EXPECT_TRUE(tiles.kv_end);
}

}  // namespace
}  // namespace flashjit

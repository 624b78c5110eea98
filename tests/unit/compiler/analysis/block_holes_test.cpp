// Masks may read a tensor once for a block of positions. These tests hold what the analysis says of two tiles against
// the mask at every pair of their positions.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "compiler/analysis/interval.h"
#include "compiler/analysis/read_axes.h"

namespace flashjit {
namespace {

constexpr std::int64_t kQueries = 300, kKeys = 520;

struct Tiles {
  std::int64_t q_lo, q_hi, k_lo, k_hi;  // along the axis of the analysis the end may lie behind the last position
};

class Blocks {
 public:
  Blocks(const std::string& text, std::int64_t of_q, std::int64_t of_k, std::uint64_t seed) {
    params_ = {{"keep", Dtype::U8, 2}, {"doc", Dtype::I32, 1}};
    auto parsed = parse_expr(text, {.params = &params_});
    EXPECT_TRUE(parsed) << text;
    mask = simplify(*parsed);
    std::mt19937_64 random(seed);
    const std::int64_t rows = (kQueries + of_q - 1) / of_q, columns = (kKeys + of_k - 1) / of_k;
    keep_.resize(static_cast<std::size_t>(rows * columns));
    for (std::uint8_t& state : keep_) state = random() % 5 == 0 ? 1 + random() % 2 : 0;
    for (std::int64_t i = 0; i < kKeys; ++i) doc_.push_back(static_cast<std::int32_t>(i / 90));
    values_ = {{keep_.data(), {rows, columns}, {columns, 1}}, {doc_.data(), {kKeys}, {1}}};
    set(Variable::QLen, kQueries);
    set(Variable::KLen, kKeys);
  }

  bool may_see(const Expr& test, const Tiles& t) {
    set(Variable::QLo, t.q_lo), set(Variable::QHi, t.q_hi), set(Variable::KLo, t.k_lo), set(Variable::KHi, t.k_hi);
    return value(test) != 0;
  }
  bool sees(const Tiles& t) {
    for (std::int64_t q = t.q_lo; q <= std::min(t.q_hi, kQueries - 1); ++q) {
      for (std::int64_t k = t.k_lo; k <= std::min(t.k_hi, kKeys - 1); ++k) {
        set(Variable::Q, q), set(Variable::K, k);
        if (value(mask) != 0) return true;
      }
    }
    return false;
  }

  Expr mask;

 private:
  void set(Variable variable, std::int64_t value) { environment_.variables[static_cast<int>(variable)] = value; }
  std::int64_t value(const Expr& e) {
    environment_.params = &params_;
    environment_.values = values_.data();
    return evaluate(e, environment_).integer;
  }
  std::vector<Param> params_;
  std::vector<std::uint8_t> keep_;
  std::vector<std::int32_t> doc_;
  std::vector<ParamValue> values_;
  Environment environment_;
};

TEST(BlockHoles, AreFoundInTilesOfAnyPlace) {
  const struct {
    const char* text;
    std::int64_t of_q, of_k;
    bool exact;  // a tile is left out wherever it may be, up to 128 positions wide
  } rows[] = {
      {"keep[q / 64, k / 64] != 0", 64, 64, true},
      {"keep[q / 128, k / 64] == 2 | keep[q / 128, k / 64] == 1 & k <= q + 200", 128, 64, false},
      {"!(keep[q / 64, k / 192] != 1)", 64, 192, true},
      {"keep[0, k / 64] != 0", kQueries, 64, true},
      {"keep[q / 128, k / 128] != 0 & k <= q", 128, 128, false},
      {"keep[q / 64, k / 64] != 0 & doc[k] == 1", 64, 64, false},
  };
  std::mt19937_64 random(5);
  for (const auto& [text, of_q, of_k, exact] : rows) {
    SCOPED_TRACE(text);
    for (const Axis axis : {Axis::Keys, Axis::Queries}) {
      const TileSizes sizes = axis == Axis::Keys ? TileSizes{127, 127} : TileSizes{128, 100};
      Blocks blocks(text, of_q, of_k, random());
      const Expr test = analyse_tiles(blocks.mask, axis, sizes).may_see_in_blocks;
      ASSERT_TRUE(test);
      int left_out = 0;
      for (int i = 0; i < 300; ++i) {
        const auto draw = [&](std::int64_t length, bool beyond) {
          const auto lo = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(length));
          const std::int64_t hi = lo + static_cast<std::int64_t>(random() % (i % 3 == 0 ? 300 : 128));
          return std::pair(lo, beyond ? hi : std::min(hi, length - 1));
        };
        const auto [q_lo, q_hi] = draw(kQueries, axis == Axis::Queries);
        const auto [k_lo, k_hi] = draw(kKeys, axis == Axis::Keys);
        const Tiles tiles = {q_lo, q_hi, k_lo, k_hi};
        const bool sees = blocks.sees(tiles), may_see = blocks.may_see(test, tiles);
        left_out += !may_see;
        ASSERT_TRUE(may_see || !sees) << q_lo << ".." << q_hi << " " << k_lo << ".." << k_hi;
        const bool narrow = q_hi - q_lo < sizes.q && k_hi - k_lo < sizes.kv;
        ASSERT_TRUE(!exact || !narrow || may_see == sees) << q_lo << ".." << q_hi << " " << k_lo << ".." << k_hi;
      }
      EXPECT_GT(left_out, 20);
    }
  }
}

// Tiles that begin at multiples of a size that divides blocks have one block, which is read once.
TEST(BlockHoles, OfAlignedTilesAreReadOnce) {
  Blocks blocks("keep[q / 64, k / 64] != 0", 64, 64, 9);
  const Expr test = analyse_tiles(blocks.mask, Axis::Keys, {.q = 32, .kv = 16}).may_see_in_blocks;
  EXPECT_EQ(print(test),
            "q_lo / 64 != q_hi / 64 | k_lo / 64 != min(k_hi, k_len - 1) / 64 | keep[q_lo / 64, k_lo / 64] != 0");
  int left_out = 0;
  for (std::int64_t q = 0; q < kQueries; q += 32) {
    for (std::int64_t k = 0; k < kKeys; k += 16) {
      const Tiles tiles = {q, std::min(q + 31, kQueries - 1), k, k + 15};
      ASSERT_EQ(blocks.may_see(test, tiles), blocks.sees(tiles)) << q << " " << k;
      left_out += !blocks.may_see(test, tiles);
    }
  }
  EXPECT_GT(left_out, 100);
}

TEST(BlockHoles, OthersAreNotRead) {
  std::vector<Param> params = {{"keep", Dtype::U8, 2}, {"doc", Dtype::I32, 1}};
  for (const char* text : {"k <= q", "doc[k] == doc[q]", "keep[q, k] != 0", "keep[q / 64, k] != 0",
                           "keep[q / 32, k / 64] != 0", "keep[q / 64, k / 64] != 0 | k <= q"}) {
    const auto mask = parse_expr(text, {.params = &params});
    ASSERT_TRUE(mask) << text;
    const Expr test = analyse_tiles(simplify(*mask)).may_see_in_blocks;
    EXPECT_EQ(static_cast<bool>(test), std::string(text) == "keep[q / 64, k / 64] != 0 | k <= q") << text;
  }
  EXPECT_EQ(equal_run(*parse_expr("keep[q / 64, k] != 0", {.params = &params}), Variable::Q), 64);
  EXPECT_EQ(equal_run(*parse_expr("keep[q / 64, k / 96] != q / 96", {.params = &params}), Variable::Q), 32);
  EXPECT_EQ(equal_run(*parse_expr("keep[q / 64, k] != 0", {.params = &params}), Variable::K), 1);
  EXPECT_EQ(equal_run(*parse_expr("keep[0, k] != 0", {.params = &params}), Variable::Q), 0);
}

}  // namespace
}  // namespace flashjit

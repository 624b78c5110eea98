#include <algorithm>
#include <memory>

#include <gtest/gtest.h>

#include "compiler/analysis/read_axes.h"
#include "compiler/analysis/tile_pairs.h"
#include "tests/unit/compiler/expr_random.h"

namespace flashjit {
namespace {

// The tensors of a call, and beside them the scalars of an analysis.
class Call {
 public:
  Call(std::vector<Param> params, std::vector<ParamValue> values, std::int64_t q_len, std::int64_t k_len)
      : params_(std::move(params)), values_(std::move(values)) {
    set(Variable::QLen, q_len);
    set(Variable::KLen, k_len);
  }

  void set(Variable variable, std::int64_t value) { environment_.variables[static_cast<int>(variable)] = value; }
  std::int64_t get(Variable variable) const { return environment_.variables[static_cast<int>(variable)]; }
  std::int64_t value(const Expr& e) {
    environment_.params = &params_;
    environment_.values = values_.data();
    return evaluate(e, environment_).integer;
  }
  bool sees(const Expr& mask, std::int64_t q, std::int64_t k) {
    set(Variable::Q, q);
    set(Variable::K, k);
    return value(mask) != 0;
  }

  // The scalars of `value` for a tile: its least and its most.
  void find(const TileValue& tile, std::int64_t lo, std::int64_t hi) {
    std::int64_t least = 0, most = 0;
    for (std::int64_t x = lo; x <= hi; ++x) {
      set(variables_of(tile.axis).position, x);
      const std::int64_t v = value(tile.value);
      least = x == lo ? v : std::min(least, v);
      most = x == lo ? v : std::max(most, v);
    }
    give(tile.least, least);
    give(tile.most, most);
  }

  // The scalars of `asked` for two tiles.
  void ask(const TileCondition& asked, std::int64_t q_lo, std::int64_t q_hi, std::int64_t k_lo, std::int64_t k_hi) {
    bool some = false, all = true;
    for (std::int64_t q = q_lo; q <= q_hi; q += asked.step_q)
      for (std::int64_t k = k_lo; k <= k_hi; ++k) {
        const bool holds = sees(asked.condition, q, k);
        some |= holds;
        all &= holds;
      }
    give(asked.some, some);
    give(asked.all, all);
  }

 private:
  void give(const Param& param, std::int64_t value) {
    const auto at = static_cast<std::size_t>(std::ranges::find(params_, param) - params_.begin());
    if (at == params_.size()) {
      params_.push_back(param);
      scalars_.emplace_back(std::make_shared<std::int64_t>());
      values_.push_back({scalars_.back().get(), {}, {}});
    }
    *static_cast<std::int64_t*>(const_cast<void*>(values_[at].data)) = value;  // little-endian: of an i32 the low half
  }

  std::vector<Param> params_;
  std::vector<ParamValue> values_;
  std::vector<std::shared_ptr<std::int64_t>> scalars_;
  Environment environment_;
};

struct Counted {
  int pairs = 0, empty = 0, full = 0;  // of the tiles
  int left_out = 0, all_seen = 0;      // which the analysis says
};

// Every answer of the analysis beside every pair of positions.
Counted compare(const Expr& mask, const PairAnalysis& pairs, Call call, int tile_q, int tile_kv) {
  Counted counted;
  const std::int64_t q_len = call.get(Variable::QLen), k_len = call.get(Variable::KLen);
  for (std::int64_t q_lo = 0; q_lo < q_len; q_lo += tile_q) {
    const std::int64_t q_hi = std::min<std::int64_t>(q_lo + tile_q, q_len) - 1;
    for (std::int64_t k_lo = 0; k_lo < k_len; k_lo += tile_kv) {
      const std::int64_t k_hi = std::min<std::int64_t>(k_lo + tile_kv, k_len) - 1;
      for (const TileValue& value : pairs.values) {
        const bool keys = value.axis == Axis::Keys;
        call.find(value, keys ? k_lo : q_lo, keys ? k_hi : q_hi);
      }
      call.set(Variable::QLo, q_lo);
      call.set(Variable::QHi, q_hi);
      call.set(Variable::KLo, k_lo);
      call.set(Variable::KHi, k_hi);
      for (const TileCondition& asked : pairs.conditions) call.ask(asked, q_lo, q_hi, k_lo, k_hi);
      const bool may_see = call.value(pairs.sees) != 0, sees_all = call.value(pairs.full) != 0;
      bool some = false, all = true;
      for (std::int64_t q = q_lo; q <= q_hi; ++q)
        for (std::int64_t k = k_lo; k <= k_hi; ++k) {
          const bool seen = call.sees(mask, q, k);
          some |= seen;
          all &= seen;
        }
      EXPECT_TRUE(may_see || !some) << print(mask) << "\nleaves out " << q_lo << " " << k_lo << ": "
                                    << print(pairs.sees);
      EXPECT_TRUE(!sees_all || all) << print(mask) << "\ntakes for full " << q_lo << " " << k_lo << ": "
                                    << print(pairs.full);
      ++counted.pairs;
      counted.empty += !some;
      counted.full += all;
      counted.left_out += !may_see;
      counted.all_seen += sees_all;
    }
  }
  return counted;
}

constexpr int kLength = 96;
struct Documents {
  std::vector<std::int32_t> numbers, ends, keep;
  Documents() {
    int document = 0;
    for (int i = 0; i < kLength; ++i) {
      document += i == 5 || i == 40 || i == 41 || i == 72;
      numbers.push_back(document);
      ends.push_back(i < 40 ? 8 : i / 16 * 16 + 16);
      keep.push_back(i % 5 == 0 || i == 7);
    }
  }
  Call call() const {
    std::vector<Param> params = {{"doc", Dtype::I32, 2}, {"ends", Dtype::I32, 1}, {"keep", Dtype::I32, 2}};
    std::vector<ParamValue> values = {
        {numbers.data(), {1, kLength}, {kLength, 1}}, {ends.data(), {kLength}, {1}}, {keep.data(), {6, 6}, {6, 1}}};
    return Call(std::move(params), std::move(values), kLength, kLength);
  }
  static Expr mask(std::string_view text) {
    std::vector<Param> params = {{"doc", Dtype::I32, 2}, {"ends", Dtype::I32, 1}, {"keep", Dtype::I32, 2}};
    const Result<Expr> expr = parse_expr(text, {&params, true, false});
    EXPECT_TRUE(expr) << text;
    return *expr;
  }
};

// The analysis leaves out nearly all tiles of users' masks that can be left out, and masks few that need no mask.
TEST(TilePairs, WhatTensorsDecide) {
  const Documents documents;
  for (const char* text : {"document(doc)", "document(doc) & causal", "k < ends[q]", "k < ends[q] & q < ends[k]",
                           "keep[q / 16, k / 16] != 0", "keep[q / 16, k / 16] != 0 & causal", "doc[b, k] == 2",
                           "!(document(doc)) & window(20, 0)", "doc[b, q] - doc[b, k] < 2 & k <= q", "ends[q] == 8",
                           "keep[q / 16, k / 12] != 0", "bit(keep[q / 16, 0] + keep[0, k / 12], 0) & causal"}) {
    const Expr mask = Documents::mask(text);
    const auto pairs = analyse_pairs(mask, 8, 8);
    ASSERT_TRUE(pairs) << text;
    const Counted counted = compare(mask, *pairs, documents.call(), 8, 8);
    EXPECT_GT(counted.empty, 0) << text;
    EXPECT_GE(counted.left_out * 100, counted.empty * 90) << text << ": " << print(pairs->sees);
    EXPECT_GE(counted.all_seen * 100, counted.full * 90) << text << ": " << print(pairs->full);
  }
}

// A disjunction whose parts share the tile between them is not taken for full.
TEST(TilePairs, PartsOfTilesAreMasked) {
  const Documents documents;
  const Expr mask = Documents::mask("causal & (doc[b, q] == doc[b, k] | doc[b, k] == 0)");
  const Counted counted = compare(mask, *analyse_pairs(mask, 8, 8), documents.call(), 8, 8);
  EXPECT_EQ(counted.left_out, counted.empty);
  EXPECT_LT(counted.all_seen, counted.full);
}

TEST(TilePairs, NothingWhereTensorsDecideNothing) {
  for (const char* text : {"causal", "window(100, 0)", "k < ends[b]", "k < ends[b] & causal"})
    EXPECT_FALSE(analyse_pairs(Documents::mask(text), 8, 8)) << text;
  EXPECT_FALSE(analyse_pairs(Expr(), 8, 8));
}

TEST(TilePairs, HeadsAreToldApartWhereTheMaskDoes) {
  EXPECT_FALSE(analyse_pairs(Documents::mask("document(doc)"), 8, 8)->by_head);
  EXPECT_TRUE(analyse_pairs(Documents::mask("document(doc) & k < h * 10"), 8, 8)->by_head);
}

// Drawn masks: nothing that is seen is left out, and nothing hidden is taken for seen.
TEST(TilePairs, RandomMasks) {
  constexpr unsigned kSeed = 4901;
  testing::RandomExprs random(kSeed);
  testing::RandomExprs::World world;
  int analysed = 0, left_out = 0, full = 0;
  for (int i = 0; i < 4000; ++i) {
    const Expr mask = simplify(random.mask(3));
    if (!mask) continue;
    random.fill(world);
    const int tile_q = 1 + random.pick(8), tile_kv = 1 + random.pick(8);
    const auto pairs = analyse_pairs(mask, tile_q, tile_kv);
    if (!pairs) continue;
    ++analysed;
    Call call(world.params, {world.values.begin(), world.values.end()}, 1 + random.pick(20), 1 + random.pick(20));
    for (const Variable v : {Variable::B, Variable::H}) call.set(v, random.pick(3));
    const Counted counted = compare(mask, *pairs, call, tile_q, tile_kv);
    left_out += counted.left_out > 0;
    full += counted.all_seen > 0;
    if (::testing::Test::HasFailure()) FAIL() << "seed " << kSeed << ", mask " << i;
  }
  EXPECT_GT(analysed, 300);
  EXPECT_GT(left_out, 30);
  EXPECT_GT(full, 30);
}

// With what is read along one axis given, a mask says the same, and reads that no more.
void expect_separated(const Expr& mask, const SeparatedMask& separated, Call call) {
  const std::int64_t q_len = call.get(Variable::QLen), k_len = call.get(Variable::KLen);
  for (std::int64_t q = 0; q < q_len; ++q)
    for (std::int64_t k = 0; k < k_len; ++k) {
      for (const SeparatedMask::Value& read : separated.values) {
        const std::int64_t at = read.axis == Axis::Keys ? k : q;
        call.find({read.axis, read.value, read.scalar, read.scalar}, at, at);
      }
      const bool seen = call.sees(mask, q, k);
      ASSERT_EQ(call.sees(separated.visible, q, k), seen) << print(mask) << "\n" << print(separated.visible);
    }
}

TEST(SeparatedMask, SaysTheSame) {
  constexpr unsigned kSeed = 4902;
  testing::RandomExprs random(kSeed);
  testing::RandomExprs::World world;
  int separated_masks = 0;
  for (int i = 0; i < 3000; ++i) {
    const Expr mask = random.mask(3);
    if (!mask) continue;
    random.fill(world);
    const SeparatedMask separated = separate_reads(mask);
    separated_masks += !separated.values.empty();
    Call call(world.params, {world.values.begin(), world.values.end()}, 1 + random.pick(6), 1 + random.pick(6));
    for (const Variable v : {Variable::B, Variable::H}) call.set(v, random.pick(3));
    expect_separated(mask, separated, call);
    if (::testing::Test::HasFailure()) FAIL() << "seed " << kSeed << ", mask " << i;
  }
  EXPECT_GT(separated_masks, 200);
}

TEST(SeparatedMask, ReadsOfDocumentsAreTakenOut) {
  const SeparatedMask separated = separate_reads(Documents::mask("document(doc) & causal"));
  EXPECT_EQ(separated.values.size(), 2u);
  EXPECT_FALSE(uses(separated.visible, Op::Load));
  expect_separated(Documents::mask("document(doc) & causal"), separated, Documents().call());
}

// Both parts together must let through the pairs that the mask lets through.
void expect_parted(const Expr& mask, Axis along, Call call) {
  const SeparatedMask separated = separate_reads(mask);
  const auto parts = reads_and_range(separated, along);
  ASSERT_TRUE(parts) << print(mask);
  EXPECT_FALSE(changes(parts->by_reads)) << print(parts->by_reads);
  const bool keys = along == Axis::Keys;
  for (std::int64_t q = 0; q < call.get(Variable::QLen); ++q)
    for (std::int64_t k = 0; k < call.get(Variable::KLen); ++k) {
      for (const SeparatedMask::Value& read : separated.values) {
        const std::int64_t at = read.axis == Axis::Keys ? k : q;
        call.find({read.axis, read.value, read.scalar, read.scalar}, at, at);
      }
      for (const Variable v : {keys ? Variable::QLo : Variable::KLo, keys ? Variable::QHi : Variable::KHi})
        call.set(v, keys ? q : k);
      const std::int64_t at = keys ? k : q;
      const bool in_range = at >= call.value(parts->range.begin) && at < call.value(parts->range.end);
      ASSERT_EQ(in_range && call.sees(parts->by_reads, q, k), call.sees(mask, q, k))
          << print(mask) << " " << q << " " << k;
    }
}

TEST(ReadAxes, ReadsAndARange) {
  for (const char* text : {"document(doc)", "document(doc) & causal", "window(20, 3) & doc[b, q] - doc[b, k] < 2",
                           "causal & doc[b, k] == 2 & document(doc)", "ends[q] > 7 & k < 40"})
    for (const Axis along : {Axis::Keys, Axis::Queries})
      expect_parted(Documents::mask(text), along, Documents().call());
  for (const char* text : {"document(doc) | causal", "k < ends[q]", "keep[q / 16, k / 16] != 0",
                           "document(doc) & (q + k) % 2 == 0", "causal"})
    EXPECT_FALSE(reads_and_range(separate_reads(Documents::mask(text)), Axis::Keys)) << text;
}

TEST(ReadAxes, BlocksOfReads) {
  EXPECT_EQ(block_of_reads(Documents::mask("keep[q / 16, k / 12] != 0"), Variable::Q), 16);
  EXPECT_EQ(block_of_reads(Documents::mask("keep[q / 16, k / 12] != 0 & keep[0, k / 8] > 1"), Variable::K), 4);
  EXPECT_EQ(block_of_reads(Documents::mask("document(doc) & q / 8 == k / 8"), Variable::Q), 0);
  EXPECT_EQ(block_of_reads(Expr(), Variable::Q), 0);
}

TEST(ReadAxes, PartsAlongOne) {
  for (const char* text : {"document(doc)", "k % 8 == q", "k < 4 | window(8, 0)", "keep[q, k] != 0"})
    EXPECT_TRUE(reads_along_one(Documents::mask(text))) << text;
  for (const char* text : {"(q + k) % 3 != 1", "q == k | q < k"})
    EXPECT_FALSE(reads_along_one(Documents::mask(text))) << text;
}

}  // namespace
}  // namespace flashjit

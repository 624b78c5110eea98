#include "templates/dropout.h"

#include <array>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace flashjit {
namespace {

constexpr unsigned kAll = 0xffffffffu;

bool dropped(PhiloxKey key, unsigned b, unsigned h, unsigned q, unsigned k, unsigned limit) {
  return is_dropped(dropout_number(dropout_words(key, b, h, q, k), q, k), limit);
}

// The vectors that its authors published.
TEST(Dropout, Philox) {
  struct Row {
    PhiloxWords counter;
    PhiloxKey key;
    std::array<unsigned, 4> expected;
  };
  const Row rows[] = {
      {{{0, 0, 0, 0}}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{{kAll, kAll, kAll, kAll}}, {kAll, kAll}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Row& row : rows) EXPECT_EQ(std::to_array(philox(row.counter, row.key).word), row.expected);
}

// Every weight has a number of its own: a call, a word of it, and a byte that it begins with.
TEST(Dropout, EveryWeightHasItsNumber) {
  std::set<std::array<unsigned, 4>> numbers;
  for (unsigned q = 0; q < 64; ++q) {
    for (unsigned k = 0; k < 96; ++k)
      EXPECT_TRUE(
          numbers.insert({k / 32 * 4 + k / 2 % 4, q / 16 * 8 + q % 8, dropout_word(k), dropout_turn(q, k)}).second);
  }
}

// What threads hold of tiles, as mma.sync and wgmma lay them out: rows r and r + 8, columns c and c + 1 of each 8.
TEST(Dropout, CallsAreThoseOfThreads) {
  const PhiloxKey key = dropout_key(7, 9);
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned row = lane / 4, column = lane % 4 * 2;
    const PhiloxWords call = dropout_words(key, 1, 2, 16 + row, 64 + column);
    for (unsigned e = 0; e < 16; ++e) {
      const unsigned q = 16 + row + e / 8 * 8, k = 64 + column + e / 2 % 4 * 8 + e % 2;
      EXPECT_EQ(dropout_number(call, q, k), dropout_number(dropout_words(key, 1, 2, q, k), q, k));
    }
    // Transposed, where rows are keys: one word for two keys and two queries.
    for (const unsigned c : {column, column + 1}) {
      const PhiloxWords other = dropout_words(key, 1, 2, 16 + c, 48 + row);
      for (const auto& [q, k] : {std::pair(c, row), {c + 8, row}, {c, row + 8}, {c + 8, row + 8}}) {
        EXPECT_EQ(dropout_number(other, 16 + q, 48 + k),
                  dropout_number(dropout_words(key, 1, 2, 16 + q, 48 + k), 16 + q, 48 + k));
        EXPECT_EQ(dropout_word(48 + k), dropout_word(48 + row));
      }
    }
  }
}

TEST(Dropout, Limits) {
  EXPECT_EQ(dropout_limit(0), 0u);
  EXPECT_EQ(dropout_limit(0.5), 0x80000000u);
  EXPECT_EQ(dropout_limit(0.1), 429496730u);
  EXPECT_EQ(dropout_limit(0x1p-32), 1u);
  EXPECT_EQ(dropout_limit(std::nextafter(1.0, 0.0)), kAll);
  EXPECT_FALSE(is_dropped(0, dropout_limit(0)));
  EXPECT_FALSE(is_dropped(kAll, dropout_limit(1)));
}

// Counts are those of independent coins, up to five standard deviations. The seed is fixed.
TEST(Dropout, DropsTheShareThatIsAskedFor) {
  constexpr unsigned kQueries = 512, kKeys = 1024;
  for (const double p : {0.001, 0.1, 0.25, 0.5, 0.9}) {
    const unsigned limit = dropout_limit(p);
    const PhiloxKey key = dropout_key(1234567, 42);
    std::vector<int> of_turn(32), of_query(kQueries), of_key(kKeys);
    int all = 0, pairs = 0;
    for (unsigned q = 0; q < kQueries; ++q) {
      bool last = false;
      for (unsigned k = 0; k < kKeys; ++k) {
        const bool now = dropped(key, 0, 3, q, k, limit);
        all += now;
        pairs += now && last;
        of_turn[dropout_turn(q, k)] += now;
        of_query[q] += now;
        of_key[k] += now;
        last = now;
      }
    }
    const auto near = [](int count, double n, double share, const char* what) {
      EXPECT_NEAR(count, n * share, 5 * std::sqrt(n * share * (1 - share)) + 1) << what << ", p " << share;
    };
    near(all, kQueries * kKeys, p, "all");
    near(pairs, kQueries * (kKeys - 1), p * p, "neighbours");
    for (const int turn : {0, 8, 16, 24})
      near(of_turn[static_cast<std::size_t>(turn)], kQueries * kKeys / 4.0, p, "turn");
    for (const int count : of_query) near(count, kKeys, p, "query");
    for (const int count : of_key) near(count, kQueries, p, "key");
  }
}

// How often two weights are dropped together: numbers that share a word may differ from chance by 1/256 of p (1 - p).
TEST(Dropout, WeightsOfAWordAreNearlyIndependent) {
  constexpr double kP = 0.3;
  constexpr unsigned kCalls = 1 << 20;
  const unsigned limit = dropout_limit(kP);
  const PhiloxKey key = dropout_key(99, 1);
  std::array<int, 4> together{};
  for (unsigned i = 0; i < kCalls; ++i) {
    const unsigned q = i % 1024 / 8 * 16 + i % 8, k = i / 1024 * 32;
    const PhiloxWords words = dropout_words(key, 5, 0, q, k);
    const bool first = is_dropped(dropout_number(words, q, k), limit);
    const std::pair<unsigned, unsigned> others[] = {{q + 8, k}, {q, k + 8}, {q + 8, k + 8}, {q, k + 1}};
    for (std::size_t o = 0; o < 4; ++o)
      together[o] += first && is_dropped(dropout_number(words, others[o].first, others[o].second), limit);
  }
  const double expected = kCalls * kP * kP, deviation = std::sqrt(expected * (1 - kP * kP));
  for (const int count : together) EXPECT_NEAR(count, expected, 5 * deviation + kCalls * kP * (1 - kP) / 256);
}

// Seeds, offsets, batch indices and heads that are neighbours agree as often as chance has it.
TEST(Dropout, MasksDiffer) {
  struct Call {
    unsigned long long seed, offset;
    unsigned b, h;
  };
  const Call calls[] = {{0, 0, 0, 0}, {1, 0, 0, 0},          {0, 1, 0, 0},          {0, 0, 1, 0},
                        {0, 0, 0, 1}, {1ull << 32, 0, 0, 0}, {0, 1ull << 32, 0, 0}, {~0ull, ~0ull, 0, 0}};
  const auto mask = [](const Call& call) {
    std::vector<bool> bits;
    const PhiloxKey key = dropout_key(call.seed, call.offset);
    for (unsigned q = 0; q < 64; ++q) {
      for (unsigned k = 0; k < 64; ++k) bits.push_back(dropped(key, call.b, call.h, q, k, dropout_limit(0.5)));
    }
    return bits;
  };
  for (std::size_t i = 0; i < std::size(calls); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const auto x = mask(calls[i]), y = mask(calls[j]);
      int agree = 0;
      for (std::size_t at = 0; at < x.size(); ++at) agree += x[at] == y[at];
      EXPECT_NEAR(agree, 2048, 5 * 32) << i << " and " << j;
    }
  }
}

}  // namespace
}  // namespace flashjit

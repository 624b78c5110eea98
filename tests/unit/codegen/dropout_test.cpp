#include "templates/dropout.h"

#include <array>
#include <cmath>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace flashjit {
namespace {

constexpr unsigned kAll = 0xffffffffu;

unsigned number(const FourWords& key, unsigned b, unsigned h, unsigned q, unsigned k) {
  return dropout_number(dropout_words(key, b, h, q, k), q, k);
}

// The vectors that its authors published.
TEST(Dropout, Philox) {
  struct Row {
    FourWords counter;
    PhiloxKey key;
    std::array<unsigned, 4> seven, ten;
  };
  const Row rows[] = {
      {{{0, 0, 0, 0}},
       {0, 0},
       {0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48},
       {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{{kAll, kAll, kAll, kAll}},
       {kAll, kAll},
       {0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
       {0xa4093822, 0x299f31d0},
       {0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(std::to_array(philox<7>(row.counter, row.key).word), row.seven);
    EXPECT_EQ(std::to_array(philox<10>(row.counter, row.key).word), row.ten);
  }
}

// Every weight has a number of its own: a call, a word of it, and a byte of that.
TEST(Dropout, EveryWeightHasItsNumber) {
  std::set<std::array<unsigned, 4>> numbers;
  for (unsigned q = 0; q < 64; ++q) {
    for (unsigned k = 0; k < 96; ++k) {
      EXPECT_LT(dropout_word(q, k), 4u);
      EXPECT_TRUE(
          numbers
              .insert({dropout_column(k), dropout_row(q), dropout_word(q, k), dropout_half(k) + 2 * exchanges_bytes(k)})
              .second);
    }
  }
}

// What threads hold of tiles, as mma.sync and wgmma lay them out: rows r and r + 8, columns c and c + 1 of each 8.
TEST(Dropout, CallsAreThoseOfThreads) {
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned row = lane / 4, column = lane % 4 * 2;
    for (unsigned e = 0; e < 16; ++e) {
      // Rows are queries: of two tiles side by side all is of one call, two words for each tile.
      const unsigned i = row + e / 2 % 2 * 8, j = column + e / 4 * 8 + e % 2;
      EXPECT_EQ(dropout_row(i), dropout_row(row));
      EXPECT_EQ(dropout_column(j), dropout_column(column));
      EXPECT_EQ(dropout_word(i, j) / 2, j / 16);
    }
    for (unsigned e = 0; e < 8; ++e) {
      // Rows are keys: two calls, those of lane ^ 4, of which it has a half of two words.
      const unsigned k = row + e / 4 * 8, q = column + e / 2 % 2 * 8 + e % 2;
      EXPECT_EQ(dropout_column(k), dropout_column(row));
      EXPECT_EQ(dropout_column(k), dropout_column((lane ^ 4) / 4));
      EXPECT_EQ(dropout_row(q), dropout_row(column + e % 2));
      EXPECT_EQ(dropout_half(k), row % 2);
    }
  }
}

TEST(Dropout, Numbers) {
  EXPECT_EQ(dropped_of(0), 0);
  EXPECT_EQ(dropped_of(0.0019), 0);
  EXPECT_EQ(dropped_of(0x1p-9), 1);
  EXPECT_EQ(dropped_of(0.1), 26);
  EXPECT_EQ(dropped_of(0.5), 128);
  EXPECT_EQ(dropped_of(255.0 / 256), 255);
  EXPECT_EQ(dropped_of(0.999), 256);
  EXPECT_EQ(dropout_factor(0), 1.0f);
  EXPECT_EQ(dropout_factor(128), 2.0f);
  EXPECT_EQ(dropout_factor(26), 256.0f / 230.0f);
  EXPECT_FALSE(is_dropped(0, 0));
  EXPECT_TRUE(is_dropped(25, 26));
  EXPECT_FALSE(is_dropped(26, 26));
}

// What a launch passes: by value, or in memory.
TEST(Dropout, KeyOfALaunch) {
  const Int64 seed = -7, offset = Int64{1} << 40;
  KernelParams params = {};
  params.seed = seed, params.offset = offset;
  const FourWords by_value = dropout_key<false>(params);
  params.seed = params.offset = 0;
  params.seed_at = &seed, params.offset_at = &offset;
  const FourWords in_memory = dropout_key<false>(params);
  const FourWords expected = dropout_key(static_cast<unsigned long long>(seed), 1ull << 40);
  for (const FourWords& key : {by_value, in_memory}) {
    EXPECT_EQ(std::to_array(key.word), std::to_array(expected.word));
  }
}

// A call whose rows begin elsewhere draws as the whole sequence does there.
TEST(Dropout, PlacesAreInTheKey) {
  KernelParams params = {};
  params.seed = 5, params.offset = 6;
  const FourWords whole = dropout_key<false>(params);
  params.q_places.begin = 96, params.k_places.begin = 64;
  const FourWords part = dropout_key<true>(params);
  for (const unsigned q : {0u, 7u, 40u}) {
    for (const unsigned k : {0u, 9u, 33u, 70u}) {
      const FourWords of_whole = dropout_words(whole, 2, 3, q + 96, k + 64), of_part = dropout_words(part, 2, 3, q, k);
      for (int i = 0; i < 4; ++i) EXPECT_EQ(of_part.word[i], of_whole.word[i]) << q << " " << k;
    }
  }
}

// Counts are those of independent coins, up to five standard deviations. The seed is fixed.
TEST(Dropout, DropsTheShareThatIsAskedFor) {
  constexpr unsigned kQueries = 512, kKeys = 1024;
  for (const int dropped : {1, 26, 64, 128, 230}) {
    const double p = dropped / 256.0;
    const FourWords key = dropout_key(1234567, 42);
    std::vector<int> of_place(16), of_query(kQueries), of_key(kKeys);
    int all = 0, pairs = 0;
    for (unsigned q = 0; q < kQueries; ++q) {
      bool last = false;
      for (unsigned k = 0; k < kKeys; ++k) {
        const bool is = is_dropped(number(key, 0, 3, q, k), dropped);
        all += is;
        pairs += is && last;
        of_place[dropout_word(q, k) * 4 + dropout_half(k) * 2 + exchanges_bytes(k)] += is;
        of_query[q] += is;
        of_key[k] += is;
        last = is;
      }
    }
    const auto near = [](int count, double n, double share, const char* what) {
      EXPECT_NEAR(count, n * share, 5 * std::sqrt(n * share * (1 - share)) + 4) << what << ", p " << share;
    };
    near(all, kQueries * kKeys, p, "all");
    near(pairs, kQueries * (kKeys - 1), p * p, "neighbours");
    for (const int count : of_place) near(count, kQueries * kKeys / 16.0, p, "place");
    for (const int count : of_query) near(count, kKeys, p, "query");
    for (const int count : of_key) near(count, kQueries, p, "key");
  }
}

// Neither two weights nor the four at the corners of a rectangle tell anything about each other, within a call and from one
// to another. Products of what deviates from the mean are uncorrelated, so their sum is up to five standard deviations.
TEST(Dropout, WeightsAreIndependent) {
  constexpr unsigned kQueries = 512, kKeys = 768;
  const unsigned steps[][2] = {{0, 1},  {1, 0},  {0, 2},   {0, 8},  {8, 0},  {1, 1},   {8, 8},   {0, 16}, {16, 0},
                               {2, 16}, {16, 2}, {16, 16}, {0, 64}, {64, 0}, {64, 64}, {128, 8}, {8, 256}};
  for (const int dropped : {1, 26, 128}) {
    const double p = dropped / 256.0, variance = p * (1 - p);
    const FourWords key = dropout_key(7654321, 24);
    std::vector<double> off(kQueries * kKeys);
    for (unsigned q = 0; q < kQueries; ++q) {
      for (unsigned k = 0; k < kKeys; ++k) off[q * kKeys + k] = is_dropped(number(key, 2, 5, q, k), dropped) - p;
    }
    for (const auto& [down, right] : steps) {
      double pairs = 0, rectangles = 0;
      for (unsigned q = 0; q + down < kQueries; ++q) {
        for (unsigned k = 0; k + right < kKeys; ++k) {
          const double *here = &off[q * kKeys + k], *below = here + down * kKeys;
          pairs += here[0] * below[right];
          rectangles += here[0] * here[right] * below[0] * below[right];
        }
      }
      const double n = (kQueries - down) * (kKeys - right);
      EXPECT_LT(std::abs(pairs), 5 * variance * std::sqrt(n)) << dropped << ", " << down << ", " << right;
      if (down > 0 && right > 0) {
        EXPECT_LT(std::abs(rectangles), 5 * variance * variance * std::sqrt(n))
            << dropped << ", " << down << ", " << right;
      }
    }
  }
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
    const FourWords key = dropout_key(call.seed, call.offset);
    for (unsigned q = 0; q < 64; ++q) {
      for (unsigned k = 0; k < 64; ++k) bits.push_back(is_dropped(number(key, call.b, call.h, q, k), 128));
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

#include "templates/dropout_tiles.h"

#include <array>

#include <gtest/gtest.h>

namespace flashjit {
namespace {

constexpr unsigned kB = 3, kH = 5;
const FourWords kKey = dropout_key(7, 9);

TEST(DropoutTiles, PermutedBytes) { EXPECT_EQ(permute_bytes(0x33221100, 0x77665544, 0x6240), 0x66224400u); }

// Every number, whatever the other bits are, and again with its bytes exchanged.
TEST(DropoutTiles, NumbersOfHalves) {
  for (unsigned number = 0; number < 256; ++number) {
    for (const unsigned others : {0u, 0x8000u, 0x7fu, 0x807fu}) {
      const unsigned half = number << 7 | others;
      EXPECT_EQ(number_of_half(half, false), number);
      EXPECT_EQ(number_of_half((half << 8 | half >> 8) & 0xffff, true), number);
      EXPECT_EQ(kept_halves<26>(half << 16), number >= 26 ? 0xffff0000u : 0u);
    }
  }
}

// A warp's tile, lane by lane: what a lane makes and, where rows are keys, what it gets from lane ^ 4.
template <WeightRows rows>
TileNumbers numbers_of_lane(unsigned lane, unsigned query_tile, unsigned key_tile) {
  const FourWords call = dropout_call(kKey, kB, kH, dropout_counter_of_query<rows>(query_tile, lane),
                                      dropout_counter_of_key<rows>(key_tile, lane));
  return numbers_of_call(call, key_tile);
}
template <WeightRows rows, int dropped>
void expect_tile(unsigned query_tile, unsigned key_tile) {
  constexpr bool kQueries = rows == WeightRows::queries;
  for (unsigned lane = 0; lane < 32; ++lane) {
    TileNumbers numbers = numbers_of_lane<rows>(lane, query_tile, key_tile);
    if (!kQueries) {
      CallHalves halves = halves_of_call(numbers, lane);
      halves.other = halves_of_call(numbers_of_lane<rows>(lane ^ 4, query_tile, key_tile), lane ^ 4).other;
      numbers = numbers_of_halves(halves, lane);
    }
    for (int i = 0; i < 4; ++i) {
      for (int c = 0; c < 2; ++c) {
        const unsigned row = lane / 4 + i % 2 * 8, column = lane % 4 * 2 + i / 2 * 8 + c,
                       q = query_tile * 16 + (kQueries ? row : column), k = key_tile * 16 + (kQueries ? column : row);
        const bool kept = !is_dropped(dropout_number(dropout_words(kKey, kB, kH, q, k), q, k), dropped);
        EXPECT_EQ((mask_of_weight<rows, dropped>(numbers, i, c)), kept ? 0xffffffffu : 0u);
        EXPECT_EQ((mask_of_operand<rows, dropped>(numbers, i)) >> 16 * c & 0xffff, kept ? 0xffffu : 0u);
      }
    }
  }
}
template <WeightRows rows, int dropped>
void expect_tiles() {
  for (const auto& [query_tile, key_tile] : {std::array{6u, 3u}, std::array{3u, 4u}}) {
    expect_tile<rows, dropped>(query_tile, key_tile);
  }
}
TEST(DropoutTiles, LanesHaveTheirWeights) {
  expect_tiles<WeightRows::queries, 1>();
  expect_tiles<WeightRows::queries, 26>();
  expect_tiles<WeightRows::queries, 255>();
  expect_tiles<WeightRows::keys, 26>();
  expect_tiles<WeightRows::keys, 128>();
}

}  // namespace
}  // namespace flashjit

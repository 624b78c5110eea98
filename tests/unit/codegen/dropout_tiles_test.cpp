#include "templates/dropout_tiles.h"

#include <array>
#include <utility>

#include <gtest/gtest.h>

namespace flashjit {
namespace {

constexpr unsigned kB = 3, kH = 5;
const FourWords kKey = dropout_key(7, 9);

bool is_kept(unsigned q, unsigned k, int dropped) {
  return !is_dropped(dropout_number(dropout_words(kKey, kB, kH, q, k), q, k), dropped);
}

// Every byte, beside bytes from which something could be carried over.
template <int dropped>
void expect_kept_bytes() {
  for (unsigned number = 0; number < 256; ++number) {
    for (const unsigned beside : {0u, 127u, 128u, 255u}) {
      const unsigned kept = kept_bytes<dropped>(number << 8 | beside | beside << 16 | number << 24);
      EXPECT_EQ(kept >> 15 & 1, number >= dropped) << number << ", " << dropped << " dropped";
      EXPECT_EQ(kept >> 31, number >= dropped) << number << ", " << dropped << " dropped";
      EXPECT_EQ(kept >> 7 & 1, beside >= dropped) << beside << ", " << dropped << " dropped";
    }
  }
}
template <int... numbers>
void expect_all_kept_bytes(std::integer_sequence<int, numbers...>) {
  (expect_kept_bytes<numbers + 1>(), ...);
}
TEST(DropoutTiles, KeptBytes) { expect_all_kept_bytes(std::make_integer_sequence<int, 255>()); }

TEST(DropoutTiles, PermutedBytes) {
  EXPECT_EQ(permute_bytes(0x33221100, 0x77665544, 0x6240), 0x66224400u);
  EXPECT_EQ(permute_bytes(0x00800000, 0x7f000080, 0xfcba), 0x00ff00ffu);
}

// A warp's tiles, lane by lane: what a lane makes, what it gets from lane ^ 4, and what comes of it.
template <WeightRows rows>
FourWords call_of(unsigned lane, unsigned row_tile, unsigned column_tile) {
  const unsigned row = dropout_place_of_row(row_tile, lane), column = dropout_place_of_column(column_tile, lane);
  const bool queries = rows == WeightRows::queries;
  return dropout_call(kKey, kB, kH, queries ? row : column, queries ? column : row);
}
template <WeightRows rows, int dropped>
void expect_tile(const KeptTile& kept, unsigned lane, unsigned row_tile, unsigned column_tile) {
  for (int i = 0; i < 4; ++i) {
    for (int c = 0; c < 2; ++c) {
      const unsigned row = row_tile * 16 + lane / 4 + i % 2 * 8,
                     column = column_tile * 16 + lane % 4 * 2 + i / 2 * 8 + c;
      const bool expected = rows == WeightRows::queries ? is_kept(row, column, dropped) : is_kept(column, row, dropped);
      EXPECT_EQ(mask_of_weight<rows>(kept, i, c), expected ? 0xffffffffu : 0u);
      EXPECT_EQ(mask_of_operand<rows>(kept, i) >> 16 * c & 0xffff, expected ? 0xffffu : 0u);
    }
  }
}
template <WeightRows rows, int dropped>
void expect_warp() {
  // Two tiles that are neighbours in columns, or in rows; the last one alone.
  const std::array<std::array<unsigned, 4>, 2> pairs = {{{6, 3, 6, 4}, {2, 9, 3, 9}}};
  for (const auto& [row_0, column_0, row_1, column_1] : pairs) {
    std::array<CallHalves, 32> made;
    for (unsigned lane = 0; lane < 32; ++lane) {
      const bool second = call_of_lane(lane) == 1;
      made[lane] =
          halves_of_call<rows>(call_of<rows>(lane, second ? row_1 : row_0, second ? column_1 : column_0), lane);
    }
    for (unsigned lane = 0; lane < 32; ++lane) {
      CallHalves halves = made[lane];
      halves.other[0] = made[lane ^ 4].other[0], halves.other[1] = made[lane ^ 4].other[1];
      KeptTile first, second;
      tiles_of_halves<dropped>(first, second, halves, lane);
      expect_tile<rows, dropped>(first, lane, row_0, column_0);
      expect_tile<rows, dropped>(second, lane, row_1, column_1);
      const KeptTile alone = tile_of_half<dropped>(halves_of_call<rows>(call_of<rows>(lane, row_1, column_1), lane));
      expect_tile<rows, dropped>(alone, lane, row_1, column_1);
    }
  }
}
TEST(DropoutTiles, LanesHaveTheirWeights) {
  expect_warp<WeightRows::queries, 26>();
  expect_warp<WeightRows::queries, 77>();
  expect_warp<WeightRows::queries, 201>();
  expect_warp<WeightRows::keys, 26>();
  expect_warp<WeightRows::keys, 128>();
}

}  // namespace
}  // namespace flashjit

// Which rows of a call stand from a position of the whole sequence on.
#include <gtest/gtest.h>

#include "templates/places/places.h"

namespace flashjit {
namespace {

TEST(Places, TheFirstRowFromAPositionIsTheOneThatCountingFinds) {
  for (const int step : {1, 2, 3, 8, 65536}) {
    for (const int begin : {0, 1, 5, 64}) {
      const Places places = {.begin = begin, .step = step, .total = begin + 12 * step};
      for (int rows : {0, 1, 7, 12}) {
        for (int position = -3; position < begin + 14 * step; position += step > 100 ? 8191 : 1) {
          int counted = 0;
          while (counted < rows && position_of(places, counted) < position) ++counted;
          ASSERT_EQ(first_row_from(places, position, rows), counted)
              << "begin " << begin << ", step " << step << ", " << rows << " rows, position " << position;
        }
      }
    }
  }
}

// The end of the longest sequence, with the longest step.
TEST(Places, NothingOverflows) {
  constexpr int kLast = (1 << 30) - 1;
  EXPECT_EQ(first_row_from({.begin = 0, .step = 65536, .total = kLast}, kLast, 1 << 20), 1 << 14);
  EXPECT_EQ(first_row_from({.begin = kLast - 1, .step = 65536, .total = kLast}, kLast, 1), 1);
  EXPECT_EQ(first_row_from({.begin = 0, .step = 1, .total = kLast}, kLast, kLast), kLast);
}

}  // namespace
}  // namespace flashjit

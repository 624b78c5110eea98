// The places of a call's rows in the whole sequence, and the rows from a position on (config.places). Host and device
// share them.
#pragma once

#include "templates/kernel_params.h"

namespace flashjit {

constexpr int position_of(const Places& places, int row) { return places.begin + row * places.step; }

// Returns the first of `rows` rows that does not stand before a position, or `rows`.
constexpr int first_row_from(const Places& places, int position, int rows) {
  const int behind = position > places.begin ? position - places.begin : 0;
  const unsigned step = static_cast<unsigned>(places.step), last = step - 1;
  const unsigned row = last == 0 ? static_cast<unsigned>(behind) : (static_cast<unsigned>(behind) + last) / step;
  return row < static_cast<unsigned>(rows) ? static_cast<int>(row) : rows;
}

}  // namespace flashjit

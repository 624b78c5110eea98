// A picture of what a mask leaves to do: one character per tile (or block of tiles) of the q_len x k_len scores.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan.h"
#include "compiler/result.h"
#include "tools/support/mask_values.h"

namespace flashjit {

struct MaskMap {
  std::vector<std::string> rows;  // '.' skipped, '+' mask code runs, '#' everything visible
  std::int64_t rows_per_cell = 0, keys_per_cell = 0;
  std::int64_t empty = 0, mixed = 0, full = 0;  // tiles of the plan; -1: too many to count
  bool of_values = false;                       // each pair was looked at, with values that somebody gave
  std::optional<double> visible = {};           // share of the pairs that are seen, where each was looked at
};

// A map has so many cells at most. A page has room for more than a line of text.
struct MapSize {
  std::int64_t rows = 0, columns = 0;
};
constexpr MapSize kTextMap = {16, 64}, kPageMap = {64, 64};

// For head 0 of sequence 0. Error Unsupported when the mask reads tensors or scalars, and `values` does not have them.
Result<MaskMap> mask_map(const Plan& plan, const MaskValues& values, std::int64_t q_len, std::int64_t k_len,
                         const MapSize& most = kTextMap);

// Lists names, each between two of `quote`: "`doc` and `end`"; and those of all that a mask reads of a call.
std::string names_text(const std::vector<Param>& params, std::string_view quote = "");
std::string names_read(const Expr& mask);

// Draws the map in half blocks, two rows a line, for terminals that show colours; the legend stands below.
std::string painted_map(const MaskMap& map);

}  // namespace flashjit

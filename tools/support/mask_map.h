// The map is a picture of the work that a mask leaves: one character per tile (or block of tiles) of the q_len x k_len
// scores.
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
  std::vector<std::string> rows;  // '.' is skipped, '+' runs mask code, '#' is all visible
  std::int64_t rows_per_cell = 0, keys_per_cell = 0;
  std::int64_t empty = 0, mixed = 0, full = 0;  // tiles of the plan; -1 if they are too many to count
  bool of_values = false;                       // Each pair was looked at, with values that somebody gave.
  std::optional<double> visible = {};           // share of the pairs that are seen, if each was looked at
};

// A map has at most this many cells. A page has room for more than a line of text.
struct MapSize {
  std::int64_t rows = 0, columns = 0;
};
constexpr MapSize kTextMap = {16, 64}, kPageMap = {64, 64};

// Draws head 0 of sequence 0. Error Unsupported means that the mask reads tensors or scalars that `values` does not
// have.
Result<MaskMap> mask_map(const Plan& plan, const MaskValues& values, std::int64_t q_len, std::int64_t k_len,
                         const MapSize& most = kTextMap);

// Lists names, each between two of `quote`: "`doc` and `end`". The second function lists all names that a mask reads.
std::string names_text(const std::vector<Param>& params, std::string_view quote = "");
std::string names_read(const Expr& mask);

// Draws the map in half blocks, two rows a line, for terminals that show colours. The legend stands below.
std::string painted_map(const MaskMap& map);

}  // namespace flashjit

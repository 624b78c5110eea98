#include "tools/support/mask_map.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "compiler/analysis/tile_pairs.h"

namespace flashjit {
namespace {

constexpr std::int64_t kMaxCounted = 1 << 20;
// Number of pairs that are looked at one by one, which takes some seconds.
constexpr std::int64_t kMaxPairs = 1 << 24;

// Returns one of the usual 256 colours; these can be told apart on dark and on light terminals.
int colour_of(char cell) {
  constexpr int kGrey = 244, kOrange = 208, kBlue = 32;
  return cell == '.' ? kGrey : cell == '+' ? kOrange : kBlue;
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Calls count(class) for each tile of a mask whose limits read nothing.
void count_tiles(const Plan& plan, std::int64_t q_len, std::int64_t k_len, auto count) {
  const int tile_q = queries_per_tile(plan.config), tile_kv = plan.config.tile_kv;
  Environment environment;
  environment.variables[static_cast<int>(Variable::QLen)] = q_len;
  environment.variables[static_cast<int>(Variable::KLen)] = k_len;
  for (std::int64_t q = 0; q < q_len; q += tile_q)
    for (std::int64_t k = 0; k < k_len; k += tile_kv)
      count(classify(plan.tiles, environment, q, std::min(q + tile_q, q_len) - 1, k, std::min(k + tile_kv, k_len) - 1));
}

bool is_too_much(const Plan& plan, std::int64_t q_len, std::int64_t k_len) {
  const std::int64_t rows = ceil_div(q_len, queries_per_tile(plan.config)),
                     columns = ceil_div(k_len, plan.config.tile_kv);
  return columns > 0 && rows > kMaxCounted / columns;
}

// Returns the text that stands in place of a map if the mask reads values that a call brings.
std::string without_values(const Plan& plan, std::int64_t q_len, std::int64_t k_len) {
  const bool finds =
      plan.target.gpu ? plan.tile_lists >= 0
                      : analyse_pairs(plan.spec.mask, queries_per_tile(plan.config), plan.config.tile_kv).has_value();
  std::string text =
      has_blocks(plan.spec)
          ? "blocks are in lists, which are only known when it runs"
          : fmt::format("the mask depends on {}, whose values are only known when it runs", names_read(plan.spec.mask));
  if (finds) text += ": each call finds what it hides first, a tile at a time";
  else if (plan.tiles.may_see_in_blocks) text += ": the loop looks at each block that a tile has";
  const TileAnalysis& t = plan.tiles;
  const auto reads = [](const Expr& e) { return e && !params_of(e).empty(); };
  if (reads(t.begin) || reads(t.end) || reads(t.may_see) || is_too_much(plan, q_len, k_len)) return text;
  std::int64_t all = 0, left = 0;
  count_tiles(plan, q_len, k_len, [&](TileClass what) { ++all, left += what != TileClass::Empty; });
  if (all > 0) text += fmt::format("; {}{}% of the tiles are visited", finds ? "at most " : "", left * 100 / all);
  return text;
}

char cell_of(TileClass what) { return what == TileClass::Empty ? '.' : what == TileClass::Full ? '#' : '+'; }
std::int64_t& count_of(MaskMap& map, TileClass what) {
  return what == TileClass::Empty ? map.empty : what == TileClass::Full ? map.full : map.mixed;
}

// A tile is what all queries of a block visit together.
MaskMap empty_map(const Plan& plan, std::int64_t q_len, std::int64_t k_len, const MapSize& most) {
  const int tile_q = queries_per_tile(plan.config), tile_kv = plan.config.tile_kv;
  MaskMap map;
  map.rows_per_cell = tile_q * std::max<std::int64_t>(1, ceil_div(ceil_div(q_len, tile_q), most.rows));
  map.keys_per_cell = tile_kv * std::max<std::int64_t>(1, ceil_div(ceil_div(k_len, tile_kv), most.columns));
  return map;
}

// Counts the pairs of a tile that are seen.
std::int64_t seen_pairs(const Expr& mask, Environment& environment, std::int64_t q, std::int64_t q_end, std::int64_t k,
                        std::int64_t k_end) {
  std::int64_t seen = 0;
  std::int64_t& query = environment.variables[static_cast<int>(Variable::Q)];
  std::int64_t& key = environment.variables[static_cast<int>(Variable::K)];
  for (query = q; query < q_end; ++query)
    for (key = k; key < k_end; ++key) seen += evaluate(mask, environment).integer != 0;
  return seen;
}

// A cell is empty or full if all of its tiles are.
Result<MaskMap> map_of_values(const Plan& plan, const MaskValues& values, std::int64_t q_len, std::int64_t k_len,
                              const MapSize& most) {
  if (k_len > 0 && q_len > kMaxPairs / k_len) {
    return unsupported(fmt::format(
        "the mask reads {}, and a map of {} x {} pairs would take long; give a --shape of at most {} of them",
        names_read(plan.spec.mask), q_len, k_len, kMaxPairs));
  }
  const int tile_q = queries_per_tile(plan.config), tile_kv = plan.config.tile_kv;
  MaskMap map = empty_map(plan, q_len, k_len, most);
  map.of_values = true;
  map.rows.assign(static_cast<std::size_t>(ceil_div(q_len, map.rows_per_cell)),
                  std::string(static_cast<std::size_t>(ceil_div(k_len, map.keys_per_cell)), ' '));
  Environment environment = values.environment(q_len, k_len);
  std::int64_t all_seen = 0;
  for (std::int64_t q = 0; q < q_len; q += tile_q) {
    for (std::int64_t k = 0; k < k_len; k += tile_kv) {
      const std::int64_t q_end = std::min(q + tile_q, q_len), k_end = std::min(k + tile_kv, k_len);
      const std::int64_t seen = seen_pairs(plan.spec.mask, environment, q, q_end, k, k_end);
      const TileClass what = seen == 0                           ? TileClass::Empty
                             : seen == (q_end - q) * (k_end - k) ? TileClass::Full
                                                                 : TileClass::Mixed;
      all_seen += seen;
      ++count_of(map, what);
      char& cell =
          map.rows[static_cast<std::size_t>(q / map.rows_per_cell)][static_cast<std::size_t>(k / map.keys_per_cell)];
      cell = cell == ' ' || cell == cell_of(what) ? cell_of(what) : '+';
    }
  }
  if (q_len > 0 && k_len > 0)
    map.visible = static_cast<double>(all_seen) / (static_cast<double>(q_len) * static_cast<double>(k_len));
  return map;
}

}  // namespace

std::string names_text(const std::vector<Param>& params, std::string_view quote) {
  std::string names;
  for (std::size_t i = 0; i < params.size(); ++i)
    names += fmt::format("{}{}{}{}",
                         i == 0                  ? ""
                         : i + 1 < params.size() ? ", "
                                                 : " and ",
                         quote, params[i].name, quote);
  return names;
}

std::string names_read(const Expr& mask) { return names_text(params_of(mask)); }

Result<MaskMap> mask_map(const Plan& plan, const MaskValues& given, std::int64_t q_len, std::int64_t k_len,
                         const MapSize& most) {
  if (selects(plan.spec)) {
    return unsupported(
        reads_pages(plan.spec)
            ? "pages are in lists, which are only known when it runs: each query visits the keys of its own"
            : "keys are in lists, which are only known when it runs: each query visits its own, all with mask code");
  }
  if (given.given()) return map_of_values(plan, given, q_len, k_len, most);
  if (plan.spec.mask && !params_of(plan.spec.mask).empty()) return unsupported(without_values(plan, q_len, k_len));
  Environment environment;
  environment.variables[static_cast<int>(Variable::QLen)] = q_len;
  environment.variables[static_cast<int>(Variable::KLen)] = k_len;
  const auto classify_area = [&](std::int64_t q, std::int64_t rows, std::int64_t k, std::int64_t keys) {
    return classify(plan.tiles, environment, q, std::min(q + rows, q_len) - 1, k, std::min(k + keys, k_len) - 1);
  };

  MaskMap map = empty_map(plan, q_len, k_len, most);
  for (std::int64_t q = 0; q < q_len; q += map.rows_per_cell) {
    std::string& row = map.rows.emplace_back();
    for (std::int64_t k = 0; k < k_len; k += map.keys_per_cell) {
      const TileClass what = classify_area(q, map.rows_per_cell, k, map.keys_per_cell);
      row += cell_of(what);
    }
  }
  if (is_too_much(plan, q_len, k_len)) {
    map.empty = map.mixed = map.full = -1;
    return map;
  }
  count_tiles(plan, q_len, k_len, [&](TileClass what) { ++count_of(map, what); });
  return map;
}

std::string painted_map(const MaskMap& map) {
  constexpr std::string_view kUpperHalf = "\xe2\x96\x80", kPlain = "\x1b[0m";
  std::string text;
  for (std::size_t row = 0; row < map.rows.size(); row += 2) {
    text += "  ";
    for (std::size_t column = 0; column < map.rows[row].size(); ++column) {
      text += fmt::format("\x1b[38;5;{}m", colour_of(map.rows[row][column]));
      if (row + 1 < map.rows.size()) text += fmt::format("\x1b[48;5;{}m", colour_of(map.rows[row + 1][column]));
      text += kUpperHalf;
    }
    text += fmt::format("{}\n", kPlain);
  }
  text += " ";
  for (const auto& [cell, words] :
       {std::pair('.', "skipped"), std::pair('+', "with mask code"), std::pair('#', "without")})
    text += fmt::format(" \x1b[38;5;{}m{}{} {} ", colour_of(cell), kUpperHalf, kPlain, words);
  return text + "\n";
}

}  // namespace flashjit

#include <algorithm>

#include <fmt/format.h>

#include "compiler/spec/text_form.h"
#include "tools/page/markup.h"
#include "tools/page/pictures.h"

namespace flashjit {
namespace {

constexpr double kMapSide = 440, kMapLeft = 34, kMapTop = 24, kMapFoot = 6;
constexpr double kLeastCell = 3, kLeastMap = 28;

struct TileKind {
  char sign;
  const char *colour, *words;
  std::int64_t MaskMap::* count;
};
constexpr TileKind kTileKinds[] = {{'.', "skipped", "skipped", &MaskMap::empty},
                                   {'+', "masked", "with mask code", &MaskMap::mixed},
                                   {'#', "plain", "without", &MaskMap::full}};

// Returns all cells of a kind as one path. Runs of a row are one rectangle, which keeps pages small.
std::string path_of(const MaskMap& map, const TileKind& kind, double cell_width, double cell_height) {
  std::string path;
  for (std::size_t row = 0; row < map.rows.size(); ++row) {
    const std::string& cells = map.rows[row];
    for (std::size_t first = cells.find(kind.sign); first != cells.npos;) {
      const std::size_t behind = std::min(cells.find_first_not_of(kind.sign, first), cells.size());
      const double width = static_cast<double>(behind - first) * cell_width;
      path += fmt::format("M{:.5g} {:.5g}h{:.5g}v{:.5g}h-{:.5g}z", kMapLeft + static_cast<double>(first) * cell_width,
                          kMapTop + static_cast<double>(row) * cell_height, width, cell_height, width);
      first = cells.find(kind.sign, behind);
    }
  }
  if (path.empty()) return {};
  return fmt::format("<path class=\"{}\" shape-rendering=\"crispEdges\" d=\"{}\"><title>{}</title></path>\n",
                     kind.colour, path, kind.words);
}

}  // namespace

std::string map_picture(const MaskMap& map, const Shape& shape) {
  if (map.rows.empty() || map.rows.front().empty()) return {};
  const auto rows = static_cast<double>(map.rows.size()), columns = static_cast<double>(map.rows.front().size());
  const double true_height = kMapSide * static_cast<double>(shape.q_len) / static_cast<double>(shape.k_len);
  const double height = std::clamp(true_height, std::max(kLeastMap, kLeastCell * rows), kMapSide);
  std::string drawn, legend;
  for (const TileKind& kind : kTileKinds) {
    drawn += path_of(map, kind, kMapSide / columns, height / rows);
    const std::int64_t count = map.*kind.count;
    legend += legend_entry(kind.colour, count < 0 ? kind.words : fmt::format("{} {}", count, kind.words));
  }
  drawn += fmt::format(
      "<text x=\"{0}\" y=\"15\">keys 0 to {1} \xe2\x86\x92</text>\n"
      "<text transform=\"translate(18 {2}) rotate(90)\">{3}</text>\n",
      kMapLeft, shape.k_len - 1, kMapTop,
      height < kMapSide / 3 ? "q \xe2\x86\x92" : fmt::format("queries 0 to {} \xe2\x86\x92", shape.q_len - 1));
  const std::string caption = fmt::format("A cell is {} by {} keys; counts are of tiles, for one head of one sequence.",
                                          counted(map.rows_per_cell, "query"), map.keys_per_cell);
  return picture_of("map", kMapLeft + kMapSide + 2, kMapTop + height + kMapFoot,
                    "tiles of keys to the right, tiles of queries down", drawn) +
         "<ul class=\"legend\">\n" + legend + "</ul>\n<p class=\"note\">" + caption + "</p>\n";
}

}  // namespace flashjit

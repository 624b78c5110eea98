#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "compiler/program/edit.h"
#include "compiler/program/roles.h"
#include "tools/page/markup.h"
#include "tools/page/pictures.h"

namespace flashjit {
namespace {

// The shown tile is one in the middle, which begins and ends nothing.
constexpr std::int64_t kTracedTiles = 8, kShownTile = 3;
constexpr std::uint64_t kSeeds = 16;
constexpr double kRowHeight = 64, kBoxHeight = 38, kLetterWidth = 7.2, kLeastBox = 44, kBoxRoom = 12;
constexpr std::size_t kMostAlikeRows = 3;

// A kind of statement in the picture has a colour class and a least width.
struct DrawnKind {
  Kind kind;
  const char *colour, *verb;
  double width;
};
constexpr DrawnKind kDrawnKinds[] = {{Kind::Await, "wait", "await", 0},
                                     {Kind::Wait, "wait", "wait", 0},
                                     {Kind::Barrier, "wait", "barrier", 0},
                                     {Kind::Load, "copy", "load", 90},
                                     {Kind::Store, "copy", "store", 90},
                                     {Kind::Stage, "copy", "stage", 60},
                                     {Kind::Transpose, "copy", "transpose", 90},
                                     {Kind::Mma, "product", "mma", 130},
                                     {Kind::Softmax, "arithmetic", "softmax", 150},
                                     {Kind::Gradient, "arithmetic", "gradient", 120},
                                     {Kind::Score, "arithmetic", "score", 80},
                                     {Kind::Mask, "arithmetic", "mask", 80},
                                     {Kind::Convert, "arithmetic", "convert", 70},
                                     {Kind::Rescale, "arithmetic", "rescale", 80},
                                     {Kind::Lower, "arithmetic", "lower", 70},
                                     {Kind::Drop, "arithmetic", "drop", 60},
                                     {Kind::Draw, "arithmetic", "draw", 60},
                                     {Kind::Release, "release", "release", 0},
                                     {Kind::BeginTurn, "wait", "begin turn", 0},
                                     {Kind::EndTurn, "release", "end turn", 0},
                                     {Kind::Complete, "release", "complete", 0}};

struct LegendOfRoles {
  const char *colour, *words;
};
constexpr LegendOfRoles kRoleLegend[] = {{"wait", "waits"},
                                         {"release", "releases, hands on"},
                                         {"copy", "copies"},
                                         {"product", "products"},
                                         {"arithmetic", "other arithmetic"}};

const DrawnKind* drawn_kind(Kind kind) {
  const auto found = std::ranges::find(kDrawnKinds, kind, &DrawnKind::kind);
  return found == std::end(kDrawnKinds) ? nullptr : &*found;
}

struct RoleBox {
  const DrawnKind* kind = nullptr;
  std::string name, whole;  // the buffer, and the whole statement
  bool operator==(const RoleBox&) const = default;
};

struct RoleRow {
  std::string name;
  std::vector<RoleBox> boxes;
};

RoleBox box_of(const Program& program, const Statement& s, const DrawnKind& kind) {
  RoleBox box{.kind = &kind, .name = {}, .whole = describe(program, s)};
  const std::vector<int>& buffers = s.writes.empty() ? s.reads : s.writes;
  if (!buffers.empty()) box.name = program.buffers[static_cast<std::size_t>(buffers.front())].name;
  for (const char* key : {"barrier", "pending"}) {
    if (const Attribute* attribute = s.attributes.find(key); attribute && kind.colour == std::string_view("wait"))
      box.name += (box.name.empty() ? "" : " ") + print(attribute->value);
  }
  return box;
}

// Takes the steps from the first one of a tile to the first one of the next, because V may be a tile behind K.
std::vector<RoleBox> main_step_of(const Program& program, const RoleTrace& trace) {
  std::vector<RoleBox> boxes;
  std::int64_t tile = -1;
  for (const Step& step : trace.steps) {
    if (step.item > 0) break;
    if (tile < 0 && step.tile >= kShownTile) tile = step.tile;
    if (tile < 0) continue;
    if (step.tile > tile) break;
    if (const DrawnKind* kind = drawn_kind(step.statement->kind))
      boxes.push_back(box_of(program, *step.statement, *kind));
  }
  return boxes;
}

std::string row_name(const Program& program, const Statement& role, int number) {
  std::string_view label = role.label;
  if (label.ends_with("Role")) label.remove_suffix(std::string_view("Role").size());
  const std::string text(label.empty() ? name(role.kind) : label);
  return role.kind == Kind::Consumer && consumers_of(program) > 1 ? fmt::format("{} {}", text, number) : text;
}

// Roles that have nothing to do for a tile have no row.
std::vector<RoleRow> rows_of(const Program& program, const std::vector<RoleTrace>& traces) {
  std::vector<RoleRow> rows;
  for (const RoleTrace& trace : traces) {
    std::vector<RoleBox> boxes = main_step_of(program, trace);
    if (!boxes.empty()) rows.push_back({row_name(program, *trace.role, trace.number), std::move(boxes)});
  }
  return rows;
}

// The seed draws the bits that numbers decide. The usual course is the shortest one in which most roles have work.
// There are no rows if nothing traces the roles.
std::vector<RoleRow> traced_rows(const Program& program) {
  std::vector<RoleRow> best;
  std::size_t fewest = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const auto traces = trace_roles(program, {.items = {{.tiles = kTracedTiles, .mixed = 1}}, .seed = seed});
    if (!traces) return {};
    std::vector<RoleRow> rows = rows_of(program, *traces);
    std::size_t boxes = 0;
    for (const RoleRow& row : rows) boxes += row.boxes.size();
    if (rows.size() < best.size() || (rows.size() == best.size() && boxes >= fewest)) continue;
    fewest = boxes;
    best = std::move(rows);
  }
  return best;
}

void add_boxes(const Program& program, const std::vector<Statement>& body, std::vector<RoleBox>& boxes) {
  for (const Statement& s : body) {
    if (const DrawnKind* kind = drawn_kind(s.kind)) boxes.push_back(box_of(program, s, *kind));
    add_boxes(program, s.inside, boxes);
    add_boxes(program, s.body, boxes);
  }
}

const Statement* first_loop(const std::vector<Statement>& body) {
  for (const Statement& s : body) {
    if (s.kind == Kind::Loop) return &s;
    if (const Statement* found = first_loop(s.body)) return found;
  }
  return nullptr;
}

// Warps that copy for themselves wait for nobody, and nothing traces them. Their step is the body of their loop.
std::vector<RoleRow> written_rows(const Program& program) {
  std::vector<RoleRow> rows;
  for (const Statement& role : program.body) {
    const Statement* loop = role.kind == Kind::Consumer ? first_loop(role.body) : nullptr;
    std::vector<RoleBox> boxes;
    if (loop) add_boxes(program, loop->body, boxes);
    const auto count = boxes.empty() ? 0 : integer(role, "count", 1);
    for (int number = 0; number < count; ++number) rows.push_back({row_name(program, role, number), boxes});
  }
  return rows;
}

// Many warps that do the same become one row.
void join_rows(std::vector<RoleRow>& rows) {
  for (std::size_t first = 0; first < rows.size(); ++first) {
    std::size_t behind = first + 1;
    while (behind < rows.size() && rows[behind].boxes == rows[first].boxes) ++behind;
    if (behind - first <= kMostAlikeRows) continue;
    rows[first].name += fmt::format(" to {}, each", behind - 1 - first);
    rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(first) + 1,
               rows.begin() + static_cast<std::ptrdiff_t>(behind));
  }
}

double width_of(const RoleBox& box) {
  const std::size_t letters = std::max(box.name.size(), std::string_view(box.kind->verb).size());
  return std::max({box.kind->width, kLeastBox, static_cast<double>(letters) * kLetterWidth + kBoxRoom});
}

std::string drawn_row(const RoleRow& row, double top, double& right) {
  std::string out = fmt::format("<text class=\"strong\" x=\"1\" y=\"{}\">{}</text>\n", top + 13, escaped(row.name));
  double left = 1;
  for (const RoleBox& box : row.boxes) {
    const double width = width_of(box), y = top + 19;
    out += fmt::format(
        "<g><title>{}</title><rect class=\"box {}\" x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" />"
        "<text class=\"strong\" x=\"{:.1f}\" y=\"{}\">{}</text><text x=\"{:.1f}\" y=\"{}\">{}</text></g>\n",
        escaped(box.whole), box.kind->colour, left, y, width, kBoxHeight, left + 5, y + 16, box.kind->verb, left + 5,
        y + 31, escaped(box.name));
    left += width;
  }
  right = std::max(right, left);
  return out;
}

bool has_roles(const Program& program) {
  return program.vocabulary && std::ranges::any_of(program.body, [](const Statement& s) {
           return s.kind == Kind::Producer || s.kind == Kind::Consumer;
         });
}

}  // namespace

std::string roles_picture(const Program& program) {
  if (!has_roles(program)) return {};
  std::vector<RoleRow> rows = traced_rows(program);
  if (rows.empty()) rows = written_rows(program);
  if (rows.empty()) return {};
  join_rows(rows);
  std::string drawn, legend;
  double right = 0, top = 2;
  for (const RoleRow& row : rows) {
    drawn += drawn_row(row, top, right);
    top += kRowHeight;
  }
  for (const LegendOfRoles& entry : kRoleLegend) legend += legend_entry(entry.colour, entry.words);
  return fmt::format(
      "<div class=\"scroll\"><div style=\"min-width:{:.0f}px;max-width:{:.0f}px\">\n{}</div></div>\n"
      "<ul class=\"legend\">\n{}</ul>\n"
      "<p class=\"note\">A main step of the loop, from the statements of the program and in their order. This is a "
      "schematic: widths are by the kind of statement and are no measured times, and rows are not aligned.</p>\n",
      right, right * 1.1, picture_of("roles", right + 2, top, "a main step of each role", drawn), legend);
}

}  // namespace flashjit

#include "tools/command/bench_table.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "tools/support/output.h"

namespace flashjit {
namespace {

struct UnitOfSize {
  double size;
  const char* name;
};

constexpr UnitOfSize kTimeUnits[] = {{1e6, "s"}, {1e3, "ms"}, {1, "us"}};
constexpr UnitOfSize kFlopUnits[] = {{1e3, "PFLOP/s"}, {1, "TFLOP/s"}, {1e-3, "GFLOP/s"}};
constexpr UnitOfSize kByteUnits[] = {{1, "TB/s"}, {1e-3, "GB/s"}};

std::string with_unit(double value, std::span<const UnitOfSize> units, int digits) {
  auto unit = std::ranges::find_if(units, [&](const UnitOfSize& each) { return value >= each.size; });
  if (unit == units.end()) --unit;
  const double shown = value / unit->size;
  const int whole = shown >= 1000 ? 4 : shown >= 100 ? 3 : shown >= 10 ? 2 : 1;
  return fmt::format("{:.{}f} {}", shown, std::max(0, digits - whole), unit->name);
}

using Cells = std::vector<std::string>;

// All columns are aligned to the right, except for the last one, which is as long as it is.
std::string aligned(const std::vector<Cells>& lines) {
  std::vector<std::size_t> widths(lines.front().size());
  for (const Cells& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const Cells& line : lines) {
    for (std::size_t i = 0; i + 1 < line.size(); ++i) text += fmt::format("{:>{}}  ", line[i], widths[i]);
    text += line.back() + "\n";
  }
  return text;
}

// Formats a time such as "83.81 us" or "1.204 ms": with four digits, in the unit that suits the size.
std::string duration_text(double us) { return with_unit(us, kTimeUnits, 4); }

std::string factor_text(double factor) { return fmt::format("{:.2f}", factor); }

}  // namespace

std::string bench_table(const std::vector<BenchRow>& rows, const std::string& base) {
  const bool versions =
      std::ranges::any_of(rows, [&](const BenchRow& row) { return row.version != rows.front().version; });
  std::vector<Cells> lines = {{"time", "ratio", "p10", "p90", "rounds", "arithmetic", "traffic", "memory", "ratio"}};
  if (versions) lines.front().emplace_back("version");
  lines.front().emplace_back("spec");
  std::vector<std::string> notes;
  for (const BenchRow& row : rows) {
    Cells line = {duration_text(row.timing.us),      factor_text(row.times),
                  duration_text(row.timing.us_p10),  duration_text(row.timing.us_p90),
                  fmt::to_string(row.timing.rounds), with_unit(row.tflops, kFlopUnits, 4),
                  with_unit(row.tbs, kByteUnits, 4), bytes_text(row.memory_bytes),
                  factor_text(row.memory_times)};
    if (versions) line.push_back(row.version);
    line.push_back(row.spec);
    lines.push_back(std::move(line));
    for (const std::string& note : row.notes) {
      if (std::ranges::find(notes, note) == notes.end()) notes.push_back(note);
    }
  }
  std::string text = aligned(lines) + fmt::format("ratio: time and memory over those of {}\n", base);
  for (const std::string& note : notes) text += fmt::format("note: {}\n", note);
  return text;
}

}  // namespace flashjit

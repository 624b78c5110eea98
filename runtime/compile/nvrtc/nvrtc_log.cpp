#include "runtime/compile/nvrtc/nvrtc_log.h"

#include <charconv>

namespace flashjit {
namespace {

// Returns the number just before `words` ("5496" in "5496 bytes spill stores"), or 0 if the words are not there.
int number_before(std::string_view line, std::string_view words) {
  const std::size_t at = line.find(words);
  if (at == std::string_view::npos) return 0;
  std::size_t begin = at;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int value = 0;
  std::from_chars(line.data() + begin, line.data() + at, value);
  return value;
}

std::string_view quoted(std::string_view line) {
  const std::size_t begin = line.find('\'');
  if (begin == std::string_view::npos) return {};
  const std::size_t end = line.find('\'', begin + 1);
  return end == std::string_view::npos ? std::string_view{} : line.substr(begin + 1, end - begin - 1);
}

bool has(std::string_view line, std::string_view words) { return line.find(words) != std::string_view::npos; }

// ptxas numbers its remarks about wgmma and setmaxnreg C7501 and up.
bool is_warning(std::string_view line) {
  return has(line, "warning") || has(line, "Potential Performance Loss") || has(line, "(C75");
}

// Returns the words after the number of a line such as "ptxas info    : (C7510) Potential ...".
std::string remark(std::string_view line) {
  const std::size_t end = line.find(") ");
  return std::string(end == std::string_view::npos ? line : line.substr(end + 2));
}

void note_lost_performance(std::string_view line, CompileLog& result) {
  // All wgmma of a function are serialised, or a wait was put into it because registers in flight are touched.
  const bool serialised = has(line, "wgmma") && has(line, "serialized");
  if (serialised || (has(line, "warpgroup.wait") && has(line, "injected"))) {
    if (result.serialised.empty() || serialised) result.serialised = remark(line);
  }
  if (has(line, "setmaxnreg") && has(line, "ignored")) result.setmaxnreg_ignored = remark(line);
}

}  // namespace

CompileLog parse_compile_log(std::string_view log) {
  CompileLog result;
  while (!log.empty()) {
    const std::size_t end = log.find('\n');
    const std::string_view line = log.substr(0, end);
    log = end == std::string_view::npos ? std::string_view{} : log.substr(end + 1);
    if (is_warning(line)) {
      result.warnings.emplace_back(line);
      note_lost_performance(line, result);
    }
    if (line.find("Compiling entry function") != std::string_view::npos) {
      result.entries.push_back({.entry = std::string(quoted(line))});
      continue;
    }
    if (result.entries.empty()) continue;
    // Functions that were not inlined have property lines of their own, after their entry's. Their spills count, too.
    EntryUsage& entry = result.entries.back();
    entry.spill_bytes += number_before(line, " bytes spill stores") + number_before(line, " bytes spill loads");
    entry.stack_bytes += number_before(line, " bytes stack frame");
    entry.registers += number_before(line, " registers");
    entry.static_smem_bytes += number_before(line, " bytes smem");
  }
  return result;
}

std::string refused_for_registers(std::string_view log) {
  const std::size_t at = log.find("Insufficient registers");
  return at == std::string_view::npos ? "" : std::string(log.substr(at, log.find('\n', at) - at));
}

}  // namespace flashjit

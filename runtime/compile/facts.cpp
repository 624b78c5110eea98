#include "runtime/compile/facts.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "compiler/program/config.h"

namespace flashjit {
namespace {

int number(const StoreFacts& said, std::string_view name) {
  const auto found = said.find(name);
  int value = 0;
  if (found != said.end()) std::from_chars(found->second.data(), found->second.data() + found->second.size(), value);
  return value;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// A bundle has all notes that were made when it was built.
std::vector<std::string> notes_of(const Plan& plan, const StoreFacts& said, std::vector<std::string> on_the_way) {
  if (said.contains("notes")) return lines_of(fact(said, "notes"));
  std::vector<std::string> notes = plan.all_notes();
  std::ranges::move(on_the_way, std::back_inserter(notes));
  if (const std::string warnings = fact(said, "warnings"); !warnings.empty()) notes.push_back("compiler: " + warnings);
  return notes;
}

}  // namespace

Facts facts_of(const Plan& plan, std::string_view key, const StoreFacts& said, std::size_t code_bytes, Origin origin) {
  Facts facts;
  facts.spec = print(plan.spec);
  facts.target = plan.target.name;
  facts.schedule = print(plan.schedule);
  facts.family = name(plan.schedule.family);
  facts.weights = name(weights_of(plan.spec, plan.config));
  facts.key = key;
  facts.source = std::move(origin.source);
  facts.layer = std::move(origin.layer);
  facts.miss = std::move(origin.miss);
  facts.registers = number(said, "registers");
  facts.spill_bytes = number(said, "spill_bytes");
  facts.smem_bytes = number(said, "smem_bytes");
  facts.threads = plan.threads();
  facts.cubin_bytes = static_cast<std::int64_t>(code_bytes);
  facts.notes = notes_of(plan, said, std::move(origin.notes));
  return facts;
}

std::string fact(const StoreFacts& said, std::string_view name) {
  const auto found = said.find(name);
  return found == said.end() ? "" : found->second;
}

}  // namespace flashjit

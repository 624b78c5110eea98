#include "runtime/store/key_difference.h"

#include <algorithm>
#include <optional>
#include <set>

namespace flashjit {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;  // in their order

std::optional<std::string> value_of(const Fields& fields, std::string_view name) {
  const auto found = std::ranges::find(fields, name, &Fields::value_type::first);
  return found == fields.end() ? std::nullopt : std::optional(found->second);
}

Fields lines_of(std::string_view text) {
  Fields fields;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t colon = line.find(": ");
    if (colon != line.npos) fields.emplace_back(line.substr(0, colon), line.substr(colon + 2));
  }
  return fields;
}

// Splits a text such as "fwd bf16 d=64 b<=8 sink mask=\"q > k\"" into operation, dtype, d, b, sink and mask.
Fields fields_of_spec(std::string_view spec) {
  Fields fields;
  for (std::size_t at = 0; at < spec.size();) {
    std::size_t end = at;
    for (bool inside = false; end < spec.size() && (inside || spec[end] != ' '); ++end) inside ^= spec[end] == '"';
    const std::string_view word = spec.substr(at, end - at);
    at = end + 1;
    const std::size_t sign = word.find_first_of("=<");
    if (word.empty()) continue;
    if (fields.size() < 2 && sign == word.npos) {
      fields.emplace_back(fields.empty() ? "operation" : "dtype", word);
    } else {
      fields.emplace_back(word.substr(0, sign),
                          sign == word.npos ? "yes" : word.substr(word[sign] == '=' ? sign + 1 : sign));
    }
  }
  return fields;
}

Fields fields_of_schedule(std::string_view schedule) {
  Fields fields;
  while (!schedule.empty()) {
    const std::string_view word = schedule.substr(0, schedule.find(','));
    schedule.remove_prefix(std::min(word.size() + 1, schedule.size()));
    const std::size_t equals = word.find('=');
    if (equals != word.npos) fields.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  return fields;
}

std::vector<KeyDifference> differences(const std::string& prefix, const Fields& here, const Fields& there) {
  std::vector<KeyDifference> list;
  for (const auto& [name, value] : here) {
    const auto other = value_of(there, name);
    if (other != value) list.push_back({prefix + name, value, other.value_or("")});
  }
  for (const auto& [name, value] : there) {
    if (!value_of(here, name)) list.push_back({prefix + name, "", value});
  }
  return list;
}

// Shows fields as they are spelled, and leaves out those that mean the same.
std::vector<KeyDifference> spec_differences(const KeyView& here, const KeyView& there) {
  std::vector<KeyDifference> list = differences("spec.", fields_of_spec(here.spec), fields_of_spec(there.spec));
  if (here.meaning.empty() || there.meaning.empty()) return list;
  const std::vector<KeyDifference> real =
      differences("spec.", fields_of_spec(here.meaning), fields_of_spec(there.meaning));
  std::erase_if(list, [&](const KeyDifference& d) {
    return std::ranges::find(real, d.field, &KeyDifference::field) == real.end();
  });
  return list;
}

}  // namespace

std::vector<KeyDifference> key_differences(const KeyView& here, const KeyView& there, std::string_view pins) {
  std::vector<KeyDifference> list = spec_differences(here, there);
  const bool same_spec = list.empty();
  std::vector<KeyDifference> other = differences("", lines_of(here.text), lines_of(there.text));
  const auto differs = [&](std::string_view field) {
    return std::ranges::find(other, field, &KeyDifference::field) != other.end();
  };
  const bool same_target = !differs("target"), same_compiler = !differs("compiler"),
             same_problem = same_spec && same_target;
  const Fields pinned = fields_of_schedule(pins);
  for (KeyDifference& d :
       differences("schedule.", fields_of_schedule(here.schedule), fields_of_schedule(there.schedule))) {
    d.cause = same_problem ||
              value_of(pinned, std::string_view(d.field).substr(std::string_view("schedule.").size())).has_value();
    list.push_back(std::move(d));
  }
  const bool same_kernel = same_problem && list.empty();
  for (KeyDifference& d : other) {
    if (d.field == "spec" || d.field == "schedule") continue;
    if (d.field == "compiler") d.remark = d.here.starts_with("llvm") ? "another host library" : "another NVRTC";
    if (d.field == "schema") d.remark = "another version of FlashJIT";
    if (d.field == "options") d.cause = same_target && same_compiler;
    if (d.field == "instructions") d.cause = same_target;
    // The compiler derives them from the spec.
    if (d.field == "wide_ints" || d.field.starts_with("tiles.")) d.cause = same_kernel;
    if (d.field.starts_with("generated ")) {
      d.cause = same_kernel;
      if (d.cause) d.remark = "another version of FlashJIT, or edited (override_dir)";
    }
    if (d.field.starts_with("header ")) {
      // The kernel decides which templates are used.
      d.cause = same_kernel || (!d.here.empty() && !d.there.empty());
      if (d.cause) d.remark = "another version of FlashJIT, or edited (override_dir)";
    }
    list.push_back(std::move(d));
  }
  return list;
}

int distance(const std::vector<KeyDifference>& differences) {
  // Builds differ in many files, so each kind of field counts once.
  std::set<std::string, std::less<>> builds;
  int sum = 0;
  for (const KeyDifference& d : differences) {
    if (!d.cause) continue;
    if (d.field.starts_with("spec.")) {
      sum += 16;
    } else if (d.field == "target") {
      sum += 10;
    } else if (d.field.starts_with("schedule.")) {
      sum += 6;
    } else {
      builds.insert(d.field.substr(0, d.field.find(' ')));
    }
  }
  return sum + static_cast<int>(builds.size());
}

}  // namespace flashjit

#include "compiler/spec/schedule.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "compiler/families/family.h"
#include "compiler/spec/config_words.h"
#include "compiler/spec/text_form.h"

namespace flashjit {

namespace {

constexpr int kLargestNumber = 65536;
constexpr std::size_t kMaxScheduleText = 1024;

struct Field {
  std::string_view name;
  Result<void> (*set)(Schedule& schedule, const Field& field, std::string_view value);
  bool (*is_set)(const Schedule& schedule);
  std::string (*get)(const Schedule& schedule);  // It reads a field that is set.
  std::optional<int> Schedule::* number = nullptr;
  int least = 1, most = kLargestNumber;  // The limits of a number.
};

template <std::optional<int> Schedule::* member>
constexpr Field number(std::string_view name, int least = 1, int most = kLargestNumber) {
  const auto set = [](Schedule& schedule, const Field& field, std::string_view value) -> Result<void> {
    const auto parsed = parse_integer(value);
    if (!parsed) return invalid(fmt::format("schedule {}: {} is not a whole number", field.name, quoted(value)));
    if (*parsed < field.least || *parsed > field.most) {
      return invalid(fmt::format("schedule {}: {} is outside {}..{}", field.name, *parsed, field.least, field.most));
    }
    schedule.*member = static_cast<int>(*parsed);
    return {};
  };
  const auto is_set = [](const Schedule& schedule) { return (schedule.*member).has_value(); };
  const auto get = [](const Schedule& schedule) { return std::to_string(*(schedule.*member)); };
  return {name, set, is_set, get, member, least, most};
}

template <auto member>
constexpr Field choice(std::string_view name) {
  using Enum = typename std::remove_reference_t<decltype(std::declval<Schedule&>().*member)>::value_type;
  const auto set = [](Schedule& schedule, const Field& field, std::string_view value) -> Result<void> {
    constexpr auto& values = Words<Enum>::values;
    const auto found = std::find(values.begin(), values.end(), value);
    if (found == values.end()) {
      return invalid(fmt::format("schedule {}: {} is none of {}", field.name, quoted(value), join(values)));
    }
    schedule.*member = static_cast<Enum>(found - values.begin());
    return {};
  };
  const auto is_set = [](const Schedule& schedule) { return (schedule.*member).has_value(); };
  const auto get = [](const Schedule& schedule) { return std::string(word(*(schedule.*member))); };
  return {name, set, is_set, get};
}

constexpr Field family_field() {
  const auto set = [](Schedule& schedule, const Field& field, std::string_view value) -> Result<void> {
    schedule.family = find_family(value);
    if (schedule.family) return {};
    std::vector<std::string_view> names;
    for (const Family family : families()) names.push_back(family->name);
    return invalid(fmt::format("schedule {}: {} is none of {}", field.name, quoted(value), join(names)));
  };
  const auto is_set = [](const Schedule& schedule) { return schedule.family != nullptr; };
  const auto get = [](const Schedule& schedule) { return std::string(schedule.family->name); };
  return {"family", set, is_set, get};
}

// The only list of fields, in the order in which they are printed. The row of a family has the fields of its schedules.
constexpr std::array kFields = {
    family_field(),
    number<&Schedule::tile_q>("tile_q"),
    number<&Schedule::tile_kv>("tile_kv"),
    number<&Schedule::warps>("warps"),
    number<&Schedule::warpgroups>("warpgroups", 1, 3),
    number<&Schedule::stages>("stages"),
    number<&Schedule::q_stages>("q_stages", 1, 2),
    choice<&Schedule::q_in>("q_in"),
    number<&Schedule::blocks_per_sm>("blocks_per_sm"),
    number<&Schedule::unroll_d>("unroll_d"),
    choice<&Schedule::overlap>("overlap"),
    choice<&Schedule::exclusive>("exclusive"),
    choice<&Schedule::reference>("reference"),
    choice<&Schedule::row_sum>("row_sum"),
    choice<&Schedule::grid>("grid"),
    choice<&Schedule::head_tiles>("head_tiles"),
    choice<&Schedule::transpose>("transpose"),
    choice<&Schedule::keys>("keys"),
    choice<&Schedule::tiles>("tiles"),
    choice<&Schedule::order>("order"),
    choice<&Schedule::copies>("copies"),
    choice<&Schedule::dq>("dq"),
};

using FieldSet = std::uint32_t;  // Bit i is kFields[i].

// Returns the fields that `words` names, and the family itself.
FieldSet fields_named(std::string_view words) {
  FieldSet set = 0;
  for (std::size_t i = 0; i < kFields.size(); ++i) {
    const std::string_view name = kFields[i].name;
    for (std::size_t at = words.find(name); at != words.npos; at = words.find(name, at + 1)) {
      const std::size_t end = at + name.size();
      const bool whole = (at == 0 || words[at - 1] == ' ') && (end == words.size() || words[end] == ' ');
      if (whole) set |= FieldSet{1} << i;
    }
  }
  return set | 1;
}

// The sets are computed once, because every candidate asks for them. They need no destruction, because threads may be
// planning at exit.
FieldSet fields_in(Family family) {
  static const std::array<FieldSet, kFamilyCount> sets = [] {
    std::array<FieldSet, kFamilyCount> all = {};
    for (std::size_t i = 0; i < kFamilyCount; ++i) all[i] = fields_named(families()[i]->fields);
    return all;
  }();
  return sets[static_cast<std::size_t>(std::ranges::find(families(), family) - families().begin())];
}

bool has(FieldSet set, std::size_t field) { return set >> field & 1; }

// Returns true also for a field that is no number, or is not set.
bool is_in_range(const Field& field, const Schedule& schedule) {
  if (!field.number || !(schedule.*field.number)) return true;
  const int value = *(schedule.*field.number);
  return value >= field.least && value <= field.most;
}

std::string_view without_spaces(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

Result<void> set_field(Schedule& schedule, std::string_view key, std::string_view value) {
  const auto field = std::find_if(kFields.begin(), kFields.end(), [&](const Field& f) { return f.name == key; });
  if (field != kFields.end()) return field->set(schedule, *field, value);
  std::vector<std::string_view> names;
  for (const Field& each : kFields) names.push_back(each.name);
  return invalid("schedule: " + there_is_no("field", key, names));
}

}  // namespace

std::string_view name(Family family) { return family->name; }

Family find_family(std::string_view name) {
  const auto found = std::ranges::find_if(families(), [&](Family family) { return family->name == name; });
  return found == families().end() ? nullptr : *found;
}

Result<Schedule> parse_schedule(std::string_view text) {
  if (text.size() > kMaxScheduleText) {
    return invalid(fmt::format("schedule: {} bytes are above the limit of {}", text.size(), kMaxScheduleText));
  }
  Schedule schedule;
  if (without_spaces(text).empty()) return schedule;
  std::vector<std::string_view> seen;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    const std::size_t equals = item.find('=');
    if (equals == item.npos) {
      return invalid(fmt::format("schedule: {} is not field=value; for example tile_q=128,tile_kv=64",
                                 quoted(without_spaces(item))),
                     caret(text, begin));
    }
    const std::string_view key = without_spaces(item.substr(0, equals));
    for (const std::string_view earlier : seen) {
      if (earlier == key) return invalid(fmt::format("schedule {}: set twice", key), caret(text, begin));
    }
    seen.push_back(key);
    if (auto set = set_field(schedule, key, without_spaces(item.substr(equals + 1))); !set) {
      return invalid(set.error().message, caret(text, begin));
    }
    begin = end + 1;
  }
  return schedule;
}

std::string print(const Schedule& schedule) {
  std::vector<std::string> items;
  for (const Field& field : kFields) {
    if (field.is_set(schedule)) items.push_back(fmt::format("{}={}", field.name, field.get(schedule)));
  }
  return fmt::format("{}", fmt::join(items, ","));
}

std::string fields_of(Family family) {
  std::vector<std::string_view> names;
  for (std::size_t i = 1; i < kFields.size(); ++i) {
    if (has(fields_in(family), i)) names.push_back(kFields[i].name);
  }
  return join(names);
}

std::string_view foreign_field(const Schedule& schedule, Family family) {
  for (std::size_t i = 0; i < kFields.size(); ++i) {
    if (!has(fields_in(family), i) && kFields[i].is_set(schedule)) return kFields[i].name;
  }
  return {};
}

std::string_view missing_field(const Schedule& schedule, Family family) {
  for (std::size_t i = 0; i < kFields.size(); ++i) {
    if (has(fields_in(family), i) && !kFields[i].is_set(schedule)) return kFields[i].name;
  }
  return {};
}

std::string outside_range(const Schedule& schedule) {
  for (const Field& field : kFields) {
    if (is_in_range(field, schedule)) continue;
    return fmt::format("{}: {} is outside {}..{}", field.name, *(schedule.*field.number), field.least, field.most);
  }
  return {};
}

bool is_complete(const Schedule& schedule, Family family) {
  const FieldSet set = fields_in(family);
  // Each field is asked by its number, not in a loop. Then the compiler inlines the functions of the fields, which is
  // ten times as fast.
  const auto fits = [&]<std::size_t i>() {
    constexpr Field field = kFields[i];
    return field.is_set(schedule) == has(set, i) && is_in_range(field, schedule);
  };
  const auto all_fit = [&]<std::size_t... i>(std::index_sequence<i...>) {
    return (fits.template operator()<i>() && ...);
  };
  return all_fit(std::make_index_sequence<kFields.size()>());
}

}  // namespace flashjit

#include "compiler/schedule.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "compiler/text_form.h"

namespace flashjit {

namespace {

// The only list of the fields that hold a number; order of printing.
struct IntField {
  std::string_view name;
  std::optional<int> Schedule::*member;
};
constexpr std::array kIntFields = {
    IntField{"tile_q", &Schedule::tile_q},       IntField{"tile_kv", &Schedule::tile_kv},
    IntField{"warps", &Schedule::warps},         IntField{"stages", &Schedule::stages},
    IntField{"blocks_per_sm", &Schedule::blocks_per_sm}, IntField{"unroll_d", &Schedule::unroll_d},
};
constexpr std::array<std::string_view, 9> kNames = {"family", "tile_q",        "tile_kv",  "warps", "stages",
                                                    "q_in",   "blocks_per_sm", "unroll_d", "order"};
constexpr int kLargestNumber = 65536;
constexpr std::size_t kMaxScheduleText = 1024;

constexpr std::array<std::string_view, 2> kFamilies = {"sync", "host"};
constexpr std::array<std::string_view, 2> kPlaces = {"shared", "registers"};
constexpr std::array<std::string_view, 2> kOrders = {"natural", "longest_first"};

std::string_view trim(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

// A named value; `field` has an enum whose values are the places in `names`.
template <class Enum>
Result<void> set_named(std::optional<Enum>& field, std::string_view key, std::string_view value,
                       std::span<const std::string_view> names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == value) {
      field = static_cast<Enum>(i);
      return {};
    }
  }
  return invalid(fmt::format("schedule {}: {} is none of {}", key, quoted(value), join(names)));
}

Result<void> set_field(Schedule& schedule, std::string_view key, std::string_view value) {
  if (key == "family") return set_named(schedule.family, key, value, kFamilies);
  if (key == "q_in") return set_named(schedule.q_in, key, value, kPlaces);
  if (key == "order") return set_named(schedule.order, key, value, kOrders);
  for (const IntField& field : kIntFields) {
    if (field.name != key) continue;
    const auto number = parse_integer(value);
    if (!number) return invalid(fmt::format("schedule {}: {} is not a whole number", key, quoted(value)));
    if (*number < 1 || *number > kLargestNumber) {
      return invalid(fmt::format("schedule {}: {} is outside 1..{}", key, *number, kLargestNumber));
    }
    schedule.*field.member = static_cast<int>(*number);
    return {};
  }
  return invalid(fmt::format("schedule: there is no field {}{}; fields are {}", quoted(key), did_you_mean(key, kNames),
                             join(kNames)));
}

}  // namespace

std::string_view name(Family family) { return kFamilies[static_cast<int>(family)]; }

Result<Schedule> parse_schedule(std::string_view text) {
  if (text.size() > kMaxScheduleText) {
    return invalid(fmt::format("schedule: {} bytes are above the limit of {}", text.size(), kMaxScheduleText));
  }
  Schedule schedule;
  if (trim(text).empty()) return schedule;
  std::vector<std::string_view> seen;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    const std::size_t equals = item.find('=');
    if (equals == item.npos) {
      return invalid(
          fmt::format("schedule: {} is not field=value; for example tile_q=128,tile_kv=64", quoted(trim(item))),
          caret(text, begin));
    }
    const std::string_view key = trim(item.substr(0, equals));
    for (const std::string_view earlier : seen) {
      if (earlier == key) return invalid(fmt::format("schedule {}: set twice", key), caret(text, begin));
    }
    seen.push_back(key);
    if (auto set = set_field(schedule, key, trim(item.substr(equals + 1))); !set) {
      return invalid(set.error().message, caret(text, begin));
    }
    begin = end + 1;
  }
  return schedule;
}

std::string print(const Schedule& schedule) {
  std::vector<std::string> fields;
  if (schedule.family) fields.push_back(fmt::format("family={}", name(*schedule.family)));
  for (const IntField& field : kIntFields) {
    if (field.name == "blocks_per_sm" && schedule.q_in) {
      fields.push_back(fmt::format("q_in={}", kPlaces[static_cast<int>(*schedule.q_in)]));
    }
    if (const auto& value = schedule.*field.member) fields.push_back(fmt::format("{}={}", field.name, *value));
  }
  if (schedule.order) fields.push_back(fmt::format("order={}", kOrders[static_cast<int>(*schedule.order)]));
  return fmt::format("{}", fmt::join(fields, ","));
}

}  // namespace flashjit

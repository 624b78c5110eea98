#include "compiler/spec/schedule.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "compiler/spec/text_form.h"

namespace flashjit {

namespace {

constexpr int kLargestNumber = 65536;
constexpr std::size_t kMaxScheduleText = 1024;

constexpr std::array<std::string_view, 3> kFamilies = {"sync", "host", "hopper"};
constexpr std::array<std::string_view, 2> kPlaces = {"shared", "registers"};
constexpr std::array<std::string_view, 2> kOrders = {"natural", "longest_first"};
constexpr std::array<std::string_view, 2> kOverlaps = {"none", "qk_pv"};
constexpr std::array<std::string_view, 3> kExclusiveParts = {"none", "issue", "softmax"};
constexpr std::array<std::string_view, 3> kReferences = {"tile", "previous", "first"};
constexpr std::array<std::string_view, 2> kRowSums = {"adds", "matrix"};
constexpr std::array<std::string_view, 2> kGrids = {"tiles", "persistent"};
constexpr std::array<std::string_view, 2> kHeadTiles = {"single", "packed"};

struct Field {
  std::string_view name;
  unsigned families;  // bits
  Result<void> (*set)(Schedule& schedule, const Field& field, std::string_view value);
  bool (*is_set)(const Schedule& schedule);
  std::string (*get)(const Schedule& schedule);  // of one that is set
  std::optional<int> Schedule::* number = nullptr;
  int least = 1, most = kLargestNumber;  // of a number
};

template <std::optional<int> Schedule::* member>
constexpr Field number(std::string_view name, unsigned families, int least = 1, int most = kLargestNumber) {
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
  return {name, families, set, is_set, get, member, least, most};
}

// `values` holds the names of the enum's values, in their order.
template <auto member, const auto& values>
constexpr Field word(std::string_view name, unsigned families) {
  const auto set = [](Schedule& schedule, const Field& field, std::string_view value) -> Result<void> {
    const auto found = std::find(values.begin(), values.end(), value);
    if (found == values.end()) {
      return invalid(fmt::format("schedule {}: {} is none of {}", field.name, quoted(value), join(values)));
    }
    auto& target = schedule.*member;
    target = static_cast<typename std::remove_reference_t<decltype(target)>::value_type>(found - values.begin());
    return {};
  };
  const auto is_set = [](const Schedule& schedule) { return (schedule.*member).has_value(); };
  const auto get = [](const Schedule& schedule) { return std::string(values[static_cast<int>(*(schedule.*member))]); };
  return {name, families, set, is_set, get};
}

constexpr unsigned bit_of(Family family) { return 1u << static_cast<int>(family); }
constexpr unsigned kSync = bit_of(Family::Sync), kHopper = bit_of(Family::Hopper),
                   kAll = kSync | kHopper | bit_of(Family::Host);

// The only list of fields; order of printing.
constexpr std::array kFields = {
    word<&Schedule::family, kFamilies>("family", kAll),
    number<&Schedule::tile_q>("tile_q", kAll),
    number<&Schedule::tile_kv>("tile_kv", kAll),
    number<&Schedule::warps>("warps", kSync),
    number<&Schedule::warpgroups>("warpgroups", kHopper, 1, 3),
    number<&Schedule::stages>("stages", kSync | kHopper),
    number<&Schedule::q_stages>("q_stages", kHopper, 1, 2),
    word<&Schedule::q_in, kPlaces>("q_in", kSync),
    number<&Schedule::blocks_per_sm>("blocks_per_sm", kSync),
    number<&Schedule::unroll_d>("unroll_d", kSync),
    word<&Schedule::overlap, kOverlaps>("overlap", kHopper),
    word<&Schedule::exclusive, kExclusiveParts>("exclusive", kHopper),
    word<&Schedule::reference, kReferences>("reference", kHopper),
    number<&Schedule::exp_fma>("exp_fma", kHopper, 0, 4),
    word<&Schedule::row_sum, kRowSums>("row_sum", kHopper),
    word<&Schedule::grid, kGrids>("grid", kHopper),
    number<&Schedule::cluster>("cluster", kHopper, 1, 2),
    word<&Schedule::heads, kHeadTiles>("heads", kHopper),
    word<&Schedule::order, kOrders>("order", kSync | kHopper),
};

std::vector<std::string_view> names_of(unsigned families) {
  std::vector<std::string_view> names;
  for (const Field& field : kFields) {
    if (field.families & families) names.push_back(field.name);
  }
  return names;
}

// What is no number, or not set, is.
bool is_in_range(const Field& field, const Schedule& schedule) {
  if (!field.number || !(schedule.*field.number)) return true;
  const int value = *(schedule.*field.number);
  return value >= field.least && value <= field.most;
}

std::string_view trim(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

Result<void> set_field(Schedule& schedule, std::string_view key, std::string_view value) {
  const auto field = std::find_if(kFields.begin(), kFields.end(), [&](const Field& f) { return f.name == key; });
  if (field != kFields.end()) return field->set(schedule, *field, value);
  const std::vector<std::string_view> names = names_of(kAll);
  return invalid(fmt::format("schedule: there is no field {}{}; fields are {}", quoted(key), did_you_mean(key, names),
                             join(names)));
}

}  // namespace

std::string_view name(Family family) { return kFamilies[static_cast<int>(family)]; }
std::string_view name(QueryPlace place) { return kPlaces[static_cast<int>(place)]; }
std::string_view name(TileOrder order) { return kOrders[static_cast<int>(order)]; }
std::string_view name(Overlap overlap) { return kOverlaps[static_cast<int>(overlap)]; }
std::string_view name(ExclusivePart part) { return kExclusiveParts[static_cast<int>(part)]; }
std::string_view name(SoftmaxReference reference) { return kReferences[static_cast<int>(reference)]; }
std::string_view name(RowSum sum) { return kRowSums[static_cast<int>(sum)]; }
std::string_view name(GridKind grid) { return kGrids[static_cast<int>(grid)]; }
std::string_view name(HeadTiles heads) { return kHeadTiles[static_cast<int>(heads)]; }

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
  std::vector<std::string> items;
  for (const Field& field : kFields) {
    if (field.is_set(schedule)) items.push_back(fmt::format("{}={}", field.name, field.get(schedule)));
  }
  return fmt::format("{}", fmt::join(items, ","));
}

std::string fields_of(Family family) {
  const std::vector<std::string_view> names = names_of(bit_of(family));
  return join(std::span(names).subspan(1));  // the first is `family`
}

std::string_view foreign_field(const Schedule& schedule, Family family) {
  for (const Field& field : kFields) {
    if (!(field.families & bit_of(family)) && field.is_set(schedule)) return field.name;
  }
  return {};
}

std::string_view missing_field(const Schedule& schedule, Family family) {
  for (const Field& field : kFields) {
    if ((field.families & bit_of(family)) && !field.is_set(schedule)) return field.name;
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
  // Each field by its number, not in a loop: then the compiler sees through its functions, which is ten times as fast.
  const auto fits = [&]<std::size_t i>() {
    constexpr Field field = kFields[i];
    const bool is_of_family = field.families & bit_of(family);
    return field.is_set(schedule) == is_of_family && is_in_range(field, schedule);
  };
  const auto all_fit = [&]<std::size_t... i>(std::index_sequence<i...>) {
    return (fits.template operator()<i>() && ...);
  };
  return all_fit(std::make_index_sequence<kFields.size()>());
}

}  // namespace flashjit

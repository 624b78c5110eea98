#include "tools/fleet/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

namespace flashjit {
namespace {

constexpr std::size_t kShownText = 40, kShownNumbers = 12;

bool read_whole(std::string_view text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

}  // namespace

Result<Shard> parse_shard(std::string_view text) {
  Shard shard;
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos || !read_whole(text.substr(0, slash), shard.number) ||
      !read_whole(text.substr(slash + 1), shard.count)) {
    return invalid(fmt::format("--shard: '{}' is not NUMBER/COUNT, two whole numbers; the third of 16 shards is 3/16",
                               text.substr(0, kShownText)));
  }
  if (shard.count < 1 || shard.count > kMostShards)
    return invalid(fmt::format("--shard: {}: a work has 1 to {} shards, not {}; write {}/16, say", text, kMostShards,
                               shard.count, std::clamp(shard.number, 1, 16)));
  if (shard.number < 1 || shard.number > shard.count)
    return invalid(
        fmt::format("--shard: {0}: shards are numbered from 1 to {1}, and there is no shard {2}; write "
                    "1/{1} for the first and {1}/{1} for the last",
                    text, shard.count, shard.number));
  return shard;
}

std::string print(const Shard& shard) { return fmt::format("{}/{}", shard.number, shard.count); }

std::string numbers_text(std::span<const int> numbers) {
  std::string text;
  const std::size_t shown = std::min(numbers.size(), kShownNumbers);
  for (std::size_t i = 0; i < shown; ++i) {
    const bool last = i + 1 == numbers.size();
    text += fmt::format("{}{}", i == 0 ? "" : last ? " and " : ", ", numbers[i]);
  }
  return shown < numbers.size() ? text + fmt::format(" and {} more", numbers.size() - shown) : text;
}

std::vector<int> deal(std::span<const Piece> pieces, int count) {
  std::vector<std::size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    if (pieces[a].cost != pieces[b].cost) return pieces[a].cost > pieces[b].cost;
    return pieces[a].key < pieces[b].key;
  });
  using Load = std::pair<std::uint64_t, int>;  // the work of a shard so far, and its number
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (int number = 1; number <= count; ++number) loads.emplace(0, number);
  std::vector<int> numbers(pieces.size());
  for (const std::size_t i : order) {
    const auto [load, number] = loads.top();
    loads.pop();
    numbers[i] = number;
    loads.emplace(load + pieces[i].cost, number);
  }
  return numbers;
}

}  // namespace flashjit

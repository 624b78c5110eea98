#include "tools/ranks/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "compiler/spec/text_form.h"

namespace flashjit {
namespace {

constexpr std::string_view kForm = "COUNTxBANDWIDTH, such as 8x450GB/s, and for several hosts 8x450GB/s,16x50GB/s";
constexpr double kLeastGbPerS = 0.001, kMostGbPerS = 1e5, kGbPerTb = 1000, kBytesPerGbAndUs = 1000;
constexpr std::size_t kShownLevel = 40;

Result<NetworkLevel> parse_level(std::string_view text) {
  const auto is_none = [&] {
    return invalid(fmt::format("--ranks: '{}' is not {}", text.substr(0, kShownLevel), kForm));
  };
  NetworkLevel level;
  const std::size_t x = text.find('x');
  if (x == std::string_view::npos) return is_none();
  const std::string_view count = text.substr(0, x), rate = text.substr(x + 1);
  const auto [count_end, count_error] = std::from_chars(count.data(), count.data() + count.size(), level.count);
  if (count.empty() || count_error != std::errc() || count_end != count.data() + count.size()) return is_none();
  if (level.count < 1 || level.count > kMostRanks)
    return invalid(fmt::format("--ranks: {}: {} is not from 1 to {} GPUs of a host, or hosts; write {}",
                               text.substr(0, kShownLevel), level.count, kMostRanks, kForm));
  const auto [rate_end, rate_error] = std::from_chars(rate.data(), rate.data() + rate.size(), level.gb_per_s);
  const std::string_view unit = rate.substr(static_cast<std::size_t>(rate_end - rate.data()));
  if (rate_error != std::errc() || (unit != "GB/s" && unit != "TB/s")) return is_none();
  if (unit == "TB/s") level.gb_per_s *= kGbPerTb;
  if (!(level.gb_per_s >= kLeastGbPerS && level.gb_per_s <= kMostGbPerS))
    return invalid(
        fmt::format("--ranks: {}: the bandwidth is not from {} to {} GB/s for each GPU and direction; write {}",
                    text.substr(0, kShownLevel), kLeastGbPerS, kMostGbPerS, kForm));
  return level;
}

}  // namespace

Result<Network> parse_network(std::string_view text) {
  const std::size_t comma = text.find(',');
  FLASHJIT_ASSIGN(within, parse_level(text.substr(0, comma)));
  Network network{.within = within};
  network.within.latency_us = kLatencyWithinUs;
  if (comma != std::string_view::npos) {
    const std::string_view rest = text.substr(comma + 1);
    if (rest.find(',') != std::string_view::npos)
      return invalid(fmt::format("--ranks: '{}' has more than two levels, GPUs of a host and hosts; write {}",
                                 text.substr(0, 2 * kShownLevel), kForm));
    FLASHJIT_ASSIGN(between, parse_level(rest));
    network.between = between;
    network.between.latency_us = kLatencyBetweenUs;
  }
  if (network.ranks() > kMostRanks)
    return invalid(fmt::format("--ranks: {} are {} ranks, more than the {} that are counted; give fewer hosts", text,
                               network.ranks(), kMostRanks));
  return network;
}

std::string print(const Network& network) {
  const std::string ranks = counted(network.ranks(), "rank");
  if (!network.has_hosts()) return fmt::format("{} of one host, {} GB/s", ranks, network.within.gb_per_s);
  return fmt::format("{}: {} of {}, {} GB/s within a host and {} GB/s between them", ranks,
                     counted(network.between.count, "host"), network.within.count, network.within.gb_per_s,
                     network.between.gb_per_s);
}

double exchange_us(const Network& network, double bytes_within, double bytes_between) {
  const auto time = [](const NetworkLevel& level, double bytes) {
    return bytes > 0 ? level.latency_us + bytes / (level.gb_per_s * kBytesPerGbAndUs) : 0;
  };
  return std::max(time(network.within, bytes_within), time(network.between, bytes_between));
}

}  // namespace flashjit

// A network says how fast the GPUs that share a sequence reach each other: "8x450GB/s,16x50GB/s" is 16 hosts of 8 GPUs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compiler/result.h"

namespace flashjit {

struct NetworkLevel {
  int count = 1;          // of GPUs of a host, or of hosts
  double gb_per_s = 0;    // for each GPU, in each direction
  double latency_us = 0;  // of a message
};

struct Network {
  NetworkLevel within;               // a host
  NetworkLevel between = {1, 0, 0};  // hosts; one host has nobody to reach
  int ranks() const { return within.count * between.count; }
  bool has_hosts() const { return between.count > 1; }
};

inline constexpr int kMostRanks = 2048;
// A message between GPUs of one host, and one between hosts, from the call to the first byte.
inline constexpr double kLatencyWithinUs = 10, kLatencyBetweenUs = 20;

// Messages begin with "--ranks".
Result<Network> parse_network(std::string_view text);
std::string print(
    const Network& network);  // "128 ranks: 16 hosts of 8, 450 GB/s within a host and 50 GB/s between them"

// The microseconds of what every rank sends to, and receives from, others at the same time: to those of its host and to those
// of others. Both go side by side, and the messages of one exchange leave together.
double exchange_us(const Network& network, double bytes_within, double bytes_between);

}  // namespace flashjit

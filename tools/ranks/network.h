// A network describes how fast the GPUs that share a sequence reach each other: "8x450GB/s,16x50GB/s" is 16 hosts of 8
// GPUs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compiler/result.h"

namespace flashjit {

struct NetworkLevel {
  int count = 1;          // number of GPUs of a host, or of hosts
  double gb_per_s = 0;    // for each GPU, in each direction
  double latency_us = 0;  // latency of a message
};

struct Network {
  NetworkLevel within;               // links within a host
  NetworkLevel between = {1, 0, 0};  // links between hosts; one host has nobody to reach
  int ranks() const { return within.count * between.count; }
  bool has_hosts() const { return between.count > 1; }
};

inline constexpr int kMostRanks = 2048;
// These are the times from the call to the first byte, for a message between GPUs of one host, and between hosts.
inline constexpr double kLatencyWithinUs = 10, kLatencyBetweenUs = 20;

// Messages begin with "--ranks".
Result<Network> parse_network(std::string_view text);
// Returns for example "128 ranks: 16 hosts of 8, 450 GB/s within a host and 50 GB/s between them".
std::string print(const Network& network);

// Returns the microseconds of an exchange in which every rank sends this many bytes, and receives as many, at the same
// time: to and from ranks of its host, and of others. Both go side by side, and the messages of one exchange leave
// together.
double exchange_us(const Network& network, double bytes_within, double bytes_between);

}  // namespace flashjit

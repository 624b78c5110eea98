// Counters that cost the counting threads next to nothing: they take no lock, and threads that count the same thing at
// the same time do not share a cache line.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>

#include "flashjit/flashjit.hpp"

namespace flashjit {

// Counts events that happen millions of times a second, on many threads: each thread adds to one of a few cells.
class StripedCounter {
 public:
  void add() { cells_[stripe()].value.fetch_add(1, std::memory_order_relaxed); }
  std::int64_t sum() const {
    std::int64_t total = 0;
    for (const Cell& cell : cells_) total += cell.value.load(std::memory_order_relaxed);
    return total;
  }

 private:
  static constexpr std::size_t kCells = 32;
  struct alignas(64) Cell {
    std::atomic<std::int64_t> value{0};
  };
  static std::size_t stripe() {
    static std::atomic<std::size_t> next{0};
    thread_local const std::size_t own = next.fetch_add(1, std::memory_order_relaxed) % kCells;
    return own;
  }
  std::array<Cell, kCells> cells_;
};

// Sums up the times of work that takes at least microseconds.
class TimeCounter {
 public:
  using Clock = std::chrono::steady_clock;
  void add(Clock::duration time) {
    const auto us = static_cast<std::uint64_t>(
        std::max<std::int64_t>(0, std::chrono::duration_cast<std::chrono::microseconds>(time).count()));
    buckets_[std::min<std::size_t>(std::bit_width(us), Histogram::kBuckets - 1)].fetch_add(1,
                                                                                           std::memory_order_relaxed);
  }
  Histogram read() const {
    Histogram histogram;
    for (std::size_t i = 0; i < buckets_.size(); ++i)
      histogram.buckets[i] = buckets_[i].load(std::memory_order_relaxed);
    return histogram;
  }

 private:
  std::array<std::atomic<std::int64_t>, Histogram::kBuckets> buckets_{};
};

}  // namespace flashjit

// Small gradients by their definition: what interpreters of the backward programs compute with and compare to.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace flashjit::testing {

constexpr int kQueries = 2, kKeys = 3, kDims = 4;

// Numbers that follow from where they are.
inline double number(int what, std::int64_t item, std::int64_t of, int row, int column) {
  const auto at = static_cast<double>(what * 7919 + item * 613 + of * 97 + row * 31 + column * 11 + 1);
  return std::sin(at * 1.7);
}
inline double query(std::int64_t item, std::int64_t tile, int q, int i) { return number(1, item, tile, q, i); }
inline double d_o(std::int64_t item, std::int64_t tile, int q, int i) { return number(2, item, tile, q, i); }
inline double key(std::int64_t item, int warpgroup, int k, int i) { return number(3, item, warpgroup, k, i); }
inline double value(std::int64_t item, int warpgroup, int k, int i) { return number(4, item, warpgroup, k, i); }
inline double lse(std::int64_t item, std::int64_t tile, int q) { return number(5, item, tile, q, 0); }
inline double d(std::int64_t item, std::int64_t tile, int q) { return number(6, item, tile, q, 0); }

using Scores = std::array<std::array<double, kQueries>, kKeys>;  // transposed, as the kernel has them
using KeyRows = std::array<std::array<double, kDims>, kKeys>;
using QueryRows = std::array<std::array<double, kDims>, kQueries>;

inline std::string differ(std::string_view what, std::int64_t item, int row, int column, double got, double expected) {
  if (std::abs(got - expected) < 1e-9) return {};
  return fmt::format("{} of item {}, row {}, column {}: {} for {}", what, item, row, column, got, expected);
}

// The gradients of an item by their definition.
struct Reference {
  std::int64_t item;
  double p(int warpgroup, int k, std::int64_t tile, int q) const {
    double sum = -lse(item, tile, q);
    for (int i = 0; i < kDims; ++i) sum += key(item, warpgroup, k, i) * query(item, tile, q, i);
    return std::exp(sum);
  }
  double ds(int warpgroup, int k, std::int64_t tile, int q) const {
    double sum = -d(item, tile, q);
    for (int i = 0; i < kDims; ++i) sum += value(item, warpgroup, k, i) * d_o(item, tile, q, i);
    return p(warpgroup, k, tile, q) * sum;
  }
};

}  // namespace flashjit::testing

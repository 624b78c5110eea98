// Draws from one 64-bit seed. Own distributions: the standard ones may differ between libraries, and a seed in a bug
// report must mean the same case everywhere.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <numbers>

namespace flashjit::testing_random {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {  // splitmix64
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  std::int64_t integer(std::int64_t lo, std::int64_t hi) {  // both included
    return lo + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(hi - lo + 1));
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  bool chance(double probability) { return uniform() < probability; }
  // A sum of four uniform numbers of 16 bits has the mean and the variance of a normal one, and no number beyond 3.5.
  // Tests draw so many of them that the logarithm and the cosine of exact ones were half the time of a drawn spec.
  double normal() {
    const std::uint64_t z = bits();
    const auto sum = static_cast<double>((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48));
    return (sum - 2 * 65535) * (std::numbers::sqrt3 / 65536);
  }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[integer(0, static_cast<std::int64_t>(values.size()) - 1)];
  }

 private:
  std::uint64_t state_;
};

}  // namespace flashjit::testing_random

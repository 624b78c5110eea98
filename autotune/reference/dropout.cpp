#include "autotune/reference/dropout.h"

#include <cmath>

#include "autotune/reference/philox.h"

namespace flashjit::reference {
namespace {

std::uint64_t number(const Arguments& arguments, const char* name) {
  if (const auto scalar = arguments.scalars.find(name); scalar != arguments.scalars.end())
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(scalar->second));
  return static_cast<std::uint64_t>(*static_cast<const std::int64_t*>(arguments.params.at(name).data));
}

}  // namespace

Dropout::Dropout(double p, std::uint64_t seed, std::uint64_t offset)
    : dropped_(static_cast<int>(std::lround(256 * p))) {
  const PhiloxBlock mixed = philox({static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(offset >> 32), 0, 0},
                                   static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32), 10);
  key_[0] = mixed[0];
  key_[1] = mixed[1];
}

bool Dropout::drops(const Position& at) const {
  if (dropped_ == 0) return false;
  const auto q = static_cast<std::uint32_t>(at.q), k = static_cast<std::uint32_t>(at.k);
  const PhiloxBlock words = philox({k / 16 * 4 + k / 2 % 4, q / 16 * 4 + q / 2 % 4, static_cast<std::uint32_t>(at.h),
                                    static_cast<std::uint32_t>(at.b)},
                                   key_[0], key_[1], 7);
  const std::uint32_t word = words[q % 2 * 2 + q / 8 % 2], byte = k / 8 % 2 * 2 + k % 2;
  return (word >> 8 * byte & 255) < static_cast<std::uint32_t>(dropped_);
}

Dropout dropout_of(const AttentionSpec& spec, const Arguments& arguments) {
  if (spec.dropout == 0) return {};
  return {spec.dropout, number(arguments, "seed"), number(arguments, "offset")};
}

}  // namespace flashjit::reference

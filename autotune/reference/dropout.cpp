#include "autotune/reference/dropout.h"

#include <algorithm>
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
  std::ranges::copy(mixed, key_);
}

bool Dropout::drops(const Position& at) const {
  if (dropped_ == 0) return false;
  const auto q = static_cast<std::uint32_t>(q_begin_ + at.q), k = static_cast<std::uint32_t>(k_begin_ + at.k);
  const std::uint32_t counter[] = {static_cast<std::uint32_t>(at.h), k / 32 * 4 + k / 2 % 4,
                                   static_cast<std::uint32_t>(at.b), q / 16 * 8 + q % 8};
  std::uint32_t words[4];
  for (int i = 0; i < 4; ++i) words[i] = 1664525 * counter[i] + key_[i];
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; round > 0 && i < 4; ++i) words[i] = words[i] << 16 | words[i] >> 16;
    words[0] += words[1] * words[3];
    words[1] += words[2] * words[0];
    words[2] += words[0] * words[1];
    words[3] += words[1] * words[2];
  }
  std::uint32_t half = words[k / 16 % 2 * 2 + q / 8 % 2] >> 16 * (k % 2) & 0xffff;
  if (k / 8 % 2 == 1) half = half % 256 * 256 + half / 256;
  return half / 128 % 256 < static_cast<std::uint32_t>(dropped_);
}

Dropout dropout_of(const AttentionSpec& spec, const Arguments& arguments) {
  if (spec.dropout == 0) return {};
  Dropout dropout(spec.dropout, number(arguments, "seed"), number(arguments, "offset"));
  const auto begin = [&](const char* name) {
    const auto found = arguments.scalars.find(name);
    return spec.places && found != arguments.scalars.end() ? static_cast<std::int64_t>(found->second) : 0;
  };
  dropout.begin_at(begin("q_begin"), begin("k_begin"));
  return dropout;
}

}  // namespace flashjit::reference

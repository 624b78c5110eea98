#include "codegen/host/rope.h"

#include <cmath>
#include <numbers>

namespace flashjit::host {

RowTurner::RowTurner(const AttentionSpec& spec, const KernelParams& params)
    : spec_(spec),
      params_(params),
      turns_(has_rope_tables(spec) ? RopeTurns{} : rope_turns(spec.rope_dims, spec.rope_base)) {}

RowTurner::Angle RowTurner::angle(std::int64_t position, int pair) const {
  if (has_rope_tables(spec_)) {
    const std::int64_t at = position * (spec_.rope_dims / 2) + pair;
    return {params_.cos[at], params_.sin[at]};
  }
  const auto turned = static_cast<std::int64_t>(turns_.of[pair] * static_cast<std::uint64_t>(position));
  const double radians = static_cast<double>(turned) * 0x1p-63 * std::numbers::pi;
  return {std::cos(radians), std::sin(radians)};
}

void RowTurner::turn(float* columns, std::int64_t position) const {
  float* const row = columns + spec_.rope_from;
  const int pairs = spec_.rope_dims / 2;
  for (int pair = 0; pair < pairs; ++pair) {
    const int first = spec_.rope == Rope::half ? pair : 2 * pair;
    const int second = spec_.rope == Rope::half ? pair + pairs : first + 1;
    const double x = row[first], y = row[second];
    const auto [cos, sin] = angle(position, pair);
    row[first] = static_cast<float>(x * cos - y * sin);
    row[second] = static_cast<float>(y * cos + x * sin);
  }
}

}  // namespace flashjit::host

#include <algorithm>

#include "compiler/choice/cost_parts.h"
#include "compiler/families/decode/decode.h"

namespace flashjit {

namespace {

// Placeholder figures.
constexpr double kLaunchUs = 3, kFirstTileUs = 2.2, kCombineUs = 2.5, kSegmentUs = 1.5;
constexpr double kLatencyUs = 0.9;  // of a load while memory is busy
constexpr double kReadRate = 0.93;  // of the target's memory rate

}  // namespace

Prediction predict_decode(const Problem& problem, const Schedule& s, const Shape& shape, const Work& work) {
  const AttentionSpec& spec = problem.spec;
  const Target& target = problem.target;
  const KernelConfig c = config_of(problem, s);
  const double rows = static_cast<double>(shape.q_len) * group_size(c), row_tiles = std::ceil(rows / *s.tile_q);
  const double row_bytes = (spec.d_qk + spec.d_v) * size_of(spec.kv_dtype);
  const double keys = work.kv_tiles * *s.tile_kv;
  const double read = static_cast<double>(shape.b) * spec.heads_kv * row_tiles * keys * row_bytes;
  const double in_flight = *s.blocks_per_sm * *s.warps * *s.tile_kv * row_bytes * std::max(1, *s.stages - 1);
  const double rate = std::min(target.memory_tbs * kReadRate * 1e6, target.sm_count * in_flight / kLatencyUs);
  Prediction p;
  p.memory = read / rate;
  p.latency = kLaunchUs + kFirstTileUs + kCombineUs;
  p.compute = p.memory;
  p.waves = 1;
  p.total = p.memory + p.latency;
  return p;
}

}  // namespace flashjit

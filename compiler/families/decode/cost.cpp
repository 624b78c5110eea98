#include <algorithm>
#include <cmath>

#include "compiler/choice/cost_parts.h"
#include "compiler/families/decode/decode.h"

namespace flashjit {

namespace {

// H200, 2026-11-23: 1 x 1024 to 64 x 8192 keys, 32/8 heads, d=128, in a graph. Straight to registers 11.2, 19.1 and 43 us
// up to 134 MB and 521 us for 2 GB, through rings 11.2, 21.3, 48 and 510 us. A warp takes a tile of a ring in 2600 to
// 3000 clocks, of 32 keys in 5000.
constexpr double kLaunchUs = 3.7;                           // of both launches, one after the other
constexpr double kFirstTileUs = 2.0;                        // until a load is there
constexpr double kRingUs = 1.5;                             // more, where tiles pass through a ring
constexpr double kMergeUs = 3.5;                            // of the warps, then of the blocks
constexpr double kPartUs = 0.02;                            // of each part of a row
constexpr double kRegisterRate = 0.955, kRingRate = 0.985;  // of the target's memory rate, with any number of bytes ...
constexpr double kHalfRateBytes = 3 << 10;                  // ... in flight in an SM; with as many as these half of it
constexpr double kSmBytesPerClock = 48;                     // no SM takes in more
constexpr double kStepClocks = 300, kKeyClocks = 150;       // from one tile of a warp to the next

}  // namespace

Prediction predict_decode(const Problem& problem, const Schedule& s, const Shape& shape, const Work& work) {
  const AttentionSpec& spec = problem.spec;
  const Target& target = problem.target;
  const KernelConfig c = config_of(problem, s);
  const double side = heads_side_by_side(c), rows = static_cast<double>(shape.q_len) * group_size(c);
  const double steps =
      static_cast<double>(shape.b) * spec.heads_kv / side * std::ceil(rows / *s.tile_q) * std::ceil(work.kv_tiles);
  const double most = std::floor(target.sm_count * *s.blocks_per_sm / side);
  const double ranges = std::max(1.0, std::min(most, std::floor(steps / *s.warps)));
  // All warps of a block take as many steps as the one with most.
  const double of_warp = std::ceil(std::ceil(steps / ranges) / *s.warps);
  const double step_bytes = *s.tile_kv * (spec.d_qk + spec.d_v) * size_of(spec.kv_dtype);
  const double in_sm = *s.warps * *s.blocks_per_sm * step_bytes;
  const double in_flight = in_sm * std::max(1, *s.stages);
  const double busy = std::min(static_cast<double>(target.sm_count), ranges * side);
  const double rate =
      target.memory_tbs * 1e6 * (*s.stages > 1 ? kRingRate : kRegisterRate) * in_flight / (in_flight + kHalfRateBytes);
  const double of_sm = of_warp * *s.warps * step_bytes * std::ceil(ranges * side / target.sm_count);

  Prediction p;
  p.memory = std::max(of_warp * *s.warps * step_bytes * ranges * side / rate,
                      of_sm / (kSmBytesPerClock * target.clock_ghz * 1e3));
  p.issue = of_sm / step_bytes * *s.tile_kv * 16 * (kSoftmaxSlots + score_slots(work) + mask_slots(work, 0)) /
            kIssuePerClock / (target.clock_ghz * 1e3);
  p.compute = std::max(p.issue, of_warp * (kStepClocks + *s.tile_kv * kKeyClocks) / (target.clock_ghz * 1e3));
  const double parts = std::min(ranges, ranges * side / (static_cast<double>(shape.b) * spec.heads_kv) + 1);
  // What is loaded at once arrives together, and waits for the last of it at the end.
  const double wait = 0.5 * std::min(in_flight, of_sm) * target.sm_count / (target.memory_tbs * 1e6);
  p.latency = kLaunchUs + kFirstTileUs + wait + (*s.stages > 1 ? kRingUs : 0) + kMergeUs + kPartUs * parts;
  p.waves = ranges * side / (busy * *s.blocks_per_sm);
  p.total = std::max(p.memory, p.compute) + p.latency;
  return p;
}

}  // namespace flashjit

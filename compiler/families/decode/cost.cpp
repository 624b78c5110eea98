#include <algorithm>
#include <cmath>

#include "compiler/choice/cost_parts.h"
#include "compiler/families/decode/decode.h"

namespace flashjit {

namespace {

// H200, 2026-11-23: 1 x 1024, 1 x 8192, 8 x 4096, 16 x 8192 and 64 x 8192 keys, 32/8 heads, d=128, in a graph, 8 warps.
// Straight to registers 11.8, 19.6, 45.7, 143 and 523 us (512 with 32 keys at a time); through rings of three places
// filled with boxes 11.4, 19.5, 45.2, 140 and 502 us, with rows 11.6, 20.8, 47.6, 135 and 487 us.
constexpr double kLaunchUs = 3.7;     // of both launches, one after the other
constexpr double kFirstTileUs = 2.0;  // until a load is there
constexpr double kRingUs = 0.3;       // more, where tiles pass through a ring
constexpr double kMergeUs = 3.5;      // of the warps, then of the blocks
constexpr double kPartUs = 0.02;      // of each part of a row
constexpr double kRegisterRate = 0.94, kBoxRate = 0.965,
                 kRowRate = 1.0;                      // of the target's, with any number of bytes ...
constexpr double kHalfRateBytes = 5 << 10;            // ... in flight in an SM; with as many as these half of it
constexpr double kSmBytesPerClock = 48;               // no SM takes in more
constexpr double kStepClocks = 800, kKeyClocks = 50;  // from one tile of a warp to the next

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
  const bool boxes = *s.copies == Copies::boxes, rows_of_tiles = !boxes && *s.stages > 1;
  const double share = boxes ? kBoxRate : rows_of_tiles ? kRowRate : kRegisterRate;
  const double rate = target.memory_tbs * 1e6 * share * in_flight / (in_flight + kHalfRateBytes);
  const double of_sm = of_warp * *s.warps * step_bytes * std::ceil(ranges * side / target.sm_count);

  Prediction p;
  p.memory = std::max(of_warp * *s.warps * step_bytes * ranges * side / rate,
                      of_sm / (kSmBytesPerClock * target.clock_ghz * 1e3));
  p.issue = of_sm / step_bytes * *s.tile_kv * 16 * (kSoftmaxSlots + score_slots(work) + mask_slots(work, 0)) /
            kIssuePerClock / (target.clock_ghz * 1e3);
  p.compute = std::max(p.issue, of_warp * (kStepClocks + *s.tile_kv * kKeyClocks) / (target.clock_ghz * 1e3));
  const double parts = std::min(ranges, ranges * side / (static_cast<double>(shape.b) * spec.heads_kv) + 1);
  // What is loaded at once arrives together, and waits for the last of it at the end. The first rows take as long to ask
  // for.
  const double wait =
      (rows_of_tiles ? 1.0 : 0.5) * std::min(in_flight, of_sm) * target.sm_count / (target.memory_tbs * 1e6);
  p.latency = kLaunchUs + kFirstTileUs + wait + (*s.stages > 1 ? kRingUs : 0) + kMergeUs + kPartUs * parts;
  p.waves = ranges * side / (busy * *s.blocks_per_sm);
  p.total = std::max(p.memory, p.compute) + p.latency;
  return p;
}

}  // namespace flashjit

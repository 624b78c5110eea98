#include <algorithm>
#include <cmath>

#include "compiler/choice/cost_common.h"
#include "compiler/families/sync/sync.h"

namespace flashjit {

namespace {

// Costs that the rates of the target table do not have. Each measured target has a row, and the others take the first
// one. A new figure needs a row in tests/device/MEASURED.md, with GPU, date and command.
struct Calibration {
  std::string_view target;
  // The exponent with which resident warps hide the work of units that do not bind: excess /
  // warps_per_scheduler^overlap.
  double overlap;
  double tile_clocks;  // Waits and barriers for each KV tile of a block that has the SM to itself.
  // They are added when K and V alternate in one stage, where a tile has two waits and less time between them.
  double one_stage_clocks;
  double launch_us;           // The time from launch to first instruction, and from last store to the end.
  double block_clocks;        // Offsets, the first tile and the output of each block.
  double l2_bytes_per_clock;  // Bytes of an SM.
  double compute;             // The factor on the compute time that all of these give.
};
constexpr Calibration kCalibrations[] = {
    // The figures are fitted to a sweep of schedules [M51]. Head dims that are no multiple of 64, and few tokens, took
    // longer than predicted, so that sync was chosen where hopper was faster [M52].
    {"", 0.46, 900, 100, 2.8, 2000, 48, 1.15},
};

const Calibration& calibration_of(const Target& target) {
  for (const Calibration& row : kCalibrations) {
    if (row.target == target.name) return row;
  }
  return kCalibrations[0];
}

TileClocks sync_tile_clocks(const KernelConfig& sizes, const Target& target, const Calibration& calibration,
                            const Schedule& s, double slots) {
  const double rows = *s.tile_q, keys = *s.tile_kv, scores = rows * keys;
  const double dims = padded_dim_qk(sizes) + padded_slice(sizes), kv_bytes = keys * dims * size_of(sizes.element);
  TileClocks t;
  t.mma = 2 * scores * dims / s.family->matrix_rate(target);
  t.exp = scores / target.exp_per_clock;
  t.issue = scores * slots / kIssuePerClock;
  // Every warp loads all of K and V as operands, and the copies write them once. Q is read again unless it stays in
  // registers.
  const double q_bytes = *s.q_in == QueryStorage::shared ? rows * padded_dim_qk(sizes) * size_of(sizes.element) : 0;
  t.smem = (kv_bytes * (*s.warps + 1) + q_bytes) / target.smem_bytes_per_clock;
  t.l2 = kv_bytes / calibration.l2_bytes_per_clock;
  return t;
}

}  // namespace

Prediction predict_sync(const Problem& problem, const Schedule& s, const Shape& shape, const Work& work) {
  const AttentionSpec& spec = problem.spec;
  const Target& target = problem.target;
  const Calibration& calibration = calibration_of(target);
  const double clocks_per_us = target.clock_ghz * 1e3;
  const KernelConfig sizes = config_of(problem, s);
  const double of_mask = sizes.list_heads > 0 ? 0 : mask_slots(work, 0);  // In lists most tiles are full.
  const TileClocks t = sync_tile_clocks(sizes, target, calibration, s, kSoftmaxSlots + score_slots(work) + of_mask);
  const double blocks = static_cast<double>(shape.b) * spec.heads_q * value_slices(sizes) *
                        std::ceil(static_cast<double>(shape.q_len) / *s.tile_q);
  // If there are fewer blocks than slots, an SM holds fewer blocks than it could.
  const double resident = std::clamp(blocks / target.sm_count, 1.0, static_cast<double>(*s.blocks_per_sm));
  const double warps_per_scheduler = std::max(1.0, resident * *s.warps / 4);
  // The binding unit runs at its rate. The more warps take turns, the better it hides the other units.
  const double softmax = std::max(t.exp, t.issue) + 0.5 * std::min(t.exp, t.issue);
  const double excess = std::max(0.0, t.mma + softmax - t.bound());
  // A block works while another one waits, because they wait at different times.
  const double tile_waits = calibration.tile_clocks + (*s.stages == 1 ? calibration.one_stage_clocks : 0);
  const double waits = tile_waits / (resident * resident);
  const double tile = std::max(t.bound() + excess / std::pow(warps_per_scheduler, calibration.overlap) + waits, t.l2);
  const double mean = (work.kv_tiles * tile + calibration.block_clocks / resident) * resident;
  const double longest = (work.kv_tiles_max * tile + calibration.block_clocks / resident) * resident;

  Prediction p;
  p.waves = blocks / (target.sm_count * resident);
  // Blocks that widen elements of 8 bits themselves take so much longer [M53].
  constexpr double kWidening = 1.9;
  p.compute = calibration.compute * (has_scaled_keys(spec) && !has_scaled_queries(spec) ? kWidening : 1) *
              makespan(blocks, target.sm_count * resident, mean, longest, *s.order == TileOrder::longest_first) /
              clocks_per_us;
  add_units(p, t, blocks * work.kv_tiles / std::min(blocks, static_cast<double>(target.sm_count)), spec, target, shape);
  p.latency = calibration.launch_us;
  p.total = std::max(p.compute, p.memory) + p.latency;
  return p;
}

}  // namespace flashjit

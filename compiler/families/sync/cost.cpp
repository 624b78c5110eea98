#include <algorithm>
#include <cmath>

#include "compiler/choice/cost_common.h"
#include "compiler/families/sync/sync.h"

namespace flashjit {

namespace {

// These are costs that the rates of the target table do not have. There is one row per target that was measured; the
// others take the first. A new figure comes with a row in tests/device/MEASURED.md: GPU, date, command.
struct Calibration {
  std::string_view target;
  double overlap;  // how fast co-resident warps hide what is not the binding unit: excess / warps_per_scheduler^overlap
  double tile_clocks;       // waits and barriers per KV tile of a block that has the SM to itself
  double one_stage_clocks;  // added when K and V alternate in one stage: there are two waits per tile, and less time in
                            // between
  double launch_us;         // launch to first instruction, last store to done
  double block_clocks;      // per block: offsets, first tile, output
  double l2_bytes_per_clock;  // per SM
  double compute;             // of the compute time that all of these give
};
constexpr Calibration kCalibrations[] = {
    // These are fitted to a sweep of schedules [M51]. Head dims that are no multiple of 64, and few tokens, took longer
    // than these say, by which sync was taken where hopper was faster [M52].
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
  // Every warp loads all of K and V as operands; the copies write them once; Q is read again unless it stays in
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
  const double of_mask = sizes.list_heads > 0 ? 0 : mask_slots(work, 0);  // in lists most tiles are full
  const TileClocks t = sync_tile_clocks(sizes, target, calibration, s, kSoftmaxSlots + score_slots(work) + of_mask);
  const double blocks = static_cast<double>(shape.b) * spec.heads_q * value_slices(sizes) *
                        std::ceil(static_cast<double>(shape.q_len) / *s.tile_q);
  // Fewer blocks than slots: an SM holds fewer than it could.
  const double resident = std::clamp(blocks / target.sm_count, 1.0, static_cast<double>(*s.blocks_per_sm));
  const double warps_per_scheduler = std::max(1.0, resident * *s.warps / 4);
  // The binding unit runs at its rate; the rest is hidden behind it the better, the more warps take turns.
  const double softmax = std::max(t.exp, t.issue) + 0.5 * std::min(t.exp, t.issue);
  const double excess = std::max(0.0, t.mma + softmax - t.bound());
  // One block's wait is another's work, and they wait at different times.
  const double tile_waits = calibration.tile_clocks + (*s.stages == 1 ? calibration.one_stage_clocks : 0);
  const double waits = tile_waits / (resident * resident);
  const double tile = std::max(t.bound() + excess / std::pow(warps_per_scheduler, calibration.overlap) + waits, t.l2);
  const double mean = (work.kv_tiles * tile + calibration.block_clocks / resident) * resident;
  const double longest = (work.kv_tiles_max * tile + calibration.block_clocks / resident) * resident;

  Prediction p;
  p.waves = blocks / (target.sm_count * resident);
  // Elements of 8 bits that each block widens on the way take so much longer [M53].
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

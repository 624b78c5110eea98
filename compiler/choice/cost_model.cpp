#include "compiler/choice/cost_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "compiler/choice/candidates.h"
#include "compiler/choice/cost_parts.h"

namespace flashjit {

namespace {

// What the rates of the target table do not say. One row per target that was measured; the others take the first.
// A new figure comes with a comment: GPU, date, command.
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
    // H200, 2026-11-21: fitted to a sweep of d=32..256, full and causal, 1k, 4k and 16k tokens, 144 schedules in all,
    // timed
    // one after the other as tools/compare.py --sweep does. Regret of the first choice 0.5 % on average, 5 % at worst;
    // error of the predicted time 10 % (rms). Head dims that are no multiple of 64, and 512 tokens, took 1.1 to 1.5
    // times as long
    // (medians of 1700 times, 2026-11-22, tune_experiments), by which sync was taken where hopper was faster.
    {"", 0.46, 900, 100, 2.8, 2000, 48, 1.15},
};

const Calibration& calibration_of(const Target& target) {
  for (const Calibration& row : kCalibrations) {
    if (row.target == target.name) return row;
  }
  return kCalibrations[0];
}

// Instruction slots per score that are not hidden: of max, scale, exp, sum and half a conversion, what the fit left
// over. Of a score function: one per node; with two, alibi at d=128 got 64-row tiles (267 us instead of 241, H200,
// 2026-11-21).
constexpr double kSoftmaxSlots = 3, kMaskSlots = 4, kScoreSlotsPerNode = 1;

double element_bytes_of(const AttentionSpec& spec) { return size_of(spec.dtype); }

TileClocks sync_tile_clocks(const AttentionSpec& spec, const Target& target, const Calibration& calibration,
                            const Schedule& s, double slots) {
  const double rows = *s.tile_q, keys = *s.tile_kv, scores = rows * keys;
  const double dims = round_up(spec.d_qk, 16) + round_up(spec.d_v, 16), kv_bytes = keys * dims * 2;
  TileClocks t;
  t.mma = 2 * scores * dims / target.mma_flops_per_clock;
  t.exp = scores / target.exp_per_clock;
  t.issue = scores * slots / kIssuePerClock;
  // Every warp loads all of K and V as operands; the copies write them once; Q is read again unless it stays in
  // registers.
  const double q_bytes = *s.q_in == QueryPlace::Shared ? rows * round_up(spec.d_qk, 16) * 2 : 0;
  t.smem = (kv_bytes * (*s.warps + 1) + q_bytes) / target.smem_bytes_per_clock;
  t.l2 = kv_bytes / calibration.l2_bytes_per_clock;
  return t;
}

Prediction predict_sync(const AttentionSpec& spec, const Target& target, const Schedule& s, const Shape& shape,
                        const Work& work) {
  const Calibration& calibration = calibration_of(target);
  const double clocks_per_us = target.clock_ghz * 1e3;
  const TileClocks t =
      sync_tile_clocks(spec, target, calibration, s, kSoftmaxSlots + score_slots(work) + mask_slots(work, 0));
  const double blocks =
      static_cast<double>(shape.b) * spec.heads_q * std::ceil(static_cast<double>(shape.q_len) / *s.tile_q);
  // Fewer blocks than places: an SM holds fewer than it could.
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
  p.compute = calibration.compute *
              makespan(blocks, target.sm_count * resident, mean, longest, *s.order == TileOrder::LongestFirst) /
              clocks_per_us;
  add_units(p, t, blocks * work.kv_tiles / std::min(blocks, static_cast<double>(target.sm_count)), spec, target, shape);
  p.latency = calibration.launch_us;
  p.total = std::max(p.compute, p.memory) + p.latency;
  return p;
}

Prediction predict_host(const AttentionSpec& spec, const Target& target, const Schedule& s, const Shape& shape,
                        const Work& work) {
  constexpr double kFmaShare = 0.6;         // of the peak, for products of this size in L1 and L2
  constexpr double kTileNanoseconds = 300;  // per tile pair, loop heads and row state
  const double query_tiles = std::ceil(static_cast<double>(shape.q_len) / *s.tile_q);
  const double items = static_cast<double>(shape.b) * spec.heads_q * query_tiles;
  const double cores = std::min<double>(target.sm_count, std::max(1.0, items));
  const double tiles = items * work.kv_tiles;
  const double scores = tiles * std::min<double>(*s.tile_q, static_cast<double>(shape.q_len)) * *s.tile_kv;
  const double clocks_per_us = target.clock_ghz * 1e3;
  // K, V, the scores and O of an item should stay in L2.
  const double scratch = *s.tile_kv * (spec.d_qk + spec.d_v) * 4.0 + *s.tile_q * (*s.tile_kv + spec.d_v) * 4.0;
  const double spill = std::max(1.0, scratch / (target.l2_mb * 1e6 * 0.75));
  Prediction p;
  p.waves = items / cores;
  p.mma =
      2 * scores * (spec.d_qk + spec.d_v) / (target.mma_flops_per_clock * kFmaShare) * spill / clocks_per_us / cores;
  p.exp = scores / target.exp_per_clock / clocks_per_us / cores;
  p.issue = scores * (kSoftmaxSlots + score_slots(work) + mask_slots(work, 0)) * 32 / target.vector_bits /
            clocks_per_us / cores;
  p.compute = (p.mma + p.exp + p.issue + tiles * kTileNanoseconds * 1e-3 / cores) * std::ceil(p.waves) / p.waves;
  p.memory = unique_bytes(spec, shape) / (target.memory_tbs * 1e6);
  p.latency = 5;
  p.total = std::max(p.compute, p.memory) + p.latency;
  return p;
}

// Longest first pays when late query tiles have more keys; a moving window has the same everywhere.
bool work_grows(const Work& work) { return work.kv_tiles_max > 1.3 * work.kv_tiles; }

// Products of 16-bit operands per clock and SM, on the path that the family takes.
double matrix_rate(const Target& target, Family family) {
  return family == Family::Hopper ? target.wgmma_flops_per_clock : target.mma_flops_per_clock;
}

// Samples query tiles of every size that schedules ask for.
class WorkSamplers {
 public:
  WorkSamplers(const AttentionSpec& spec, const TileAnalysis& tiles, const Shape& shape)
      : spec_(spec), tiles_(tiles), shape_(shape) {}

  Work of(const Schedule& schedule) {
    KernelConfig c = sizes_of(spec_, schedule);
    c.has_mask = static_cast<bool>(spec_.mask);
    c.mask_has_holes = static_cast<bool>(tiles_.may_see);
    Work work = with(queries_together(c), c.tile_kv);
    if (c.loop != Loop::hopper || c.warpgroups < 2 || shape_.q_len < 1) return work;
    // Warpgroups leave out a tile that only others see, and those without queries at the end all of them. Half of that
    // is time: d=64 full 1k takes 0.95 of it for 0.89 of the steps, causal 0.87 for 0.77, d=256 causal 0.97 for 0.95
    // (H200, 2026-11-22).
    constexpr double kGain = 0.5;
    const int queries = std::max(1, queries_per_tile(c) / c.warpgroups);
    double own = work.kv_tiles;
    if (has_own_tiles(c)) {
      const Work& of_warpgroup = with(queries, c.tile_kv);
      own = std::max(of_warpgroup.kv_tiles, own - 1);  // a warpgroup leaves out at most one
      work.mixed_tiles = std::max(of_warpgroup.mixed_tiles, work.mixed_tiles - 1);
    }
    const double blocks = std::ceil(static_cast<double>(shape_.q_len) / queries_per_tile(c));
    const double working = std::ceil(static_cast<double>(shape_.q_len) / queries) / (blocks * c.warpgroups);
    work.kv_tiles += kGain * (own * working - work.kv_tiles);
    return work;
  }

 private:
  const Work& with(int queries, int tile_kv) {
    return samplers_.try_emplace(queries, spec_, tiles_, shape_, queries).first->second.with(tile_kv);
  }

  const AttentionSpec& spec_;
  const TileAnalysis& tiles_;
  Shape shape_;
  std::map<int, WorkSampler> samplers_;  // by queries
};

Shape quarter(Shape shape) {
  shape.b *= 4;
  shape.q_len = std::max<std::int64_t>(1, shape.q_len / 4);
  shape.k_len = std::max<std::int64_t>(1, shape.k_len / 4);
  return shape;
}

}  // namespace

void add_units(Prediction& p, const TileClocks& tile, double tiles, const AttentionSpec& spec, const Target& target,
               const Shape& shape) {
  const double microseconds = tiles / (target.clock_ghz * 1e3);
  p.mma = tile.mma * microseconds;
  p.exp = tile.exp * microseconds;
  p.issue = tile.issue * microseconds;
  p.smem = tile.smem * microseconds;
  p.l2 = tile.l2 * microseconds;
  p.memory = unique_bytes(spec, shape) / (target.memory_tbs * 1e6);
}

double score_slots(const Work& work) { return kScoreSlotsPerNode * work.score_nodes; }

double mask_slots(const Work& work, int free_nodes) {
  if (work.kv_tiles <= 0) return 0;
  return kMaskSlots * std::max(0.0, work.mask_nodes - free_nodes) * work.mixed_tiles / work.kv_tiles;
}

double unique_bytes(const AttentionSpec& spec, const Shape& shape) {
  const double b = static_cast<double>(shape.b), q = static_cast<double>(shape.q_len),
               k = static_cast<double>(shape.k_len);
  const double element = element_bytes_of(spec);
  const double read = b * (q * spec.heads_q * spec.d_qk + k * spec.heads_kv * (spec.d_qk + spec.d_v)) * element;
  return read + b * q * spec.heads_q * spec.d_v * size_of(spec.out_dtype);
}

double makespan(double blocks, double slots, double mean, double longest, bool longest_first) {
  const double waves = blocks / slots;
  if (waves <= 1) return longest;
  if (longest > mean * 1.05) {
    // Unequal blocks fill gaps; what remains is a part of the last block, small when the long ones went first.
    return waves * mean + (longest_first ? 0.15 : 0.5) * longest;
  }
  // Equal blocks run in whole waves, blurred because SMs drift apart.
  return mean * (0.5 * (waves + 0.5) + 0.5 * std::ceil(waves));
}

Shape reference_shape(const AttentionSpec& spec) {
  constexpr std::int64_t kSequence = 4096, kTokens = 16384, kDecodeKeys = 8192, kDecodeBatch = 32;
  Shape shape;
  shape.q_len = spec.q_len.pinned() ? spec.q_len.max : std::min(spec.q_len.max, kSequence);
  shape.k_len =
      spec.k_len.pinned() ? spec.k_len.max : std::min(spec.k_len.max, shape.q_len < 64 ? kDecodeKeys : kSequence);
  const std::int64_t batch = shape.q_len < 64 ? kDecodeBatch : std::max<std::int64_t>(1, kTokens / shape.q_len);
  shape.b = spec.batch.pinned() ? spec.batch.max : std::min(spec.batch.max, batch);
  return shape;
}

Work work_of(const AttentionSpec& spec, const TileAnalysis& tiles, const Shape& shape, const Schedule& schedule) {
  return WorkSamplers(spec, tiles, shape).of(schedule);
}

Prediction predict(const AttentionSpec& spec, const Target& target, const Schedule& schedule, const Shape& shape,
                   const Work& work) {
  if (shape.b < 1 || shape.q_len < 1 || shape.k_len < 1) return {};
  switch (*schedule.family) {
    case Family::Sync: return predict_sync(spec, target, schedule, shape, work);
    case Family::Hopper: return predict_hopper(spec, target, schedule, shape, work);
    case Family::Host: break;
  }
  return predict_host(spec, target, schedule, shape, work);
}

std::vector<Candidate> candidates(const AttentionSpec& spec, const Target& target, const Schedule& pins,
                                  const TileAnalysis& tiles, const Shape& shape) {
  // Lengths that the spec leaves open may be short as well: what is fast for long ones alone is not taken.
  std::vector<Shape> shapes = {shape};
  if (target.gpu && !spec.q_len.pinned() && shape == reference_shape(spec)) shapes.push_back(quarter(shape));
  std::vector<WorkSamplers> samplers;
  for (const Shape& each : shapes) samplers.emplace_back(spec, tiles, each);
  std::vector<Schedule> schedules = enumerate_schedules(spec, target, pins);
  struct Ranked {
    double rank = 1;
    std::size_t place = 0;  // in `schedules`
    double microseconds = 0;
  };
  std::vector<Ranked> legal;
  std::vector<std::size_t> illegal;
  for (std::size_t place = 0; place < schedules.size(); ++place) {
    Schedule& schedule = schedules[place];
    if (!is_legal(spec, target, schedule)) {
      illegal.push_back(place);
      continue;
    }
    Ranked ranked{.place = place};
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const Work work = samplers[i].of(schedule);
      if (i == 0 && target.gpu && !pins.order && work_grows(work)) schedule.order = TileOrder::LongestFirst;
      const double microseconds = predict(spec, target, schedule, shapes[i], work).total;
      if (i == 0) ranked.microseconds = microseconds;
      ranked.rank *= microseconds;
    }
    legal.push_back(ranked);
  }
  std::ranges::sort(legal, {}, [](const Ranked& ranked) { return std::pair(ranked.rank, ranked.place); });
  std::vector<Candidate> out;
  out.reserve(schedules.size());
  for (const Ranked& ranked : legal) out.push_back({schedules[ranked.place], ranked.microseconds, ranked.rank, true});
  for (const std::size_t place : illegal) out.push_back({.schedule = schedules[place], .legal = false});
  return out;
}

Roofline roofline(const Plan& plan, const Shape& shape) {
  const AttentionSpec& spec = plan.spec;
  const Work work = work_of(spec, plan.tiles, shape, plan.schedule);
  const double scores =
      static_cast<double>(shape.b) * spec.heads_q * static_cast<double>(shape.q_len) * static_cast<double>(shape.k_len);
  Roofline r;
  r.visible = work.visible;
  r.exact = work.exact;
  r.flops = 2 * scores * work.visible * (spec.d_qk + spec.d_v);
  r.fused_bytes = unique_bytes(spec, shape);
  // The textbook version writes every score, visible or not: S as fp32, P in the dtype, each read back once.
  r.score_bytes_never_written = scores * (4 + element_bytes_of(spec));
  r.textbook_bytes = r.fused_bytes + 2 * r.score_bytes_never_written;
  r.intensity = r.fused_bytes > 0 ? r.flops / r.fused_bytes : 0;
  r.textbook_intensity = r.textbook_bytes > 0 ? r.flops / r.textbook_bytes : 0;
  r.balance_point = matrix_rate(plan.target, *plan.schedule.family) * plan.target.clock_ghz * 1e9 *
                    plan.target.sm_count / (plan.target.memory_tbs * 1e12);
  r.kv_cache_bytes_per_token = static_cast<double>(spec.heads_kv) * (spec.d_qk + spec.d_v) * size_of(spec.kv_dtype);
  r.kv_cache_bytes_per_sequence = r.kv_cache_bytes_per_token * static_cast<double>(shape.k_len);
  r.predicted = predict(spec, plan.target, plan.schedule, shape, work);
  const Prediction& p = r.predicted;
  const std::pair<double, const char*> limits[] = {{p.mma, "matrix units"},   {p.exp, "exponentials"},
                                                   {p.smem, "shared memory"}, {p.issue, "issue"},
                                                   {p.memory, "memory"},      {p.l2, "L2"},
                                                   {p.latency, "latency"}};
  r.limit = std::max_element(std::begin(limits), std::end(limits))->second;
  return r;
}

}  // namespace flashjit

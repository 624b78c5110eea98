#include <algorithm>
#include <cmath>

#include "compiler/choice/cost_common.h"
#include "compiler/families/decode/decode.h"

namespace flashjit {

namespace {

// These constants are fitted to whole kernels, with teams and with ranges. Their tiles go straight to registers,
// through rings that are filled with boxes [M10] or with rows [M11], or through a ring from small pages [M12]. The
// second launch waits for the last block of the first [M13].
constexpr double kLaunchUs = 5.7;        // The time of both launches, one after the other.
constexpr double kSecondTileUs = 1.5;    // Further time if a block's range ends in another row tile.
constexpr double kPartFloatUs = 1.3e-3;  // The time of each element of O in a part: warps add up, then blocks.
constexpr double kFirstTileUs = 2.0;     // The time of the first load.
constexpr double kRingUs = 0.3;          // Further time of tiles that pass through a ring.
constexpr double kMergeUs = 2.0;         // The time in which the warps, and then the blocks, merge.
constexpr double kTeamLaunchUs = 3.0;    // The time of the one launch that teams need.
constexpr double kTeamMergeUs = 1.8;
constexpr double kPartUs = 0.02;  // The time of each part of a row.
// Each step of a team costs this much more where its rings have two slots instead of three [M14]. Blocks without a team
// lose nothing.
constexpr double kTwoStagesUs = 0.27;
// Each step of an SM costs this where elements are widened: fewer and larger tiles are faster [M15].
constexpr double kWideningUs = 0.003;
// Where the warps of an SM are no multiple of its four parts, some of these widen more [M15].
constexpr int kSmParts = 4;
constexpr double kUnevenRate = 0.95;
// Shares of the target's memory rate that are reached with very many bytes in flight in an SM, and the bytes in flight
// with which half of a share is reached.
constexpr double kRegisterRate = 0.94, kBoxRate = 0.965, kRowRate = 1.0;
constexpr double kHalfRateBytes = 5 << 10;
constexpr double kSmBytesPerClock = 48;  // The most bytes that an SM takes in.
// Where all row tiles of a KV head are computed at the same time, all but the first read this many times as fast as
// memory [M16].
constexpr double kAgainRate = 3;
constexpr double kStepClocks = 800, kKeyClocks = 50;  // Clocks from a warp's tile to the next, and of each key.
constexpr double kKeyInPiecesClocks = 100;            // Clocks of each key where each row of a tile is found by itself.
constexpr double kManyNarrowRows = 1.35;              // Many rows of 8 bits take this much longer [M17].

// Returns how teams share the work of a launch, on a device whose SMs are in groups like those of the usual product.
Teams teams_at(const KernelConfig& c, const Target& target, const Shape& shape) {
  const int blocks = target.sm_count * c.decode.blocks_per_sm;
  return teams_of(decode_grid(c, target), {.batch = shape.b, .q_len = shape.q_len, .k_len = shape.k_len},
                  {blocks, blocks / 2, blocks / 4, blocks / 8 - 1});
}

}  // namespace

Prediction predict_decode(const Problem& problem, const Schedule& s, const Shape& shape, const Work& work) {
  const AttentionSpec& spec = problem.spec;
  const Target& target = problem.target;
  const KernelConfig c = config_of(problem, s);
  const double side = sides(c), rows = static_cast<double>(shape.q_len) * group_size(c);
  const double row_tiles = std::ceil(rows / *s.tile_q);
  const double steps = static_cast<double>(shape.b) * spec.heads_kv / side * row_tiles * std::ceil(work.kv_tiles);
  const double most = std::floor(target.sm_count * *s.blocks_per_sm / side);
  const Teams teams = teams_at(c, target, shape);
  const bool has_teams = teams.count > 0;
  const double ranges =
      has_teams ? teams.count * teams.blocks / side : std::max(1.0, std::min(most, std::floor(steps / *s.warps)));
  // All warps of a block take as many steps as the warp with the most.
  const double of_warp = std::ceil(std::ceil(steps / ranges) / *s.warps);
  const double step_bytes = *s.tile_kv * (spec.d_qk + spec.d_v) * size_of(spec.kv_dtype);
  const double in_sm = *s.warps * *s.blocks_per_sm * step_bytes;
  const double in_flight = in_sm * std::max(1, *s.stages);
  const double busy = std::min(static_cast<double>(target.sm_count), ranges * side);
  const bool boxes = *s.copies == Copies::boxes, rows_of_tiles = !boxes && *s.stages > 1;
  const double share = boxes ? kBoxRate : rows_of_tiles ? kRowRate : kRegisterRate;
  const double rate =
      std::min(target.memory_tbs * 1e6 * share * in_flight / (in_flight + kHalfRateBytes), busy * in_flight / kLoadUs);
  const bool at_once =
      c.decode.row_tiles > 1 || static_cast<double>(shape.b) * spec.heads_kv * row_tiles <= ranges * side;
  const double reads = at_once ? (1 + (row_tiles - 1) / kAgainRate) / row_tiles : 1;
  const bool uneven = is_scaled(c) && *s.warps * *s.blocks_per_sm % kSmParts != 0;
  const double of_sm = of_warp * *s.warps * step_bytes * std::ceil(ranges * side / target.sm_count);

  Prediction p;
  p.memory = std::max(reads * of_warp * *s.warps * step_bytes * ranges * side / (uneven ? kUnevenRate * rate : rate),
                      of_sm / (kSmBytesPerClock * target.clock_ghz * 1e3));
  p.issue = of_sm / step_bytes * *s.tile_kv * 16 * (kSoftmaxSlots + score_slots(work) + mask_slots(work, 0)) /
            kIssuePerClock / (target.clock_ghz * 1e3);
  const bool in_pieces = (selects(spec) && !reads_pages(spec)) || (is_paged(spec) && spec.page_size % *s.tile_kv != 0);
  const double step_clocks = (kStepClocks + *s.tile_kv * (in_pieces ? kKeyInPiecesClocks : kKeyClocks)) *
                             (is_scaled(c) && (has_many_rows(c) || row_tiles > 1) ? kManyNarrowRows : 1);
  p.compute = std::max(p.issue, of_warp * step_clocks / (target.clock_ghz * 1e3));
  const double parts = std::min(ranges, ranges * side / (static_cast<double>(shape.b) * spec.heads_kv * row_tiles) + 1);
  // Tiles that are loaded at the same time arrive together, and the end waits for the last of them.
  const double wait = 0.5 * std::min(in_flight, of_sm) * busy / (target.memory_tbs * 1e6);
  p.latency = kFirstTileUs + wait + (has_teams ? kTeamLaunchUs + kTeamMergeUs : kLaunchUs + kMergeUs + kPartUs * parts);
  const bool crosses = !c.decode.fixed_parts && std::fmod(std::ceil(work.kv_tiles), std::ceil(steps / ranges)) != 0;
  if (!has_teams && crosses) p.latency += kSecondTileUs;
  if (!has_teams && !has_many_rows(c)) p.latency += kPartFloatUs * std::min<double>(rows, *s.tile_q) * spec.d_v;
  if (*s.stages > 1) p.latency += kRingUs;
  // Without a ring nothing is loaded while a tile is computed. This shows for the last tile, except for its scores,
  // which are made while V arrives.
  else p.latency += 0.5 * step_clocks / (target.clock_ghz * 1e3);
  if (*s.stages == 2 && teams.blocks > 1 && !is_scaled(c)) p.latency += kTwoStagesUs * of_warp;
  if (is_scaled(c)) p.latency += kWideningUs * of_sm / step_bytes;
  p.waves = ranges * side / (busy * *s.blocks_per_sm);
  p.total = std::max(p.memory, p.compute) + p.latency;
  return p;
}

}  // namespace flashjit

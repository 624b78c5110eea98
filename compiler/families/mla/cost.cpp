#include <algorithm>
#include <cmath>

#include "compiler/choice/cost_common.h"
#include "compiler/families/mla/mla.h"
#include "templates/mla/layout.h"

namespace flashjit {

namespace {

// These constants are fitted to whole kernels, by clusters and by blocks alone [M48].
constexpr double kMatrixShare[] = {0.54, 0.73};  // Shares of the target's rate, where TMA copies K.
constexpr double kNarrowShare[] = {0.74, 0.76};  // Shares of the rate for 16 bits, where products have 8 bits.
constexpr double kReadRate = 0.9;                // The share of the target's memory rate.
constexpr double kL2BytesPerClock = 18;          // The rate of each SM.
constexpr double kLaunchUs = 8;                  // The time of both launches, until the first tile has arrived.
constexpr double kPartBytesPerUs = 2.5e6;        // The rate at which parts are written and read.

// Rows that threads gather arrive later than those of TMA [M97]. The share of the rate then depends on whether rows are
// widened, on whether the blocks of a cluster share them, and on whether each row has to be found by itself.
double matrix_share(const KernelConfig& c) {
  if (multiplies_narrow(c)) return kNarrowShare[c.decode.cluster - 1];
  if (!gathers_keys(c)) return kMatrixShare[c.decode.cluster - 1];
  constexpr double kCopied = 0.53, kHeld[] = {0.3, 0.5}, kHeldOfLists[] = {0.3, 0.44};
  if (copies_rows(c)) return kCopied;
  return (c.selected > 0 ? kHeldOfLists : kHeld)[c.decode.cluster - 1];
}

// The division of a call's steps: the number of ranges, the steps of the longest one, and the number of parts that are
// written and read.
struct Deal {
  double ranges, of_range, parts;
};
Deal deal_of(const KernelConfig& c, double row_tiles, double tiles, double clusters) {
  const double steps = row_tiles * tiles;
  if (c.decode.fixed_parts) {
    // Each part is stored, or handed on, as a row tile of its own is.
    const double part = static_cast<double>((1 << part_shift(c, static_cast<int>(tiles) * kMlaKeys)) / kMlaKeys);
    const double of_tile = std::ceil(tiles / part), ranges = std::max(1.0, std::min(clusters, of_tile * row_tiles));
    const double most = std::ceil(of_tile * row_tiles / ranges);
    return {ranges, most * std::min(part, tiles) + (most - 1) * kMostLead, of_tile > 1 ? of_tile * row_tiles : 0};
  }
  const RangeCut cut =
      cut_of_large_parts(static_cast<int>(tiles), static_cast<int>(std::min(steps, 1e9)), static_cast<int>(clusters));
  const double ranges = cut.count;
  return {ranges, std::ceil((steps + cut.lead * row_tiles) / ranges), ranges > row_tiles || cut.lead > 0 ? ranges : 0};
}

}  // namespace

Prediction predict_mla(const Problem& problem, const Schedule& s, const Shape& shape, const Work& work) {
  const AttentionSpec& spec = problem.spec;
  const Target& target = problem.target;
  const KernelConfig c = config_of(problem, s);
  const double rows = static_cast<double>(shape.q_len) * group_size(c), tiles = std::ceil(work.kv_tiles);
  const double row_tiles = static_cast<double>(shape.b) * std::ceil(rows / *s.tile_q);
  const double clusters = std::floor(target.sm_count / static_cast<double>(c.decode.cluster));
  const auto [ranges, of_range, parts] = deal_of(c, row_tiles, tiles, clusters);
  const double clocks_per_us = target.clock_ghz * 1e3;
  const double products = 2.0 * kMlaRows * kMlaKeys * (spec.d_qk + spec.d_v) / target.wgmma_flops_per_clock;
  const double tile_bytes = static_cast<double>(kMlaKeys) * static_cast<double>(cached_bytes(spec));

  Prediction p;
  p.mma = of_range * products / clocks_per_us;
  p.issue = of_range * kMlaRows * kMlaKeys * (kSoftmaxSlots + score_slots(work) + mask_slots(work, 0)) /
            kIssuePerClock / clocks_per_us;
  p.l2 = of_range * tile_bytes / c.decode.cluster / kL2BytesPerClock / clocks_per_us;
  p.memory = unique_bytes(spec, shape) / (target.memory_tbs * 1e6 * kReadRate);
  p.compute = std::max({p.mma / matrix_share(c), p.l2, p.mma + p.issue});
  p.latency = kLaunchUs + 2 * parts * part_floats(c) * 4 / kPartBytesPerUs;
  p.waves = ranges / clusters;
  p.total = std::max(p.compute, p.memory) + p.latency;
  return p;
}

}  // namespace flashjit

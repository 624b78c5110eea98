// Predicted time of a schedule, and the figures that explain it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compiler/analysis/interval.h"
#include "compiler/plan.h"
#include "compiler/program/config.h"
#include "compiler/spec/schedule.h"
#include "compiler/spec/spec.h"
#include "compiler/spec/target.h"

namespace flashjit {

struct Shape {
  std::int64_t b = 1, q_len = 0, k_len = 0;
  bool operator==(const Shape&) const = default;
};
std::string print(const Shape& shape);  // "b=1,q=2,k=3"

// Returns the shape as kernels see it: with lists of keys each query is a sequence of its own, with the keys of a list.
Shape seen_by_kernels(const AttentionSpec& spec, const Shape& shape);

// The shape by which schedules are ranked when nobody names one: the spec's pins and bounds, otherwise about 16k tokens
// in sequences of 4k.
Shape assumed_shape(const AttentionSpec& spec);

// The work that a mask leaves, from a sample of query tiles of head 0 of sequence 0. Numbers that masks read at
// run time count as 0: `exact` is false. With an analysis along queries it is the other way round: query tiles per KV
// tile.
struct Work {
  double kv_tiles = 0;      // visited per query tile, mean
  double kv_tiles_max = 0;  // of the query tile with most
  double mixed_tiles = 0;   // of the visited ones, those that need mask code, mean
  double visible = 1;       // share of the q_len x k_len scores that the mask lets through
  bool exact = true;
  double mask_nodes = 0, score_nodes = 0;  // of the expressions; 0: there is none
  bool row_is_range = false;  // TileAnalysis's line_is_range: some loops do not evaluate the mask for each score then
  double symbolic_slots = 0;  // instruction slots a score, where the score function is evaluated on symbolic numbers
};
Work work_of(const AttentionSpec& spec, const TileAnalysis& tiles, const Shape& shape, int tile_q, int tile_kv);
Work work_of(const Problem& problem, const Shape& shape, const Schedule& schedule);

// Times in microseconds; `total` is what the others add up to under overlap.
struct Prediction {
  double total = 0;
  double mma = 0, exp = 0, issue = 0, smem = 0;  // compute side, each alone at full rate
  double compute = 0;                            // together, with waves and tail
  double l2 = 0, memory = 0;
  double latency = 0;  // launch, first tile, last store
  double waves = 0;    // blocks over what runs at a time
};
Prediction predict(const Problem& problem, const Schedule& schedule, const Shape& shape, const Work& work);

// By whose predicted times together schedules are ranked for `shape`; the first is `shape`.
std::vector<Shape> ranking_shapes(const AttentionSpec& spec, const Target& target, const Shape& shape);

// Every schedule that honours the pins, for `shape`: the legal ones as they are ranked, then the illegal ones.
std::vector<Candidate> candidates(const Problem& problem, const Schedule& pins, const Shape& shape);

// The teaching figures: what a fused kernel saves, and which limit binds.
struct Roofline {
  double flops = 0;                      // 2 (d_qk + d_v) per visible score
  double fused_bytes = 0;                // Q, visible K and V read once, O written once, and `append_bytes`
  double append_bytes = 0;               // of the launch that writes new rows, where there is one
  double textbook_bytes = 0;             // the same, and S and P written and read between three kernels
  double score_bytes_never_written = 0;  // memory of S and P, fp32 and the dtype
  double intensity = 0;                  // flops per fused byte
  double textbook_intensity = 0;
  double balance_point = 0;  // flops per byte at which the target's arithmetic and memory take equally long
  std::string limit;         // "matrix units", "exponentials", "shared memory", "issue", "memory", "L2", "latency"
  double kv_cache_bytes_per_token = 0;  // K and V of all KV heads
  double kv_cache_bytes_per_sequence = 0;
  double visible = 1;
  bool exact = true;         // false: the mask depends on parameters nobody has given
  double predicted_tbs = 0;  // fused bytes over predicted time
  Prediction predicted;
};
Roofline roofline(const Plan& plan, const Shape& shape);

}  // namespace flashjit

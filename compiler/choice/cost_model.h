// The predicted time of a schedule, and the figures that explain it.
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
std::string print(const Shape& shape);  // For example "b=1,q=2,k=3".

// Returns the shape as kernels see it. With lists of keys each query is a sequence of its own with the keys of a list,
// unless the lists of a few queries are merged (launches/merged_lists.h).
Shape seen_by_kernels(const AttentionSpec& spec, const Shape& shape);

// Returns the shape by which schedules are ranked when nobody gives one: the spec's pins and bounds, otherwise about
// 16k tokens in sequences of 4k.
Shape assumed_shape(const AttentionSpec& spec);

// The work that a mask leaves, from a sample of query tiles of head 0 of sequence 0. Numbers that masks read at run
// time count as 0, and then `exact` is false. With an analysis along queries it counts query tiles for each KV tile
// instead.
struct Work {
  double kv_tiles = 0;      // The mean number that a query tile visits.
  double kv_tiles_max = 0;  // The number that the query tile with most visits.
  double mixed_tiles = 0;   // The mean number of visited tiles that need mask code.
  double visible = 1;       // The share of the q_len x k_len scores that the mask lets through.
  bool exact = true;
  double mask_nodes = 0, score_nodes = 0;  // The nodes of the expressions; 0: there is none.
  // It is TileAnalysis's line_is_range. Some loops then do not evaluate the mask for each score.
  bool row_is_range = false;
  // Instruction slots of a score in loops that evaluate the score function on symbolic numbers.
  double symbolic_slots = 0;
};
Work work_of(const AttentionSpec& spec, const TileAnalysis& tiles, const Shape& shape, int tile_q, int tile_kv);
Work work_of(const Problem& problem, const Shape& shape, const Schedule& schedule);

// Times in microseconds. `total` is the time of all others together, as they overlap.
struct Prediction {
  double total = 0;
  double mma = 0, exp = 0, issue = 0, smem = 0;  // The units that compute, each alone at full rate.
  double compute = 0;                            // These units together, with waves and tail.
  double l2 = 0, memory = 0;
  double latency = 0;  // The launch, the first tile and the last store.
  double waves = 0;    // The number of blocks divided by those that run at a time.
};
Prediction predict(const Problem& problem, const Schedule& schedule, const Shape& shape, const Work& work);

// Returns the shapes whose predicted times together rank schedules for `shape`, which is the first of them.
std::vector<Shape> ranking_shapes(const AttentionSpec& spec, const Target& target, const Shape& shape);

// Returns every schedule that honours the pins, for `shape`: first the legal ones as they are ranked, then the illegal
// ones.
std::vector<Candidate> candidates(const Problem& problem, const Schedule& pins, const Shape& shape);

// Figures that explain what a fused kernel saves, and which limit binds.
struct Roofline {
  double flops = 0;           // They are 2 summed_dims() for each visible score.
  double fused_bytes = 0;     // Q, and visible K and V, are read once, and O is written once; `append_bytes` are added.
  double append_bytes = 0;    // The bytes of the launch that writes new rows, where there is one.
  double textbook_bytes = 0;  // These and the bytes of S and P, written and read between three kernels.
  double score_bytes_never_written = 0;  // The memory of S in fp32 and of P in the dtype.
  double intensity = 0;                  // flops for each fused byte.
  double textbook_intensity = 0;
  double balance_point = 0;  // The flops for each byte at which the target's arithmetic and memory take equally long.
  std::string limit;  // It is "matrix units", "exponentials", "shared memory", "issue", "memory", "L2" or "latency".
  double kv_cache_bytes_per_token = 0;  // K and V of all KV heads.
  double kv_cache_bytes_per_sequence = 0;
  double visible = 1;
  bool exact = true;         // It is false if the mask depends on parameters that nobody has given.
  double predicted_tbs = 0;  // The fused bytes over the predicted time.
  Prediction predicted;
};
Roofline roofline(const Plan& plan, const Shape& shape);

}  // namespace flashjit

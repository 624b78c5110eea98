// Writes every KernelConfig: first from a spec, then from a schedule.
#pragma once

#include <memory>

#include "compiler/analysis/interval.h"
#include "compiler/spec/schedule.h"
#include "compiler/spec/spec.h"
#include "compiler/spec/target.h"
#include "templates/kernel_config.h"

namespace flashjit {

// Facts of a score function for loops that evaluate scores on symbolic numbers.
struct ScoreFacts {
  bool has_tanh = false;
  bool adds = false;          // It adds to `s` a number that depends on positions alone.
  bool loads = false;         // It loads from tensors, at indices that depend on the key.
  float cap = 0, factor = 0;  // If not 0, the score is cap * tanh(factor * q.k).
};

// `any` is true if elements of a mask's tensors decide which tiles have to be visited (analysis/tile_pairs.h), and
// `by_head` if they do for each head by itself.
struct ListFacts {
  bool any = false, by_head = false;
};

// A spec on a target, with everything that does not depend on a schedule. The arguments of its constructor must outlive it.
struct Problem {
  Problem(const AttentionSpec& spec, const Target& target, const TileAnalysis& tiles);

  const AttentionSpec& spec;
  const Target& target;
  const TileAnalysis& tiles;  // The tiles of spec.mask.
  // backward: the tiles of spec.mask along the queries; otherwise none.
  std::shared_ptr<const TileAnalysis> query_tiles;
  ScoreFacts score;
  ListFacts lists;
  KernelConfig config;   // The part that no schedule changes.
  std::int64_t queries;  // The queries of a sequence: as many as the spec allows, or as are expected.
};

// Returns the dtype of P where it is multiplied by V, which limits the accuracy of a kernel. Products of 8 bits take
// e4m3, which has more bits below 448 than e5m2. Where Q of 8 bits is widened, P has 16 bits.
Dtype weights_of(const AttentionSpec& spec, const KernelConfig& config);

// `schedule` has a family and its tiles set. Fields that it does not set stay at their defaults.
KernelConfig config_of(const Problem& problem, const Schedule& schedule);

}  // namespace flashjit

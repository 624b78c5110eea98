// The one writer of KernelConfig: what a spec says, and what a schedule adds.
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
  bool adds = false;          // to `s` what depends on positions alone
  bool loads = false;         // from tensors, at indices that depend on the key
  float cap = 0, factor = 0;  // not 0: the score is cap * tanh(factor * q.k)
};

// Does what tensors of a mask hold decide which tiles have to be visited (analysis/tile_pairs.h), and for each head by itself?
struct ListFacts {
  bool any = false, by_head = false;
};

// A spec on a target, with everything that does not depend on a schedule. The arguments of its constructor must outlive it.
struct Problem {
  Problem(const AttentionSpec& spec, const Target& target, const TileAnalysis& tiles);

  const AttentionSpec& spec;
  const Target& target;
  const TileAnalysis& tiles;                        // of spec.mask
  std::shared_ptr<const TileAnalysis> query_tiles;  // of spec.mask along the queries, for backward; otherwise none
  ScoreFacts score;
  ListFacts lists;
  KernelConfig config;   // that of the problem
  std::int64_t queries;  // of a sequence: as many as the spec allows, or are expected
};

// The dtype of P where it is multiplied with V: what limits the accuracy of a kernel. Products of 8 bits take e4m3, which
// has more bits below 448 than e5m2; where Q of 8 bits is widened, P has 16.
Dtype weights_of(const AttentionSpec& spec, const KernelConfig& config);

// `schedule` has a family and its tiles set; what else is not set stays at its default.
KernelConfig config_of(const Problem& problem, const Schedule& schedule);

}  // namespace flashjit

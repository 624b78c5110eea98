// The schedules from which a tuning chooses: those of the compiler, in the order of its cost model, and the ones among
// them that are measured.
#pragma once

#include <string>
#include <vector>

#include "compiler/choice/cost_model.h"
#include "compiler/plan.h"

namespace flashjit {

struct CutReason {
  std::string why;  // Numbers are left out, so that reasons that differ in numbers alone are counted together.
  int count = 0;
};

struct SearchSpace {
  int size = 0;                      // The number of all schedules that were looked at.
  std::vector<Candidate> schedules;  // Legal schedules by predicted time, of the numerics class that the spec pins.
  std::vector<CutReason> cut;        // The reasons against the other schedules, most frequent first.
};

// `untuned` is the schedule without tuning, whose numerics a pinned class keeps. It is in the space, even if the
// compiler does not enumerate it.
SearchSpace space_of(const AttentionSpec& spec, const Target& target, const Schedule& pins, const TileAnalysis& tiles,
                     const Shape& shape, const Schedule& untuned);

// Returns the legal schedules that differ from `from` in one field, by predicted time: choices that the enumeration
// leaves to rules.
std::vector<Candidate> neighbours(const AttentionSpec& spec, const Target& target, const Schedule& pins,
                                  const TileAnalysis& tiles, const Shape& shape, const Schedule& from);

// Returns indices into `schedules` of the first `count` in order, with at most two of a tile shape, so that the list
// does not hold one idea in many forms. Schedules in `taken` count as tried and are left out.
std::vector<std::size_t> shortlist(const std::vector<Candidate>& schedules, std::size_t count,
                                   const std::vector<Schedule>& taken);

}  // namespace flashjit

// The schedules a tuning chooses from: those of the compiler, in the order of its cost model, and which of them are
// measured.
#pragma once

#include <string>
#include <vector>

#include "compiler/choice/cost_model.h"
#include "compiler/plan.h"

namespace flashjit {

struct CutReason {
  std::string why;  // with the numbers left out, so that alike ones are counted together
  int count = 0;
};

struct SearchSpace {
  int size = 0;                      // all that was looked at
  std::vector<Candidate> schedules;  // legal ones by predicted time, of the numerics class that the spec pins
  std::vector<CutReason> cut;        // the others, most frequent first
};

// `untuned`: the schedule without tuning, whose numerics a pinned class keeps. It is in the space, whatever the
// enumeration says.
SearchSpace space_of(const AttentionSpec& spec, const Target& target, const Schedule& pins, const TileAnalysis& tiles,
                     const Shape& shape, const Schedule& untuned);

// The schedules that differ from `from` in one field and are legal, by predicted time: choices the enumeration leaves
// to rules.
std::vector<Candidate> neighbours(const AttentionSpec& spec, const Target& target, const Schedule& pins,
                                  const TileAnalysis& tiles, const Shape& shape, const Schedule& from);

// Returns indices into `schedules` of the first `count` in order, with at most two of a tile shape, so that the list
// does not hold one idea in many forms. Schedules in `taken` count as tried and are left out.
std::vector<std::size_t> shortlist(const std::vector<Candidate>& schedules, std::size_t count,
                                   const std::vector<Schedule>& taken);

}  // namespace flashjit

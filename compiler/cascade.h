// This file says how GPUs compute a spec with `shared_prefix` whose shared keys are read once: by three specs that do not
// have it, whose kernels are launched one after the other. Keys that all sequences share are read once, for the queries of
// all of them.
//
//   own      each sequence from the end of its shared keys on; it appends, and rotates queries for both
//   prefix   a batch of pieces: piece i of the shared keys for all queries, as if they were of one sequence
//   merge    of the pieces, and of what is each one's own
//
// Whether a sequence shares anything follows from its length, on the device: if it has that many keys before its
// queries, and sequence 0, whose pages are read, has as well. Others read all their keys by themselves, and the merge
// passes over the pieces.
#pragma once

#include "compiler/spec/schedule.h"
#include "compiler/spec/fields/shared_prefix.h"
#include "compiler/spec/spec.h"
#include "compiler/spec/target.h"

namespace flashjit {

struct Cascade {
  struct Component {
    AttentionSpec spec;
    Schedule pins;
  };
  Component prefix, own, merge;
};

// `pins`: of both attentions.
Result<Cascade> cascade_of(const AttentionSpec& spec, const Target& target, const Schedule& pins = {});
// Is a spec computed like this on the target?
inline bool is_cascade(const AttentionSpec& spec, const Target& target) {
  return target.gpu && attends(spec) && spec.shared_prefix && why_read_by_each(spec).empty();
}

inline constexpr int kMostPieces = 32;
// Into which the prefix is cut for so many queries of all sequences together, so that all SMs have some.
int pieces_of(const AttentionSpec& spec, const Target& target, std::int64_t queries);

}  // namespace flashjit

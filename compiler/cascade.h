// On GPUs a spec with `shared_prefix` whose shared keys are read once is computed by three specs that do not have it.
// Their kernels are launched one after the other. Keys that all sequences share are read once, for the queries of all
// of them.
//
// own      attends of each sequence to the keys behind its shared ones; it appends, and rotates queries for both
// prefix   attends to a batch of pieces: piece i of the shared keys for all queries, as if of one sequence
// merge    puts the pieces and the result of each sequence's own keys together
//
// The length of a sequence decides on the device whether it shares anything: it does if it has that many keys before
// its queries, and if sequence 0, whose pages are read, has them as well. Other sequences read all their keys by
// themselves, and the merge passes over the pieces.
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

// `pins` are for both attentions.
Result<Cascade> cascade_of(const AttentionSpec& spec, const Target& target, const Schedule& pins = {});
// Returns true if a spec is computed by a cascade on the target.
inline bool is_cascade(const AttentionSpec& spec, const Target& target) {
  return target.gpu && attends(spec) && spec.shared_prefix && why_read_by_each(spec).empty();
}

inline constexpr int kMostPieces = 32;
// Returns the number of pieces into which the prefix is cut for `queries` of all sequences together, so that all SMs
// have some.
int pieces_of(const AttentionSpec& spec, const Target& target, std::int64_t queries);

}  // namespace flashjit

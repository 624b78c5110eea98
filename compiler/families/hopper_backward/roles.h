// The roles of the backward loop as bodies of statements.
#pragma once

#include "compiler/program/edit.h"
#include "compiler/program/passes.h"
#include "compiler/program/vocabulary.h"

namespace flashjit {

extern const Vocabulary kHopperBackwardVocabulary;

// The facts of a kernel that decide which statements it has.
struct BackwardChoices {
  bool adds_dq, ordered;  // dQ is added up in the loop, and in order
  bool drops,
      draws_first;  // weights are drawn before the products of a step, where registers are few; else beside them
  bool signs_tell;  // P bears in its sign what is dropped
  bool apart;       // scores are not relative to the LSE when they come
  bool inputs;      // what the score reads at every query and key is copied
  bool sums, sums_at_once;  // there are gradients of parameters, made when dP is there and the score is made once more
  bool gradient_tiles, keeps;  // some of them of tensors that are read in tiles, whose dS may be kept
  bool cuts_items, swaps;      // items may share queries; K of the next item comes to where V is
  bool counts, zeroes;         // what is done is told to others; the loop writes zeros where it visits nothing
};
Result<BackwardChoices> backward_choices(const PassContext& context);

// Blocks begin with these: those of the launch over tiles of keys, and those of the one that makes dQ.
Result<Statement> set_up_keys(Program& program, const KernelConfig& config, const BackwardChoices& choices);
Result<Statement> set_up_queries(Program& program, const KernelConfig& config);

// The buffers are there. Each adds a role, or what a block begins with.
Result<void> add_backward_producer(Program& program, const BackwardChoices& choices);
Result<void> add_backward_consumer(Program& program, const PassContext& context, const BackwardChoices& choices);
Result<void> add_backward_entry(Program& program, const PassContext& context, const BackwardChoices& choices);
// All roles of blocks whose warpgroups have roles of their own, and the entry.
Result<void> add_backward_roles(Program& program, const PassContext& context, const BackwardChoices& choices);
// The launch that makes dQ, with its roles.
Result<Statement> queries_launch(Program& program, const KernelConfig& config);

}  // namespace flashjit

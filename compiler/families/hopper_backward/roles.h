// The roles of the backward loop as bodies of statements.
#pragma once

#include "compiler/program/edit.h"
#include "compiler/program/passes.h"
#include "compiler/program/vocabulary.h"

namespace flashjit {

extern const Vocabulary kHopperBackwardVocabulary;

// The facts of a kernel that decide which statements it has.
struct BackwardChoices {
  bool adds_dq, ordered;  // The loop adds dQ up, and does so in order.
  bool drops,
      draws_first;  // Weights are drawn before the products of a step where registers are few, else beside them.
  bool signs_tell;  // P marks dropped weights in its sign.
  bool apart;       // Products for scores do not contain -LSE.
  bool inputs;      // Tensors that the score reads at every query and key are copied.
  // The kernel makes gradients of parameters, and does so when dP is there and the score is made once more.
  bool sums, sums_at_once;
  bool gradient_tiles, keeps;  // Some gradients are of tensors that are read in tiles, whose dS may be kept.
  bool cuts_items, swaps;      // Items may share queries; K of the next item takes the place of V.
  bool counts, zeroes;         // The loop tells other launches what is done; it writes zeros where it visits nothing.
};
Result<BackwardChoices> backward_choices(const PassContext& context);

// Blocks begin with these statements: those of the launch over tiles of keys, and those of the launch that makes dQ.
Result<Statement> set_up_keys(Program& program, const KernelConfig& config, const BackwardChoices& choices);
Result<Statement> set_up_queries(Program& program, const KernelConfig& config);

// The next functions need all buffers. Each adds a role, or the statements with which a block begins.
Result<void> add_backward_producer(Program& program, const BackwardChoices& choices);
Result<void> add_backward_consumer(Program& program, const PassContext& context, const BackwardChoices& choices);
Result<void> add_backward_entry(Program& program, const PassContext& context, const BackwardChoices& choices);
// Adds all roles of blocks whose warpgroups have roles of their own, and the entry.
Result<void> add_backward_roles(Program& program, const PassContext& context, const BackwardChoices& choices);
// Returns the launch that makes dQ, with its roles.
Result<Statement> queries_launch(Program& program, const KernelConfig& config);

}  // namespace flashjit

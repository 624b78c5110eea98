// The roles of the mla loop as bodies of statements.
#pragma once

#include "compiler/program/edit.h"
#include "compiler/program/passes.h"
#include "compiler/program/vocabulary.h"

namespace flashjit {

extern const Vocabulary kMlaVocabulary;

// Each of these adds roles, or what a block begins with; all buffers must exist. `visited` and `masked` tell how the
// textbook's loop goes along keys, and which keys it hides.
Result<void> add_mla_copies(Program& program, const KernelConfig& config);
Result<void> add_mla_consumers(Program& program, const KernelConfig& config, const Attributes& visited,
                               const Attributes& masked);
// Spreads P V of 8 bits over registers of its own, from which O takes it.
Result<Program> add_up_mla_values(Program program, const PassContext& context);
void add_mla_entry(Program& program, const KernelConfig& config);

}  // namespace flashjit

// The roles of the mla loop as bodies of statements.
#pragma once

#include "compiler/program/edit.h"
#include "compiler/program/passes.h"
#include "compiler/program/vocabulary.h"

namespace flashjit {

extern const Vocabulary kMlaVocabulary;

// The buffers are there. Each adds its roles, or what a block begins with. `visited`, `masked`: how the textbook's loop goes
// along keys, and which it hides.
Result<void> add_mla_copies(Program& program, const KernelConfig& config);
Result<void> add_mla_consumers(Program& program, const KernelConfig& config, const Attributes& visited,
                               const Attributes& masked);
// P V of 8 bits is spread over registers of its own, from which O takes it.
Result<Program> add_up_mla_values(Program program, const PassContext& context);
void add_mla_entry(Program& program, const KernelConfig& config);

}  // namespace flashjit

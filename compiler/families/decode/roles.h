// The decode loop as bodies of statements: the work of each warp on its tiles, and of a block on its segments.
#pragma once

#include "compiler/program/edit.h"
#include "compiler/program/passes.h"
#include "compiler/program/vocabulary.h"

namespace flashjit {

extern const Vocabulary kDecodeVocabulary;

// Adds the loop; all buffers must exist. `visited` and `masked` tell how the textbook's loop goes along keys, and which
// keys it hides.
Result<void> add_decode_loop(Program& program, const KernelConfig& config, const Attributes& visited,
                             const Attributes& masked);
// Adds the entries, which begin and continue the work of blocks of each launch.
void add_decode_entries(Program& program, const KernelConfig& config);

}  // namespace flashjit

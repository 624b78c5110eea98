// The decode loop as bodies of statements: what each warp does with its tiles, and a block with its segments.
#pragma once

#include "compiler/program/edit.h"
#include "compiler/program/passes.h"
#include "compiler/program/vocabulary.h"

namespace flashjit {

extern const Vocabulary kDecodeVocabulary;

// The buffers are there. `visited`, `masked`: how the textbook's loop goes along keys, and which it hides.
Result<void> add_decode_loop(Program& program, const KernelConfig& config, const Attributes& visited,
                             const Attributes& masked);
// The entries: they say how the blocks of each launch go on.
void add_decode_entries(Program& program, const KernelConfig& config);

}  // namespace flashjit

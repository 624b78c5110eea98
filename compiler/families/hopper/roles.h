// The roles of the hopper loop as bodies of statements, and the passes that change them.
#pragma once

#include "compiler/program/passes.h"
#include "compiler/program/vocabulary.h"

namespace flashjit {

extern const Vocabulary kHopperVocabulary;

// Puts the producer, and the transposer if there is one, in place of the program's loop; add_entry() adds what a block
// begins with.
Result<void> add_copies(Program& program, const PassContext& context);
void add_entry(Program& program, const PassContext& context);
// Adds the consumer in its textbook order: references are the maxima of all tiles so far, and O takes in each product
// at once.
Result<void> add_consumer(Program& program, const PassContext& context);

// Each of these passes moves statements or exchanges them for others, and its definition gives the reason.
Result<Program> choose_softmax(Program program, const PassContext& context);
Result<Program> sum_rows(Program program, const PassContext& context);
Result<Program> add_up_tiles(Program program, const PassContext& context);
Result<Program> place_waits(Program program, const PassContext& context);
Result<Program> take_turns(Program program, const PassContext& context);
Result<Program> drop_weights(Program program, const PassContext& context);
Result<Program> vote_on_masks(Program program, const PassContext& context);
Result<Program> find_listed_tiles(Program program, const PassContext& context);

}  // namespace flashjit

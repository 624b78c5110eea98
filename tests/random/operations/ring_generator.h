// Calls as a ring of GPUs makes them: they go on from what others gave, and their rows are a part of a longer sequence.
#pragma once

#include "tests/random/case.h"

namespace flashjit::testing_random {

// Some cases become calls that go on from results that are drawn, if some family of the device goes on.
Case draw_accumulate(Case c, Device device);
// Rows of some cases stand at drawn places, where their tensors say nothing of these.
Case draw_places(Case c);
// A case whose spec has the word already gets what goes with it: earlier results, or places.
Case take_accumulate(Case c);
Case take_places(Case c);

}  // namespace flashjit::testing_random

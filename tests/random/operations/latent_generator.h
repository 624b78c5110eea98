// Caches of latents whose rows are bytes: a drawn case with v_in_k, whose K is rounded to one of their formats.
#pragma once

#include "tests/random/case.h"

namespace flashjit::testing_random {

Case draw_latent_rows(Case c);
// For a row of a table.
Case take_latent_rows(Case c);

}  // namespace flashjit::testing_random

// Head dims, how long sequences are, and what kind of numbers they have.
#pragma once

#include <cstdint>
#include <utility>

#include "tests/random/random.h"
#include "tests/random/spec_generator.h"

namespace flashjit::testing_random {

inline std::int64_t draw_length(Random& random, bool large) {
  if (random.chance(0.04)) return 0;
  if (large && random.chance(0.5)) return random.integer(500, 4000);
  if (random.chance(0.5)) {
    return random.pick<std::int64_t>({1, 2, 7, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 129, 200, 255, 257});
  }
  return random.integer(1, random.chance(0.2) ? 600 : 150);
}

// Of Q and K, and of V.
inline std::pair<int, int> draw_dims(Random& random) {
  const int odd[] = {40, 72, 80, 96, 160, 8, 24, 104, 200, 136};
  const int usual[] = {64, 128, 256, 32, 16, 112, 192};
  if (random.chance(0.1)) return {192, 128};
  const int d = random.chance(0.55) ? odd[random.integer(0, 9)] : usual[random.integer(0, 6)];
  return {d, random.chance(0.15) ? static_cast<int>(8 * random.integer(1, 32)) : d};
}

inline Data draw_data(Random& random) {
  const double kind = random.uniform();
  return kind < 0.78   ? Data::Normal
         : kind < 0.86 ? Data::Sharp
         : kind < 0.90 ? Data::Equal
         : kind < 0.94 ? Data::Huge
         : kind < 0.96 ? Data::Zero
                       : Data::NotFinite;
}

}  // namespace flashjit::testing_random

// How rows of a case turn with their positions.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "compiler/spec/spec.h"
#include "tests/random/case.h"
#include "tests/random/random.h"

namespace flashjit::testing_random {

class RopeGenerator {
 public:
  // Of rows of so many columns.
  void draw(Random& random, int d);
  // For a row of a table.
  void take(const AttentionSpec& spec);

  std::string words() const;  // " rope=half(16)", as a spec has them
  // Tables, if rows turn by them, for so many positions, or a few more, and aligned to so many bytes.
  void lay_out_tables(Random& random, std::map<std::string, CaseTensor>& params, std::int64_t positions,
                      int align) const;

 private:
  Rope rope_ = Rope::none;
  int dims_ = 0, from_ = 0;
  double base_ = 0;
};

}  // namespace flashjit::testing_random

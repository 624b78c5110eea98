// New tokens of a case, and how their rows turn.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "compiler/spec/spec.h"
#include "tests/random/case.h"
#include "tests/random/operations/rope_generator.h"
#include "tests/random/random.h"

namespace flashjit::testing_random {

class AppendGenerator {
 public:
  // A stream of its own: what a seed draws otherwise does not depend on it.
  explicit AppendGenerator(std::uint64_t seed) : random_(seed ^ 0x617070656e64) {}

  // Now and then. `d`: columns of a row of K.
  void draw(int d);
  // For a row of a table.
  void take(const AttentionSpec& spec);

  bool drawn() const { return drawn_; }
  std::string words() const;  // " append rope=half(16)", as a spec has them
  // Without new tokens Q and K turn all the same if they are rounded: `queries` need as many positions, and tables are as
  // aligned as all tensors.
  void lay_out_tables(std::map<std::string, CaseTensor>& params, std::int64_t keys, std::int64_t queries, int align) {
    rope_.lay_out_tables(random_, params, drawn_ ? keys : std::max(keys, queries), drawn_ ? 1 : align);
  }

 private:
  Random random_;
  bool drawn_ = false;
  RopeGenerator rope_;  // also of rows that are not appended
};

}  // namespace flashjit::testing_random

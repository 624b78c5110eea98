#include "tests/random/operations/append_generator.h"

namespace flashjit::testing_random {

void AppendGenerator::draw(int d) {
  drawn_ = random_.chance(0.2);
  if (drawn_ && !random_.chance(0.3)) rope_.draw(random_, d);
}

void AppendGenerator::take(const AttentionSpec& spec) {
  drawn_ = spec.append;
  rope_.take(spec);
}

std::string AppendGenerator::words() const { return drawn_ ? " append" + rope_.words() : std::string(); }

}  // namespace flashjit::testing_random

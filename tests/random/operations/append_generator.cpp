#include "tests/random/operations/append_generator.h"

#include <cmath>

#include "fmt/format.h"

namespace flashjit::testing_random {

void AppendGenerator::draw(int d) {
  drawn_ = random_.chance(0.2);
  if (!drawn_ || random_.chance(0.3)) return;
  rope_ = random_.pick({Rope::half, Rope::interleaved});
  dims_ = random_.chance(0.6) ? d : static_cast<int>(2 * random_.integer(1, d / 2));
  if (random_.chance(0.5)) base_ = random_.pick({10000.0, 500000.0, 1.0, 37.5});
}

void AppendGenerator::take(const AttentionSpec& spec) {
  drawn_ = spec.append, rope_ = spec.rope, dims_ = spec.rope_dims, base_ = spec.rope_base;
}

std::string AppendGenerator::words() const {
  if (!drawn_) return {};
  std::string words = " append";
  if (rope_ != Rope::none) words += fmt::format(" rope={}({})", rope_ == Rope::half ? "half" : "interleaved", dims_);
  if (base_ != 0) words += fmt::format(" rope_base={}", base_);
  return words;
}

void AppendGenerator::lay_out_tables(std::map<std::string, CaseTensor>& params, std::int64_t positions) {
  if (rope_ == Rope::none || base_ != 0) return;
  positions += random_.integer(0, 2);
  const std::int64_t pairs = dims_ / 2;
  // Of any angles: which row is read is what counts.
  std::vector<double> angles;
  for (std::int64_t i = 0; i < positions * pairs; ++i) angles.push_back(random_.uniform() * 7);
  for (const char* name : {"cos", "sin"}) {
    plain(params[name], Dtype::F32, {positions, pairs}, [&](std::int64_t i) {
      const double angle = angles[static_cast<std::size_t>(i)];
      return *name == 'c' ? std::cos(angle) : std::sin(angle);
    });
  }
}

}  // namespace flashjit::testing_random

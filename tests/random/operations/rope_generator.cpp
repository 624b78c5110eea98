#include "tests/random/operations/rope_generator.h"

#include <cmath>
#include <vector>

#include "fmt/format.h"
#include "templates/append/rope.h"

namespace flashjit::testing_random {

void RopeGenerator::draw(Random& random, int d) {
  rope_ = random.pick({Rope::half, Rope::interleaved});
  constexpr int kOfLatents = 64;
  const bool of_latents = d > 256 && random.chance(0.7);
  dims_ = of_latents ? kOfLatents : random.chance(0.6) ? d : static_cast<int>(2 * random.integer(1, d / 2));
  const int last = (d - dims_) / 8;
  if (random.chance(0.6)) from_ = 8 * (of_latents ? last : static_cast<int>(random.integer(0, last)));
  if (random.chance(0.5)) base_ = random.pick({10000.0, 500000.0, 1.0, 37.5});
}

void RopeGenerator::take(const AttentionSpec& spec) {
  rope_ = spec.rope, dims_ = spec.rope_dims, from_ = spec.rope_from, base_ = spec.rope_base;
}

std::string RopeGenerator::words() const {
  if (rope_ == Rope::none) return {};
  std::string words = fmt::format(" rope={}({})", rope_ == Rope::half ? "half" : "interleaved", dims_);
  if (from_ != 0) words += fmt::format(" rope_from={}", from_);
  if (base_ != 0) words += fmt::format(" rope_base={}", base_);
  return words;
}

void RopeGenerator::lay_out_tables(Random& random, std::map<std::string, CaseTensor>& params, std::int64_t positions,
                                   int align) const {
  if (rope_ == Rope::none || base_ != 0) return;
  positions += random.integer(0, 2);
  const std::int64_t pairs = dims_ / 2;
  // Of any angles: which row is read is what counts.
  std::vector<double> angles;
  for (std::int64_t i = 0; i < positions * pairs; ++i) angles.push_back(random.uniform() * 7);
  for (const char* name : {"cos", "sin"}) {
    plain(
        params[name], Dtype::F32, {positions, pairs},
        [&](std::int64_t i) {
          const double angle = angles[static_cast<std::size_t>(i)];
          return *name == 'c' ? std::cos(angle) : std::sin(angle);
        },
        rope_table_bytes(dims_, align));
  }
}

}  // namespace flashjit::testing_random

#include "tests/random/operations/dropout_generator.h"

#include "compiler/spec/spec.h"
#include "fmt/format.h"
#include "tests/random/random.h"

namespace flashjit::testing_random {
namespace {

// Both ways in which a call can give a number.
Case with_numbers(Case c, Random& random) {
  for (const char* name : {"seed", "offset"}) {
    const double number = static_cast<double>(random.integer(-(std::int64_t{1} << 40), std::int64_t{1} << 40));
    if (random.chance(0.5)) c.scalars[name] = number;
    else plain(c.params[name], Dtype::I64, {1}, [&](std::int64_t) { return number; });
  }
  return c;
}

}  // namespace

Case draw_dropout(Case c) {
  Random random(c.seed ^ 0x64726f70);
  if (random.chance(0.85)) return c;
  const std::string text = c.spec + fmt::format(" dropout={}", random.pick({0.1, 0.1, 0.25, 0.5, 0.004, 0.95}));
  const auto spec = parse_spec(text);
  if (!spec || !check_supported(*spec)) return c;
  c.spec = text;
  return with_numbers(std::move(c), random);
}

Case take_dropout(Case c) {
  Random random(c.seed ^ 0x64726f70);
  return drops(*parse_spec(c.spec)) ? with_numbers(std::move(c), random) : c;
}

}  // namespace flashjit::testing_random

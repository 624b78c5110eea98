#include "tests/random/schedule_generator.h"

#include <span>
#include <vector>

#include "fmt/format.h"
#include "runtime/compile/compile.h"
#include "tests/random/random.h"

namespace flashjit::testing_random {
namespace {

struct Field {
  std::string_view name;
  std::vector<std::string_view> values;
};

// clang-format off
const Field kHopper[] = {
    {"warpgroups", {"1", "2", "3"}},
    {"tile_kv", {"16", "32", "48", "64", "80", "96", "112", "128", "144", "160", "176", "192", "224", "256"}},
    {"stages", {"1", "2", "3", "4"}},
    {"q_stages", {"1", "2"}},
    {"overlap", {"none", "qk_pv"}},
    {"exclusive", {"none", "issue", "softmax"}},
    {"reference", {"tile", "previous", "first"}},
    {"exp_fma", {"0", "1", "2", "3", "4"}},
    {"row_sum", {"adds", "matrix"}},
    {"grid", {"tiles", "persistent"}},
    {"cluster", {"1", "2"}},
    {"heads", {"single", "packed"}},
    {"order", {"natural", "longest_first"}},
};
const Field kSync[] = {
    {"warps", {"4", "8"}},
    {"tile_kv", {"16", "32", "48", "64", "96", "128"}},
    {"stages", {"1", "2", "3"}},
    {"q_in", {"shared", "registers"}},
    {"blocks_per_sm", {"1", "2"}},
    {"order", {"natural", "longest_first"}},
};
// clang-format on

// A few fields; the cost model chooses the others.
std::string draw_pins(Random& random, bool hopper) {
  constexpr double kPinned = 0.3;
  std::string pins = hopper ? "family=hopper" : "family=sync";
  for (const Field& field : hopper ? std::span<const Field>(kHopper) : std::span<const Field>(kSync)) {
    if (!random.chance(kPinned)) continue;
    const auto value = random.integer(0, static_cast<std::int64_t>(field.values.size()) - 1);
    pins += fmt::format(",{}={}", field.name, field.values[static_cast<std::size_t>(value)]);
  }
  return pins;
}

}  // namespace

bool can_pin(std::string_view spec, std::string_view target, std::string_view pins) {
  return static_cast<bool>(plan_spec(spec, target, pins));
}

std::string draw_schedule(std::uint64_t seed, std::string_view spec, std::string_view target) {
  constexpr int kAttempts = 40;
  Random random(seed ^ 0x5c4ed01e);  // apart from the draws that made the problem
  if (random.chance(0.15)) return {};
  const bool hopper = random.chance(0.8) && can_pin(spec, target, "family=hopper");
  for (int i = 0; i < kAttempts; ++i) {
    const std::string pins = draw_pins(random, hopper);
    if (can_pin(spec, target, pins)) return pins;
  }
  return {};
}

}  // namespace flashjit::testing_random

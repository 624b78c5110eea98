#include "tests/random/schedule_generator.h"

#include <algorithm>
#include <span>
#include <vector>

#include "fmt/format.h"
#include "runtime/compile/request.h"
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
    {"exclusive", {"none", "issue"}},
    {"reference", {"tile", "first"}},
    {"row_sum", {"adds", "matrix"}},
    {"grid", {"tiles", "persistent"}},
    {"head_tiles", {"single", "grouped"}},
    {"tiles", {"range", "list"}},
    {"transpose", {"loop", "launch"}},
    {"keys", {"whole", "parts"}},
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

const Field kDecode[] = {
    {"tile_q", {"8", "16"}},
    {"tile_kv", {"16", "32"}},
    {"warps", {"1", "2", "4", "8"}},
    {"stages", {"1", "2", "3", "4"}},
    {"blocks_per_sm", {"1", "2", "3"}},
    {"copies", {"rows", "boxes"}},
};
const Field kHopperBackward[] = {
    {"tile_q", {"64", "80", "96", "128"}},
    {"tile_kv", {"64", "80", "96", "128"}},
    {"dq", {"atomics", "ordered", "launch"}},
};
const Field kSyncBackward[] = {
    {"tile_q", {"16", "32", "64", "128"}},
    {"tile_kv", {"32", "64", "128", "256"}},
    {"warps", {"2", "4", "8"}},
    {"stages", {"1", "2"}},
    {"dq", {"atomics", "launch"}},
    {"order", {"natural", "longest_first"}},
};
// clang-format on

struct FamilyFields {
  std::string_view pin;
  std::span<const Field> fields;
  double share;  // of the cases in which it comes into question
};
// The families of an operation: a case gets the first that is drawn and takes its spec. Where none does, nothing is pinned.
const FamilyFields kForward[] = {{"family=decode", kDecode, 0.15},
                                 {"family=sync_narrow", kSync, 0.2},
                                 {"family=hopper", kHopper, 0.8},
                                 {"family=sync", kSync, 1}};
const FamilyFields kBackward[] = {{"family=naive_backward", {}, 0.1},
                                  {"family=hopper_backward", kHopperBackward, 0.6},
                                  {"family=sync_backward", kSyncBackward, 1}};

// A few fields; the cost model chooses the others.
std::string draw_pins(Random& random, const FamilyFields& family) {
  constexpr double kPinned = 0.3;
  std::string pins(family.pin);
  for (const Field& field : family.fields) {
    if (!random.chance(kPinned)) continue;
    const auto value = random.integer(0, static_cast<std::int64_t>(field.values.size()) - 1);
    pins += fmt::format(",{}={}", field.name, field.values[static_cast<std::size_t>(value)]);
  }
  return pins;
}

}  // namespace

bool can_pin(std::string_view spec, std::string_view target, std::string_view pins) {
  const auto request = Request::parse(spec, target, pins);
  if (!request) return false;
  const auto kernels = kernels_of(*request);  // what is pinned may be one of several
  return kernels && std::ranges::all_of(*kernels, [](const Request& kernel) {
           const auto plan = plan_spec(kernel);
           return plan || plan.error().kind == ErrorKind::Internal;  // by a fault of the compiler, which is to be seen
         });
}

std::string draw_schedule(std::uint64_t seed, std::string_view spec, std::string_view target) {
  constexpr int kAttempts = 40;
  Random random(seed ^ 0x5c4ed01e);  // apart from the draws that made the problem
  if (random.chance(0.15)) return {};
  const std::span<const FamilyFields> families =
      spec.starts_with("bwd ") ? std::span<const FamilyFields>(kBackward) : kForward;
  const auto family = std::ranges::find_if(
      families, [&](const FamilyFields& f) { return random.chance(f.share) && can_pin(spec, target, f.pin); });
  if (family == families.end()) return {};
  for (int i = 0; i < kAttempts; ++i) {
    const std::string pins = draw_pins(random, *family);
    if (can_pin(spec, target, pins)) return pins;
  }
  return {};
}

}  // namespace flashjit::testing_random

#include "runtime/tuned_choice.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include <fmt/format.h>

#include "compiler/cost_model.h"
#include "runtime/compile.h"

namespace flashjit {
namespace {

std::atomic<Tuner> own_tuner = nullptr;

}  // namespace

void set_tuner(Tuner tuner) { own_tuner = tuner; }
Tuner tuner() { return own_tuner; }

Result<std::string> canonical_hint(std::string_view hint) {
  if (hint.empty()) return std::string();
  FLASHJIT_ASSIGN(shape, parse_shape_hint(hint));
  return print(rounded(shape));
}

TunedChoice choose_schedule(std::string_view text, const Machine& machine, const std::vector<TunedRecord>& records, std::string_view hint) {
  const auto spec = parse_spec(text);
  if (!spec) return {};
  const std::string canonical = print(*spec);
  const bool recorded = std::ranges::any_of(records, [&](const TunedRecord& r) { return r.spec == canonical; });
  if (!recorded && hint.empty()) return {};
  std::optional<Shape> shape;
  if (auto parsed = parse_shape_hint(hint); parsed && !hint.empty()) shape = *parsed;
  const auto row = find_target(machine.target);
  const auto plan = plan_spec(canonical, machine.target, "", row && (*row)->gpu ? machine.units : 0);
  if (!plan) return {};
  if (const TunedRecord* r = find_record(records, *spec, machine, plan->target, shape, plan->schedule)) {
    return {print(r->schedule), fmt::format("schedule of a tuning record: {:.1f} us on {} for {}, {:.1f} us without it ({}, version {})", r->us,
                                            r->machine.device, print(r->shape), r->default_us, r->date, r->version)};
  }
  // The bits of these classes may not depend on what sizes somebody expects.
  if (!shape || spec->numerics != Numerics::Fast) return {};
  const std::vector<Candidate> ranked = candidates(*spec, plan->target, {}, plan->tiles, *shape);
  if (!ranked.front().legal || ranked.front().schedule == plan->schedule) return {};
  return {print(ranked.front().schedule), fmt::format("schedule by the cost model for {}", hint)};
}

}  // namespace flashjit

#include "runtime/tuned/choice.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>

#include <fmt/format.h>

#include "compiler/choice/candidates.h"
#include "compiler/choice/cost_model.h"

namespace flashjit {
namespace {

std::atomic<Tuner> tuner = nullptr;  // null: nothing that could measure is linked in

}  // namespace

void set_tuner(Tuner own) { tuner = own; }

Result<std::string> canonical_hint(std::string_view hint) {
  if (hint.empty()) return std::string();
  FLASHJIT_ASSIGN(shape, parse_shape_hint(hint));
  return print(rounded(shape));
}

std::optional<Schedule> schedule_for(const Plan& plan, const Shape& shape) {
  // The bits of the other classes may not depend on what sizes somebody expects.
  if (plan.spec.numerics != Numerics::Fast) return {};
  const std::vector<Candidate> ranked = candidates(Problem(plan.spec, plan.target, plan.tiles), {}, shape);
  const Candidate& first = ranked.front();
  return first.legal && first.schedule != plan.schedule ? std::optional(first.schedule) : std::nullopt;
}

TunedChoice TunedSchedules::choose(const Request& request, std::string_view hint) {
  const AttentionSpec& spec = request.spec;
  const std::vector<TunedRecord> known = records(request.text);
  if (known.empty() && hint.empty()) return {};
  std::optional<Shape> shape;
  if (auto parsed = parse_shape_hint(hint); parsed && !hint.empty()) shape = *parsed;
  // The model's own choice counts where the class of numerics keeps something of it, and where a hint may change it.
  std::optional<Plan> plan;
  if (spec.numerics != Numerics::Fast || shape) {
    auto planned = plan_spec(request);
    if (!planned) return {};
    plan = std::move(*planned);
  }
  if (const TunedRecord* r =
          find_record(known, spec, machine_, request.target, shape, plan ? plan->schedule : Schedule{})) {
    return {r->schedule,
            fmt::format("schedule of a tuning record: {:.1f} us on {} for {}, {:.1f} us without it ({}, version {})",
                        r->us, r->machine.device, print(r->shape), r->default_us, r->date, r->version)};
  }
  const std::optional<Schedule> hinted = shape ? schedule_for(*plan, *shape) : std::nullopt;
  if (!hinted) return {};
  return {hinted, fmt::format("schedule by the cost model for {}", hint)};
}

Result<void> TunedSchedules::tune(const Request& request, const PrepareOptions& options) {
  const Tuner measure = tuner;
  if (!measure)
    return unsupported("tune: this program was linked without what measures schedules; libflashjit.so has it");
  Shape shape = reference_shape(request.spec);
  if (!options.shape.empty()) {
    FLASHJIT_ASSIGN(hinted, parse_shape_hint(options.shape));
    shape = hinted;
  }
  const bool known = std::ranges::any_of(records(request.text), [&](const TunedRecord& r) {
    return r.machine.target == machine_.target && r.machine.device == machine_.device &&
           r.machine.units == machine_.units && rounded(r.shape) == rounded(shape) &&
           is_legal(request.spec, request.target, r.schedule);
  });
  if (known) return {};
  FLASHJIT_ASSIGN(record,
                  measure({request, shape, options_, settings_, std::chrono::duration<double>(options.tune).count()}));
  if (!record) return {};
  // That it cannot be kept for the next process must not fail what was asked for.
  if (!store_path_.empty()) [[maybe_unused]]
    const auto kept = store_records(store_path_, {*record});
  const std::lock_guard lock(mutex_);
  lines_->append(print(*record)) += '\n';
  return {};
}

std::vector<TunedRecord> TunedSchedules::records(std::string_view spec) {
  const std::lock_guard lock(mutex_);
  if (!lines_) lines_ = stored_record_lines(store_path_);
  return merge({}, parse_tuned_records(*lines_, spec));
}

}  // namespace flashjit

#include "runtime/tuned/choice.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>

#include <fmt/format.h>

#include "compiler/choice/candidates.h"
#include "compiler/choice/cost_model.h"
#include "runtime/tuned/hint.h"

namespace flashjit {
namespace {

std::atomic<Tuner> tuner = nullptr;  // It is null if nothing that could measure is linked in.

}  // namespace

void set_tuner(Tuner own) { tuner = own; }

TunedChoice TunedSchedules::choose(const Request& request, const std::optional<Shape>& hint, bool workspace) {
  const AttentionSpec& spec = request.spec;
  std::vector<TunedRecord> known = records(request.text);
  if (known.empty() && !hint) return {};
  const auto planned = plan_spec(request);
  if (!planned) return {};
  const Plan& plan = *planned;
  const auto find = [&](const std::optional<Shape>& shape) {
    return find_record(known, spec, machine_, request.target, shape, plan.schedule);
  };
  const auto of_record = [](const TunedRecord& r) -> TunedChoice {
    return {r.schedule,
            fmt::format("schedule of a tuning record: {:.1f} us on {} for {}, {:.1f} us without it ({}, version {})",
                        r.us, r.machine.device, print(r.shape), r.default_us, r.date, r.version)};
  };
  std::string passed_over;
  if (!workspace && !needs_workspace(plan, plan.schedule)) {
    const auto needs = [&](const TunedRecord& r) {
      return is_legal(spec, request.target, r.schedule) && needs_workspace(plan, r.schedule);
    };
    if (const TunedRecord* r = find(hint); r && needs(*r)) {
      passed_over = fmt::format("{} of a tuning record needs a workspace: ask for it with the option `workspace`",
                                print(r->schedule));
    }
    std::erase_if(known, needs);
  }
  const auto choice = [&]() -> TunedChoice {
    if (const TunedRecord* r = find(hint)) return of_record(*r);
    if (!hint) return {};
    const TunedRecord* usual = find(std::nullopt);
    HintedChoice hinted = schedule_for(plan, usual ? usual->schedule : plan.schedule, *hint, workspace);
    if (passed_over.empty()) passed_over = std::move(hinted.passed_over);
    if (hinted.schedule) return {hinted.schedule, "schedule by the cost model for " + print(rounded(*hint))};
    return usual ? of_record(*usual) : TunedChoice();
  };
  TunedChoice chosen = choice();
  if (!passed_over.empty()) chosen.note += (chosen.note.empty() ? "" : "; ") + passed_over;
  return chosen;
}

Result<void> TunedSchedules::tune(const Request& request, const PrepareOptions& options) {
  const Tuner measure = tuner;
  if (!measure)
    return unsupported("tune: this program was linked without what measures schedules; libflashjit.so has it");
  Shape shape = assumed_shape(request.spec);
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
  // The tuning has succeeded even if the record cannot be kept for the next process.
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

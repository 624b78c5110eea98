#include "runtime/engine/engine_base.h"

#include <fmt/format.h>

#include "runtime/engine/without_exceptions.h"

namespace flashjit {
namespace {

std::string words_of(const PrepareOptions& options) {
  return options.shape.empty() ? options.schedule : fmt::format("{}\n{}", options.schedule, options.shape);
}

}  // namespace

// Found again is what was asked for with the same words: that is how often prepare is called that has nothing to do.
Result<std::shared_ptr<Kernel>> EngineBase::prepare(std::string_view spec, const PrepareOptions& options) {
  if (auto kernel =
          options.shape.empty() ? prepared_.find(spec, options.schedule) : prepared_.find(spec, words_of(options))) {
    memory_hits_.add();
    return kernel;
  }
  return without_exceptions("prepare", [&] { return make_once(spec, options); });
}

Counters EngineBase::counters() const {
  Counters counters = made();
  counters.memory_hits += memory_hits_.sum();
  counters.waits += waits_;
  return counters;
}

void EngineBase::record(Facts& facts, const Wanted& wanted) const {
  if (!wanted.note.empty()) facts.notes.push_back(wanted.note);
  log_.record(facts, wanted.asked);
}

Result<std::shared_ptr<Kernel>> EngineBase::make_once(std::string_view spec, const PrepareOptions& options) {
  if (options.capturing_stream) FLASHJIT_TRY(check_capture(options.capturing_stream));
  FLASHJIT_ASSIGN(hint, canonical_hint(options.shape));
  const CompileBounds bounds(options.timeout, options.cancel);
  if (auto over = bounds.over()) return std::move(*over);  // called off before it began, wherever the kernel may be
  auto outcome = making_.get(
      fmt::format("{}\n{}\n{}", options.schedule, hint, spec),
      [&]() -> Result<std::shared_ptr<Kernel>> {
        auto kernel = make_chosen(spec, options, hint, bounds);
        log_.log(kernel, spec);
        if (kernel) prepared_.add(spec, words_of(options), *kernel);
        return kernel;
      },
      bounds);
  if (outcome.how == SingleFlight<Kernel>::How::Memory) memory_hits_.add();
  if (outcome.how == SingleFlight<Kernel>::How::Waited) ++waits_;
  return std::move(outcome.value);
}

Result<std::shared_ptr<Kernel>> EngineBase::make_chosen(std::string_view spec, const PrepareOptions& options,
                                                        const std::string& hint, const CompileBounds& bounds) {
  const bool tunes = options.tune > options.tune.zero();
  if (tunes && !options.schedule.empty()) return invalid("tune: the schedule is pinned; leave one of the two out");
  if (tunes && !tuned_)
    return invalid("tune: this engine takes no records (tuned=false, bundles, override_dir or FLASHJIT_JIT=off)");
  FLASHJIT_ASSIGN(request, Request::parse(spec, target_.name, options.schedule, target_.sm_count));
  if (tunes) FLASHJIT_TRY(tuned_->tune(request, options));
  const Schedule asked = request.pins;
  Wanted wanted{std::string(spec), std::move(request), asked, {}};
  if (!options.schedule.empty() || !tuned_) return make(wanted, options, bounds);
  TunedChoice choice = tuned_->choose(wanted.request, hint);
  if (!choice.schedule) return make(wanted, options, bounds);
  wanted.request.pins = *choice.schedule;
  wanted.note = std::move(choice.note);
  auto kernel = make(wanted, options, bounds);
  // What another compiler made of the schedule may be no good with this one.
  const bool spoiled = kernel ? (*kernel)->facts().spill_bytes > 0 : kernel.error().kind == ErrorKind::Unsupported;
  if (!spoiled) return kernel;
  wanted.request.pins = asked;
  wanted.note.clear();
  return make(wanted, options, bounds);
}

}  // namespace flashjit

#include "runtime/engine/engine_base.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/engine/with_stack.h"
#include "runtime/launch/thread_pool.h"
#include "runtime/tuned/hint.h"

namespace flashjit {
namespace {

// Several threads make kernels, so that one that hangs does not keep others from their time.
constexpr int kLeastMakers = 4;

constexpr char kHintIsUnheeded[] =
    "shape: this engine chooses no schedule by sizes (bundles, override_dir, FLASHJIT_JIT=off or tuned=false); pin the "
    "one that flashjit explain --shape names, here and in the manifest";

bool is_plain(const PrepareOptions& options) { return options.shape.empty() && !options.verify && !options.workspace; }

std::string words_of(const PrepareOptions& options) {
  return is_plain(options) ? options.schedule
                           : fmt::format("{}\n{}{}{}", options.schedule, options.shape,
                                         options.verify ? "\nverify" : "", options.workspace ? "\nworkspace" : "");
}

}  // namespace

EngineBase::EngineBase(const Target& target, PrepareLog log)
    : target_(target), log_(std::move(log)), makers_(std::max(kLeastMakers, usable_cores())) {}

// A kernel is found again by the words of the request. This is the way of nearly all calls of prepare that have nothing
// to make.
Result<std::shared_ptr<Kernel>> EngineBase::prepare(std::string_view spec, const PrepareOptions& options) {
  if (auto kernel =
          is_plain(options) ? prepared_.find(spec, options.schedule) : prepared_.find(spec, words_of(options))) {
    memory_hits_.add();
    return kernel;
  }
  return without_exceptions("prepare", [&] {
    // The check is made on the caller's thread, because a stream can be the thread's own.
    const auto may_make = options.capturing_stream ? check_capture(options.capturing_stream) : Result<void>();
    return with_stack("prepare", [&] { return make_once(spec, options, may_make); });
  });
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

Result<std::vector<std::shared_ptr<RunnableKernel>>> EngineBase::make_each(const Wanted& whole,
                                                                           const MakeKernel& make) {
  Wanted one = whole;
  one.request.pins = whole.asked;
  one.note.clear();
  FLASHJIT_ASSIGN(requests, kernels_of(one.request));
  std::vector<std::shared_ptr<RunnableKernel>> kernels;
  for (Request& request : requests) {
    one.asked = request.pins;
    one.request = std::move(request);
    FLASHJIT_ASSIGN(kernel, make(one));
    kernels.push_back(std::move(kernel));
  }
  return kernels;
}

// The identity contains the caller's pins beside those that count: manifests and bundles name kernels by the caller's
// pins.
std::string Wanted::identity() const {
  return fmt::format("{}\n{}\n{}{}", meaning(request.spec), print(asked), print(request.pins),
                     verify ? "\nverify" : "");
}

Result<std::shared_ptr<Kernel>> EngineBase::make_once(std::string_view spec, const PrepareOptions& options,
                                                      const Result<void>& may_make) {
  const CompileBounds bounds(options.timeout, options.cancel);
  // The call was cancelled before it began. That is an error even if the kernel exists.
  if (auto over = bounds.over()) return std::move(*over);
  const auto wanted = decide(spec, options, static_cast<bool>(may_make), bounds);
  if (!wanted) {
    log_.log(wanted.error(), spec);
    return wanted.error();
  }
  auto outcome = may_make ? find_or_make(*wanted, options, bounds)
                          : making_.get(wanted->identity(), [&] { return may_make.error(); }, bounds);
  if (!outcome.value) {
    if (is_callers_own(outcome.value.error().kind)) log_.log(outcome.value, spec);
    return std::move(outcome.value);
  }
  prepared_.add(spec, words_of(options), *outcome.value);
  if (outcome.how == SingleFlight<Kernel>::How::Made) return std::move(outcome.value);
  if (outcome.how == SingleFlight<Kernel>::How::Memory) memory_hits_.add();
  if (outcome.how == SingleFlight<Kernel>::How::Waited) ++waits_;
  // A bundle is asked for the kernel in these words.
  [[maybe_unused]] const auto recorded = log_.record_text(wanted->request.text, wanted->asked);
  return std::move(outcome.value);
}

// A prepare with bounds makes its kernel on another thread, because nothing stops LLVM: the caller leaves in time, and
// the kernel is there for the next caller. NVRTC ends before its next phase if nobody waits any more. The caller's own
// objects, above all its `cancel`, stay on the caller's thread.
SingleFlight<Kernel>::Outcome EngineBase::find_or_make(const Wanted& wanted, const PrepareOptions& options,
                                                       const CompileBounds& bounds) {
  const auto make = [this](const Wanted& what, const PrepareOptions& how) {
    auto kernel = make_chosen(what, how, CompileBounds(how.timeout, how.cancel));
    if (kernel || !is_callers_own(kernel.error().kind)) log_.log(kernel, what.written);
    return kernel;
  };
  if (!bounds.any()) return making_.get(wanted.identity(), [&] { return make(wanted, options); });
  const auto make_alone = [make, wanted, options](const std::atomic<bool>& unwanted) {
    return with_stack("prepare", [&] {
      PrepareOptions own = options;
      own.timeout = own.timeout.zero();
      own.cancel = &unwanted;
      return make(wanted, own);
    });
  };
  const auto start = [this](std::function<void()> job) {
    makers_.add([job = std::move(job)](const std::atomic<bool>&) { job(); });
  };
  return making_.get_within(bounds, wanted.identity(), make_alone, start);
}

// Decides which kernel there is to make, after the measuring that the options may ask for.
Result<Wanted> EngineBase::decide(std::string_view spec, const PrepareOptions& options, bool may_tune,
                                  const CompileBounds& bounds) {
  FLASHJIT_ASSIGN(hint, parse_hint(options.shape));
  FLASHJIT_ASSIGN(sizes, canonical_hint(options.shape));
  const bool tunes = options.tune > options.tune.zero();
  if (tunes && !options.schedule.empty()) return invalid("tune: the schedule is pinned; leave one of the two out");
  if (tunes && !tuned_)
    return invalid(
        "tune: this engine takes no records (tuned=false, bundles, override_dir, jit=false or FLASHJIT_JIT=off); leave "
        "these out, or tune=0");
  FLASHJIT_ASSIGN(request, Request::parse(spec, target_.name, options.schedule, target_.sm_count));
  const Schedule asked = request.pins;
  Wanted wanted{std::string(spec), std::move(request), asked, {}, options.verify};
  if (tunes && may_tune) {
    const auto measure = [&]() -> Result<std::shared_ptr<const Measured>> {
      FLASHJIT_TRY(tuned_->tune(wanted.request, options));
      return std::make_shared<const Measured>();
    };
    FLASHJIT_TRY(measuring_.get(fmt::format("{}\n{}", wanted.request.text, sizes), measure, bounds).value);
  }
  if (!options.schedule.empty()) return wanted;
  if (!tuned_) {
    if (hint) wanted.note = kHintIsUnheeded;
    return wanted;
  }
  TunedChoice choice = tuned_->choose(wanted.request, hint, options.workspace);
  if (choice.schedule) wanted.request.pins = *choice.schedule;
  wanted.note = std::move(choice.note);
  return wanted;
}

Result<std::shared_ptr<Kernel>> EngineBase::make_chosen(Wanted wanted, const PrepareOptions& options,
                                                        const CompileBounds& bounds) {
  auto kernel = make(wanted, options, bounds);
  if (wanted.request.pins == wanted.asked) return kernel;
  // The choice may come from results of another compiler, and with this compiler the same schedule may spill or fail.
  const bool spoiled = kernel ? (*kernel)->facts().spill_bytes > 0 : kernel.error().kind == ErrorKind::Unsupported;
  if (!spoiled) return kernel;
  wanted.request.pins = wanted.asked;
  wanted.note.clear();
  return make(wanted, options, bounds);
}

}  // namespace flashjit

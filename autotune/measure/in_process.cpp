// PrepareOptions::tune: tuning within the process that wants the kernel.
#include <mutex>

#include "autotune/search/tune.h"
#include "runtime/tuned/choice.h"

namespace flashjit {
namespace {

Result<TunedRecord> tune_here(const TuneRequest& request) {
  static std::mutex one_at_a_time;  // two would measure each other
  const std::lock_guard lock(one_at_a_time);
  EngineOptions options = request.engine;
  options.tuned = false;  // the cost model's choice is what is compared with
  options.record.clear();
  const std::string where = !options.target.empty() ? options.target : options.device == Device::Host ? "host" : "gpu";
  FLASHJIT_ASSIGN(session, Session::open(where, options));
  FLASHJIT_ASSIGN(spec, parse_spec(request.spec));
  FLASHJIT_ASSIGN(shape, parse_shape(request.shape, spec));
  TuneOptions how;
  how.seconds = request.seconds;
  FLASHJIT_ASSIGN(outcome, tune(*session, {spec, shape, {}, {}, {}}, how));
  return record_of(outcome, session->machine(), today());
}

[[maybe_unused]] const bool enabled = (enable_tuning_in_prepare(), true);

}  // namespace

void enable_tuning_in_prepare() { set_tuner(&tune_here); }

}  // namespace flashjit

// A prepare may ask this folder to tune or to verify in the process that wants the kernel (PrepareOptions).
#include "autotune/measure/in_process.h"

#include <mutex>
#include <optional>

#include "autotune/measure/verify.h"
#include "autotune/search/tune.h"
#include "runtime/compile/verify.h"
#include "runtime/tuned/choice.h"

namespace flashjit {
namespace {

Result<std::optional<TunedRecord>> tune_here(const TuneOrder& order) {
  static std::mutex one_at_a_time;  // Two tunings at a time would measure each other.
  const std::lock_guard lock(one_at_a_time);
  EngineOptions options = order.engine;
  options.tuned = false;  // Results are compared with the cost model's choice.
  options.record.clear();
  const std::string where = !options.target.empty() ? options.target : options.device == Device::Host ? "host" : "gpu";
  FLASHJIT_ASSIGN(session, Session::open(where, options, order.settings));
  const AttentionSpec& spec = order.request.spec;
  FLASHJIT_ASSIGN(shape, parse_shape(print(order.shape), spec));
  TuneOptions how;
  how.seconds = order.seconds;
  FLASHJIT_ASSIGN(outcome, tune(*session, {spec, shape, {}, {}, {}}, how));
  if (!outcome.decided()) return std::optional<TunedRecord>();
  return std::optional(record_of(outcome, session->machine(), today()));
}

[[maybe_unused]] const bool enabled = (enable_in_prepare(), true);

}  // namespace

void enable_in_prepare() {
  set_tuner(&tune_here);
  set_verifier(&verify_here);
}

}  // namespace flashjit

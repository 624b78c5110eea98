#include "tools/support/progress.h"

#include <fmt/format.h>

namespace flashjit {

void Progress::advance() {
  const std::lock_guard lock(mutex_);
  if (++done_ >= total_) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  line_.show(fmt::format("{} {}/{} ({:.0f} s)", what_, done_, total_, seconds));
}

}  // namespace flashjit

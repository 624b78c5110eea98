#include "runtime/compile/compile_bounds.h"

#include <fmt/format.h>

namespace flashjit {

CompileBounds::CompileBounds(std::chrono::milliseconds timeout, const std::atomic<bool>* cancel)
    : timeout_(timeout), cancel_(cancel) {
  // With a longer timeout the sum could overflow.
  constexpr auto kLongest = std::chrono::milliseconds(std::chrono::hours(24 * 365));
  if (timeout > timeout.zero()) deadline_ = Clock::now() + std::min(timeout, kLongest);
}

Error CompileBounds::error() const {
  if (Clock::now() < deadline_) return {ErrorKind::Cancelled, "cancel: the kernel's compile was called off", {}};
  return {
      ErrorKind::Timeout,
      fmt::format(
          "timeout: the kernel was not ready after {} ms; allow more, or compile it beforehand with flashjit compile",
          timeout_.count()),
      {}};
}

std::chrono::milliseconds CompileBounds::slice(std::chrono::milliseconds most) const {
  if (deadline_ == Clock::time_point::max()) return most;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now());
  return std::clamp(left, std::chrono::milliseconds(0), most);
}

}  // namespace flashjit

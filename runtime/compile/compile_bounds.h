// These bounds limit how long a prepare may take, and let its caller cancel it.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>

#include "compiler/result.h"

namespace flashjit {

class CompileBounds {
 public:
  using Clock = std::chrono::steady_clock;

  CompileBounds() = default;  // An object made in this way has no bounds.
  // The clock starts here. A timeout of 0 is no bound.
  CompileBounds(std::chrono::milliseconds timeout, const std::atomic<bool>* cancel);

  bool any() const { return deadline_ != Clock::time_point::max() || cancel_; }
  bool is_over() const { return (cancel_ && cancel_->load(std::memory_order_relaxed)) || Clock::now() >= deadline_; }
  // Returns the error, Timeout or Cancelled, for a caller whose bounds are over.
  Error error() const;
  std::optional<Error> over() const { return is_over() ? std::optional(error()) : std::nullopt; }
  // Returns how long a caller may sleep before it looks again.
  std::chrono::milliseconds slice(std::chrono::milliseconds most) const;
  // Waits on `condition` until `done()`. Returns false once the time is over.
  template <class Condition, class Lock, class Done>
  bool wait(Condition& condition, Lock& lock, const Done& done) const {
    if (!any()) {
      condition.wait(lock, done);
      return true;
    }
    while (!condition.wait_for(lock, slice(kLook), done)) {
      if (is_over()) return done();
    }
    return true;
  }

  static constexpr std::chrono::milliseconds kLook{20};  // A cancellation is seen after at most this long.

 private:
  Clock::time_point deadline_ = Clock::time_point::max();
  std::chrono::milliseconds timeout_{0};
  const std::atomic<bool>* cancel_ = nullptr;
};

// These errors concern the caller and not the kernel, so nobody else may be given them.
inline bool is_callers_own(ErrorKind kind) { return kind == ErrorKind::Timeout || kind == ErrorKind::Cancelled; }

}  // namespace flashjit

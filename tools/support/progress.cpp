#include "tools/support/progress.h"

#include <unistd.h>

#include <cstdio>

#include <fmt/format.h>

namespace flashjit {

Progress::Progress(std::string what, int total)
    : what_(std::move(what)), total_(total), terminal_(::isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (shown_ && terminal_) std::fputs("\r\x1b[K", stderr);
}

void Progress::show(double seconds) {
  const std::string line = fmt::format("{} {}/{} ({:.0f} s)", what_, done_, total_, seconds);
  std::fputs(terminal_ ? fmt::format("\r\x1b[K{}", line).c_str() : (line + "\n").c_str(), stderr);
  std::fflush(stderr);
  shown_ = true;
}

void Progress::advance() {
  const std::lock_guard lock(mutex_);
  ++done_;
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  if (seconds < next_s_ || done_ >= total_) return;
  show(seconds);
  // A log is not a screen: there a line every few seconds is enough.
  next_s_ = seconds + (terminal_ ? 0.2 : 5.0);
}

}  // namespace flashjit

// Work that takes longer than a second shows a line such as "compiling 3/9 (2 s)".
#pragma once

#include <chrono>
#include <mutex>
#include <string>

#include "tools/support/output.h"

namespace flashjit {

class Progress {
 public:
  Progress(std::string what, int total) : what_(std::move(what)), total_(total) {}
  ~Progress() { line_.clear(); }
  void advance();  // Any thread may call it.

 private:
  using Clock = std::chrono::steady_clock;
  const std::string what_;
  const int total_;
  const Clock::time_point start_ = Clock::now();
  std::mutex mutex_;
  int done_ = 0;
  StatusLine line_;
};

}  // namespace flashjit

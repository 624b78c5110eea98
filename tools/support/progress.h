// One line on stderr for work that takes longer than a second: "compiling 3/9 (2 s)".
#pragma once

#include <chrono>
#include <mutex>
#include <string>

namespace flashjit {

class Progress {
 public:
  Progress(std::string what, int total);
  ~Progress();
  void advance();  // from any thread

 private:
  void show(double seconds);
  using Clock = std::chrono::steady_clock;
  const std::string what_;
  const int total_;
  const bool terminal_;
  const Clock::time_point start_ = Clock::now();
  std::mutex mutex_;
  int done_ = 0;
  double next_s_ = 1;
  bool shown_ = false;
};

}  // namespace flashjit

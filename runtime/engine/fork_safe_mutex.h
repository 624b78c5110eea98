// Locks that a forked child finds free. A child has only the thread that forked, so a lock that another thread held at
// that moment would be held for ever. fork() waits until no thread is within such a lock, and keeps threads out
// meanwhile.
#pragma once

#include <mutex>

namespace flashjit {

// This mutex is for work that takes microseconds, or is done once in a process, because fork() waits for it. A thread
// that has one may take others. Code that waits on a condition for longer does so with std::condition_variable_any.
class ForkSafeMutex {
 public:
  constexpr ForkSafeMutex() = default;
  void lock();
  void unlock();

 private:
  std::mutex mutex_;
};

}  // namespace flashjit

// Threads that do what nobody may be waiting for any more: kernels whose callers have had no more time, and the better
// code of kernels that answer with quick code already.
#pragma once

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/engine/fork_safe_mutex.h"

namespace flashjit {

class Background {
 public:
  // A job sees in `stop` that it should end.
  using Job = std::function<void(const std::atomic<bool>& stop)>;
  // So many threads at most; they start with the jobs.
  explicit Background(int most) : most_(static_cast<std::size_t>(most)) {}
  // Begun in this order. Where no thread can be started the job is done here. A forked child has threads of its own, and
  // none of the jobs that there were.
  void add(Job job);
  // Jobs at work are told to stop and waited for; jobs that have not begun are dropped. In a forked child nobody waits
  // for the threads of its parent.
  ~Background() { end(); }
  void end();

 private:
  struct Crew {
    std::condition_variable_any changed;
    std::deque<Job> jobs;
    std::size_t idle = 0;
    std::atomic<bool> stop = false;
    std::vector<std::jthread> threads;
    const pid_t process = getpid();
  };
  void work(Crew& crew);
  bool start_thread(Crew& crew);
  // Forgotten, as it is the parent's: to destroy what threads wait for would be to wait for them.
  static void forget_if_inherited(std::unique_ptr<Crew>& crew) {
    if (crew && crew->process != getpid()) static_cast<void>(crew.release());
  }

  const std::size_t most_;
  ForkSafeMutex mutex_;
  std::unique_ptr<Crew> crew_;
};

}  // namespace flashjit

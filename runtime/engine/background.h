// Threads for work that nobody may be waiting for any more: kernels whose callers have run out of time, and the better
// code of kernels that already answer with quick code.
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
  // `stop` tells a job that it should end.
  using Job = std::function<void(const std::atomic<bool>& stop)>;
  // At most `most` threads are started, when jobs come.
  explicit Background(int most) : most_(static_cast<std::size_t>(most)) {}
  // Jobs begin in the order in which they are added. Where no thread can be started, the job is done here. A forked
  // child has threads of its own, and none of its parent's jobs.
  void add(Job job);
  // Running jobs are told to stop, and waited for. Jobs that have not begun are dropped. In a forked child nobody waits
  // for the threads of the parent.
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
  // In a forked child the crew is forgotten, because it is the parent's: destroying what threads wait for would mean
  // waiting for them.
  static void forget_if_inherited(std::unique_ptr<Crew>& crew) {
    if (crew && crew->process != getpid()) static_cast<void>(crew.release());
  }

  const std::size_t most_;
  ForkSafeMutex mutex_;
  std::unique_ptr<Crew> crew_;
};

}  // namespace flashjit

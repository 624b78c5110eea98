// One thread that does what nobody waits for: the better code of kernels that answer with quick code already.
#pragma once

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace flashjit {

class Background {
 public:
  // A job sees in `stop` that it should end.
  using Job = std::function<void(const std::atomic<bool>& stop)>;
  // One after the other, in this order: each compile takes some 100 MB. The thread starts with the first job. A forked
  // child, which has no such thread, does the job at once.
  void add(Job job);
  // What is at work is told to stop and waited for; what has not begun is dropped. In a forked child, where the thread
  // is not, nothing is waited for.
  ~Background();

 private:
  struct Worker {
    ~Worker();
    void work();

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Job> jobs;
    std::atomic<bool> stop = false;
    std::jthread thread;
  };
  const pid_t process_ = getpid();
  std::unique_ptr<Worker> worker_ = std::make_unique<Worker>();
};

}  // namespace flashjit

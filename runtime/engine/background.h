// One thread that does what nobody waits for: the better code of kernels that answer with quick code already.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace flashjit {

class Background {
 public:
  // A job sees in `stop` that it should end.
  using Job = std::function<void(const std::atomic<bool>& stop)>;
  // One after the other, in this order: each compile takes some 100 MB. The thread starts with the first job.
  void add(Job job);
  // What is at work is told to stop and waited for; what has not begun is dropped.
  ~Background();

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace flashjit

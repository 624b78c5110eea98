// The threads of host kernels. Work is cut into items, never by thread, so results do not depend on how many there are.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace flashjit {

// How many threads this process may really use: the affinity mask, and the CPU quota of its control group.
int usable_cores();

class ThreadPool {
 public:
  using Body = std::function<void(std::int64_t item, int worker)>;

  explicit ThreadPool(int workers);  // the caller of run() is one of them
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int workers() const { return workers_; }

  // Calls body(item, worker) for item = 0 .. items-1 and returns when all are done; worker < workers(), and no two
  // calls at a time share one. Callers on several threads take turns. In a forked child, which has no threads, the
  // caller does it all.
  void run(std::int64_t items, const Body& body);

 private:
  void work(int worker);
  void take_items(int worker);

  int workers_ = 1;
  const int process_;
  std::mutex turn_;  // one job at a time

  std::mutex mutex_;
  std::condition_variable start_, finished_;
  std::atomic<std::uint64_t> job_ = 0;  // counts jobs; a change starts the threads
  std::atomic<int> busy_ = 0;           // threads that are not done with the job
  std::atomic<bool> stop_ = false;
  const Body* body_ = nullptr;
  std::int64_t items_ = 0;
  std::atomic<std::int64_t> next_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace flashjit

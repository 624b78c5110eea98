// The threads of host kernels. Work is cut into items, never by thread, so results do not depend on how many there are.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace flashjit {

// Says how many threads this process may really use: the affinity mask, and the CPU quota of its control group.
int usable_cores();

class ThreadPool {
 public:
  using Body = std::function<void(std::int64_t item, int worker)>;

  explicit ThreadPool(int workers);  // the caller of run() is one of them
  // In a forked child, too, where it leaves alone what belonged to the threads.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int workers() const { return workers_; }

  // Calls body(item, worker) for item = 0 .. items-1 and returns when all are done; worker < workers(), and no two
  // calls at a time share one. Callers on several threads take turns. In a forked child, which has no threads, the
  // caller does it all. Throws the first exception of a body, when no body is under way any more: items that nobody had
  // begun are left out then.
  void run(std::int64_t items, const Body& body);

 private:
  struct Crew;

  const int process_;
  std::unique_ptr<Crew> crew_;
  int workers_ = 1;
};

}  // namespace flashjit

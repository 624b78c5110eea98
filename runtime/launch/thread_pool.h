// Host kernels run on these threads. Work is cut into items, never by thread, so results do not depend on how many
// threads there are.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace flashjit {

// Returns how many threads this process may really use, by its affinity mask and the CPU quota of its control group.
int usable_cores();

class ThreadPool {
 public:
  using Body = std::function<void(std::int64_t item, int worker)>;

  explicit ThreadPool(int workers);  // The caller of run() is one of the workers.
  // A forked child may destroy it, too; it then leaves alone what belonged to the threads.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int workers() const { return workers_; }

  // Calls body(item, worker) for item = 0 .. items-1 and returns when all are done. `worker` is below workers(), and no
  // two calls at a time have the same. Callers on several threads take turns. In a forked child, which has no threads,
  // the caller does all the work. Throws the first exception of a body when no body runs any more; items that have not
  // begun by then are left out.
  void run(std::int64_t items, const Body& body);

 private:
  struct Crew;

  const int process_;
  std::unique_ptr<Crew> crew_;
  int workers_ = 1;
};

}  // namespace flashjit

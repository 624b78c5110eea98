#include "runtime/launch/thread_pool.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "runtime/launch/library_thread.h"

namespace flashjit {
namespace {

// Waking a sleeping thread takes longer than a small kernel, so threads look out for work this long before they sleep.
constexpr auto kLookOut = std::chrono::microseconds(50);

template <class Condition>
bool look_out_for(const Condition& condition) {
  const auto until = std::chrono::steady_clock::now() + kLookOut;
  do {
    for (int i = 0; i < 64; ++i) {
      if (condition()) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  } while (std::chrono::steady_clock::now() < until);
  return false;
}

// Returns the number of cores that a control group file grants. The file reads "max 100000" or "150000 100000". The
// result is infinite if the file grants all.
double quota_of(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return INFINITY;
  char* end = nullptr;
  const double value = std::strtod(quota.c_str(), &end);
  return end == quota.c_str() || value <= 0 ? INFINITY : value / period;
}

// A group is bound by its own quota and by those of all groups above it. Only groups of version 2 are looked at.
double control_group_cores() {
  std::ifstream membership("/proc/self/cgroup");
  std::string line, path;
  while (std::getline(membership, line)) {
    if (line.starts_with("0::")) path = line.substr(3);
  }
  double cores = quota_of("/sys/fs/cgroup");
  while (path.size() > 1) {
    cores = std::min(cores, quota_of("/sys/fs/cgroup" + path));
    path.erase(path.rfind('/'));
  }
  return cores;
}

int affinity_cores() {
  // The kernel refuses a mask that is smaller than its own, so larger ones are tried.
  for (int size = 1024; size <= 1 << 16; size *= 4) {
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(size));
    if (!set) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(size));
    const int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

// This bit of Crew::inside is set while no job may be joined.
constexpr std::uint32_t kClosed = std::uint32_t{1} << 31;

void alone(std::int64_t items, const ThreadPool::Body& body) {
  for (std::int64_t item = 0; item < items; ++item) body(item, 0);
}

}  // namespace

int usable_cores() {
  const double quota = control_group_cores();
  const int cores = affinity_cores();
  return quota < cores ? std::max(1, static_cast<int>(std::ceil(quota))) : cores;
}

// This structure has the threads, and all that they share with callers of run(). A job waits for the threads that
// joined it, and not for others to wake up: a small job is done before they do.
struct ThreadPool::Crew {
  Crew() = default;
  Crew(const Crew&) = delete;
  ~Crew();
  void work(int worker);
  void take_items(int worker);
  void join(int worker);
  void run(std::int64_t items, const Body& body);

  std::mutex turn;  // It lets one job run at a time.

  std::mutex mutex;
  std::condition_variable start, finished;
  std::atomic<std::uint64_t> job = 0;           // It counts jobs; a change starts the threads.
  std::atomic<std::uint32_t> inside = kClosed;  // number of threads that may be in the job, or look whether it is open
  std::atomic<bool> stopped = false;
  const Body* body = nullptr;
  std::int64_t items = 0;
  std::atomic<std::int64_t> next = 0;
  std::exception_ptr failure;  // the first exception of the job
  std::vector<std::jthread> threads;
};

ThreadPool::Crew::~Crew() {
  {
    const std::lock_guard lock(mutex);
    stopped = true;
  }
  start.notify_all();
}

void ThreadPool::Crew::take_items(int worker) {
  try {
    for (std::int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < items;) (*body)(item, worker);
  } catch (...) {
    next.store(items, std::memory_order_relaxed);
    const std::lock_guard lock(mutex);
    if (!failure) failure = std::current_exception();
  }
}

void ThreadPool::Crew::join(int worker) {
  if (!(inside.fetch_add(1, std::memory_order_acq_rel) & kClosed)) take_items(worker);
  if (inside.fetch_sub(1, std::memory_order_acq_rel) == (kClosed | 1)) {
    const std::lock_guard lock(mutex);
    finished.notify_one();
  }
}

void ThreadPool::Crew::work(int worker) {
  std::uint64_t seen = 0;
  const auto awaited = [&] { return job.load(std::memory_order_acquire) != seen || stopped; };
  for (;;) {
    if (!look_out_for(awaited)) {
      std::unique_lock lock(mutex);
      start.wait(lock, awaited);
    }
    if (stopped) return;
    seen = job.load(std::memory_order_acquire);
    join(worker);
  }
}

void ThreadPool::Crew::run(std::int64_t count, const Body& what) {
  const std::lock_guard one_at_a_time(turn);
  body = &what;
  items = count;
  next.store(0, std::memory_order_relaxed);
  inside.fetch_and(~kClosed, std::memory_order_acq_rel);
  {
    const std::lock_guard lock(mutex);
    job.fetch_add(1, std::memory_order_release);
  }
  start.notify_all();
  take_items(0);
  inside.fetch_or(kClosed, std::memory_order_acq_rel);
  // The body and what it refers to belong to the caller, so no thread may be in it when this returns or throws.
  const auto done = [&] { return inside.load(std::memory_order_acquire) == kClosed; };
  if (!look_out_for(done)) {
    std::unique_lock lock(mutex);
    finished.wait(lock, done);
  }
  if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
}

ThreadPool::ThreadPool(int workers) : process_(getpid()), crew_(std::make_unique<Crew>()) {
  crew_->threads.reserve(static_cast<std::size_t>(std::max(workers - 1, 0)));
  try {
    for (int worker = 1; worker < workers; ++worker)
      crew_->threads.push_back(library_thread([crew = crew_.get(), worker] { crew->work(worker); }));
  } catch (const std::system_error&) {
    // The limit on threads is reached. Fewer threads do the same work.
  }
  workers_ = static_cast<int>(crew_->threads.size()) + 1;
}

ThreadPool::~ThreadPool() {
  // The threads stayed in the parent. Their stacks may belong to new threads by now, and destroying what they wait for
  // would mean waiting for them.
  if (getpid() != process_) static_cast<void>(crew_.release());
}

void ThreadPool::run(std::int64_t items, const Body& body) {
  if (items <= 0) return;
  // After a fork locks may be held by threads that do not exist here.
  if (getpid() != process_) return alone(items, body);
  if (items > 1 && workers_ > 1) return crew_->run(items, body);
  const std::lock_guard turn(crew_->turn);
  alone(items, body);
}

}  // namespace flashjit

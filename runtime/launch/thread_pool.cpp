#include "runtime/launch/thread_pool.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

namespace flashjit {
namespace {

// Waking a sleeping thread takes longer than a small kernel; so threads look out for work this long before they sleep.
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

// Cores that a control group file grants: "max 100000", "150000 100000"; infinite where it grants all.
double quota_of(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return INFINITY;
  char* end = nullptr;
  const double value = std::strtod(quota.c_str(), &end);
  return end == quota.c_str() || value <= 0 ? INFINITY : value / period;
}

// A group is bound by its own quota and by those of all groups above it. Version 2 groups; version 1 has none here.
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

}  // namespace

int usable_cores() {
  const double quota = control_group_cores();
  const int cores = affinity_cores();
  return quota < cores ? std::max(1, static_cast<int>(std::ceil(quota))) : cores;
}

ThreadPool::ThreadPool(int workers) : process_(getpid()) {
  try {
    for (int worker = 1; worker < workers; ++worker) threads_.emplace_back([this, worker] { work(worker); });
  } catch (const std::system_error&) {
    // The limit on threads is reached: fewer do the same work.
  }
  workers_ = static_cast<int>(threads_.size()) + 1;
}

ThreadPool::~ThreadPool() {
  if (getpid() != process_) {
    // The threads stayed in the parent: there is nobody to join.
    for (std::thread& thread : threads_) thread.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::take_items(int worker) {
  for (std::int64_t item; (item = next_.fetch_add(1, std::memory_order_relaxed)) < items_;) (*body_)(item, worker);
}

void ThreadPool::work(int worker) {
  std::uint64_t seen = 0;
  const auto awaited = [&] { return job_.load(std::memory_order_acquire) != seen || stop_; };
  for (;;) {
    if (!look_out_for(awaited)) {
      std::unique_lock lock(mutex_);
      start_.wait(lock, awaited);
    }
    if (stop_) return;
    seen = job_.load(std::memory_order_acquire);
    take_items(worker);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      const std::lock_guard lock(mutex_);
      finished_.notify_one();
    }
  }
}

void ThreadPool::run(std::int64_t items, const Body& body) {
  if (items <= 0) return;
  const bool forked = getpid() != process_;
  // After a fork the lock may be held by a thread that does not exist here.
  std::unique_lock turn(turn_, std::defer_lock);
  if (!forked) turn.lock();
  if (forked || items == 1 || workers_ == 1) {
    for (std::int64_t item = 0; item < items; ++item) body(item, 0);
    return;
  }
  body_ = &body;
  items_ = items;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(workers_ - 1, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    job_.fetch_add(1, std::memory_order_release);
  }
  start_.notify_all();
  take_items(0);
  const auto done = [&] { return busy_.load(std::memory_order_acquire) == 0; };
  if (!look_out_for(done)) {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, done);
  }
}

}  // namespace flashjit

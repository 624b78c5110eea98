#include "runtime/engine/background.h"

#include <utility>

namespace flashjit {

void Background::add(Job job) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  changed_.notify_one();
}

Background::~Background() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void Background::work() {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
    if (stop_) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job(stop_);
  }
}

}  // namespace flashjit

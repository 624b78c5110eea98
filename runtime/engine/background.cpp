#include "runtime/engine/background.h"

#include <utility>

#include "runtime/launch/library_thread.h"

namespace flashjit {

void Background::add(Job job) {
  if (getpid() != process_) {
    const std::atomic<bool> never = false;
    return job(never);
  }
  const std::lock_guard lock(worker_->mutex);
  worker_->jobs.push_back(std::move(job));
  if (!worker_->thread.joinable()) worker_->thread = library_thread([worker = worker_.get()] { worker->work(); });
  worker_->changed.notify_one();
}

Background::~Background() {
  if (getpid() != process_) static_cast<void>(worker_.release());
}

Background::Worker::~Worker() {
  const std::lock_guard lock(mutex);
  stop = true;
  changed.notify_one();
}

void Background::Worker::work() {
  for (;;) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return stop || !jobs.empty(); });
    if (stop) return;
    const Job job = std::move(jobs.front());
    jobs.pop_front();
    lock.unlock();
    job(stop);
  }
}

}  // namespace flashjit

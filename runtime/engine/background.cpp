#include "runtime/engine/background.h"

#include <exception>
#include <utility>

#include "runtime/launch/library_thread.h"

namespace flashjit {

void Background::add(Job job) {
  {
    const std::lock_guard lock(mutex_);
    forget_if_inherited(crew_);
    if (!crew_) crew_ = std::make_unique<Crew>();
    crew_->jobs.push_back(std::move(job));
    if (crew_->idle >= crew_->jobs.size() || crew_->threads.size() == most_ || start_thread(*crew_))
      return crew_->changed.notify_one();
    job = std::move(crew_->jobs.back());
    crew_->jobs.pop_back();
  }
  const std::atomic<bool> never = false;
  job(never);
}

// Returns false if no thread can be started and no other thread would do the job.
bool Background::start_thread(Crew& crew) {
  try {
    crew.threads.reserve(crew.threads.size() + 1);
    crew.threads.push_back(library_thread([this, &crew] { work(crew); }));
    return true;
  } catch (const std::exception&) {  // The limit on threads is reached, or memory is lacking.
    return !crew.threads.empty();
  }
}

void Background::end() {
  std::unique_ptr<Crew> crew;
  {
    const std::lock_guard lock(mutex_);
    forget_if_inherited(crew_);
    crew = std::move(crew_);
    if (!crew) return;
    crew->stop = true;
    crew->changed.notify_all();
  }
  crew->threads.clear();  // This waits for the threads. They share the crew, which is destroyed after them.
}

void Background::work(Crew& crew) {
  for (;;) {
    std::unique_lock lock(mutex_);
    ++crew.idle;
    crew.changed.wait(lock, [&] { return crew.stop || !crew.jobs.empty(); });
    --crew.idle;
    if (crew.stop) return;
    const Job job = std::move(crew.jobs.front());
    crew.jobs.pop_front();
    lock.unlock();
    job(crew.stop);
  }
}

}  // namespace flashjit

#include "autotune/search/sweep.h"

#include <atomic>
#include <future>
#include <mutex>
#include <thread>

#include "runtime/launch/library_thread.h"

namespace flashjit {

void sweep(const std::vector<std::unique_ptr<Session>>& sessions, const std::vector<TuneJob>& jobs,
           const TuneOptions& options, const JobDone& done) {
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> stop = false;
  std::mutex turn;
  const auto work = [&](Session& session) {
    const auto compile = [&](std::size_t i) { return Tuning::compile(session, jobs[i], options); };
    std::future<Result<std::unique_ptr<Tuning>>> ahead;
    for (std::size_t i = next++; i < jobs.size() && !stop;) {
      auto tuning = ahead.valid() ? ahead.get() : compile(i);
      const std::size_t following = next++;
      if (session.on_gpu() && following < jobs.size()) {
        const SignalsHeldOff held_off;
        ahead = std::async(std::launch::async, compile, following);
      }
      Result<TuneOutcome> outcome = tuning ? (*tuning)->measure() : Result<TuneOutcome>(tuning.error());
      const std::lock_guard lock(turn);
      if (!done(i, session, std::move(outcome))) stop = true;
      i = following;
    }
  };
  std::vector<std::jthread> others;
  for (std::size_t s = 1; s < sessions.size(); ++s) others.push_back(library_thread([&, s] { work(*sessions[s]); }));
  work(*sessions.front());
}

}  // namespace flashjit

// Many callers may want the value of a key, and one of them makes it: the first caller makes the value, the others wait
// for it. Different keys do not wait for each other. A failure goes to everybody who waited and is then forgotten, so
// that a later call tries again. But if the maker ran out of its own time or was called off, a caller who waited makes
// the value instead.
#pragma once

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "compiler/result.h"
#include "runtime/compile/compile_bounds.h"
#include "runtime/engine/fork_safe_mutex.h"

namespace flashjit {

template <class T>
class SingleFlight {
 public:
  enum class How { Memory, Waited, Made };
  struct Outcome {
    Result<std::shared_ptr<T>> value;
    How how = How::Made;
  };

  // Returns the value if it is there already, and never waits.
  std::shared_ptr<T> find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto found = slots_.find(key);
    if (found == slots_.end() || !found->second->result || !*found->second->result) return nullptr;
    return **found->second->result;
  }

  // This function is for values that one caller can use and another cannot. A value that is being made stays.
  void forget_unless(const std::string& key, const std::function<bool(const T&)>& is_enough) {
    const std::lock_guard lock(mutex_);
    const auto found = slots_.find(key);
    if (found == slots_.end() || !found->second->result || !*found->second->result) return;
    if (!is_enough(***found->second->result)) slots_.erase(found);
  }

  using Make = std::function<Result<std::shared_ptr<T>>()>;
  // `bounds` limit how long this caller waits here. `make` has to heed them itself.
  Outcome get(const std::string& key, const Make& make, const CompileBounds& bounds = {}) {
    Finisher finisher(*this, key);
    if (auto outcome = find_or_claim(key, bounds, finisher.slot)) return std::move(*outcome);
    finisher.result = make();
    return {*finisher.result, How::Made};
  }

  // This is for a caller whose `bounds` may be over before the value is made. `start` has a thread call the function
  // that it is given, and the caller waits for that as others do. The value is kept even if nobody waits any more.
  // `make` owns all that it uses. Its argument tells it that nobody waits any more, and it may give up then.
  using MakeAlone = std::function<Result<std::shared_ptr<T>>(const std::atomic<bool>& unwanted)>;
  using Start = std::function<void(std::function<void()>)>;
  Outcome get_within(const CompileBounds& bounds, const std::string& key, MakeAlone make, const Start& start) {
    auto finisher = std::make_shared<Finisher>(*this, key);
    if (auto outcome = find_or_claim(key, bounds, finisher->slot)) return std::move(*outcome);
    const std::shared_ptr<Slot> slot = finisher->slot;
    start([finisher, make = std::move(make)] {
      finisher->result = make(finisher->slot->unwanted);
      finisher->finish();
    });
    finisher.reset();  // A job that is dropped is finished, too.
    std::unique_lock lock(mutex_);
    if (!wait(*slot, lock, bounds)) return {bounds.error(), How::Made};
    return {*slot->result, How::Made};
  }

 private:
  struct Slot {
    std::optional<Result<std::shared_ptr<T>>> result;
    int waiting = 1;                     // It counts the caller that has the value made, too.
    std::atomic<bool> unwanted = false;  // All of them have left.
    // In a forked child, destroying what the parent's threads wait for would mean waiting for them.
    ~Slot() {
      if (maker != getpid()) static_cast<void>(done.release());
    }
    std::unique_ptr<std::condition_variable_any> done = std::make_unique<std::condition_variable_any>();
    const pid_t maker = getpid();
  };

  // Wakes the waiters in any case, because an exception of the maker must not leave them waiting for ever.
  struct Finisher {
    Finisher(SingleFlight& flight, const std::string& key) : flight(flight), key(key) {}
    Finisher(const Finisher&) = delete;
    Finisher& operator=(const Finisher&) = delete;
    ~Finisher() { finish(); }
    void finish() {
      if (!slot) return;
      const std::lock_guard lock(flight.mutex_);
      if (slot->result) return;
      if (!result || !*result) flight.slots_.erase(key);
      // The error is neither copied nor longer: there may be no memory for that, and a destructor has nobody to tell.
      if (!result) result = Error{ErrorKind::Internal, "interrupted", {}};
      slot->result = std::move(*result);
      slot->done->notify_all();
    }
    SingleFlight& flight;
    const std::string key;
    std::shared_ptr<Slot> slot;  // null if another caller makes the value
    std::optional<Result<std::shared_ptr<T>>> result;
  };

  // Returns the value that is there or was waited for. If it returns nothing, the caller has to finish `claimed`.
  std::optional<Outcome> find_or_claim(const std::string& key, const CompileBounds& bounds,
                                       std::shared_ptr<Slot>& claimed) {
    for (std::unique_lock lock(mutex_);;) {
      const auto found = slots_.find(key);
      // The child of a process does not have the thread that made the value when it was forked, so nobody would end the
      // wait.
      if (found == slots_.end() || (!found->second->result && found->second->maker != getpid())) {
        auto made = std::make_shared<Slot>();
        slots_.insert_or_assign(key, made);
        claimed = std::move(made);
        return std::nullopt;
      }
      const std::shared_ptr<Slot> slot = found->second;
      if (slot->result) return Outcome{*slot->result, How::Memory};
      ++slot->waiting;
      slot->unwanted = false;
      if (!wait(*slot, lock, bounds)) return Outcome{bounds.error(), How::Waited};
      if (*slot->result || !is_callers_own(slot->result->error().kind)) return Outcome{*slot->result, How::Waited};
    }
  }

  // Returns false if `bounds` are over.
  bool wait(Slot& slot, std::unique_lock<ForkSafeMutex>& lock, const CompileBounds& bounds) {
    const bool done = bounds.wait(*slot.done, lock, [&] { return slot.result.has_value(); });
    if (--slot.waiting == 0) slot.unwanted = true;
    return done;
  }

  ForkSafeMutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<Slot>> slots_;
};

}  // namespace flashjit

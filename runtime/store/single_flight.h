// Many callers, one maker per key: the first caller makes the value, the others wait for it. Different keys do not wait
// for each other. A failure goes to everybody who waited and is then forgotten, so that a later call tries again; but
// if the maker ran out of its own time or was called off, one of those who waited makes the value instead.
#pragma once

#include <unistd.h>

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

  // The value if it is there already; never waits.
  std::shared_ptr<T> find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto found = slots_.find(key);
    if (found == slots_.end() || !found->second->result || !*found->second->result) return nullptr;
    return **found->second->result;
  }

  // For values that one caller can use and another cannot. What is being made stays.
  void forget_unless(const std::string& key, const std::function<bool(const T&)>& is_enough) {
    const std::lock_guard lock(mutex_);
    const auto found = slots_.find(key);
    if (found == slots_.end() || !found->second->result || !*found->second->result) return;
    if (!is_enough(***found->second->result)) slots_.erase(found);
  }

  // `bounds` are those of this caller: of its waiting here; `make` has to heed them itself.
  Outcome get(const std::string& key, const std::function<Result<std::shared_ptr<T>>()>& make,
              const CompileBounds& bounds = {}) {
    std::shared_ptr<Slot> slot;
    for (std::unique_lock lock(mutex_);;) {
      const auto found = slots_.find(key);
      // In a child that was forked while a thread made the value, that thread is not there: nobody would end the wait.
      if (found == slots_.end() || (!found->second->result && found->second->maker != getpid())) {
        slot = std::make_shared<Slot>();
        slots_.insert_or_assign(key, slot);
        break;
      }
      slot = found->second;
      if (slot->result) return {*slot->result, How::Memory};
      if (!bounds.wait(*slot->done, lock, [&] { return slot->result.has_value(); }))
        return {bounds.error(), How::Waited};
      if (*slot->result || !is_callers_own(slot->result->error().kind)) return {*slot->result, How::Waited};
    }
    Finisher finisher{*this, key, *slot};
    finisher.result = make();
    return {*finisher.result, How::Made};
  }

 private:
  struct Slot {
    std::optional<Result<std::shared_ptr<T>>> result;
    // In a forked child, to destroy what the parent's threads wait for would be to wait for them.
    ~Slot() {
      if (maker != getpid()) static_cast<void>(done.release());
    }
    std::unique_ptr<std::condition_variable_any> done = std::make_unique<std::condition_variable_any>();
    const pid_t maker = getpid();
  };

  // Wakes the waiters in any case: an exception of the maker must not leave them waiting for ever.
  struct Finisher {
    ~Finisher() {
      const std::lock_guard lock(flight.mutex_);
      if (!result || !*result) flight.slots_.erase(key);
      // Neither a copy nor a longer message: there may be no memory for them, and a destructor has nobody to tell.
      if (!result) result = Error{ErrorKind::Internal, "interrupted", {}};
      slot.result = std::move(*result);
      slot.done->notify_all();
    }
    SingleFlight& flight;
    const std::string& key;
    Slot& slot;
    std::optional<Result<std::shared_ptr<T>>> result;
  };

  ForkSafeMutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<Slot>> slots_;
};

}  // namespace flashjit

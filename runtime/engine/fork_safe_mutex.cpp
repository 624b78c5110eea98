#include "runtime/engine/fork_safe_mutex.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace flashjit {
namespace {

// The system's read-write lock does not serve here: a child cannot give back what several readers hold.
std::atomic<int> inside = 0;  // Counts threads that are within a lock, or about to be.
std::atomic<int> forks = 0;   // Counts threads that are forking.
thread_local int held = 0;    // Counts the locks of this thread.

template <class Condition>
void wait_while(const Condition& condition) {
  while (condition()) std::this_thread::sleep_for(std::chrono::microseconds(20));
}

void enter() {
  if (held++ > 0) return;  // A fork waits for this thread already.
  while (++inside, forks > 0) {
    --inside;
    wait_while([] { return forks > 0; });
  }
}

void leave() {
  if (--held == 0) --inside;
}

int own() { return held > 0 ? 1 : 0; }

void before_fork() {
  ++forks;
  wait_while([] { return inside > own(); });
}

void in_parent() { --forks; }

void in_child() {
  inside = own();
  forks = 0;
}

[[maybe_unused]] const int registered = pthread_atfork(before_fork, in_parent, in_child);

}  // namespace

void ForkSafeMutex::lock() {
  enter();
  mutex_.lock();
}

void ForkSafeMutex::unlock() {
  mutex_.unlock();
  leave();
}

}  // namespace flashjit

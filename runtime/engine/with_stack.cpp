#include "runtime/engine/with_stack.h"

#include <pthread.h>

#include <cstddef>
#include <cstdint>

#include "runtime/launch/library_thread.h"

namespace flashjit {
namespace {

// The deepest specs take 320 KB, NVRTC and LLVM included.
constexpr std::size_t kEnough = std::size_t{1} << 20, kBytes = 8 * kEnough;

struct Bounds {
  std::uintptr_t low = 0, high = 0;
};

// The bounds are empty if they cannot be found.
Bounds bounds_of_thread() {
  Bounds bounds;
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return bounds;
  void* low = nullptr;
  std::size_t bytes = 0;
  if (pthread_attr_getstack(&attributes, &low, &bytes) == 0) {
    bounds.low = reinterpret_cast<std::uintptr_t>(low);
    bounds.high = bounds.low + bytes;
  }
  pthread_attr_destroy(&attributes);
  return bounds;
}

// Returns true if enough stack is left, or if memory to find its bounds is lacking, which then becomes the error of the
// work itself. Fibers lie beyond the bounds of their thread.
bool is_enough_left() {
  static thread_local Bounds bounds;  // Finding the bounds of a main thread means reading a file, so they are kept.
  if (bounds.high == 0) bounds = bounds_of_thread();
  if (bounds.high == 0) return true;
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  return here > bounds.low && here < bounds.high && here - bounds.low >= kEnough;
}

struct WorkOnStack {
  void (*function)(void*);
  void* of;
};

void* start(void* at) {
  const WorkOnStack& work = *static_cast<const WorkOnStack*>(at);
  work.function(work.of);
  return nullptr;
}

}  // namespace

void run_with_stack(void (*function)(void*), void* of) {
  pthread_attr_t attributes;
  pthread_t thread;
  WorkOnStack work = {function, of};
  if (is_enough_left() || pthread_attr_init(&attributes) != 0) return function(of);
  pthread_attr_setstacksize(&attributes, kBytes);
  bool started = false;
  {
    const SignalsHeldOff held_off;
    started = pthread_create(&thread, &attributes, start, &work) == 0;
  }
  pthread_attr_destroy(&attributes);
  if (!started) return function(of);
  pthread_join(thread, nullptr);
}

}  // namespace flashjit

// Counts this program's calls of malloc and its kin on a thread, those of the libraries included, and lets them fail.
#pragma once

#include <atomic>
#include <cstdint>

#include "tests/sanitized.h"

namespace flashjit::testing {

struct Allocations {
  std::int64_t made = 0;
  std::int64_t fail_at = -1;  // this many more succeed, one fails, and all after it; negative: none fails
};
extern thread_local constinit Allocations allocations;

// On all threads together.
struct AllAllocations {
  std::atomic<std::int64_t> made = 0;
  std::atomic<bool> fail = false;  // every one
};
extern constinit AllAllocations all_allocations;

// Sanitizers have a malloc of their own.
inline constexpr bool kCountsAllocations = FLASHJIT_SANITIZED == 0;

}  // namespace flashjit::testing

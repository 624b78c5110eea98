// Counts this program's calls of malloc and its kin on a thread, those of the libraries included, and lets them fail.
#pragma once

#include <atomic>
#include <cstdint>

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

// Sanitizers have a malloc of their own. GCC says by macros which is there, clang by features.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FLASHJIT_COUNTS_ALLOCATIONS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FLASHJIT_COUNTS_ALLOCATIONS 0
#endif
#endif
#ifndef FLASHJIT_COUNTS_ALLOCATIONS
#define FLASHJIT_COUNTS_ALLOCATIONS 1
#endif
inline constexpr bool kCountsAllocations = FLASHJIT_COUNTS_ALLOCATIONS == 1;

}  // namespace flashjit::testing

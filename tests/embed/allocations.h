// Counts this program's calls of malloc and its kin on a thread, those of the libraries included, and lets one of them fail.
#pragma once

#include <cstdint>

namespace flashjit::testing {

struct Allocations {
  std::int64_t made = 0;
  std::int64_t fail_at = -1;  // this many more succeed, one fails, and all after it; negative: none fails
};
extern thread_local constinit Allocations allocations;

}  // namespace flashjit::testing

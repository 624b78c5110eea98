#include "tests/embed/allocations.h"

#include <cerrno>
#include <cstddef>

namespace flashjit::testing {
thread_local constinit Allocations allocations;
constinit AllAllocations all_allocations;
}  // namespace flashjit::testing

#if !FLASHJIT_SANITIZED
namespace {
bool may_allocate() {
  using flashjit::testing::all_allocations, flashjit::testing::allocations;
  ++allocations.made;
  ++all_allocations.made;
  if (allocations.fail_at < 0 && !all_allocations.fail) return true;
  if (allocations.fail_at > 0) return --allocations.fail_at, true;
  errno = ENOMEM;
  return false;
}
}  // namespace

// What glibc calls its own.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t bytes) { return may_allocate() ? __libc_malloc(bytes) : nullptr; }
void* calloc(std::size_t count, std::size_t bytes) { return may_allocate() ? __libc_calloc(count, bytes) : nullptr; }
void* realloc(void* memory, std::size_t bytes) { return may_allocate() ? __libc_realloc(memory, bytes) : nullptr; }
void* memalign(std::size_t alignment, std::size_t bytes) {
  return may_allocate() ? __libc_memalign(alignment, bytes) : nullptr;
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  *memory = memalign(alignment, bytes);
  return *memory ? 0 : ENOMEM;
}
}
#endif

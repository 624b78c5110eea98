// The memory of one run is kept for the next one, because fresh pages cost more than a small kernel. The runtime uses
// it, too, for kernels that are made of others.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>

#include <sys/mman.h>

#include "compiler/result.h"

namespace flashjit::host {

class Workspace {
 public:
  // Returns zeroed memory, or null if there is none.
  static std::unique_ptr<Workspace> allocate(std::int64_t bytes) {
    constexpr std::int64_t kHugePage = std::int64_t{2} << 20;
    std::unique_ptr<Workspace> workspace(new (std::nothrow) Workspace);
    if (!workspace) return nullptr;
    const std::int64_t whole =
        (std::max<std::int64_t>(bytes, 1) + kHugePage - 1) / kHugePage * kHugePage;  // An empty call asks for 0 bytes.
    void* data =
        mmap(nullptr, static_cast<std::size_t>(whole), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return nullptr;
    // This is advice only. Packed K and V are read over and over, and large pages save TLB misses.
    madvise(data, static_cast<std::size_t>(whole), MADV_HUGEPAGE);
    workspace->data_ = static_cast<char*>(data);
    workspace->bytes_ = whole;
    return workspace;
  }
  ~Workspace() {
    if (data_) munmap(data_, static_cast<std::size_t>(bytes_));
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  char* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  Workspace() = default;
  char* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

// A kernel may run on many threads at once: each run takes a workspace and gives it back. The pool has no lock, because
// a child that is forked while another thread holds one would wait for it for ever.
class WorkspacePool {
 public:
  WorkspacePool() = default;
  WorkspacePool(const WorkspacePool&) = delete;
  ~WorkspacePool() {
    for (std::atomic<Workspace*>& slot : kept_) delete slot.load();
  }

  // Takes a workspace. Pieces of memory that are too small for the present run are freed.
  std::unique_ptr<Workspace> take(std::int64_t bytes) {
    for (std::atomic<Workspace*>& slot : kept_) {
      std::unique_ptr<Workspace> workspace(slot.exchange(nullptr, std::memory_order_acq_rel));
      if (workspace && workspace->bytes() >= bytes) return workspace;
    }
    return Workspace::allocate(bytes);
  }
  void give_back(std::unique_ptr<Workspace> workspace) {
    constexpr std::int64_t kLargestKept = std::int64_t{512} << 20;
    if (workspace->bytes() > kLargestKept) return;
    for (std::atomic<Workspace*>& slot : kept_) {
      Workspace* nothing = nullptr;
      if (!slot.compare_exchange_strong(nothing, workspace.get(), std::memory_order_acq_rel)) continue;
      static_cast<void>(workspace.release());
      return;
    }
  }

 private:
  std::array<std::atomic<Workspace*>, 4> kept_ = {};
};

// Makes elements in a workspace, at an address that suits them. They need no destruction.
template <class T>
std::span<T> make_elements(char* memory, std::int64_t count) {
  static_assert(std::is_trivially_destructible_v<T>);
  T* const first = reinterpret_cast<T*>(memory);
  std::uninitialized_value_construct_n(first, count);
  return {first, static_cast<std::size_t>(count)};
}

// Returns the bytes that `count` elements take if the next piece of the workspace begins at a multiple of 64.
template <class T>
constexpr std::int64_t bytes_of_elements(std::int64_t count) {
  return (count * static_cast<std::int64_t>(sizeof(T)) + 63) / 64 * 64;
}

inline Error out_of_memory(std::int64_t bytes, const char* way_out) {
  return {ErrorKind::Io, "workspace: no memory for " + std::to_string(bytes >> 20) + " MiB; " + way_out, {}};
}

}  // namespace flashjit::host

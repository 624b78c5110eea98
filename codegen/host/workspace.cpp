#include "codegen/host/workspace.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace flashjit::host {
namespace {

constexpr std::int64_t kHugePage = std::int64_t{2} << 20;
constexpr std::size_t kKept = 4;  // workspaces a kernel keeps between runs
constexpr std::int64_t kLargestKept = std::int64_t{512} << 20;

}  // namespace

std::unique_ptr<Workspace> Workspace::allocate(std::int64_t bytes) {
  bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* data =
      mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  // Advice only: packed K and V are read over and over, and large pages save TLB misses.
  madvise(data, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  return std::unique_ptr<Workspace>(new Workspace(static_cast<char*>(data), bytes));
}

Workspace::~Workspace() { munmap(data_, static_cast<std::size_t>(bytes_)); }

std::unique_ptr<Workspace> WorkspacePool::take(std::int64_t bytes) {
  {
    std::lock_guard lock(mutex_);
    const auto found = std::find_if(free_.begin(), free_.end(), [&](const auto& w) { return w->bytes() >= bytes; });
    if (found != free_.end()) {
      auto workspace = std::move(*found);
      free_.erase(found);
      return workspace;
    }
    if (!free_.empty()) free_.pop_back();  // too small for what is run now
  }
  return Workspace::allocate(bytes);
}

void WorkspacePool::give_back(std::unique_ptr<Workspace> workspace) {
  if (workspace->bytes() > kLargestKept) return;
  std::lock_guard lock(mutex_);
  if (free_.size() < kKept) free_.push_back(std::move(workspace));
}

Error out_of_memory(std::int64_t bytes, const char* way_out) {
  return {ErrorKind::Io, "workspace: no memory for " + std::to_string(bytes >> 20) + " MiB; " + way_out, {}};
}

}  // namespace flashjit::host

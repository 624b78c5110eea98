// Memory of one run, kept for the next one: fresh pages cost more than a small kernel.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "compiler/result.h"

namespace flashjit::host {

class Workspace {
 public:
  static std::unique_ptr<Workspace> allocate(std::int64_t bytes);  // zeroed; null when there is no memory
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  char* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  Workspace(char* data, std::int64_t bytes) : data_(data), bytes_(bytes) {}
  char* data_;
  std::int64_t bytes_;
};

// A kernel may run on many threads at once: each run takes a workspace and gives it back.
class WorkspacePool {
 public:
  std::unique_ptr<Workspace> take(std::int64_t bytes);
  void give_back(std::unique_ptr<Workspace> workspace);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> free_;
};

Error out_of_memory(std::int64_t bytes, const char* way_out);

}  // namespace flashjit::host

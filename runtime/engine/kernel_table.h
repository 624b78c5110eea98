// The prepared kernels of an engine, by the texts of their requests. The table makes the second prepare of a spec
// cheap. A text that is missing here only has to be parsed again, so the memory of texts can be bounded.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "flashjit/flashjit.hpp"
#include "runtime/engine/fork_safe_mutex.h"

namespace flashjit {

// Looking up takes no lock, allocates nothing, and touches no memory that another processor writes: the entries of a
// bucket are a list that only grows, and lives as long as the table.
class KernelTable {
 public:
  KernelTable();
  ~KernelTable();
  KernelTable(const KernelTable&) = delete;
  KernelTable& operator=(const KernelTable&) = delete;

  // Returns null if the table has no such kernel.
  std::shared_ptr<Kernel> find(std::string_view spec, std::string_view schedule) const;
  // Each kernel keeps the texts of its first add. All further texts in the table are bounded together: texts beyond the
  // bound are not remembered, and texts that are there already stay.
  static constexpr std::size_t kMostOthers = 4096, kMostOtherBytes = std::size_t{1} << 20;
  void add(std::string_view spec, std::string_view schedule, const std::shared_ptr<Kernel>& kernel);

 private:
  static constexpr std::size_t kBuckets = 512;
  struct Owners;
  struct Entry;

  std::array<std::atomic<const Entry*>, kBuckets> buckets_ = {};
  ForkSafeMutex adding_;
  std::unordered_map<const Kernel*, std::unique_ptr<const Owners>> owners_;
  std::size_t others_ = 0, other_bytes_ = 0;
};

}  // namespace flashjit

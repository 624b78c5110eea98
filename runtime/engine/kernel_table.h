// The prepared kernels of an engine, by the texts they were asked for with: what makes the second prepare of a spec
// cheap.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "flashjit/flashjit.hpp"

namespace flashjit {

// Looking up takes no lock, allocates nothing, and touches no memory that another processor writes: the entries of a
// bucket are a list that only grows, and lives as long as the table.
class KernelTable {
 public:
  KernelTable() = default;
  ~KernelTable();
  KernelTable(const KernelTable&) = delete;
  KernelTable& operator=(const KernelTable&) = delete;

  // Null: not there.
  std::shared_ptr<Kernel> find(std::string_view spec, std::string_view schedule) const;
  // What is there already stays.
  void add(std::string_view spec, std::string_view schedule, const std::shared_ptr<Kernel>& kernel);

 private:
  static constexpr std::size_t kBuckets = 512;
  struct Entry;

  std::array<std::atomic<const Entry*>, kBuckets> buckets_ = {};
  std::mutex adding_;
};

}  // namespace flashjit

// This file says how many blocks a launch has, and in which order persistent kernels take their items.
#pragma once

#include <cstdint>

#include "compiler/plan.h"

namespace flashjit {

// For so many items, on a device with this many SMs.
int blocks_of(const GridRule& rule, int items, int sm_count);

// Returns how many of these clusters fit on so many SMs.
ResidentClusters limited(const GridRule& rule, const ResidentClusters& resident, int sm_count);

// Heads whose items follow each other, so that what these share is in L2 while they are worked on.
class HeadGroups {
 public:
  explicit HeadGroups(const Plan& plan);
  int heads(const CallSizes& sizes) const;

 private:
  int heads_kv_;
  int heads_per_kv_;  // that have items of their own, and read the same K and V
  bool of_queries_;   // are the rows that are shared
  HeadGroupRule rule_;
};

}  // namespace flashjit

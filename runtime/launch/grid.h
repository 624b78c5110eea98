// The grid rule of a launch gives the number of its blocks and the order in which persistent kernels take their items.
#pragma once

#include <cstdint>

#include "compiler/plan.h"

namespace flashjit {

// Returns the number of blocks for `items` items on a device with `sm_count` SMs.
int blocks_of(const GridRule& rule, int items, int sm_count);

// Returns how many of these clusters fit on so many SMs.
ResidentClusters limited(const GridRule& rule, const ResidentClusters& resident, int sm_count);

// The items of a group of heads follow each other, so that the rows that these heads share stay in L2 meanwhile.
class HeadGroups {
 public:
  explicit HeadGroups(const Plan& plan);
  int heads(const CallSizes& sizes) const;

 private:
  int heads_kv_;
  // Number of heads that have items of their own and read the same K and V.
  int heads_per_kv_;
  // The shared rows are those of queries, not of keys.
  bool of_queries_;
  HeadGroupRule rule_;
};

}  // namespace flashjit

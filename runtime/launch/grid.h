// How the work of a call is cut into items (a query tile of a head) and these are given to blocks.
#pragma once

#include <cstdint>

#include "compiler/plan.h"
#include "templates/kernel_params.h"

namespace flashjit {

struct Grid {
  explicit Grid(const Plan& plan);

  int queries;           // of an item
  int heads;             // that have items of their own: query heads, or KV heads where a group shares its tiles
  int heads_per_kv = 1;  // of `heads`, that read the same K and V
  int heads_kv;
  int cluster = 1;          // blocks that work on an item
  bool persistent = false;  // as many blocks as fit the device, for all items
  std::int64_t key_bytes;   // of one key in K and V

  std::int64_t tiles(std::int64_t q_len) const { return (q_len + queries - 1) / queries; }
  // Blocks that there would be without `persistent`; negative: more than 2^63.
  std::int64_t most_blocks(std::int64_t q_len, std::int64_t batch) const;
  // Heads whose items follow each other, so that their K and V are in L2 while they are worked on.
  int heads_per_group(std::int64_t k_len, std::int64_t batch) const;
  // Of a launch with these parameters, on a device with this many SMs.
  int blocks(const KernelParams& params, int sm_count) const;
};

}  // namespace flashjit

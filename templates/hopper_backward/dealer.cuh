// Warps of the producer's warpgroup that do not copy. They determine which tiles of keys a block takes, and pass on
// what the blocks and launches of a call have to know about these.
#pragma once

#include "templates/backward/parameters.cuh"
#include "templates/hopper_backward/order.cuh"
#include "templates/items.cuh"

namespace flashjit {

// A warp that finds the items of a block, and sets to zero what later items add to.
struct Dealer {
  const KernelParams& params;
  const SharedMemory& shared;
  float* dq_sums;
  int* counters;
  int* next;  // The counter that items come from, or null.

  // Finds the next item, stores it where the other warps read it, and returns its number. A number of packed tiles may
  // lie behind the end of a sequence, and is passed over.
  __device__ int find_item(BackwardItem& item, int& dealt) const {
    int number;
    do {
      // All numbers come from the counter, so items of smaller numbers have begun, whichever blocks run at the same
      // time.
      number = next ? atomicAdd(next, 1) : item_of_round(params, dealt++);
      item.k_lo = -1;
      if (number >= params.items) break;
      item = backward_item(params, number);
    } while (kPacked && item.k_lo >= item.seq.k_len);
    return number;
  }

  // Waits until the sums that an item adds to are zero.
  __device__ void wait_for_zeros(int item) const {
    const Ahead all(params);
    const int group = item / all.group, shares = all.shares_of(group);
    if (shares == 0) return;
    while (load_acquired(zeroed_of(params, group, counters)) < shares) __nanosleep(100);
  }

  __device__ void set_to_zero(int item) const {
    const Ahead all(params);
    item += all.ahead;
    if (item >= all.items) return;
    constexpr int kFours = dq_sum_floats(config) / 4;
    const int first = all.first_tile(params, item);
    auto* to = reinterpret_cast<float4*>(dq_sums) + static_cast<Int64>(first) * kFours + lane_id();
#pragma unroll 1
    for (int tiles = all.first_tile(params, item + 1) - first; tiles > 0; --tiles, to += kFours)
#pragma unroll 8
      for (int i = 0; i < kFours; i += 32) to[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    __syncwarp();
    if (lane_id() == 0) add_released(zeroed_of(params, item / all.group, counters), 1);
  }

  // The next item is taken when the last queries of the current one are being copied. Sooner, blocks with short items
  // would be done before the others.
  __device__ void run() const {
    int dealt = 0;
#pragma unroll 1
    for (int round = 0;; ++round) {
      const u32 slot = round % kItemSlots;
      wait_barrier(shared.item_empty(slot), round / kItemSlots % 2 ^ 1);
      int number = 0;
      if (lane_id() == 0) {
        number = find_item(shared.item(slot), dealt);
        if constexpr (kZeroesAhead) {
          if (number < params.items && zeroes_ahead(params)) wait_for_zeros(number);
        }
        arrive(shared.item_full(slot));
      }
      number = uniform(number);
      if (number >= params.items) break;
      if (kZeroesAhead && zeroes_ahead(params)) set_to_zero(number);
      wait_barrier(shared.item_wanted(), round % 2);
    }
    if (!kOrdered && lane_id() == 0) return_counters(params);
  }
};

// Tells the last launch which heads are done and, with sums in order, other blocks which steps are. One warp runs this.
__device__ inline void count_items(const KernelParams& params, const SharedMemory& shared, int* counters, int* added) {
  u32 step = 0;  // Counts the steps of all items.
  each_item(params, shared, [&](BackwardItem& item, u32 done, u32 parity) {
    if constexpr (kOrdered) tell_steps(params, shared, item, added, step);
    release(done);
    wait_barrier(done, parity);  // Everything has been added to the item's sums.
    if (lane_id() == 0) add_released(done_of(item.seq, counters), 1);
  });
}

// Writes zeros to gradients of parameters where no query tile is visited.
__device__ inline void zero_unvisited(const KernelParams& params, const BackwardItem& item) {
  const int begin = item.first * kTileQ, end = (item.last + 1) * kTileQ, lane = static_cast<int>(lane_id()),
            keys = item.seq.k_len - item.k_lo - lane;
  each_read([&](auto number) {
    constexpr int read = decltype(number)::value;
    if constexpr (Variant::covers_all(read)) {
      const auto element = [&](int q, int k) { return Variant::element(Parameter<read>(), params, item.seq, q, k); };
      const Int64 down = element(1, 0) - element(0, 0), right = element(0, 32) - element(0, 0);
      float* to = element_of_gradient<read>(params, item.seq, 0, item.k_lo + lane);
#pragma unroll 1
      for (int q = 0; q < item.seq.q_len; ++q, to += down) {
        if (q >= begin && q < end) continue;
#pragma unroll
        for (int i = 0; i < kTileKv / 32; ++i)
          if (i * 32 < keys) to[i * right] = 0.0f;
      }
    }
  });
}

// A warp that has nothing else to do, and few registers, runs this.
__device__ inline void zero_items(const KernelParams& params, const SharedMemory& shared) {
  each_item(params, shared, [&](const BackwardItem& item, u32 done, u32) {
    zero_unvisited(params, item);
    release(done);
  });
}

}  // namespace flashjit

// Adds to sums of dQ in a fixed order: among the tiles of keys that see a query tile, the last one adds first. An item
// only waits for items of smaller numbers, which have begun.
#pragma once

#include "templates/hopper_backward/work.cuh"

namespace flashjit {

// The number, counted from 1, of the tile of keys that has added to a query tile last, for each query tile and each
// block of a cluster; 0 if none has.
__device__ inline int tile_of_keys(const BackwardItem& item) { return item.k_lo / kTileKv + 1; }
template <class Number>
__device__ inline Number* added_to(Number* added, Int64 tile) {
  return added + (tile * config.hopper_backward.cluster + cluster_rank());
}

// Finds which query tiles see the tile of keys behind that of an item. If that tile does not add to a query tile, no
// later tile of keys does.
struct Behind {
  int first, last;

  __device__ void find(const KernelParams& params, BackwardItem item, int head) {
    item.k_lo += kTileKv;
    item.seq.q_len =
        // Without recompute(), ptxas keeps the last tile, and a register spills.
        static_cast<int>(recompute(item.seq.q_len));
    item.seq.h = head;
    find_queries(params, item);
    first = uniform(item.first), last = uniform(item.last);
  }
  __device__ bool adds_to(int tile) const { return tile >= first && tile <= last; }
};

// Lets dQ of each step of an item go when it is the step's turn. One warp does this; `step` counts the steps of all
// items.
__device__ inline void wait_for_turns(const KernelParams& params, const SharedMemory& shared, BackwardItem& item,
                                      const int* added, u32& step) {
  Steps at;
  if (!at.begin(params, item)) return;
  Behind behind;
  behind.find(params, item, at.head);
  do {
    if (kGroup > 1 && config.ranges_differ) behind.find(params, item, at.head);
    const u32 i = step % kTurns;
    // The lane is derived again: keeping it would take one register too many.
    if (recompute(threadIdx.x) % 32 == 0) {
      // All warps have seen this barrier's last turn.
      wait_barrier(shared.added(i), step / kTurns % 2 ^ 1);
      const Int64 tile = workspace_tile(params, item.seq, at.head, at.tile);
      const int turn = behind.adds_to(at.tile) ? tile_of_keys(item) + 1 : 0;
      while (load_acquired(added_to(added, tile)) != turn) {
      }
      arrive(shared.turn(i));
    }
    __syncwarp();
    ++step;
  } while (at.advance(params, item));
}

// Lets the steps of all items of a block go.
__device__ inline void let_steps_go(const KernelParams& params, const SharedMemory& shared, const int* added) {
  u32 step = 0;
  each_item(params, shared, [&](BackwardItem& item, u32 done, u32) {
    wait_for_turns(params, shared, item, added, step);
    release(done);
  });
}

// Tells other blocks which steps have been added. The warp that does so is one of those that have to be done with a
// step, so it misses none.
__device__ inline void tell_steps(const KernelParams& params, const SharedMemory& shared, BackwardItem& item,
                                  int* added, u32& step) {
  Steps at;
  if (!at.begin(params, item)) return;
  do {
    const u32 barrier = shared.added(step % kTurns);
    release(barrier);
    wait_barrier(barrier, step / kTurns % 2);
    if (lane_id() == 0)
      store_released(added_to(added, workspace_tile(params, item.seq, at.head, at.tile)), tile_of_keys(item));
    ++step;
  } while (at.advance(params, item));
}

}  // namespace flashjit

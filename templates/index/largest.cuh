// Finds the keys with the largest scores of each row; a block does this for each row. A first pass over all scores
// finds the largest one, and a bound that enough scores are not below. Further passes count the scores in between by
// ranges, which become narrower until the last listed score is known. The last pass writes the numbers of rows in the
// order of keys: among equal scores the first keys are taken.
#pragma once

#include "templates/index/work.cuh"

namespace flashjit {

constexpr int kListed = config.listed > 0 ? config.listed : 1;
constexpr int kBinBits = 11, kBins = 1 << kBinBits, kLargestWarps = kLargestThreads / 32;
constexpr u32 kHiddenOrder = 0x007fffff;  // The order of -infinity.

// Returns a number that has the order of scores. NaN is above all scores, and -0 is 0.
__device__ inline u32 order_of(float score) {
  if (score != score) return 0xffffffff;
  const u32 bits = __float_as_uint(score + 0.0f);
  return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

// Holds what all threads agree on, because they are short of registers.
struct LargestMemory {
  Sequence seq;
  int q;
  int bins[kBins];
  int of_warps[kLargestWarps];
  int bin, above, in_bin;
  u32 largest, bound;
  int visible;
};

struct ScoredRow {
  const float* scores;
  int begin, end;  // The keys that a query of the tile sees, from a multiple of four on.

  // Calls visit(first key, orders) for four neighbouring keys of a thread at a time. All threads step together.
  template <class Visit>
  __device__ void visit(const Visit& visit) const {
#pragma unroll 1
    for (int step = begin; step < end; step += 4 * kLargestThreads) {
      const int first = step + static_cast<int>(threadIdx.x) * 4;
      float4 four = {-kInfinity, -kInfinity, -kInfinity, -kInfinity};
      if (first < end) four = *reinterpret_cast<const float4*>(scores + first);
      const float each[4] = {four.x, four.y, four.z, four.w};
      u32 orders[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) orders[i] = first + i < end ? order_of(each[i]) : kHiddenOrder;
      visit(first, orders);
    }
  }
};

// Returns the sum over the threads before this one, and leaves every warp's total in memory.
__device__ inline int exclusive_sum(LargestMemory& memory, int own) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int before = __shfl_up_sync(0xffffffff, sum, step);
    if (lane >= step) sum += before;
  }
  __syncthreads();  // The totals of the last call have been read.
  if (lane == 31) memory.of_warps[warp] = sum;
  __syncthreads();
  int before = 0;
  for (int i = 0; i < warp; ++i) before += memory.of_warps[i];
  return before + sum - own;
}
__device__ inline int sum_of_all(const LargestMemory& memory) {
  int sum = 0;
  for (const int of_warp : memory.of_warps) sum += of_warp;
  return sum;
}

// Finds the number of scores, the largest one, and a bound that as many scores as are listed are not below: each
// thread's largest score, or its second largest too, gives that many.
__device__ inline void look_at_all(const ScoredRow& row, LargestMemory& memory) {
  constexpr bool kFirst = kListed <= kLargestThreads, kSecond = kListed <= 2 * kLargestThreads;
  u32 first = kHiddenOrder, second = kHiddenOrder;
  int visible = 0;
  row.visit([&](int, const u32(&orders)[4]) {
#pragma unroll
    for (const u32 order : orders) {
      visible += order > kHiddenOrder;
      second = max(second, min(first, order));
      first = max(first, order);
    }
  });
  const u32 bound = kFirst ? first : kSecond ? second : 0;
  if (threadIdx.x == 0) {
    memory.largest = 0;
    memory.bound = 0xffffffff;
    memory.visible = 0;
  }
  __syncthreads();
  const u32 largest = __reduce_max_sync(0xffffffff, first), least = __reduce_min_sync(0xffffffff, bound);
  const int of_warp = __reduce_add_sync(0xffffffff, visible);
  if (threadIdx.x % 32 == 0) {
    atomicMax(&memory.largest, largest);
    atomicMin(&memory.bound, least);
    atomicAdd(&memory.visible, of_warp);
  }
  __syncthreads();
}

// The orders that are taken: all above `from`, and the first `equal` of those that equal it.
struct Taken {
  u32 from;
  int equal;
};

// Finds the bin that holds the last of the `wanted` scores: bins above it have fewer.
__device__ inline void find_bin(LargestMemory& memory, int wanted) {
  const int upper = kBins - 1 - 2 * static_cast<int>(threadIdx.x);
  const int counts[2] = {memory.bins[upper], memory.bins[upper - 1]};
  int above = exclusive_sum(memory, counts[0] + counts[1]);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (above < wanted && above + counts[i] >= wanted) {
      memory.bin = upper - i;
      memory.above = above;
      memory.in_bin = counts[i];
    }
    above += counts[i];
  }
  __syncthreads();
}
static_assert(kBins == 2 * kLargestThreads);

__device__ inline Taken find_taken(const ScoredRow& row, LargestMemory& memory) {
  constexpr int kAll = 0x7fffffff;
  look_at_all(row, memory);
  if (memory.visible <= kListed) return {kHiddenOrder + 1, kAll};
  u32 low = max(memory.bound, kHiddenOrder + 1), high = memory.largest;
  int wanted = kListed;
#pragma unroll 1
  while (true) {
    const int bits = 32 - __clz(high - low), shift = max(bits - kBinBits, 0);
    for (int i = threadIdx.x; i < kBins; i += kLargestThreads) memory.bins[i] = 0;
    __syncthreads();
    row.visit([&](int, const u32(&orders)[4]) {
#pragma unroll
      for (const u32 order : orders) {
        if (order >= low && order <= high) atomicAdd(&memory.bins[(order - low) >> shift], 1);
      }
    });
    __syncthreads();
    find_bin(memory, wanted);
    wanted -= memory.above;
    low += static_cast<u32>(memory.bin) << shift;
    high = min(high, low + ((1u << shift) - 1));
    if (memory.in_bin == wanted) return {low, kAll};
    if (shift == 0) return {low, wanted};
    __syncthreads();  // The bins have been read.
  }
}

// Returns the number of a key's row, as lists have it: a row of the pool with pages, and a token among all tokens of
// packed sequences.
__device__ inline int row_number(const KernelParams& p, const Sequence& seq, int key) {
  if constexpr (kKeyRows == Rows::paged) {
    const u32 k = key, page = static_cast<u32>(__ldg(table_line(p, seq) + k / config.page_size * p.table_stride_page));
    return static_cast<int>(page * config.page_size + k % config.page_size);
  } else {
    return static_cast<int>(seq.k_token) + key;
  }
}

__device__ inline Int64 list_of(const Strides& s, const Sequence& seq, int q) { return query_row(s, seq, seq.hk, q); }

__device__ inline void write_list(const KernelParams& p, const ScoredRow& row, const Taken& taken,
                                  LargestMemory& memory) {
  // Each count has these bits of a word: a step has fewer keys than they can count.
  constexpr int kHalf = 16;
  int* const list = p.key_index + list_of(p.key_index_stride, memory.seq, memory.q);
  // They count keys of the steps before.
  int above = 0, equal = 0;
  row.visit([&](int first, const u32(&orders)[4]) {
    int own = 0;
#pragma unroll
    for (const u32 order : orders) own += order > taken.from ? 1 : order == taken.from ? 1 << kHalf : 0;
    const int before = exclusive_sum(memory, own), all = sum_of_all(memory);
    int greater = above + (before & ((1 << kHalf) - 1)), same = equal + (before >> kHalf);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool is_equal = orders[i] == taken.from, is_above = orders[i] > taken.from;
      if (is_above || (is_equal && same < taken.equal))
        list[greater + min(same, taken.equal)] = row_number(p, memory.seq, first + i);
      greater += is_above;
      same += is_equal;
    }
    above += all & ((1 << kHalf) - 1);
    equal += all >> kHalf;
  });
  const int count = above + min(equal, taken.equal);
  for (int i = count + static_cast<int>(threadIdx.x); i < kListed; i += kLargestThreads) list[i] = -1;
  if (threadIdx.x == 0 && p.key_count) p.key_count[list_of(p.key_count_stride, memory.seq, memory.q)] = count;
}

__device__ inline void list_largest(const KernelParams& params, float* scores) {
  __shared__ LargestMemory memory;
  const int number = blockIdx.x / config.heads_kv, hk = blockIdx.x % config.heads_kv;
  NumberedTile at = {number / params.q_len, number % params.q_len};
  if constexpr (kPackedQueries) at = numbered_tile(params.offsets_q, params.batch, 1, number);
  const int q = at.tile;
  IndexWork tile;
  tile.seq = sequence_of(params, at.b, hk * group_size(config));
  if (q >= tile.seq.q_len) return;
  tile.q_lo = q / config.tile_q * config.tile_q;
  find_seen(params, tile);
  if (threadIdx.x == 0) memory.seq = tile.seq, memory.q = q;
  const ScoredRow row{scores_of(params, scores, tile.seq, q), tile.first_seen * config.tile_kv,
                      min(tile.end_seen * config.tile_kv, tile.seq.k_len)};
  write_list(params, row, find_taken(row, memory), memory);
}

}  // namespace flashjit

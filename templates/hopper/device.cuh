// Instructions of sm_90a, one function each: barriers in shared memory, bulk tensor copies, warpgroup matrix products.
#pragma once

#include "templates/device.cuh"

namespace flashjit {

// ---- mbarrier: a phase completes when `count` arrivals and all announced bytes have come ----

__device__ inline void init_barrier(u32 barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Makes initialised barriers visible to the copy engine.
__device__ inline void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ inline void arrive_expecting(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Arrives when all copies that this thread has issued by copy_async are complete.
__device__ inline void arrive_when_copied(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Waits until the phase of this parity is complete. The hint lets the hardware park the warp instead of spinning.
__device__ inline void wait_barrier(u32 barrier, u32 parity) {
  asm volatile(
      "{\n .reg .pred done;\n"
      "again:\n mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 0x989680;\n @!done bra again;\n}" ::"r"(
          barrier),
      "r"(parity)
      : "memory");
}

// ---- clusters: blocks that reach each other's shared memory ----

// Arrives at the barrier that has this address in another block. Earlier writes of this thread need not become visible
// there: that would take a fence of the whole GPU, which takes longer than the wait.
__device__ inline void arrive_in(u32 barrier, u32 block) {
  asm volatile(
      "{\n .reg .b32 remote;\n mapa.shared::cluster.u32 remote, %0, %1;\n"
      " mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(block)
      : "memory");
}
// All threads of all blocks of the cluster wait for each other.
__device__ inline void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// These two split sync_cluster(), so that a block need not wait to say that it is there. They order no writes, because
// there are none yet.
__device__ inline void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ inline void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Stores 16 bytes in the shared memory of another block, at the place that is `to` in this one. That block's `barrier`
// counts the bytes, so a thread that waits there needs no fence, which would be one of the whole GPU.
__device__ inline void store_in(u32 block, u32 to, const float4& value, u32 barrier) {
  asm volatile(
      "{\n .reg .b32 there, counted;\n mapa.shared::cluster.u32 there, %0, %2;\n"
      " mapa.shared::cluster.u32 counted, %1, %2;\n"
      " st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, [counted];\n}" ::"r"(
          to),
      "r"(barrier), "r"(block), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
      : "memory");
}

__device__ inline u32 load_from(u32 block, u32 address) {
  u32 value;
  asm volatile(
      "{\n .reg .b32 remote;\n mapa.shared::cluster.u32 remote, %1, %2;\n"
      " ld.shared::cluster.u32 %0, [remote];\n}"
      : "=r"(value)
      : "r"(address), "r"(block)
      : "memory");
  return value;
}

// Copies bytes of shared memory to another block. `to` and `barrier` are addresses in this block that stand for the
// same places in the other one, whose barrier counts the bytes.
__device__ inline void copy_to_block(u32 block, u32 to, u32 from, u32 bytes, u32 barrier) {
  asm volatile(
      "{\n .reg .b32 there, counted;\n mapa.shared::cluster.u32 there, %0, %4;\n"
      " mapa.shared::cluster.u32 counted, %3, %4;\n"
      " cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [there], [%1], %2, [counted];\n}" ::"r"(
          to),
      "r"(from), "r"(bytes), "r"(barrier), "r"(block)
      : "memory");
}

// ---- named barriers: `threads` of the block, some of which may only arrive ----

__device__ inline void sync_named(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void arrive_named(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Loads data that never changes. The load is issued before later instructions that wait.
__device__ inline u32 load_early(const int* address) {
  u32 value;
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(value) : "l"(address));
  return value;
}

__device__ inline uint4 load_early(const uint4* address) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address));
  return value;
}

// ---- registers: given back by the warps that copy, taken by those that compute ----

template <int registers>
__device__ inline void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ inline void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// ---- bulk tensor copies ----

// These policies tell the L2 cache what to do with the lines (encodings of createpolicy).
constexpr u64 kEvictNormal = 0x1000000000000000ull, kEvictFirst = 0x12F0000000000000ull,
              kEvictLast = 0x14F0000000000000ull;

// Fetches the map of a tensor before the first copy that needs it.
__device__ inline void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Copies a box of the tensor to shared memory; `barrier` counts the bytes. The innermost coordinate comes first. The
// instruction names shared::cta, because for an address that could be another block's, ptxas adds a check before each
// copy on GPUs without clusters (sm_120a).
__device__ inline void copy_box(u32 shared, const TensorMap& map, u32 barrier, u64 policy, int x0, int x1, int x2,
                                int x3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(shared),
      "l"(&map), "r"(barrier), "l"(policy), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
      : "memory");
}
__device__ inline void copy_box(u32 shared, const TensorMap& map, u32 barrier, u64 policy, int x0, int x1, int x2,
                                int x3, int x4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(shared),
      "l"(&map), "r"(barrier), "l"(policy), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4)
      : "memory");
}
// Copies a box of the tensor to L2.
__device__ inline void prefetch_box(const TensorMap& map, int x0, int x1, int x2, int x3) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(&map), "r"(x0), "r"(x1),
               "r"(x2), "r"(x3)
               : "memory");
}
// Copies a box to the same offset in the shared memory of each block of the cluster whose bit is set. The barrier of
// each block counts its bytes.
__device__ inline void copy_box_to(u16 blocks, u32 shared, const TensorMap& map, u32 barrier, u64 policy, int x0,
                                   int x1, int x2, int x3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%5, %6, %7, %8}], [%2], %3, %4;" ::"r"(shared),
      "l"(&map), "r"(barrier), "h"(blocks), "l"(policy), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
      : "memory");
}
__device__ inline void copy_box_to(u16 blocks, u32 shared, const TensorMap& map, u32 barrier, u64 policy, int x0,
                                   int x1, int x2, int x3, int x4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%5, %6, %7, %8, %9}], [%2], %3, %4;" ::"r"(shared),
      "l"(&map), "r"(barrier), "h"(blocks), "l"(policy), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4)
      : "memory");
}
// Copies bytes in one piece; addresses and size are multiples of 16.
__device__ inline void copy_bytes(u32 shared, const void* global, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}
__device__ inline void copy_bytes(u32 shared, const void* global, u32 bytes, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
          shared),
      "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
// Stores a box of shared memory to the tensor, except for elements outside the tensor.
__device__ inline void store_box(const TensorMap& map, u32 shared, int x0, int x1, int x2, int x3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(shared), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
               : "memory");
}
__device__ inline void store_box(const TensorMap& map, u32 shared, int x0, int x1, int x2, int x3, int x4) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
               "r"(shared), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4)
               : "memory");
}
// Stores `bytes` bytes; addresses and size are multiples of 16.
__device__ inline void store_bytes(void* global, u32 shared, u32 bytes, u64 policy) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(global),
               "r"(shared), "r"(bytes), "l"(policy)
               : "memory");
}
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// These wait until the stores of this thread have read shared memory, or are complete.
__device__ inline void wait_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Stores four 8x8 matrices of 16-bit elements to shared memory: lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void store_matrices(u32 row, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b), "r"(c),
               "r"(d)
               : "memory");
}

// Stores four 8x8 matrices, each of them transposed.
__device__ inline void store_matrices_transposed(u32 row, const u32 (&f)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(f[0]),
               "r"(f[1]), "r"(f[2]), "r"(f[3])
               : "memory");
}

// Adds to four floats in memory.
__device__ inline void add_to_global(float* to, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}

// Ordinary stores to shared memory before this are seen by matrix products and bulk copies after it.
__device__ inline void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Returns a word with `count` ones from bit `first` on; bits beyond bit 31 are left out.
__device__ inline u32 bit_range(u32 first, u32 count) {
  u32 bits;
  asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(bits) : "r"(first), "r"(count));
  return bits;
}

// Returns in each half of a word the larger of the two halves there.
__device__ inline u32 max_of_halves(u32 a, u32 b) {
  u32 larger;
  asm("max.u16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

// Returns in each half of a word the product of the two halves there.
__device__ inline u32 product_of_bf16(u32 a, u32 b) {
  u32 product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Returns x if the word has this bit, else -infinity. One statement does it, because a tile has one for each score: the
// compiler takes longer over three, for the same code [M69].
__device__ inline float where_bit(u32 word, u32 bit, float x) {
  asm("{\n .reg .pred there;\n .reg .b32 only;\n"
      "and.b32 only, %1, %2;\n setp.ne.u32 there, only, 0;\n selp.f32 %0, %0, 0fFF800000, there;\n}"
      : "+f"(x)
      : "r"(word), "r"(bit));
  return x;
}

// ---- uniform values ----

// A value that all lanes of a warp have read from the same address is the same in all lanes, and these functions tell the
// compiler so. It then branches without preparing for a warp that parts, and keeps what it computes beside that branch,
// such as descriptors of matrix products, in uniform registers: a single branch in the main step that it knows nothing
// about costs all of these.
__device__ inline int uniform(int value) { return __shfl_sync(0xffffffff, value, 0); }
__device__ inline u32 uniform(u32 value) { return __shfl_sync(0xffffffff, value, 0); }
__device__ inline bool uniform(bool value) { return __any_sync(0xffffffff, value); }

// ---- warpgroup matrix products ----

// Products need this before the first one of a batch, and whenever other instructions have touched their registers.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until all but the newest `pending` batches are done.
template <int pending>
__device__ inline void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Keeps the compiler from moving accesses of these registers across this point: it does not know that a product which
// was issued earlier writes them later.
template <int n>
__device__ inline void pin_registers(float (&r)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(r[i])::"memory");
}

template <int n>
__device__ inline void clear(float (&r)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) r[i] = 0;
}

template <int n>
__device__ inline void pin_fragments(u32 (&f)[n][4]) {
#pragma unroll
  for (int i = 0; i < n; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) asm volatile("" : "+r"(f[i][j])::"memory");
}

// Returns the low word of the descriptor of an operand in shared memory: panels of 128 bytes a row, swizzled in groups
// of eight rows. `next_panel` is the step, in bytes, to the panel of the next columns; operands that are not read
// transposed ignore it. The high word is always kDescriptorHigh. A step in shared memory is added to the low word in
// units of 16 bytes.
__device__ inline u32 descriptor(u32 address, int next_panel = 16) {
  // An address in shared memory has only these bits, and higher bits mean something else in a descriptor.
  return (address & 0x3FFFF) >> 4 | next_panel >> 4 << 16;
}

// Returns the low word for an operand with rows of 16 bytes, eight of which are a matrix, and no swizzle. A step of a
// product takes 32 bytes of a row: the 16 bytes behind a row repeat the row.
__device__ inline u32 rows_descriptor(u32 address) { return (address & 0x3FFFF) >> 4; }

}  // namespace flashjit

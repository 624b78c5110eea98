// Targets are rows of one table. Other code asks a target for a capability, never which architecture it is.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "compiler/result.h"

namespace flashjit {

struct Capabilities {
  bool cp_async = false;  // 16-byte asynchronous copies, and mma.sync with fp32 accumulation.
  bool tma = false;
  bool wgmma = false;
  bool clusters = false;              // Clusters of blocks, which reach each other's shared memory.
  bool overlapping_launches = false;  // A launch may begin before the one that it waits for has ended.
  bool avx2 = false, avx512 = false, avx512_bf16 = false, amx_bf16 = false;
};

struct Target {
  std::string_view name;  // For example "sm_90a" or "x86-64-v4+amx".
  bool gpu = true;
  Capabilities can;
  int smem_per_block = 0;  // The bytes that a block may use.
  int smem_per_sm = 0;
  int registers_per_sm = 0;  // Registers of 32 bits.
  int threads_per_sm = 0;
  int sm_count = 0;     // The SMs of the usual product. The engine replaces it by the device's.
  int vector_bits = 0;  // The width of a host's vectors.
  double clock_ghz = 0;
  // The rate of mma.sync for an SM, with 16-bit elements and fp32 sums; of a host, the fp32 rate of a core.
  double mma_flops_per_clock = 0;
  // The rate of mma.sync with elements of 8 bits; 0: there is no such instruction.
  double narrow_mma_flops_per_clock = 0;
  double wgmma_flops_per_clock = 0;  // The rate of WGMMA with 16-bit elements; 0: there is no WGMMA.
  double exp_per_clock = 0;          // Exponentials of an SM or core.
  double smem_bytes_per_clock = 0;   // Bytes of an SM.
  double memory_tbs = 0;             // TB/s.
  double l2_mb = 0;
};

std::span<const Target> targets();
Result<const Target*> find_target(std::string_view name);           // The error lists the names.
const Target* target_for_compute_capability(int major, int minor);  // null: there is none.
// Returns true if the target's machine code runs on such a device: its own architecture or a later minor revision of
// the same major one; for an "a" target exactly its own.
bool runs_on(const Target& target, int major, int minor);

}  // namespace flashjit

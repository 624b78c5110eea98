// Targets: rows of one table. Nothing else asks which architecture it is; it asks for a capability.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "compiler/result.h"

namespace flashjit {

struct Capabilities {
  bool cp_async = false;  // 16-byte asynchronous copies, mma.sync with fp32 accumulation
  bool tma = false;
  bool wgmma = false;
  bool clusters = false;              // of blocks, which reach each other's shared memory
  bool overlapping_launches = false;  // one may begin before the one it waits for has ended
  bool avx2 = false, avx512 = false, avx512_bf16 = false, amx_bf16 = false;
};

struct Target {
  std::string_view name;  // "sm_90a", "x86-64-v4+amx"
  bool gpu = true;
  Capabilities can;
  int smem_per_block = 0;  // bytes a block may use
  int smem_per_sm = 0;
  int registers_per_sm = 0;  // 32-bit
  int threads_per_sm = 0;
  int sm_count = 0;     // of the usual product; the engine replaces it by the device's
  int vector_bits = 0;  // host
  double clock_ghz = 0;
  double mma_flops_per_clock = 0;         // per SM (16-bit, fp32 accumulation) through mma.sync; host: per core fp32
  double narrow_mma_flops_per_clock = 0;  // the same of elements of 8 bits; 0: there is no such instruction
  double wgmma_flops_per_clock = 0;       // the same as the first through WGMMA; 0: it has none
  double exp_per_clock = 0;               // per SM or core
  double smem_bytes_per_clock = 0;        // per SM
  double memory_tbs = 0;                  // TB/s
  double l2_mb = 0;
};

std::span<const Target> targets();
Result<const Target*> find_target(std::string_view name);           // the error lists the names
const Target* target_for_compute_capability(int major, int minor);  // null: none
// Machine code runs on its own architecture and on later minor revisions of the same major one; that of an "a" target
// on exactly its own.
bool runs_on(const Target& target, int major, int minor);

}  // namespace flashjit

#include "codegen/host/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdint>

namespace flashjit::host {
namespace {

#if defined(__x86_64__)

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

// Returns XCR0: the register sets that the operating system saves at a context switch.
std::uint64_t saved_registers() {
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
}

bool bit(unsigned value, int index) { return (value >> index) & 1; }

// Linux gives the 8 KB of tile registers on request only, and the permission is the whole process's.
bool request_tiles() {
  constexpr long kArchRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kArchRequestPermission, kTileData) == 0;
}

Capabilities detect() {
  Capabilities can;
  const Registers one = cpuid(1, 0);
  if (!bit(one.ecx, 27)) return can;  // The processor has no xgetbv.
  const std::uint64_t saved = saved_registers();
  const Registers seven = cpuid(7, 0);
  const Registers seven_one = cpuid(7, 1);
  const Registers extended = cpuid(0x80000001, 0);
  constexpr std::uint64_t kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000;
  const bool fma_f16c_movbe = bit(one.ecx, 12) && bit(one.ecx, 29) && bit(one.ecx, 22);
  const bool bmi_lzcnt = bit(seven.ebx, 3) && bit(seven.ebx, 8) && bit(extended.ecx, 5);
  can.avx2 = (saved & kYmm) == kYmm && bit(seven.ebx, 5) && fma_f16c_movbe && bmi_lzcnt;
  // These are the bits of x86-64-v4: F, DQ, CD, BW, VL.
  can.avx512 = can.avx2 && (saved & kZmm) == kZmm && bit(seven.ebx, 16) && bit(seven.ebx, 17) && bit(seven.ebx, 28) &&
               bit(seven.ebx, 30) && bit(seven.ebx, 31);
  can.avx512_bf16 = can.avx512 && bit(seven_one.eax, 5);
  can.amx_bf16 =
      can.avx512_bf16 && (saved & kTiles) == kTiles && bit(seven.edx, 22) && bit(seven.edx, 24) && request_tiles();
  return can;
}

#else

// Other processors can compile kernels for x86-64, but run none.
Capabilities detect() { return {}; }

#endif

}  // namespace

const Capabilities& cpu() {
  static const Capabilities can = detect();
  return can;
}

bool can_run(const Target& target) {
  const Capabilities& has = cpu();
  const Capabilities& needs = target.can;
  return !target.gpu && has.avx2 >= needs.avx2 && has.avx512 >= needs.avx512 && has.avx512_bf16 >= needs.avx512_bf16 &&
         has.amx_bf16 >= needs.amx_bf16;
}

Result<std::string> best_target() {
  std::string best;
  for (const Target& target : targets()) {
    if (can_run(target)) best = target.name;
  }
  if (best.empty())
    return unsupported(
        "target: kernels of processors need x86-64 with AVX2, FMA and F16C, which is not here; use a GPU");
  return best;
}

}  // namespace flashjit::host

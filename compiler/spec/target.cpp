#include "compiler/spec/target.h"

#include <array>
#include <vector>

#include <fmt/format.h>

#include "compiler/card.h"
#include "compiler/spec/text_form.h"

namespace flashjit {

namespace {

constexpr int kKb = 1024;
constexpr Capabilities kAmpere = {.cp_async = true};
constexpr Capabilities kSm90 = {
    .cp_async = true, .tma = true, .wgmma = true, .clusters = true, .overlapping_launches = true};
constexpr Capabilities kSm100 = {.cp_async = true, .tma = true, .clusters = true, .overlapping_launches = true};
constexpr Capabilities kAvx2 = {.avx2 = true};
constexpr Capabilities kAvx512 = {.avx2 = true, .avx512 = true};
constexpr Capabilities kAvx512Bf16 = {.avx2 = true, .avx512 = true, .avx512_bf16 = true};
constexpr Capabilities kAmx = {.avx2 = true, .avx512 = true, .avx512_bf16 = true, .amx_bf16 = true};

// Adds the limits that all GPUs have.
constexpr Target gpu(Target target) {
  target.smem_per_sm = target.smem_per_block + 1 * kKb;  // The driver keeps this kilobyte for itself.
  target.registers_per_sm = 65536;
  target.smem_bytes_per_clock = 128;
  if (target.exp_per_clock == 0) target.exp_per_clock = 16;
  return target;
}

// The comment behind a GPU row names the product that it describes. mma_flops_per_clock is the rate of mma.sync, which
// from sm_90 on is below the peak of the tensor cores: only wgmma or tcgen05 reach that. sm_89 and sm_12x multiply 8
// bits by an instruction of their own. The others convert each operand to halves for each product, which leaves half of
// the rate. memory_tbs is what a long read reaches, not the data sheet's figure. A host row has the rates of a core
// with two FMA pipes and an exp of about 12 vector instructions.
constexpr std::array kTargets = {
    gpu({.name = "sm_80",
         .can = kAmpere,
         .smem_per_block = 163 * kKb,
         .threads_per_sm = 2048,
         .sm_count = 108,
         .clock_ghz = 1.41,
         .mma_flops_per_clock = 2048,
         .memory_tbs = 1.75,
         .l2_mb = 40}),  // A100 SXM 80 GB
    gpu({.name = "sm_86",
         .can = kAmpere,
         .smem_per_block = 99 * kKb,
         .threads_per_sm = 1536,
         .sm_count = 72,
         .clock_ghz = 1.69,
         .mma_flops_per_clock = 1024,
         .memory_tbs = 0.54,
         .l2_mb = 6}),  // A10
    gpu({.name = "sm_87",
         .can = kAmpere,
         .smem_per_block = 163 * kKb,
         .threads_per_sm = 1536,
         .sm_count = 16,
         .clock_ghz = 1.3,
         .mma_flops_per_clock = 2048,
         .memory_tbs = 0.18,
         .l2_mb = 4}),  // AGX Orin 64 GB
    gpu({.name = "sm_89",
         .can = kAmpere,
         .smem_per_block = 99 * kKb,
         .threads_per_sm = 1536,
         .sm_count = 128,
         .clock_ghz = 2.52,
         .mma_flops_per_clock = 512,
         .narrow_mma_flops_per_clock = 1024,
         .memory_tbs = 0.93,
         .l2_mb = 72}),  // RTX 4090
    gpu({.name = "sm_90a",
         .can = kSm90,
         .smem_per_block = 227 * kKb,
         .threads_per_sm = 2048,
         .sm_count = 132,
         .clock_ghz = 1.75,
         .mma_flops_per_clock = 2750,
         .narrow_mma_flops_per_clock = 1024,
         .wgmma_flops_per_clock = 4096,
         .memory_tbs = 4.54,
         .l2_mb = 50}),  // H200
    gpu({.name = "sm_100a",
         .can = kSm100,
         .smem_per_block = 227 * kKb,
         .threads_per_sm = 2048,
         .sm_count = 148,
         .clock_ghz = 1.85,
         .mma_flops_per_clock = 2048,
         .narrow_mma_flops_per_clock = 1024,
         .memory_tbs = 7.2,
         .l2_mb = 126}),  // B200
    gpu({.name = "sm_103a",
         .can = kSm100,
         .smem_per_block = 227 * kKb,
         .threads_per_sm = 2048,
         .sm_count = 148,
         .clock_ghz = 1.9,
         .mma_flops_per_clock = 2048,
         .narrow_mma_flops_per_clock = 1024,
         .exp_per_clock = 32,
         .memory_tbs = 7.2,
         .l2_mb = 126}),  // B300
    gpu({.name = "sm_120a",
         .can = kSm100,
         .smem_per_block = 99 * kKb,
         .threads_per_sm = 1536,
         .sm_count = 170,
         .clock_ghz = 2.41,
         .mma_flops_per_clock = 512,
         .narrow_mma_flops_per_clock = 1024,
         .memory_tbs = 1.65,
         .l2_mb = 96}),  // RTX 5090
    gpu({.name = "sm_121a",
         .can = kSm100,
         .smem_per_block = 99 * kKb,
         .threads_per_sm = 1536,
         .sm_count = 48,
         .clock_ghz = 2.5,
         .mma_flops_per_clock = 512,
         .narrow_mma_flops_per_clock = 1024,
         .memory_tbs = 0.24,
         .l2_mb = 24}),  // DGX Spark
    Target{.name = "x86-64-v3",
           .gpu = false,
           .can = kAvx2,
           .sm_count = 8,
           .vector_bits = 256,
           .clock_ghz = 3.0,
           .mma_flops_per_clock = 32,
           .exp_per_clock = 1.3,
           .smem_bytes_per_clock = 64,
           .memory_tbs = 0.05,
           .l2_mb = 0.5},
    Target{.name = "x86-64-v4",
           .gpu = false,
           .can = kAvx512,
           .sm_count = 16,
           .vector_bits = 512,
           .clock_ghz = 2.8,
           .mma_flops_per_clock = 64,
           .exp_per_clock = 2.6,
           .smem_bytes_per_clock = 128,
           .memory_tbs = 0.15,
           .l2_mb = 1},
    Target{.name = "x86-64-v4+bf16",
           .gpu = false,
           .can = kAvx512Bf16,
           .sm_count = 16,
           .vector_bits = 512,
           .clock_ghz = 2.8,
           .mma_flops_per_clock = 64,
           .exp_per_clock = 2.6,
           .smem_bytes_per_clock = 128,
           .memory_tbs = 0.2,
           .l2_mb = 1},
    Target{.name = "x86-64-v4+amx",
           .gpu = false,
           .can = kAmx,
           .sm_count = 16,
           .vector_bits = 512,
           .clock_ghz = 2.8,
           .mma_flops_per_clock = 64,
           .exp_per_clock = 2.6,
           .smem_bytes_per_clock = 128,
           .memory_tbs = 0.25,
           .l2_mb = 2},
};

}  // namespace

std::span<const Target> targets() { return kTargets; }

Result<const Target*> find_target(std::string_view name) {
  std::vector<std::string_view> names;
  const Card* card = find_card(name);
  const std::string_view own = card ? card->target : name;
  for (const Target& target : kTargets) {
    if (target.name == own) return &target;
    names.push_back(target.name);
  }
  for (const Card& each : cards()) names.push_back(each.name);
  return invalid(there_is_no("target", name, names));
}

const Target* target_for_compute_capability(int major, int minor) {
  const std::string plain = fmt::format("sm_{}{}", major, minor), accelerated = plain + "a";
  for (const Target& target : kTargets) {
    if (target.name == plain || target.name == accelerated) return &target;
  }
  return nullptr;
}

bool runs_on(const Target& target, int major, int minor) {
  if (const Target* own = target_for_compute_capability(major, minor); own && own->name == target.name) return true;
  int capability = 0;
  for (const char c : target.name.substr(target.name.find('_') + 1)) {
    if (c >= '0' && c <= '9') capability = capability * 10 + (c - '0');
  }
  return !target.name.ends_with('a') && capability / 10 == major && capability % 10 <= minor;
}

}  // namespace flashjit

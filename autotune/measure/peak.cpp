#include "autotune/measure/peak.h"

#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstring>
#include <functional>
#include <new>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "codegen/host/config.h"
#include "compiler/spec/text_form.h"
#include "runtime/launch/library_thread.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace flashjit {
namespace {

#if defined(__x86_64__)

using Clock = std::chrono::steady_clock;

// The largest rate of these tries counts, because others may have used the cores in between.
constexpr int kTries = 3;
constexpr int kRounds = 10'000;  // rounds of one call, which takes some ten microseconds
// Number of sums that do not wait for each other: more than two pipes take at a time.
constexpr int kChains = 12;
// The compiler can neither know nor leave out these two. Sums begin with different values, because it would compute one
// for all otherwise.
volatile float some = 1e-3f, ignore;

__attribute__((target("avx2,fma"))) double multiply_avx2() {
  const __m256 factor = _mm256_set1_ps(some);
  __m256 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm256_set1_ps(some * static_cast<float>(i));
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(factor, factor, sum);
  }
  for (const __m256& sum : sums) ignore = _mm256_cvtss_f32(sum);
  return 2.0 * 8 * kChains * kRounds;
}

__attribute__((target("avx512f"))) double multiply_avx512() {
  const __m512 factor = _mm512_set1_ps(some);
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(some * static_cast<float>(i));
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(factor, factor, sum);
  }
  for (const __m512& sum : sums) ignore = _mm512_cvtss_f32(sum);
  return 2.0 * 16 * kChains * kRounds;
}

__attribute__((target("avx512f,avx512bf16"))) double multiply_pairs() {
  const __m512 factor = _mm512_set1_ps(some);
  const __m512bh pairs = _mm512_cvtne2ps_pbh(factor, factor);
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(some * static_cast<float>(i));
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, pairs, pairs);
  }
  for (const __m512& sum : sums) ignore = _mm512_cvtss_f32(sum);
  return 2.0 * 32 * kChains * kRounds;
}

// The host library has asked the system for leave to use tiles. Without that leave it would not choose them.
__attribute__((target("amx-tile,amx-bf16"))) double multiply_tiles() {
  struct alignas(64) TileConfig {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t bytes[16] = {64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16};
  };
  // It is static because g++ 12 believes that the instruction reads only eight bytes of it, and leaves out the stores
  // to the rest of a local variable.
  static constexpr TileConfig config;
  _tile_loadconfig(&config);
  _tile_zero(4);
  _tile_zero(5);
  constexpr int kTileRounds = kRounds / 10;
  for (int round = 0; round < kTileRounds; ++round) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_release();
  return 4 * 2.0 * 16 * 16 * 32 * kTileRounds;
}

struct Multiply {
  const char* name;
  double (*call)();  // Returns the FLOP that it did.
};

Multiply multiply_of(const host::HostConfig& config) {
  if (config.product == host::Product::Amx) return {"TDPBF16PS", multiply_tiles};
  if (config.product == host::Product::Dot) return {"VDPBF16PS", multiply_pairs};
  return config.avx512 ? Multiply{"AVX-512 FMA", multiply_avx512} : Multiply{"AVX2 FMA", multiply_avx2};
}

// Returns the amount per second of all threads together. `body(thread)` gives an amount, and is repeated for `seconds`.
double rate_of(int threads, double seconds, const std::function<double(int)>& body) {
  double most = 0;
  for (int i = 0; i < kTries; ++i) {
    std::barrier together(threads);
    std::vector<double> rates(static_cast<std::size_t>(threads));
    std::vector<std::jthread> running;
    for (int t = 0; t < threads; ++t) {
      running.push_back(library_thread([&, t] {
        together.arrive_and_wait();
        const auto start = Clock::now();
        double amount = 0, took = 0;
        while (took < seconds) {
          amount += body(t);
          took = std::chrono::duration<double>(Clock::now() - start).count();
        }
        rates[static_cast<std::size_t>(t)] = amount / took;
      }));
    }
    running.clear();
    double sum = 0;
    for (const double rate : rates) sum += rate;
    most = std::max(most, sum);
  }
  return most;
}

// Returns the bytes per second from memory. It reads a word of each line of more memory than caches hold.
double read_rate(int threads, std::size_t bytes) {
  constexpr std::size_t kLineWords = 64 / sizeof(std::uint64_t);
  const std::size_t words = bytes / static_cast<std::size_t>(threads) / sizeof(std::uint64_t);
  std::vector<std::unique_ptr<std::uint64_t[]>> buffers(static_cast<std::size_t>(threads));
  for (auto& buffer : buffers) {
    buffer.reset(new (std::nothrow) std::uint64_t[words]);
    if (!buffer) return 0;
  }
  std::vector<std::jthread> touching;  // Each thread touches its own buffer, so that it lies near the thread.
  for (auto& buffer : buffers) touching.push_back(library_thread([&] { std::fill_n(buffer.get(), words, 1); }));
  touching.clear();
  std::atomic<std::uint64_t> sums = 0;
  return rate_of(threads, 0.02, [&](int thread) {
    const std::uint64_t* buffer = buffers[static_cast<std::size_t>(thread)].get();
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < words; i += kLineWords) sum += buffer[i];
    sums += sum;
    return static_cast<double>(words * sizeof(std::uint64_t));
  });
}

#endif

// There is no peak on other processors, which run no kernels.
Peak measured_peak([[maybe_unused]] const Plan& plan, [[maybe_unused]] int threads) {
  Peak peak;
#if defined(__x86_64__)
  const Multiply multiply = multiply_of(host::config_of(plan));
  constexpr std::size_t kMb = std::size_t{1} << 20;
  const auto cache = static_cast<std::size_t>(std::max(0l, sysconf(_SC_LEVEL3_CACHE_SIZE)));
  const std::size_t bytes = std::clamp(2 * cache, 256 * kMb, 512 * kMb);
  peak.tflops = rate_of(threads, 0.004, [&](int) { return multiply.call(); }) * 1e-12;
  peak.tbs = read_rate(threads, bytes) * 1e-12;
  peak.how = fmt::format("measured on {}: {}, and reading {} MB of memory", counted(threads, "thread"), multiply.name,
                         bytes / kMb);
#endif
  return peak;
}

}  // namespace

Peak peak_of(const Plan& plan, int units) {
  const Target& target = plan.target;
  if (!target.gpu) return measured_peak(plan, units);
  const double rate = std::max(target.wgmma_flops_per_clock, target.mma_flops_per_clock);
  return {rate * target.clock_ghz * units * 1e-3, target.memory_tbs,
          fmt::format("by the target table: {} SMs, {} FLOP a clock each, {} GHz; {} TB/s", units, rate,
                      target.clock_ghz, target.memory_tbs)};
}

}  // namespace flashjit

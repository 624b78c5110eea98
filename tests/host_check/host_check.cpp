// host_check: every host target this machine can run against plain float64 loops, and its speed.
//
//   host_check            correctness; AMX is emulated where the processor has none
//   host_check --speed    GFLOP/s with one thread and with all (or --threads N)
//   host_check --tiles    speed over tile sizes
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "codegen/host/cpu.h"
#include "codegen/host/kernel.h"
#include "compiler/plan.h"
#include "tests/host_check/amx_emulator.h"
#include "tests/host_check/map_check.h"

namespace flashjit {
namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Threads that wait by spinning: what is measured is the kernel.
class Threads {
 public:
  explicit Threads(int count) : count_(count) {
    for (int worker = 1; worker < count; ++worker) threads_.emplace_back([this, worker] { serve(worker); });
  }
  ~Threads() {
    stop_ = true;
    ++round_;
    for (std::thread& thread : threads_) thread.join();
  }
  ParallelFor parallel() {
    return {count_, [this](std::int64_t items, const std::function<void(std::int64_t, int)>& body) {
              items_ = items;
              body_ = &body;
              next_ = 0;
              busy_ = count_ - 1;
              ++round_;
              work(0);
              while (busy_ > 0) __builtin_ia32_pause();
            }};
  }

 private:
  void work(int worker) {
    for (std::int64_t item; (item = next_++) < items_;) (*body_)(item, worker);
  }
  void serve(int worker) {
    for (int seen = 0;; ++seen) {
      while (round_ == seen) __builtin_ia32_pause();
      if (stop_) return;
      work(worker);
      --busy_;
    }
  }
  int count_;
  std::vector<std::thread> threads_;
  std::int64_t items_ = 0;
  const std::function<void(std::int64_t, int)>* body_ = nullptr;
  std::atomic<std::int64_t> next_{0};
  std::atomic<int> round_{0}, busy_{0};
  std::atomic<bool> stop_{false};
};

// Numbers with what they are after rounding to the dtype.
struct Numbers {
  Dtype dtype = Dtype::F32;
  std::vector<float> values;
  std::vector<char> bytes;
};

float bf16_value(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

void set(Numbers& numbers, std::size_t i, float value) {
  if (numbers.dtype == Dtype::F32) {
    std::memcpy(&numbers.bytes[4 * i], &value, 4);
  } else if (numbers.dtype == Dtype::BF16) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const auto rounded = static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    std::memcpy(&numbers.bytes[2 * i], &rounded, 2);
    value = bf16_value(rounded);
  } else {
    const auto half = static_cast<_Float16>(value);
    std::memcpy(&numbers.bytes[2 * i], &half, 2);
    value = static_cast<float>(half);
  }
  numbers.values[i] = value;
}

double get(const Numbers& numbers, std::size_t i) {
  if (numbers.dtype == Dtype::F32) {
    float value;
    std::memcpy(&value, &numbers.bytes[4 * i], 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, &numbers.bytes[2 * i], 2);
  if (numbers.dtype == Dtype::BF16) return bf16_value(bits);
  _Float16 half;
  std::memcpy(&half, &bits, 2);
  return static_cast<double>(half);
}

struct Run {
  int heads = 8, kv_heads = 8, d = 64, d_v = 64, q = 64, k = 64;
  bool causal = false;
  Dtype dtype = Dtype::F32;
  int tile_q = 0, tile_kv = 0;  // 0: the plan's choice
};

std::string spec_text(const Run& run) {
  std::string text = "fwd " + std::string(name(run.dtype)) + " d=" + std::to_string(run.d);
  if (run.d_v != run.d) text += "/" + std::to_string(run.d_v);
  text += " heads=" + std::to_string(run.heads) + "/" + std::to_string(run.kv_heads) + " layout=bhsd lse=ln";
  return text + (run.causal ? " mask=\"causal\"" : "");
}

class Case {
 public:
  Case(const Run& run, const Target& target) : run_(run) {
    const Result<AttentionSpec> spec = parse_spec(spec_text(run));
    if (!spec) {
      fail(spec.error());
      return;
    }
    Schedule pins;
    if (run.tile_q) pins.tile_q = run.tile_q;
    if (run.tile_kv) pins.tile_kv = run.tile_kv;
    const Result<Plan> plan = make_plan(*spec, target, pins);
    if (!plan) {
      fail(plan.error());
      return;
    }
    const double start = seconds();
    const Result<std::vector<std::uint8_t>> object = host::compile_kernel(*plan, false);
    if (!object) {
      fail(object.error());
      return;
    }
    Result<std::unique_ptr<HostKernel>> kernel = host::link_kernel(*plan, false, *object);
    if (!kernel) {
      fail(kernel.error());
      return;
    }
    compile_ms_ = (seconds() - start) * 1e3;
    kernel_ = std::move(*kernel);
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    auto fill = [&](Numbers& numbers, std::size_t count) {
      numbers = {run.dtype, std::vector<float>(count),
                 std::vector<char>(count * static_cast<std::size_t>(size_of(run.dtype)))};
      for (std::size_t i = 0; i < count; ++i) set(numbers, i, normal(random));
    };
    auto count = [](int heads, int tokens, int d) { return static_cast<std::size_t>(heads) * tokens * d; };
    fill(q_, count(run.heads, run.q, run.d));
    fill(k_, count(run.kv_heads, run.k, run.d));
    fill(v_, count(run.kv_heads, run.k, run.d_v));
    fill(o_, count(run.heads, run.q, run.d_v));
    lse_.resize(count(run.heads, run.q, 1));
    params_.q = q_.bytes.data();
    params_.k = k_.bytes.data();
    params_.v = v_.bytes.data();
    params_.o = o_.bytes.data();
    params_.lse = lse_.data();
    auto strides = [](int tokens, int d) { return Strides{0, Int64{tokens} * d, d}; };
    params_.q_stride = strides(run.q, run.d);
    params_.k_stride = strides(run.k, run.d);
    params_.v_stride = strides(run.k, run.d_v);
    params_.o_stride = strides(run.q, run.d_v);
    params_.row_stride_head = run.q;
    params_.batch = 1;
    params_.q_len = run.q;
    params_.k_len = run.k;
  }

  bool ok() const { return kernel_ != nullptr; }
  double compile_ms() const { return compile_ms_; }
  void run(const ParallelFor& parallel) { (void)!kernel_->run(params_, parallel); }

  // Largest error of O and LSE over some rows.
  std::pair<double, double> errors() const {
    double worst_o = 0, worst_lse = 0;
    for (int h = 0; h < run_.heads; ++h) {
      for (int row = h % 3; row < run_.q; row += 1 + run_.q / 16) check_row(h, row, worst_o, worst_lse);
    }
    return {worst_o, worst_lse};
  }

 private:
  void fail(const Error& error) { std::printf("FAILED: %s\n%s\n", error.message.c_str(), error.detail.c_str()); }

  void check_row(int h, int row, double& worst_o, double& worst_lse) const {
    const std::size_t hk = static_cast<std::size_t>(h / (run_.heads / run_.kv_heads));
    const std::size_t at = static_cast<std::size_t>(h) * run_.q + row;
    const int keys = run_.causal ? std::min(run_.k, std::max(0, row + run_.k - run_.q + 1)) : run_.k;
    std::vector<double> p(static_cast<std::size_t>(keys));
    double sum = 0;
    for (int j = 0; j < keys; ++j) {
      double dot = 0;
      for (int c = 0; c < run_.d; ++c) {
        dot += double{q_.values[at * run_.d + c]} * k_.values[(hk * run_.k + j) * run_.d + c];
      }
      sum += p[j] = std::exp(dot / std::sqrt(double(run_.d)));
    }
    for (int c = 0; c < run_.d_v; ++c) {
      double expected = 0;
      for (int j = 0; j < keys; ++j) expected += p[j] / sum * v_.values[(hk * run_.k + j) * run_.d_v + c];
      const double error = std::abs(get(o_, at * run_.d_v + c) - expected);
      if (!(error <= worst_o)) worst_o = error;
    }
    const double lse = std::log(sum);
    const double error = keys ? std::abs(lse_[at] - lse) : (lse_[at] == -INFINITY ? 0 : 1);
    if (!(error <= worst_lse)) worst_lse = error;
  }

  Run run_;
  std::unique_ptr<HostKernel> kernel_;
  double compile_ms_ = 0;
  Numbers q_, k_, v_, o_;
  std::vector<float> lse_;
  KernelParams params_{};
};

int check_all(Threads& threads) {
  const Run runs[] = {
      {4, 4, 64, 64, 70, 70, true}, {4, 2, 128, 128, 33, 129, false}, {2, 1, 40, 72, 130, 257, true},
      {3, 1, 96, 32, 1, 300, true}, {2, 2, 256, 256, 65, 31, true},   {2, 2, 16, 16, 5, 1, false},
  };
  int failed = 0;
  for (const Target& target : targets()) {
    if (target.gpu) continue;
    Target without_amx = target;
    without_amx.can.amx_bf16 = false;
    if (!host::can_run(without_amx)) {
      std::printf("%-16s not on this processor\n", std::string(target.name).c_str());
      continue;
    }
    const bool emulated = target.can.amx_bf16 && !host::cpu().amx_bf16;
    for (Run run : runs) {
      for (const Dtype dtype : {Dtype::F32, Dtype::F16, Dtype::BF16}) {
        run.dtype = dtype;
        Case one(run, target);
        if (!one.ok()) return 1;
        one.run(threads.parallel());
        const auto [o, lse] = one.errors();
        // Half a unit in the last place of outputs of size 4, and as much again for P.
        const double limit = dtype == Dtype::F32 ? 4e-6 : dtype == Dtype::F16 ? 4e-3 : 3e-2;
        const bool good = o <= limit && lse <= 2e-5;
        failed += !good;
        std::printf("%-16s%s %-4s d=%d/%d q=%d k=%d %s: O %.1e LSE %.1e %s\n", std::string(target.name).c_str(),
                    emulated ? " (emulated)" : "", std::string(name(dtype)).c_str(), run.d, run.d_v, run.q, run.k,
                    run.causal ? "causal" : "full", o, lse, good ? "ok" : "WRONG");
      }
    }
  }
  std::printf("%d wrong\n", failed);
  return failed != 0;
}

double gflops(const Run& run, const Target& target, const ParallelFor& parallel, double& compile_ms) {
  Case one(run, target);
  if (!one.ok()) return 0;
  compile_ms = one.compile_ms();
  double best = 1e9;
  const double until = seconds() + 0.5;
  for (int round = 0; round < 5 || seconds() < until; ++round) {
    const double start = seconds();
    one.run(parallel);
    best = std::min(best, seconds() - start);
  }
  return 4e-9 * run.heads * run.q * run.k * run.d * (run.causal ? 0.5 : 1) / best;
}

const Run kTimed[] = {
    {8, 8, 64, 64, 1024, 1024, true}, {8, 8, 128, 128, 2048, 2048, true}, {8, 8, 128, 128, 2048, 2048, false}};

void time_all(int threads_wanted, bool tiles) {
  for (const int count : {1, threads_wanted}) {
    Threads threads(count);
    for (const Target& target : targets()) {
      if (target.gpu || !host::can_run(target)) continue;
      for (const Dtype dtype : {Dtype::F32, Dtype::BF16}) {
        for (Run run : kTimed) {
          run.dtype = dtype;
          std::printf("%-16s %-4s d=%d n=%d %-6s threads=%d:", std::string(target.name).c_str(),
                      std::string(name(dtype)).c_str(), run.d, run.q, run.causal ? "causal" : "full", count);
          double compile_ms = 0;
          if (!tiles) {
            const double speed = gflops(run, target, threads.parallel(), compile_ms);
            std::printf(" %.0f GFLOP/s, compiled in %.0f ms\n", speed, compile_ms);
            continue;
          }
          for (run.tile_q = 32; run.tile_q <= 256; run.tile_q *= 2) {
            for (run.tile_kv = 128; run.tile_kv <= 512; run.tile_kv *= 2) {
              std::printf(" %dx%d %.0f", run.tile_q, run.tile_kv, gflops(run, target, threads.parallel(), compile_ms));
            }
          }
          std::printf("\n");
        }
      }
    }
    if (threads_wanted == 1) break;
  }
}

}  // namespace
}  // namespace flashjit

int main(int argc, char** argv) {
  bool speed = false, tiles = false;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--speed")) speed = true;
    if (!std::strcmp(argv[i], "--tiles")) speed = tiles = true;
    if (!std::strcmp(argv[i], "--threads") && i + 1 < argc) threads = std::max(1, std::atoi(argv[++i]));
  }
  std::printf("best target: %s\n", flashjit::host::best_target()->c_str());
  if (speed) {
    flashjit::time_all(threads, tiles);
    return 0;
  }
  if (!flashjit::host::cpu().amx_bf16) flashjit::testing::install_amx_emulator();
  flashjit::Threads pool(2);
  return flashjit::check_all(pool) + flashjit::check_maps();
}

// Kernels of the host backend, on every target this processor can run, against the float64 reference with masks and
// scores written a second time by hand.
#include <gtest/gtest.h>

#include <dlfcn.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>

#include "codegen/host/backend.h"
#include "tools/reference/compare.h"
#include "compiler/spec/half.h"

namespace flashjit {
namespace {

using reference::Dual;
using reference::Position;
using reference::Semantics;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

HostBackend* backend() {
  static HostBackend* const found = []() -> HostBackend* {
    void* library = dlopen(FLASHJIT_BINARY_DIR "/lib/libflashjit_host.so", RTLD_NOW | RTLD_LOCAL);
    if (!library) return nullptr;
    return reinterpret_cast<HostBackend* (*)()>(dlsym(library, kHostBackendSymbol))();
  }();
  return found;
}

// Host targets up to the best one here.
std::vector<const Target*> runnable_targets() {
  std::vector<const Target*> found;
  if (!backend()) return found;
  const std::string best = backend()->best_target();
  for (const Target& target : targets()) {
    if (target.gpu) continue;
    found.push_back(&target);
    if (target.name == best) break;
  }
  return found;
}

ParallelFor threads(int count) {
  return {count, [count](std::int64_t items, const std::function<void(std::int64_t, int)>& body) {
            std::atomic<std::int64_t> next{0};
            std::vector<std::thread> pool;
            for (int worker = 0; worker < count; ++worker) {
              pool.emplace_back([&, worker] {
                for (std::int64_t item; (item = next++) < items;) body(item, worker);
              });
            }
            for (std::thread& thread : pool) thread.join();
          }};
}

// A contiguous tensor with its memory.
struct Owned {
  std::vector<std::uint8_t> bytes;
  Tensor tensor;
};

std::uint32_t bits_of(float value, Dtype dtype) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (dtype == Dtype::F32) return bits;
  if (dtype == Dtype::F16) {
    const auto half = static_cast<_Float16>(value);
    std::uint16_t raw;
    std::memcpy(&raw, &half, 2);
    return raw;
  }
  if (std::isnan(value)) return 0x7fc0;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

Owned tensor_of(std::vector<std::int64_t> shape, Dtype dtype, const std::function<double(std::int64_t)>& value) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  Owned owned;
  const auto size = static_cast<std::size_t>(size_of(dtype));
  owned.bytes.assign(static_cast<std::size_t>(count) * size + 1, 0);
  for (std::int64_t i = 0; i < count; ++i) {
    const double number = value(i);
    const auto integer = static_cast<std::int64_t>(is_float(dtype) ? 0 : number);
    const std::uint32_t real = is_float(dtype) ? bits_of(static_cast<float>(number), dtype) : 0;
    std::memcpy(&owned.bytes[static_cast<std::size_t>(i) * size],
                is_float(dtype) ? static_cast<const void*>(&real) : &integer, size);
  }
  owned.tensor = {owned.bytes.data(), std::string(name(dtype)), std::move(shape), {}};
  return owned;
}

struct Row {
  std::string spec;  // without the dtype: "{}" stands for it
  std::int64_t batch = 1, q = 1, k = 1;
  Semantics semantics;
  std::vector<int> q_lengths, k_lengths;  // packed
  std::string pins = "tile_q=24,tile_kv=64";
  // Parameters: name, dtype, shape, value by index in memory order.
  struct Data {
    std::string name;
    Dtype dtype;
    std::vector<std::int64_t> shape;
    std::function<double(std::int64_t)> value;
  };
  std::vector<Data> data;
};

class HostCase {
 public:
  // `poison` may change inputs: called with "q", "k" or "v" and the index.
  using Poison = std::function<double(char which, std::int64_t index, double value)>;

  HostCase(const Row& row, Dtype dtype, const Target& target, bool naive, const Poison& poison = {}) {
    std::string text = row.spec;
    text.replace(text.find("{}"), 2, name(dtype));
    Result<AttentionSpec> spec = parse_spec(text);
    if (!spec) {
      fail("spec", spec.error());
      return;
    }
    spec_ = *spec;
    const Result<Schedule> pins = parse_schedule(row.pins);
    if (!pins) {
      fail("schedule", pins.error());
      return;
    }
    const Result<Plan> plan = make_plan(spec_, target, *pins);
    if (!plan) {
      fail("plan", plan.error());
      return;
    }
    Result<std::unique_ptr<HostKernel>> kernel = backend()->compile(*plan, naive);
    if (!kernel) {
      fail("compile", kernel.error());
      return;
    }
    kernel_ = std::move(*kernel);
    make_tensors(row, poison);
    make_params(row, *plan);
  }

  bool ok() const { return kernel_ != nullptr; }
  const std::string& problem() const { return problem_; }
  void run(int workers) {
    const Result<void> done = kernel_->run(params_, threads(workers));
    ASSERT_TRUE(done) << done.error().message;
  }
  const AttentionSpec& spec() const { return spec_; }
  const Arguments& arguments() const { return arguments_; }
  std::vector<std::uint8_t> output_bytes() const {
    std::vector<std::uint8_t> all = o_.bytes;
    all.insert(all.end(), lse_.bytes.begin(), lse_.bytes.end());
    all.insert(all.end(), max_logit_.bytes.begin(), max_logit_.bytes.end());
    return all;
  }

 private:
  void fail(const char* where, const Error& error) {
    problem_ = std::string(where) + ": " + error.message + "\n" + error.detail;
  }

  std::vector<std::int64_t> shape(std::int64_t batch, std::int64_t tokens, std::int64_t heads, std::int64_t d) const {
    if (spec_.layout == Layout::Packed) return {tokens, heads, d};
    if (spec_.layout == Layout::Bhsd) return {batch, heads, tokens, d};
    return {batch, tokens, heads, d};
  }
  static Strides strides_of(const Layout layout, const Tensor& tensor) {
    const auto& s = tensor.shape;
    if (layout == Layout::Packed) return {0, s[2], s[1] * s[2]};
    if (layout == Layout::Bhsd) return {s[1] * s[2] * s[3], s[2] * s[3], s[3]};
    return {s[1] * s[2] * s[3], s[3], s[2] * s[3]};
  }

  void make_tensors(const Row& row, const Poison& poison) {
    std::mt19937_64 random(20240607);
    std::normal_distribution<double> normal;
    const bool packed = spec_.layout == Layout::Packed;
    std::int64_t q = row.q, k = row.k;
    if (packed) {
      q = k = 0;
      for (const int length : row.q_lengths) q += length;
      for (const int length : row.k_lengths) k += length;
    }
    auto draw = [&](char which) {
      return [&, which](std::int64_t i) {
        const double value = normal(random);
        return poison ? poison(which, i, value) : value;
      };
    };
    q_ = tensor_of(shape(row.batch, q, spec_.heads_q, spec_.d_qk), spec_.dtype, draw('q'));
    k_ = tensor_of(shape(row.batch, k, spec_.heads_kv, spec_.d_qk), spec_.dtype, draw('k'));
    v_ = tensor_of(shape(row.batch, k, spec_.heads_kv, spec_.d_v), spec_.dtype, draw('v'));
    auto nan = [](std::int64_t) { return std::nan(""); };
    o_ = tensor_of(shape(row.batch, q, spec_.heads_q, spec_.d_v), spec_.out_dtype, nan);
    const std::vector<std::int64_t> row_shape =
        packed ? std::vector<std::int64_t>{spec_.heads_q, q} : std::vector<std::int64_t>{row.batch, spec_.heads_q, q};
    lse_ = tensor_of(row_shape, Dtype::F32, nan);
    max_logit_ = tensor_of(row_shape, Dtype::F32, nan);
    sink_ = tensor_of({spec_.heads_q}, Dtype::F32, [](std::int64_t i) { return 0.5 * static_cast<double>(i) - 1; });
    arguments_.q = q_.tensor;
    arguments_.k = k_.tensor;
    arguments_.v = v_.tensor;
    arguments_.o = o_.tensor;
    if (spec_.lse != Lse::None) arguments_.lse = lse_.tensor;
    if (spec_.max_logit) arguments_.max_logit = max_logit_.tensor;
    if (spec_.sink) arguments_.sink = sink_.tensor;
    auto offsets = [](const std::vector<int>& lengths) {
      std::vector<int> sums{0};
      for (const int length : lengths) sums.push_back(sums.back() + length);
      return tensor_of({static_cast<std::int64_t>(sums.size())}, Dtype::I32,
                       [&](std::int64_t i) { return sums[static_cast<std::size_t>(i)]; });
    };
    if (packed) {
      offsets_q_ = offsets(row.q_lengths);
      offsets_k_ = offsets(row.k_lengths);
      arguments_.offsets_q = offsets_q_.tensor;
      arguments_.offsets_k = offsets_k_.tensor;
      arguments_.max_q_len = row.q;
      arguments_.max_k_len = row.k;
    }
  }

  void make_params(const Row& row, const Plan& plan) {
    params_.q = q_.bytes.data();
    params_.k = k_.bytes.data();
    params_.v = v_.bytes.data();
    params_.o = o_.bytes.data();
    if (spec_.lse != Lse::None) params_.lse = reinterpret_cast<float*>(lse_.bytes.data());
    if (spec_.max_logit) params_.max_logit = reinterpret_cast<float*>(max_logit_.bytes.data());
    if (spec_.sink) params_.sink = reinterpret_cast<const float*>(sink_.bytes.data());
    if (spec_.layout == Layout::Packed) {
      params_.offsets_q = reinterpret_cast<const int*>(offsets_q_.bytes.data());
      params_.offsets_k = reinterpret_cast<const int*>(offsets_k_.bytes.data());
    }
    params_.q_stride = strides_of(spec_.layout, q_.tensor);
    params_.k_stride = strides_of(spec_.layout, k_.tensor);
    params_.v_stride = strides_of(spec_.layout, v_.tensor);
    params_.o_stride = strides_of(spec_.layout, o_.tensor);
    params_.row_stride_head = lse_.tensor.shape.back();
    params_.row_stride_batch = params_.row_stride_head * spec_.heads_q;
    params_.batch = static_cast<int>(row.batch);
    params_.q_len = static_cast<int>(row.q);
    params_.k_len = static_cast<int>(row.k);
    params_.tiles_q = static_cast<int>((row.q + *plan.schedule.tile_q - 1) / *plan.schedule.tile_q);
    data_.reserve(row.data.size());
    for (const Row::Data& data : row.data) {
      data_.push_back(tensor_of(data.shape, data.dtype, data.value));
      Owned& owned = data_.back();
      const auto place = std::find_if(spec_.params.begin(), spec_.params.end(),
                                      [&](const Param& param) { return param.name == data.name; });
      ExtraParam& extra = params_.extra[place - spec_.params.begin()];
      extra.data = owned.bytes.data();
      Int64 stride = 1;
      for (int d = place->rank - 1; d >= 0; --d) {
        extra.stride[d] = stride;
        stride *= data.shape[static_cast<std::size_t>(d)];
      }
      arguments_.params[data.name] = owned.tensor;
    }
  }

  AttentionSpec spec_;
  std::unique_ptr<HostKernel> kernel_;
  std::string problem_;
  Owned q_, k_, v_, o_, lse_, max_logit_, sink_, offsets_q_, offsets_k_;
  std::vector<Owned> data_;
  Arguments arguments_;
  KernelParams params_{};
};

bool causal(const Position& at) { return at.k <= at.q + at.k_len - at.q_len; }

Dual score_of(Dual s, double (*function)(double)) {
  return Dual(static_cast<float>(function(static_cast<double>(s.f))), function(s.d));
}

std::vector<Row> rows() {
  std::vector<Row> all;
  all.push_back({"fwd {} d=64 heads=4/2 lse=ln max_logit", 2, 70, 131, {}});
  all.push_back({"fwd {} d=40/72 heads=3 layout=bhsd lse=log2 mask=\"causal\"", 1, 45, 100, {causal, {}}});
  all.push_back({"fwd {} d=128 heads=4/1 out=fp32 mask=\"causal\" align=top_left lse=ln",
                 1,
                 90,
                 33,
                 {[](const Position& at) { return at.k <= at.q; }, {}}});
  all.push_back({"fwd {} d=256 heads=2 mask=\"causal & window(30, 0)\" max_logit",
                 1,
                 130,
                 130,
                 {[](const Position& at) { return causal(at) && at.k >= at.q - 30; }, {}}});
  all.push_back({"fwd {} d=16/24 heads=2 mask=\"k % 5 != q % 3 & k / 7 <= q / 2\" lse=ln",
                 1,
                 61,
                 97,
                 {[](const Position& at) { return at.k % 5 != at.q % 3 && at.k / 7 <= at.q / 2; }, {}}});
  // Rows that see nothing, with and without a sink.
  all.push_back({"fwd {} d=32 heads=2 mask=\"k < q - 20\" lse=ln max_logit",
                 1,
                 64,
                 64,
                 {[](const Position& at) { return at.k < at.q - 20; }, {}}});
  all.push_back({"fwd {} d=32 heads=3 mask=\"k < q - 20\" sink lse=log2",
                 1,
                 64,
                 64,
                 {[](const Position& at) { return at.k < at.q - 20; }, {}}});
  all.push_back({"fwd {} d=64 heads=2 lse=ln sink", 2, 5, 0, {}});
  all.push_back({"fwd {} d=64 heads=2 scale=-0.3", 1, 17, 29, {}});
  // Functions of the score.
  all.push_back({"fwd {} d=64 heads=2 score=\"5 * tanh(s / 5)\" lse=ln", 1, 33, 80, {{}, [](const Position&, Dual s) {
                                                                                       return score_of(s, [](double x) {
                                                                                         return 5 * std::tanh(x / 5);
                                                                                       });
                                                                                     }}});
  all.push_back({"fwd {} d=64 heads=2 score=\"log(1 + exp(s)) - 2 * sigmoid(3 * s)\" lse=ln",
                 1,
                 33,
                 80,
                 {{}, [](const Position&, Dual s) {
                    return score_of(s, [](double x) { return std::log1p(std::exp(x)) - 2 / (1 + std::exp(-3 * x)); });
                  }}});
  all.push_back({"fwd {} d=64 heads=2 score=\"where(s < 0, -sqrt(abs(s)), min(s, 0.75)) + max(q - k, 3) * 0.01\"",
                 1,
                 33,
                 80,
                 {{}, [](const Position& at, Dual s) {
                    const Dual bent = score_of(s, [](double x) { return x < 0 ? -std::sqrt(-x) : std::min(x, 0.75); });
                    const double more = static_cast<double>(std::max<std::int64_t>(at.q - at.k, 3)) * 0.01;
                    return Dual(bent.f + static_cast<float>(more), bent.d + more);
                  }}});
  // Parameters: contiguous, gathered, bits.
  auto bias = [](std::int64_t i) { return std::cos(static_cast<double>(i)); };
  all.push_back({"fwd {} d=64 heads=2 params=\"table: fp32[3]\" score=\"s + table[h, q, k]\" mask=\"causal\"",
                 1,
                 50,
                 90,
                 {causal,
                  [bias](const Position& at, Dual s) {
                    const double more = static_cast<float>(bias((at.h * 50 + at.q) * 90 + at.k));
                    return Dual(s.f + static_cast<float>(more), s.d + more);
                  }},
                 {},
                 {},
                 "tile_q=24,tile_kv=64",
                 {{"table", Dtype::F32, {2, 50, 90}, bias}}});
  all.push_back({"fwd {} d=64 heads=2 params=\"table: fp16[1]\" score=\"s + table[abs(q - k)]\"",
                 1,
                 50,
                 90,
                 {{},
                  [](const Position& at, Dual s) {
                    const double more = 0.25 * static_cast<double>(std::abs(at.q - at.k) % 9);
                    return Dual(s.f + static_cast<float>(more), s.d + more);
                  }},
                 {},
                 {},
                 "tile_q=24,tile_kv=64",
                 {{"table", Dtype::F16, {90}, [](std::int64_t i) { return 0.25 * static_cast<double>(i % 9); }}}});
  all.push_back({"fwd {} d=64 heads=2 params=\"doc: i32[2]\" mask=\"doc[b, q] == doc[b, k]\"",
                 2,
                 80,
                 80,
                 {[](const Position& at) { return (at.b * 80 + at.q) / 30 == (at.b * 80 + at.k) / 30; }, {}},
                 {},
                 {},
                 "tile_q=24,tile_kv=64",
                 {{"doc", Dtype::I32, {2, 80}, [](std::int64_t i) { return static_cast<double>(i / 30); }}}});
  auto words = [](std::int64_t i) { return static_cast<double>((i * 2654435761) & 0xffffffff); };
  for (const Dtype dtype : {Dtype::U32, Dtype::I64}) {
    all.push_back({"fwd {} d=64 heads=2 params=\"bits: " + std::string(name(dtype)) +
                       "[2]\" mask=\"bit(bits[q, k / 32], k % 32)\" lse=ln",
                   1,
                   40,
                   100,
                   {[words](const Position& at) {
                      return (static_cast<std::int64_t>(words(at.q * 4 + at.k / 32)) >> (at.k % 32) & 1) != 0;
                    },
                    {}},
                   {},
                   {},
                   "tile_q=24,tile_kv=64",
                   {{"bits", dtype, {40, 4}, words}}});
  }
  all.push_back({"fwd {} d=32 heads=1 params=\"keep: u8[1]\" mask=\"keep[k] != 0\"",
                 1,
                 9,
                 200,
                 {[](const Position& at) { return at.k % 3 != 0; }, {}},
                 {},
                 {},
                 "tile_q=24,tile_kv=64",
                 {{"keep", Dtype::U8, {200}, [](std::int64_t i) { return i % 3 != 0 ? 200.0 : 0.0; }}}});
  // Ints beyond 32 bits.
  all.push_back({"fwd {} d=32 heads=1 mask=\"(q * 1000000007 + k * 998244353) % 3 < 2\"",
                 1,
                 40,
                 40,
                 {[](const Position& at) { return (at.q * 1000000007 + at.k * 998244353) % 3 < 2; }, {}}});
  all.push_back({"fwd {} d=64 heads=4/2 layout=packed mask=\"causal\" lse=ln max_logit",
                 5,
                 70,
                 90,
                 {causal, {}},
                 {70, 0, 1, 33, 9},
                 {70, 20, 90, 0, 8}});
  return all;
}

class HostKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!backend()) GTEST_SKIP() << "built without the host backend";
  }
};

void expect_right(const Row& row, Dtype dtype, const Target& target, bool naive) {
  SCOPED_TRACE(row.spec + " as " + std::string(name(dtype)) + " on " + std::string(target.name) +
               (naive ? " naive" : ""));
  HostCase one(row, dtype, target, naive);
  ASSERT_TRUE(one.ok()) << one.problem();
  one.run(3);
  const auto problem = reference::Problem::create(one.spec(), one.arguments(), row.semantics);
  ASSERT_TRUE(problem) << problem.error().message;
  const reference::Comparison comparison = reference::compare(*problem);
  EXPECT_TRUE(comparison.ok) << comparison.problem;
}

TEST_F(HostKernels, MatchTheReferenceOnEveryTarget) {
  bool first = true;
  for (const Target* target : runnable_targets()) {
    for (const Row& row : rows()) {
      expect_right(row, Dtype::F32, *target, false);
      expect_right(row, Dtype::BF16, *target, false);
      if (first) expect_right(row, Dtype::F16, *target, false);  // fp16 is the fp32 kernel with another conversion
    }
    first = false;
  }
}

TEST_F(HostKernels, NaiveVersionMatchesTheReference) {
  for (const Row& row : rows()) {
    for (const Dtype dtype : {Dtype::F32, Dtype::F16, Dtype::BF16})
      expect_right(row, dtype, *runnable_targets().back(), true);
  }
}

TEST_F(HostKernels, OddTilesMatchTheReference) {
  Row row = rows()[1];
  for (const char* pins : {"tile_q=1,tile_kv=16", "tile_q=7,tile_kv=48", "tile_q=200,tile_kv=512"}) {
    row.pins = pins;
    for (const Target* target : runnable_targets()) expect_right(row, Dtype::BF16, *target, false);
  }
}

TEST_F(HostKernels, ResultsDoNotDependOnTheNumberOfWorkers) {
  for (const Row& row : rows()) {
    SCOPED_TRACE(row.spec);
    HostCase one(row, Dtype::BF16, *runnable_targets().back(), false);
    ASSERT_TRUE(one.ok()) << one.problem();
    one.run(1);
    const std::vector<std::uint8_t> alone = one.output_bytes();
    one.run(3);
    EXPECT_EQ(alone, one.output_bytes());
  }
}

// Which rows of O hold a NaN, when key 40's first element is `value`.
std::vector<bool> rows_with_nan(double value, Dtype dtype, const Target& target, float* lse_of_first) {
  const Row row{"fwd {} d=64 heads=1 lse=ln mask=\"causal\" out=fp32", 1, 70, 70, {}};
  HostCase one(row, dtype, target, false, [value](char which, std::int64_t index, double drawn) {
    if (which == 'q' && index % 64 == 0) return 1.0;
    return which == 'k' && index == 40 * 64 ? value : drawn;
  });
  EXPECT_TRUE(one.ok()) << one.problem();
  one.run(1);
  const auto* o = static_cast<const float*>(one.arguments().o.data);
  *lse_of_first = static_cast<const float*>(one.arguments().lse.data)[69];
  std::vector<bool> found;
  for (int q = 0; q < 70; ++q) found.push_back(std::isnan(o[q * 64]) && std::isnan(o[q * 64 + 63]));
  return found;
}

TEST_F(HostKernels, NanAndInfinityReachTheRowsThatSeeThem) {
  for (const Target* target : runnable_targets()) {
    for (const Dtype dtype : {Dtype::F32, Dtype::F16, Dtype::BF16}) {
      SCOPED_TRACE(std::string(target->name) + " " + std::string(name(dtype)));
      float lse = 0;
      std::vector<bool> expected(70, false);
      for (int q = 40; q < 70; ++q) expected[static_cast<std::size_t>(q)] = true;
      EXPECT_EQ(rows_with_nan(std::nan(""), dtype, *target, &lse), expected);
      EXPECT_TRUE(std::isnan(lse));
      // exp(inf - inf)
      EXPECT_EQ(rows_with_nan(kInfinity, dtype, *target, &lse), expected);
      EXPECT_TRUE(std::isnan(lse));
      // A score of -inf is a key with weight zero.
      EXPECT_EQ(rows_with_nan(-kInfinity, dtype, *target, &lse), std::vector<bool>(70, false));
      EXPECT_TRUE(std::isfinite(lse));
    }
  }
}

TEST_F(HostKernels, LongSequencesOfLargeScoresStayFinite) {
  // Scores near +-1000: every exponential but the largest underflows.
  const Row row{"fwd {} d=64 heads=1 scale=40 lse=ln", 1, 20, 700, {}};
  for (const Target* target : runnable_targets()) expect_right(row, Dtype::F32, *target, false);
}

TEST_F(HostKernels, PrintsTheIrOfTargetsItCannotRun) {
  const auto spec = parse_spec("fwd bf16 d=64 heads=1 mask=\"causal\"");
  ASSERT_TRUE(spec);
  const auto target = find_target("x86-64-v4+amx");
  ASSERT_TRUE(target);
  const auto plan = make_plan(*spec, **target);
  ASSERT_TRUE(plan);
  const auto text = backend()->llvm_ir(*plan);
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_NE(text->find("@llvm.x86.tdpbf16ps"), std::string::npos);
  EXPECT_NE(text->find("define void @flashjit_tile"), std::string::npos);
}

TEST_F(HostKernels, RefusesAGpuTarget) {
  const auto spec = parse_spec("fwd bf16 d=64 heads=1");
  const auto target = find_target("sm_90a");
  ASSERT_TRUE(spec && target);
  const auto plan = make_plan(*spec, **target);
  ASSERT_TRUE(plan);
  const auto kernel = backend()->compile(*plan, false);
  ASSERT_FALSE(kernel);
  EXPECT_EQ(kernel.error().kind, ErrorKind::Invalid);
  EXPECT_NE(kernel.error().message.find("sm_90a"), std::string::npos);
}

}  // namespace
}  // namespace flashjit

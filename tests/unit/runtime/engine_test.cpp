// Engines through both APIs, on the host backend: skipped where that is not built.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "flashjit/flashjit.h"
#include "flashjit/flashjit.hpp"

namespace flashjit {
namespace {

constexpr int kBatch = 2, kTokens = 33, kHeads = 4, kKv = 2, kDim = 32;
constexpr char kPrepared[] = "fwd fp32 d=32 heads=4/2 mask=\"causal\" lse=ln";

struct Tensors {
  std::vector<float> q = numbers(kBatch * kTokens * kHeads * kDim, 1), k = numbers(kBatch * kTokens * kKv * kDim, 2),
                     v = numbers(kBatch * kTokens * kKv * kDim, 3), o = std::vector<float>(q.size()),
                     lse = std::vector<float>(kBatch * kHeads * kTokens);

  static std::vector<float> numbers(int count, std::uint32_t seed) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) {
      seed = seed * 1664525u + 1013904223u;
      value = static_cast<float>(seed >> 8) / static_cast<float>(1 << 23) - 1;
    }
    return values;
  }
  Arguments arguments() {
    Arguments a;
    a.q = {q.data(), "fp32", {kBatch, kTokens, kHeads, kDim}, {}};
    a.k = {k.data(), "fp32", {kBatch, kTokens, kKv, kDim}, {}};
    a.v = {v.data(), "fp32", {kBatch, kTokens, kKv, kDim}, {}};
    a.o = {o.data(), "fp32", {kBatch, kTokens, kHeads, kDim}, {}};
    a.lse = {lse.data(), "fp32", {kBatch, kHeads, kTokens}, {}};
    return a;
  }
};

class EngineTest : public testing::Test {
 protected:
  void SetUp() override {
    auto created = Engine::create({.device = Device::Host, .disk_cache = false, .threads = 2});
    if (!created) {
      ASSERT_EQ(created.error().kind, ErrorKind::NotFound) << created.error().message;
      ASSERT_NE(created.error().message.find("llvm-19-dev"), std::string::npos);
      GTEST_SKIP() << created.error().message;
    }
    engine = *created;
  }
  std::shared_ptr<Engine> engine;
};

TEST_F(EngineTest, TheFirstRowSeesTheFirstKey) {
  Tensors problem;
  const auto kernel = engine->prepare(kPrepared);
  ASSERT_TRUE(kernel) << kernel.error().message;
  const auto done = (*kernel)->run(problem.arguments());
  ASSERT_TRUE(done) << done.error().message;
  for (std::size_t h = 0; h < kHeads; ++h) {
    double dot = 0;
    for (std::size_t d = 0; d < kDim; ++d) {
      EXPECT_NEAR(problem.o[h * kDim + d], problem.v[h / 2 * kDim + d], 1e-6);
      dot += double{problem.q[h * kDim + d]} * problem.k[h / 2 * kDim + d];
    }
    EXPECT_NEAR(problem.lse[h * kTokens], dot / std::sqrt(32.0), 1e-5);
  }
}

TEST_F(EngineTest, FactsSayWhatWasMade) {
  const auto kernel = engine->prepare(kPrepared);
  ASSERT_TRUE(kernel);
  const Facts& facts = (*kernel)->facts();
  EXPECT_EQ(facts.spec, kPrepared);
  EXPECT_EQ(facts.target, engine->target());
  EXPECT_EQ(facts.family, "host");
  EXPECT_EQ(facts.source, "compiled");
  EXPECT_EQ(facts.key.size(), 64u);
  EXPECT_GT(facts.cubin_bytes, 0);
}

TEST_F(EngineTest, ManyThreadsGetOneKernelAndTheSameBits) {
  std::vector<std::shared_ptr<Kernel>> kernels(6);
  std::vector<std::vector<float>> outputs(kernels.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    threads.emplace_back([&, i] {
      auto kernel = engine->prepare(kPrepared);
      if (!kernel) return;
      kernels[i] = *kernel;
      Tensors problem;
      if ((*kernel)->run(problem.arguments())) outputs[i] = problem.o;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    ASSERT_NE(kernels[i], nullptr);
    EXPECT_EQ(kernels[i], kernels[0]);
    EXPECT_EQ(outputs[i], outputs[0]);
    EXPECT_FALSE(outputs[i].empty());
  }
}

TEST_F(EngineTest, TheNumberOfThreadsChangesNoBit) {
  std::vector<float> first;
  for (const int count : {1, 2, 3, 8}) {
    auto other = Engine::create({.device = Device::Host, .disk_cache = false, .threads = count});
    ASSERT_TRUE(other);
    auto kernel = (*other)->prepare(kPrepared);
    ASSERT_TRUE(kernel);
    EXPECT_EQ((*kernel)->facts().threads, count);
    Tensors problem;
    ASSERT_TRUE((*kernel)->run(problem.arguments()));
    if (first.empty()) first = problem.o;
    EXPECT_EQ(problem.o, first) << count;
  }
}

TEST_F(EngineTest, AKernelOutlivesItsEngine) {
  auto kernel = engine->prepare(kPrepared);
  ASSERT_TRUE(kernel);
  engine.reset();
  Tensors problem;
  EXPECT_TRUE((*kernel)->run(problem.arguments()));
}

TEST_F(EngineTest, RefusedSpecsAndTargets) {
  const auto spec = engine->prepare("fwd fp32 d=-1 heads=4");
  ASSERT_FALSE(spec);
  EXPECT_EQ(spec.error().kind, ErrorKind::Invalid);
  const auto schedule = engine->prepare(kPrepared, {.schedule = "tile_q=banana"});
  ASSERT_FALSE(schedule);
  EXPECT_EQ(schedule.error().kind, ErrorKind::Invalid);
  EXPECT_NE(schedule.error().message.find("tile_q"), std::string::npos);
  const auto gpu = Engine::create({.device = Device::Host, .target = "sm_90a"});
  ASSERT_FALSE(gpu);
  EXPECT_EQ(gpu.error().kind, ErrorKind::Invalid);
  EXPECT_NE(gpu.error().message.find("device=Gpu"), std::string::npos);
}

flashjit_tensor tensor(void* data, std::vector<std::int64_t>& shape, int device_type = 1) {
  return {data, {device_type, 0}, static_cast<std::int32_t>(shape.size()), {2, 32, 1}, shape.data(), nullptr, 0};
}

// Calls that the C interface refuses; `arguments` are right before and are changed.
void expect_refusals(flashjit_kernel* kernel, flashjit_arguments& arguments, flashjit_tensor& o,
                     const flashjit_tensor& lse) {
  const auto refused = [&](const char* words) {
    flashjit_error* error = nullptr;
    EXPECT_EQ(flashjit_run(kernel, &arguments, nullptr, &error), FLASHJIT_INVALID);
    EXPECT_EQ(flashjit_error_kind(error), FLASHJIT_INVALID);
    EXPECT_NE(std::strstr(flashjit_error_message(error), words), nullptr) << flashjit_error_message(error);
    flashjit_error_destroy(error);
  };
  o.device.device_type = 2;
  refused("o: lies in GPU memory");
  o.device.device_type = 7;
  refused("o.device: type 7");
  o.device.device_type = 1;
  o.dtype.lanes = 4;
  refused("o.dtype: 'a type that FlashJIT does not know'");
  o.dtype.lanes = 1;
  arguments.lse = nullptr;
  refused("lse: missing");
  arguments.lse = &lse;
  static constexpr flashjit_param param = {"cap", nullptr, 1};
  arguments.params = &param;
  arguments.param_count = 1;
  refused("params.cap: the spec has no parameter of this name; it has none");
  arguments.param_count = -1;
  refused("param_count: -1");
  arguments.struct_size = 8;
  refused("struct_size: 8");
}

TEST_F(EngineTest, TheCInterfaceComputesTheSame) {
  Tensors expected, problem;
  auto reference = engine->prepare(kPrepared);
  ASSERT_TRUE(reference);
  ASSERT_TRUE((*reference)->run(expected.arguments()));

  flashjit_engine_options options = {};
  options.struct_size = sizeof options;
  options.host = 1;
  options.no_disk_cache = 1;
  flashjit_engine* c_engine = nullptr;
  flashjit_kernel* kernel = nullptr;
  flashjit_error* error = nullptr;
  ASSERT_EQ(flashjit_engine_create(&options, &c_engine, &error), FLASHJIT_OK) << flashjit_error_message(error);
  EXPECT_EQ(engine->target(), flashjit_engine_target(c_engine));
  ASSERT_EQ(flashjit_prepare(c_engine, kPrepared, nullptr, &kernel, &error), FLASHJIT_OK)
      << flashjit_error_message(error);
  EXPECT_NE(
      std::strstr(flashjit_kernel_facts(kernel), "\"spec\": \"fwd fp32 d=32 heads=4/2 mask=\\\"causal\\\" lse=ln\""),
      nullptr)
      << flashjit_kernel_facts(kernel);

  std::vector<std::int64_t> wide = {kBatch, kTokens, kHeads, kDim}, narrow = {kBatch, kTokens, kKv, kDim},
                            rows = {kBatch, kHeads, kTokens};
  // The offset in bytes is part of where a tensor begins.
  flashjit_tensor q = tensor(problem.q.data() - 4, wide), k = tensor(problem.k.data(), narrow),
                  v = tensor(problem.v.data(), narrow), o = tensor(problem.o.data(), wide),
                  lse = tensor(problem.lse.data(), rows);
  q.byte_offset = 16;
  flashjit_arguments arguments = {};
  arguments.struct_size = sizeof arguments;
  arguments.q = &q;
  arguments.k = &k;
  arguments.v = &v;
  arguments.o = &o;
  arguments.lse = &lse;
  ASSERT_EQ(flashjit_run(kernel, &arguments, nullptr, &error), FLASHJIT_OK) << flashjit_error_message(error);
  EXPECT_EQ(error, nullptr);
  EXPECT_EQ(problem.o, expected.o);
  EXPECT_EQ(problem.lse, expected.lse);

  expect_refusals(kernel, arguments, o, lse);
  flashjit_kernel_destroy(kernel);
  flashjit_engine_destroy(c_engine);
}

}  // namespace
}  // namespace flashjit

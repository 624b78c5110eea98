// Quick code first, the best code later: what is launched when, that nothing is unloaded, and on a GPU the whole way.
#include "runtime/engine/tiered_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <future>
#include <thread>

#include "runtime/engine/background.h"
#include "runtime/driver/device_memory.h"
#include "tests/requests.h"

namespace flashjit {
namespace {

using namespace std::chrono_literals;

Plan a_plan() {
  auto plan = plan_spec("fwd bf16 d=64 heads=2", "sm_80", "");
  EXPECT_TRUE(plan);
  return *plan;
}

// Counts its launches, and says when it is gone.
class Counting : public RunnableKernel {
 public:
  Counting(std::string source, int& launches, bool& gone, std::int64_t workspace_bytes = 0)
      : RunnableKernel(plan_with(workspace_bytes), facts_from(std::move(source)), 0),
        launches_(launches),
        gone_(gone) {}
  ~Counting() override { gone_ = true; }

 private:
  static Plan plan_with(std::int64_t workspace_bytes) {
    Plan plan = a_plan();
    if (workspace_bytes > 0) plan.workspace = {{"all", "float", workspace_bytes, {}}};
    return plan;
  }
  static Facts facts_from(std::string source) {
    Facts facts;
    facts.source = std::move(source);
    return facts;
  }
  Result<void> launch(const CallArguments&, void*) override {
    ++launches_;
    return {};
  }
  int& launches_;
  bool& gone_;
};

struct Two {
  int quick_launches = 0, best_launches = 0;
  bool quick_gone = false, best_gone = false;
  std::shared_ptr<RunnableKernel> quick() { return std::make_shared<Counting>("quick", quick_launches, quick_gone); }
  std::shared_ptr<RunnableKernel> best() { return std::make_shared<Counting>("best", best_launches, best_gone); }
};

TEST(TieredKernel, TheBestCodeTakesOverAndTheQuickOneStaysLoaded) {
  Two two;
  {
    const auto kernel = std::make_shared<TieredKernel>(a_plan(), two.quick());
    EXPECT_EQ(kernel->facts().source, "quick");
    ASSERT_TRUE(kernel->run(CallArguments{}, nullptr));
    kernel->replace(two.best());
    ASSERT_TRUE(kernel->run(CallArguments{}, nullptr));
    ASSERT_TRUE(kernel->run(CallArguments{}, nullptr));
    EXPECT_EQ(kernel->facts().source, "best");
    EXPECT_EQ(two.quick_launches, 1);
    EXPECT_EQ(two.best_launches, 2);
    EXPECT_FALSE(two.quick_gone);
  }
  EXPECT_TRUE(two.quick_gone && two.best_gone);
}

TEST(TieredKernel, TheQuickCodeStaysWhereTheBestLacksWorkspace) {
  Two two;
  const auto kernel = std::make_shared<TieredKernel>(a_plan(), two.quick());
  Kernel& prepared = *kernel;
  char memory[1];
  const Tensor tensor = {memory, "bf16", {1, 0, 2, 64}, {}};
  Arguments arguments = {.q = tensor, .k = tensor, .v = tensor, .o = tensor};
  EXPECT_EQ(*prepared.workspace_bytes(arguments), 0);
  kernel->replace(std::make_shared<Counting>("best", two.best_launches, two.best_gone, 512));
  ASSERT_TRUE(prepared.run(arguments));
  EXPECT_EQ(two.quick_launches, 1) << "who had asked before gives none";
  ASSERT_EQ(*prepared.workspace_bytes(arguments), 512);
  arguments.workspace_bytes = 512;
  ASSERT_TRUE(prepared.run(arguments));
  EXPECT_EQ(two.best_launches, 1);
}

TEST(Promotion, BestFirst) {
  Two two;
  Promotion promotion;
  EXPECT_FALSE(promotion.deliver(two.best()));
  const auto made = promotion.wait(CompileBounds(1h, nullptr));
  ASSERT_TRUE(made && *made);
  EXPECT_EQ((**made)->facts().source, "best");
}

TEST(Promotion, QuickFirst) {
  Two two;
  Promotion promotion;
  EXPECT_FALSE(promotion.wait(CompileBounds(1ms, nullptr)));
  const auto kernel = std::make_shared<TieredKernel>(a_plan(), two.quick());
  EXPECT_FALSE(promotion.answer_with(kernel));
  EXPECT_TRUE(promotion.deliver(two.best()));
  EXPECT_EQ(kernel->facts().source, "best");
}

TEST(Promotion, BestWhileTheQuickOneWasCompiled) {
  Two two;
  Promotion promotion;
  EXPECT_FALSE(promotion.wait(CompileBounds(1ms, nullptr)));
  EXPECT_FALSE(promotion.deliver(two.best()));
  const auto kernel = std::make_shared<TieredKernel>(a_plan(), two.quick());
  EXPECT_TRUE(promotion.answer_with(kernel));
  EXPECT_EQ(kernel->facts().source, "best");
}

TEST(Promotion, WithoutABestOneTheQuickOneStays) {
  Two two;
  Promotion promotion;
  const auto kernel = std::make_shared<TieredKernel>(a_plan(), two.quick());
  EXPECT_FALSE(promotion.answer_with(kernel));
  EXPECT_FALSE(promotion.deliver(unsupported("no")));
  EXPECT_EQ(kernel->facts().source, "quick");
}

TEST(Promotion, OfAKernelThatNobodyHasAnyMore) {
  Two two;
  Promotion promotion;
  EXPECT_FALSE(promotion.answer_with(std::make_shared<TieredKernel>(a_plan(), two.quick())));
  EXPECT_TRUE(two.quick_gone);
  EXPECT_FALSE(promotion.deliver(two.best()));
}

TEST(Background, JobsInOrderAndAnEndThatDoesNotWaitForThem) {
  std::vector<int> order;
  std::promise<void> all;
  {
    Background background(1);
    for (int i = 0; i < 5; ++i) {
      background.add([&, i](const std::atomic<bool>&) {
        order.push_back(i);
        if (i == 4) all.set_value();
      });
    }
    all.get_future().wait();
  }
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
  bool dropped = true;
  std::promise<void> begun;
  {
    Background background(1);
    background.add([&](const std::atomic<bool>& stop) {
      begun.set_value();
      while (!stop) std::this_thread::sleep_for(1ms);
    });
    background.add([&](const std::atomic<bool>&) { dropped = false; });
    begun.get_future().wait();
  }
  EXPECT_TRUE(dropped);
}

// Q, K, V of a fixed pattern, and an output per call.
class TieredOnGpu : public testing::Test {
 protected:
  static constexpr char kSpec[] = "fwd bf16 d=64 heads=2 mask=\"causal\"";
  static constexpr std::int64_t kTokens = 300, kHeads = 2, kDim = 64, kCount = kTokens * kHeads * kDim;

  void SetUp() override {
    auto driver = Driver::open();
    if (!driver) GTEST_SKIP() << driver.error().message;
    if (auto info = (*driver)->device(0); !info) GTEST_SKIP() << info.error().message;
    auto opened = GpuContext::open(*driver, 0);
    ASSERT_TRUE(opened) << opened.error().message;
    gpu = *opened;
    auto created = Engine::create({.disk_cache = false});
    if (!created) GTEST_SKIP() << created.error().message;
    engine = *created;
    for (int i = 0; i < 4; ++i) {
      auto buffer = DeviceBuffer::allocate(gpu, kCount * 2);
      ASSERT_TRUE(buffer) << buffer.error().message;
      std::vector<std::uint16_t> values(kCount);
      for (std::size_t n = 0; n < values.size(); ++n)
        values[n] = static_cast<std::uint16_t>(0x3c00 + (n * 37 + static_cast<std::size_t>(i) * 11) % 256);
      ASSERT_TRUE(buffer->upload(values.data()));
      buffers.push_back(std::move(*buffer));
    }
  }
  Arguments arguments() {
    Arguments a;
    Tensor* tensors[] = {&a.q, &a.k, &a.v, &a.o};
    for (int i = 0; i < 4; ++i)
      *tensors[i] = {buffers[static_cast<std::size_t>(i)].data(), "bf16", {1, kTokens, kHeads, kDim}, {}};
    return a;
  }
  std::vector<std::uint16_t> output() {
    std::vector<std::uint16_t> bits(kCount);
    EXPECT_TRUE(buffers[3].download(bits.data()));
    return bits;
  }
  static float value(std::uint16_t bits) {
    const std::uint32_t wide = std::uint32_t{bits} << 16;
    float number;
    std::memcpy(&number, &wide, sizeof number);
    return number;
  }

  GpuContext gpu;
  std::shared_ptr<Engine> engine;
  std::vector<DeviceBuffer> buffers;
};

TEST_F(TieredOnGpu, FromQuickToBestWithAGraphInBetween) {
  PrepareOptions options;
  options.budget = 1ms;
  auto kernel = engine->prepare(kSpec, options);
  ASSERT_TRUE(kernel) << kernel.error().message;
  ASSERT_EQ(engine->counters().quick_kernels, 1);
  auto stream = Stream::create(gpu);
  ASSERT_TRUE(stream);
  auto graph = Graph::capture(gpu, *stream, [&] { return (*kernel)->run(arguments(), stream->get()); });
  ASSERT_TRUE(graph) << graph.error().message;
  ASSERT_TRUE(graph->launch(*stream) && stream->synchronize());
  const auto captured = output();
  while (engine->counters().replaced_kernels == 0) std::this_thread::sleep_for(5ms);
  EXPECT_EQ((*kernel)->facts().source, "compiled");
  ASSERT_TRUE((*kernel)->run(arguments(), stream->get()) && stream->synchronize());
  const auto after = output();
  ASSERT_TRUE(graph->launch(*stream) && stream->synchronize());
  EXPECT_EQ(output(), captured) << "a graph that was captured must go on as it did";
  for (std::size_t i = 0; i < after.size(); ++i) {
    ASSERT_NEAR(value(after[i]), value(captured[i]), 0.02f * std::abs(value(after[i])) + 1e-4f) << i;
  }
  const auto plain =
      engine->prepare(std::string(kSpec) + " ");  // another text of the same spec: the best code, from memory
  ASSERT_TRUE(plain);
  ASSERT_TRUE((*plain)->run(arguments(), stream->get()) && stream->synchronize());
  EXPECT_EQ(output(), after);
}

TEST_F(TieredOnGpu, NotForThoseWhoAskForTheSameBits) {
  PrepareOptions options;
  options.budget = 1ms;
  const auto kernel = engine->prepare(std::string(kSpec) + " numerics=deterministic", options);
  ASSERT_TRUE(kernel) << kernel.error().message;
  EXPECT_EQ(engine->counters().quick_kernels, 0);
}

TEST_F(TieredOnGpu, AnEngineEndsWhileTheBestCodeIsCompiled) {
  PrepareOptions options;
  options.budget = 1ms;
  const auto kernel = engine->prepare("fwd bf16 d=256 heads=2 mask=\"causal\"", options);
  ASSERT_TRUE(kernel) << kernel.error().message;
  engine.reset();
  EXPECT_FALSE((*kernel)->facts().schedule.empty());
}

}  // namespace
}  // namespace flashjit

// What the recording driver of tests/embed cannot tell: captures, lazy loading, contexts and forks on a real driver.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "codegen/cuda/emit.h"
#include "flashjit/flashjit.hpp"
#include "runtime/driver/device_memory.h"
#include "runtime/engine/environment.h"
#include "runtime/compile/nvrtc/nvrtc.h"
#include "tests/device/gpu_fixture.h"

namespace flashjit {
namespace {

constexpr int kTokens = 500, kHeads = 8, kDim = 128, kGlobalCapture = 0;
constexpr char kSpec[] = "fwd bf16 d=128 heads=8 mask=\"causal\"";

class DeviceTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!engine) return;
    std::vector<std::uint16_t> image(kTokens * kHeads * kDim);
    std::uint32_t seed = 1;
    for (Tensor* tensor : {&arguments.q, &arguments.k, &arguments.v, &arguments.o}) {
      for (std::uint16_t& value : image) {
        seed = seed * 1664525u + 1013904223u;
        value = static_cast<std::uint16_t>(0x3f80 | (seed >> 31 << 15) | (seed >> 25 & 0x7f));  // +-1 to +-2
      }
      auto buffer = DeviceBuffer::allocate(gpu, image.size() * 2);
      ASSERT_TRUE(buffer && buffer->upload(image.data()));
      *tensor = {buffer->data(), "bf16", {1, kTokens, kHeads, kDim}, {}};
      memory.push_back(std::move(*buffer));
    }
  }

  std::shared_ptr<Kernel> prepared(const char* schedule = "") {
    auto kernel = engine->prepare(kSpec, {.schedule = schedule});
    EXPECT_TRUE(kernel) << kernel.error().message;
    return kernel ? *kernel : nullptr;
  }
  Stream stream() {
    auto made = Stream::create(gpu);
    EXPECT_TRUE(made);
    return std::move(*made);
  }
  std::vector<std::uint16_t> output() {
    std::vector<std::uint16_t> image(kTokens * kHeads * kDim);
    EXPECT_TRUE(memory[3].download(image.data()));
    return image;
  }
  void spoil_output(const Stream& on) {
    EXPECT_TRUE(memory[3].fill(0xff, on.get()));
    EXPECT_TRUE(on.synchronize());
  }
  // A capture in the mode that everything careless breaks. True: it ended well.
  bool capture(const Stream& on, const std::function<void()>& work) {
    const CurrentContext current(gpu);
    EXPECT_EQ(gpu.driver->api.begin_capture(on.get(), kGlobalCapture), 0);
    work();
    CuGraph graph = nullptr;
    const CuResult result = gpu.driver->api.end_capture(on.get(), &graph);
    if (graph) gpu.driver->api.graph_destroy(graph);
    return result == 0;
  }

  std::vector<DeviceBuffer> memory;
  Arguments arguments;
};

TEST_F(DeviceTest, PrepareDuringACaptureIsRefusedAndTheCaptureStaysSound) {
  const Stream on = stream();
  EXPECT_TRUE(capture(on, [&] {
    const auto refused = engine->prepare(kSpec, {.capturing_stream = on.get()});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::Capture) << refused.error().message;
  }));
  ASSERT_TRUE(prepared());
  EXPECT_TRUE(capture(on, [&] {
    const auto again = engine->prepare(kSpec, {.capturing_stream = on.get()});
    ASSERT_TRUE(again) << again.error().message;
    const auto done = (*again)->run(arguments, on.get());
    EXPECT_TRUE(done) << done.error().message;
  }));
}

TEST_F(DeviceTest, PrepareBesideACaptureOfAnotherThreadDoesNotBreakIt) {
  const Stream on = stream();
  EXPECT_TRUE(capture(on, [&] {
    std::thread([&] {
      EXPECT_TRUE(prepared());
      EXPECT_TRUE(prepared("family=sync"));
    }).join();
  }));
}

TEST_F(DeviceTest, AReplayHasTheBitsOfALaunch) {
  for (const char* schedule : {"", "family=sync"}) {
    const auto kernel = prepared(schedule);
    ASSERT_TRUE(kernel);
    const Stream on = stream();
    spoil_output(on);
    ASSERT_TRUE(kernel->run(arguments, on.get()));
    ASSERT_TRUE(on.synchronize());
    const auto launched = output();
    EXPECT_NE(launched[0], 0xffff);
    auto graph = Graph::capture(gpu, on, [&] { return kernel->run(arguments, on.get()); });
    ASSERT_TRUE(graph) << graph.error().message;
    for (int i = 0; i < 5; ++i) {
      spoil_output(on);
      ASSERT_TRUE(graph->launch(on));
      ASSERT_TRUE(on.synchronize());
      EXPECT_EQ(output(), launched) << "replay " << i << " " << schedule;
    }
  }
}

// A kernel that keeps an SM busy until five seconds are over: code that were loaded by the first launch would wait for
// it.
TEST_F(DeviceTest, TheFirstLaunchWaitsForNoOtherKernel) {
  const auto query = reinterpret_cast<CuResult (*)(CuStream)>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuStreamQuery"));
  ASSERT_TRUE(query);
  const auto create =
      reinterpret_cast<CuResult (*)(CuStream*, unsigned)>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuStreamCreate"));
  KernelSource source;
  source.generated = {
      {"spin.cu",
       "extern \"C\" __global__ void spin() {\n"
       "  unsigned long long start, now;\n"
       "  asm volatile(\"mov.u64 %0, %globaltimer;\" : \"=l\"(start));\n"
       "  do asm volatile(\"mov.u64 %0, %globaltimer;\" : \"=l\"(now)); while (now - start < 5000000000ull);\n"
       "}\n"}};
  const auto settings = read_environment();
  ASSERT_TRUE(settings);
  const auto nvrtc = Nvrtc::open(settings->nvrtc);
  ASSERT_TRUE(nvrtc);
  const auto target = find_target(engine->target());
  ASSERT_TRUE(target);
  const auto cubin = (*nvrtc)->compile(source, **target);
  ASSERT_TRUE(cubin) << cubin.error().message << cubin.error().detail;
  const auto library = LoadedLibrary::load(gpu, cubin->bytes);
  ASSERT_TRUE(library) << library.error().message;
  const auto spin = (*library)->function("spin", 0);
  ASSERT_TRUE(spin) << spin.error().message;

  const auto kernel = prepared(), sync = prepared("family=sync");
  ASSERT_TRUE(kernel && sync);
  const CurrentContext current(gpu);
  constexpr unsigned kNonBlocking = 1;
  CuStream busy = nullptr, other = nullptr;
  ASSERT_EQ(create(&busy, kNonBlocking), 0);
  ASSERT_EQ(create(&other, kNonBlocking), 0);
  CuLaunchConfig config = {1, 1, 1, 1, 1, 1, 0, busy, nullptr, 0};
  ASSERT_EQ(gpu.driver->api.launch(&config, *spin, nullptr, nullptr), 0);
  for (const auto& first : {kernel, sync}) {
    const auto done = first->run(arguments, other);
    EXPECT_TRUE(done) << done.error().message;
  }
  EXPECT_EQ(gpu.driver->api.stream_synchronize(other), 0);
  constexpr CuResult kNotReady = 600;
  EXPECT_EQ(query(busy), kNotReady) << "both kernels were to be done while the other one still runs";
  gpu.driver->api.stream_synchronize(busy);
  gpu.driver->api.stream_destroy(busy);
  gpu.driver->api.stream_destroy(other);
}

TEST_F(DeviceTest, TheCallersContextStaysCurrent) {
  std::thread([&] {  // a thread that has none
    CuContext context = nullptr;
    ASSERT_EQ(gpu.driver->api.get_context(&context), 0);
    ASSERT_EQ(context, nullptr);
    const auto kernel = prepared();
    ASSERT_TRUE(kernel && kernel->run(arguments));
    ASSERT_EQ(gpu.driver->api.get_context(&context), 0);
    EXPECT_EQ(context, nullptr);
  })
      .join();
  const Stream on = stream();
  EXPECT_TRUE(on.synchronize());
}

TEST_F(DeviceTest, AForkedProcessIsToldWhy) {
  const auto kernel = prepared();
  ASSERT_TRUE(kernel);
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    const auto done = kernel->run(arguments);
    _exit(done ? 1 : std::strstr(done.error().message.c_str(), "fork") ? 0 : 2);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << "1 << 8: it claims success; 2 << 8: the message does not name the fork";
  EXPECT_TRUE(kernel->run(arguments));
}

}  // namespace
}  // namespace flashjit

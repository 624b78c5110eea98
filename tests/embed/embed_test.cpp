// Engines and kernels on the recording driver, from outside. What needs machine code needs NVRTC, and is skipped
// without.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "flashjit/flashjit.h"
#include "tests/embed/allocations.h"
#include "tests/embed/embed_fixture.h"

namespace flashjit {
namespace {

using fake_cuda::fake_cuda_counters;
using fake_cuda::fake_cuda_last_launch;
using testing::allocations;

constexpr char kSync[] = "family=sync";
constexpr int kGlobalCapture = 0;

void* current_context() {
  void* context = nullptr;
  fake_cuda::cuCtxGetCurrent(&context);
  return context;
}

// A stream of GPU `device`, whose context is current while this lives.
struct Stream {
  explicit Stream(int device) {
    void* context = nullptr;
    fake_cuda::cuDevicePrimaryCtxRetain(&context, device);
    fake_cuda::cuCtxPushCurrent_v2(context);
    fake_cuda::cuStreamCreate(&handle, 0);
  }
  ~Stream() {
    void* context = nullptr;
    fake_cuda::cuStreamDestroy_v2(handle);
    fake_cuda::cuCtxPopCurrent_v2(&context);
  }
  void begin_capture() { fake_cuda::cuStreamBeginCapture_v2(handle, kGlobalCapture); }
  int end_capture() {
    void* graph = nullptr;
    const int result = fake_cuda::cuStreamEndCapture(handle, &graph);
    if (graph) fake_cuda::cuGraphDestroy(graph);
    return result;
  }
  void* handle = nullptr;
};

#define NEED_ALLOCATIONS() \
  if (!testing::kCountsAllocations) GTEST_SKIP() << "allocations are not counted under this sanitizer"
#define ENGINE(name, gpu)                            \
  const auto name = create_engine({.ordinal = gpu}); \
  if (!name) GTEST_SKIP() << "no NVRTC on this machine"

std::shared_ptr<Kernel> prepared(Engine& engine, const char* schedule = "") {
  auto kernel = engine.prepare(kSpec, {.schedule = schedule});
  EXPECT_TRUE(kernel) << kernel.error().message;
  return kernel ? *kernel : nullptr;
}

TEST(EmbedTest, TwoArchitecturesInOneProcess) {
  ENGINE(older, 0);
  ENGINE(newer, 1);
  EXPECT_EQ(older->target(), "sm_80");
  EXPECT_EQ(newer->target(), "sm_90a");
  const auto on_older = prepared(*older), on_newer = prepared(*newer);
  ASSERT_TRUE(on_older && on_newer);
  EXPECT_NE(on_older->facts().key, on_newer->facts().key);
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(on_older->run(arguments()));
    EXPECT_EQ(fake_cuda_last_launch().device, 0);
    ASSERT_TRUE(on_newer->run(arguments()));
    EXPECT_EQ(fake_cuda_last_launch().device, 1);
  }
  const auto wrong = Engine::create({.ordinal = 0, .target = "sm_90a"});
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().message.find("does not run on Fake A100"), std::string::npos) << wrong.error().message;
}

TEST(EmbedTest, TwoDevicesOfOneKind) {
  ENGINE(one, 1);
  ENGINE(two, 2);
  const auto on_one = prepared(*one), on_two = prepared(*two);
  ASSERT_TRUE(on_one && on_two);
  ASSERT_TRUE(on_two->run(arguments()));
  EXPECT_EQ(fake_cuda_last_launch().device, 2);
  ASSERT_TRUE(on_one->run(arguments()));
  EXPECT_EQ(fake_cuda_last_launch().device, 1);
  // The driver refuses a stream of the other device, with a message rather than a crash.
  Stream elsewhere(2);
  const auto refused = on_one->run(arguments(), elsewhere.handle);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Driver);
}

TEST(EmbedTest, TheCallersContextStaysCurrent) {
  ASSERT_EQ(current_context(), nullptr);
  ENGINE(made, 1);
  EXPECT_EQ(current_context(), nullptr);
  const auto kernel = prepared(*made);
  ASSERT_TRUE(kernel && kernel->run(arguments()));
  EXPECT_EQ(current_context(), nullptr);
  const Stream other(2);
  void* const before = current_context();
  ASSERT_NE(before, nullptr);
  ASSERT_TRUE(prepared(*made, kSync));
  ASSERT_TRUE(kernel->run(arguments()));
  EXPECT_EQ(fake_cuda_last_launch().device, 1);
  EXPECT_EQ(current_context(), before);
}

TEST(EmbedTest, PrepareDuringACaptureIsRefusedBeforeAnyHarm) {
  ENGINE(made, 1);
  Stream stream(1);
  stream.begin_capture();
  const int loads = fake_cuda_counters().loads, calls = fake_cuda_counters().calls;
  const auto refused = made->prepare(kSpec, {.capturing_stream = stream.handle});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Capture);
  EXPECT_NE(refused.error().message.find("prepare it before the capture"), std::string::npos)
      << refused.error().message;
  EXPECT_EQ(fake_cuda_counters().loads, loads);
  EXPECT_EQ(fake_cuda_counters().calls, calls + 1) << "is this stream capturing, and nothing more";
  EXPECT_EQ(stream.end_capture(), 0) << "the capture stays sound";

  const auto kernel = prepared(*made);
  ASSERT_TRUE(kernel);
  stream.begin_capture();
  const auto again = made->prepare(kSpec, {.capturing_stream = stream.handle});
  ASSERT_TRUE(again);
  const auto reworded =
      made->prepare("fwd  bf16 mask=\"k <= qpos\" heads=4/2 d=64", {.capturing_stream = stream.handle});
  ASSERT_TRUE(reworded) << reworded.error().message;
  EXPECT_EQ(*reworded, kernel) << "what is prepared is found in other words, too";
  ASSERT_TRUE((*again)->run(arguments(), stream.handle));
  EXPECT_TRUE(fake_cuda_last_launch().captured);
  EXPECT_EQ(stream.end_capture(), 0);
}

TEST(EmbedTest, PrepareBesideACaptureDoesNotBreakIt) {
  ENGINE(made, 1);
  Stream stream(1);
  stream.begin_capture();
  EXPECT_TRUE(prepared(*made));  // a persistent kernel: memory for its counters is allocated too
  EXPECT_TRUE(prepared(*made, kSync));
  EXPECT_EQ(stream.end_capture(), 0);
  EXPECT_EQ(fake_cuda_counters().broken_captures, 0);
}

// What is tried there is wrong, as this driver computes nothing; that is not for the store of the other tests.
TEST(EmbedTest, AKernelIsTriedBesideACapture) {
  const auto engine = create_engine({.ordinal = 1, .disk_cache = false});
  if (!engine) GTEST_SKIP() << "no NVRTC on this machine";
  Stream stream(1);
  const std::int64_t before = fake_cuda_counters().broken_captures;
  stream.begin_capture();
  const auto tried = engine->prepare(kSpec, {.schedule = kSync, .verify = true});
  EXPECT_EQ(stream.end_capture(), 0);
  EXPECT_EQ(fake_cuda_counters().broken_captures, before);
  ASSERT_FALSE(tried);
  EXPECT_EQ(tried.error().kind, ErrorKind::Unsupported) << tried.error().message;
}

TEST(EmbedTest, RunAllocatesNothing) {
  NEED_ALLOCATIONS();
  ENGINE(made, 1);
  const Arguments call = arguments();
  for (const char* schedule : {"", kSync}) {
    const auto kernel = prepared(*made, schedule);
    ASSERT_TRUE(kernel && kernel->run(call));
    const std::int64_t before = allocations.made;
    bool all = true;
    for (int i = 0; i < 100; ++i) all = all && kernel->run(call);
    EXPECT_EQ(allocations.made, before) << schedule;
    EXPECT_TRUE(all);
  }
}

// One spec in 20,000 spellings: one compile, one kernel, and what is kept has a limit.
void expect_one_kernel(Engine& engine) {
  const auto first = engine.prepare(kSpec);
  ASSERT_TRUE(first) << first.error().message;
  const Counters before = engine.counters();
  const std::size_t memory = mallinfo2().uordblks;
  constexpr int kSpellings = 20'000;
  int others = 0;
  for (int i = 0; i < kSpellings; ++i) {
    // Blanks in three places count; each text is some hundred bytes, so that remembering all would show.
    const auto blanks = [](int count) { return std::string(static_cast<std::size_t>(count), ' '); };
    const auto found = engine.prepare("fwd " + blanks(i % 100) + "bf16 heads=4/2 " + blanks(i / 100 % 100) +
                                      "d=64 mask=\"k" + blanks(200 + i / 10'000) + "<= qpos\"");
    others += !found || *found != *first;
  }
  EXPECT_EQ(others, 0);
  EXPECT_EQ(engine.counters().compiles, before.compiles);
  EXPECT_EQ(engine.counters().misses, before.misses);
  EXPECT_EQ(engine.counters().memory_hits, before.memory_hits + kSpellings);
  EXPECT_LT(mallinfo2().uordblks - memory, std::size_t{3} << 20) << "all texts are 6 MB";
}

TEST(EmbedTest, AnySpellingFindsTheKernel) {
  NEED_ALLOCATIONS();
  ENGINE(gpu, 1);
  expect_one_kernel(*gpu);
}

TEST(EmbedTest, AnySpellingFindsTheKernelOfAProcessor) {
  NEED_ALLOCATIONS();
  const auto host = Engine::create({.device = Device::Host, .disk_cache = false, .threads = 1});
  if (!host) GTEST_SKIP() << host.error().message;
  expect_one_kernel(**host);
}

TEST(EmbedTest, RunChecksIndicesWithoutAllocating) {
  NEED_ALLOCATIONS();
  ENGINE(made, 1);
  const auto kernel = made->prepare(
      "fwd bf16 d=64 heads=4/2 k_len<=512 params=\"n: i32, t: fp32[1]\" mask=\"document(doc)\" score=\"s + t[k / 2 + n]\"");
  ASSERT_TRUE(kernel) << kernel.error().message;
  static float table[8] = {};
  static int documents[8] = {};
  Arguments call = arguments();
  call.params["t"] = {table, "fp32", {8}, {}};
  call.params["doc"] = {documents, "i32", {1, 8}, {}};
  call.scalars["n"] = 4;
  const std::int64_t before = allocations.made;
  const bool ran = bool((*kernel)->run(call));
  EXPECT_EQ(allocations.made, before);
  EXPECT_TRUE(ran);
  call.scalars["n"] = 5;
  const auto refused = (*kernel)->run(call);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("(`k / 2 + n`) runs from 5 to 8"), std::string::npos)
      << refused.error().message;
}

TEST(EmbedTest, PreparingAgainAllocatesNothingAndFindsTheSame) {
  NEED_ALLOCATIONS();
  ENGINE(made, 1);
  const auto kernel = prepared(*made);
  ASSERT_TRUE(kernel);
  const std::int64_t before = allocations.made;
  bool same = true;
  for (int i = 0; i < 100; ++i) {
    const auto again = made->prepare(kSpec);
    same = same && again && *again == kernel;
  }
  EXPECT_EQ(allocations.made, before);
  EXPECT_TRUE(same);
  EXPECT_NE(prepared(*made, kSync), kernel);

  std::vector<std::shared_ptr<Kernel>> found(8);
  std::vector<std::thread> threads;
  for (auto& one : found) threads.emplace_back([&] { one = *made->prepare(kSpec); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& one : found) EXPECT_EQ(one, kernel);
}

TEST(EmbedTest, ManyThreadsAndStreams) {
  ENGINE(made, 1);
  const int before = fake_cuda_counters().launches;
  constexpr int kThreads = 8, kLaunches = 200;
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const Stream stream(1);
      const char* const schedule = t % 2 ? kSync : "";
      for (int i = 0; i < kLaunches; ++i) {
        const auto kernel = made->prepare(kSpec, {.schedule = schedule});
        if (!kernel || !(*kernel)->run(arguments(), stream.handle) || fake_cuda_last_launch().stream != stream.handle)
          ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(fake_cuda_counters().launches - before, kThreads * kLaunches);
}

TEST(EmbedTest, KernelsOutliveTheirEngine) {
  auto made = create_engine({.ordinal = 1});
  if (!made) GTEST_SKIP() << "no NVRTC on this machine";
  auto kernel = prepared(*made);
  ASSERT_TRUE(kernel);
  auto again = *made->prepare(kSpec);
  made.reset();
  EXPECT_TRUE(kernel->run(arguments()));
  kernel.reset();
  EXPECT_TRUE(again->run(arguments()));
  const int unloads = fake_cuda_counters().unloads, frees = fake_cuda_counters().frees;
  again.reset();
  EXPECT_EQ(fake_cuda_counters().unloads, unloads + 1);
  EXPECT_EQ(fake_cuda_counters().frees, frees + 1);
}

// Exits with code 0, or is killed after a minute: as whoever waits for it sees it.
int status_of_child(const std::function<void()>& work) {
  std::fflush(nullptr);  // or both write it
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    work();
    std::exit(0);  // with all that is done at exit
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

// (While others compile: tests/fault, ExitDuringCompiles.)
TEST(EmbedTest, ExitWhileOthersPrepareAndRun) {
  for (int round = 0; round < 12; ++round) {
    EXPECT_EQ(status_of_child([&] {
                auto made = Engine::create({.ordinal = 1});
                if (!made || !(*made)->prepare(kSpec)) return;
                for (int t = 0; t < 3; ++t) {
                  std::thread([engine = *made] {
                    for (const Arguments call = arguments();;) {
                      const auto kernel = engine->prepare(kSpec);
                      if (kernel) static_cast<void>((*kernel)->run(call));
                    }
                  }).detach();
                }
                usleep(static_cast<unsigned>(round) * 3'000);
              }),
              0)
        << "round " << round;
  }
}

TEST(EmbedTest, AForkHasWhatWasPreparedAndLeavesTheParentAlone) {
  ENGINE(made, 1);
  const auto kernel = prepared(*made);
  ASSERT_TRUE(kernel);
  EXPECT_EQ(status_of_child([&] {
              if (!made->prepare(kSpec) || !made->prepare(kSpec, {.schedule = kSync})) std::_Exit(1);
            }),
            0);
  EXPECT_TRUE(kernel->run(arguments()));
}

// Calls `call` with every allocation failing, then all but the first, ..., until the outcome is as wanted. Returns how
// many allocations that took.
template <class Call>
int allocations_until(flashjit_status wanted, const Call& call) {
  for (int n = 0; n < 5000; ++n) {
    flashjit_error* error = nullptr;
    allocations.fail_at = n;
    const flashjit_status status = call(&error);
    allocations.fail_at = -1;
    const std::string message = flashjit_error_message(error);
    flashjit_error_destroy(error);
    if (status == wanted) return n;
    EXPECT_EQ(status, FLASHJIT_IO) << message;
    EXPECT_EQ(message, "out of memory");
  }
  return -1;
}

TEST(EmbedTest, LackOfMemoryIsAnErrorWhereverItComes) {
  NEED_ALLOCATIONS();
  ENGINE(first, 1);  // the libraries are open now: what they do without memory is not ours
  flashjit_engine* c_engine = nullptr;
  flashjit_engine_options options = {};
  options.struct_size = sizeof options;
  options.ordinal = 1;
  EXPECT_GT(
      allocations_until(FLASHJIT_OK,
                        [&](flashjit_error** error) { return flashjit_engine_create(&options, &c_engine, error); }),
      3);
  ASSERT_NE(c_engine, nullptr);
  flashjit_kernel *kernel = nullptr, *again = nullptr;
  // Refused: the parser, the message, what waits for the kernel.
  EXPECT_GT(allocations_until(FLASHJIT_INVALID,
                              [&](flashjit_error** error) {
                                return flashjit_prepare(c_engine,
                                                        "fwd bf16 d=64 heads=4/3 mask=\"causal & window(30, 0)\"",
                                                        nullptr, &kernel, error);
                              }),
            10);
  EXPECT_EQ(kernel, nullptr);
  ASSERT_EQ(flashjit_prepare(c_engine, kSpec, nullptr, &kernel, nullptr), FLASHJIT_OK);
  const auto prepare_again = [&](flashjit_error** error) {
    return flashjit_prepare(c_engine, kSpec, nullptr, &again, error);
  };
  EXPECT_EQ(allocations_until(FLASHJIT_OK, prepare_again), 1) << "what is handed out, and nothing else";
  allocations.fail_at = 0;
  const std::string without_memory = flashjit_kernel_facts(again);
  allocations.fail_at = -1;
  EXPECT_EQ(without_memory, "{}");
  EXPECT_NE(std::string(flashjit_kernel_facts(again)).find("sm_90a"), std::string::npos);
  flashjit_arguments nothing = {};
  nothing.struct_size = sizeof nothing;
  EXPECT_GT(allocations_until(FLASHJIT_INVALID,
                              [&](flashjit_error** error) { return flashjit_run(kernel, &nothing, nullptr, error); }),
            1);
  flashjit_kernel_destroy(again);
  flashjit_kernel_destroy(kernel);
  flashjit_engine_destroy(c_engine);
}

}  // namespace
}  // namespace flashjit

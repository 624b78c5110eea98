// Time limits and cancellation on processors, where nothing stops LLVM: the caller is answered in time, the kernel is
// made all the same, and whatever becomes of the engine and the process meanwhile is clean. No time is asserted.
#include <sys/resource.h>

#include <thread>

#include "flashjit/flashjit.hpp"
#include "tests/fault/store_fixture.h"

namespace flashjit {
namespace {

// A mask that LLVM works on for most of a second, and the compiler before it for some milliseconds. Each `n` is another.
std::string slow_spec(int n = 0) {
  std::string mask = "k<=qpos+" + std::to_string(n);
  for (int i = 1; i <= 50; ++i) {
    const std::string number = std::to_string(i);
    mask += "|t[k+" + number + ",q+" + number + "]>" + number;
  }
  return "fwd fp32 d=16 heads=4 mask=\"" + mask + "\" params=\"t: i32[2]\"";
}

class HostBounds : public StoreFault {
 protected:
  void SetUp() override {
    const auto made = create();
    if (!made) GTEST_SKIP() << made.error().message;
    engine = *made;
    ASSERT_TRUE(engine->prepare("fwd fp32 d=16 heads=4")) << "LLVM is loaded and warm";
  }
  Result<std::shared_ptr<Engine>> create() const {
    return Engine::create({.device = Device::Host, .cache_dir = store_path(), .threads = 2, .tuned = false});
  }
  static PrepareOptions within(milliseconds timeout) {
    PrepareOptions options;
    options.timeout = timeout;
    return options;
  }
  static bool is(const Result<std::shared_ptr<Kernel>>& kernel, ErrorKind kind) {
    return !kernel && kernel.error().kind == kind;
  }
  // Calls a prepare off when it has come to LLVM.
  void leave_behind() const {
    const auto before = engine->counters();
    std::atomic<bool> cancel = false;
    const std::jthread canceller([&] {
      while (engine->counters().misses == before.misses) std::this_thread::sleep_for(milliseconds(1));
      std::this_thread::sleep_for(milliseconds(20));
      cancel = true;
    });
    PrepareOptions options;
    options.cancel = &cancel;
    const auto called_off = engine->prepare(slow_spec(), options);
    ASSERT_TRUE(is(called_off, ErrorKind::Cancelled)) << (called_off ? "it was ready" : called_off.error().message);
    EXPECT_EQ(engine->counters().compiles, before.compiles) << "the answer came only with the kernel";
  }
  std::shared_ptr<Engine> engine;
};

TEST_F(HostBounds, ATimeoutIsAnsweredWhileLlvmIsAtWork) {
  const auto late = engine->prepare(slow_spec(), within(milliseconds(100)));
  EXPECT_TRUE(is(late, ErrorKind::Timeout));
  EXPECT_EQ(engine->counters().compiles, 1) << "the answer came only with the kernel";
}

TEST_F(HostBounds, TheNextPrepareFindsWhatWasCalledOff) {
  leave_behind();
  const auto found = engine->prepare(slow_spec(), within(milliseconds(100'000)));
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(engine->counters().compiles, 2) << "this one and that of the set-up";
  EXPECT_EQ(engine->counters().misses, 2);
  const auto again = engine->prepare(slow_spec(), within(milliseconds(1)));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(*again, *found);
}

TEST_F(HostBounds, WhoHasTimeGetsTheKernelOfWhoHasNone) {
  std::thread patient([&] {
    while (engine->counters().misses < 2) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_TRUE(engine->prepare(slow_spec()));
  });
  leave_behind();
  patient.join();
  EXPECT_EQ(engine->counters().compiles, 2);
}

TEST_F(HostBounds, ErrorsComeAtOnceAndAreNotKept) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(
        is(engine->prepare("fwd bf16 d=64 heads=4 q_len=-1", within(milliseconds(10'000))), ErrorKind::Invalid));
    PrepareOptions pinned = within(milliseconds(10'000));
    pinned.schedule = "family=sync";
    EXPECT_TRUE(is(engine->prepare("fwd bf16 d=64 heads=4", pinned), ErrorKind::Invalid));
  }
}

TEST_F(HostBounds, AnEngineThatIsDestroyedMeanwhileStoresTheKernel) {
  leave_behind();
  engine.reset();
  const auto other = create();
  ASSERT_TRUE(other);
  const auto found = (*other)->prepare(slow_spec());
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ((*found)->facts().source, "disk");
}

// More than there are threads: those that no thread has begun are dropped with the engine.
TEST_F(HostBounds, ManyAreCalledOff) {
  const int before = static_cast<int>(engine->counters().compiles);
  std::atomic<int> late = 0;
  {
    std::vector<std::jthread> callers;
    for (int i = 0; i < 40; ++i)
      callers.emplace_back(
          [&, i] { late += is(engine->prepare(slow_spec(i), within(milliseconds(60))), ErrorKind::Timeout); });
  }
  EXPECT_EQ(late, 40);
  EXPECT_TRUE(engine->prepare(slow_spec(100), within(milliseconds(100'000)))) << "others have their turn";
  EXPECT_LT(engine->counters().compiles, before + 40) << "what nobody wanted any more was not begun";
}

TEST_F(HostBounds, TheProcessEndsMeanwhile) {
  EXPECT_EQ(in_child([&] {
              const auto own = create();
              if (!own || !is((*own)->prepare(slow_spec(), within(milliseconds(100))), ErrorKind::Timeout)) return 1;
              exit(0);  // with the engine and its thread as they are
              return 2;
            }),
            0);
  EXPECT_EQ(in_child([&] {
              static std::shared_ptr<Engine> global;  // destroyed by exit()
              const auto own = create();              // the kernel above may have been stored
              if (!own || !is((*own)->prepare(slow_spec(1), within(milliseconds(100))), ErrorKind::Timeout)) return 1;
              global = *own;
              exit(0);
              return 2;
            }),
            0);
}

TEST_F(HostBounds, AForkedChildBoundsItsOwnPrepares) {
  leave_behind();
  EXPECT_EQ(in_child([&] {
              if (!is(engine->prepare(slow_spec(1), within(milliseconds(100))), ErrorKind::Timeout)) return 1;
              if (!engine->prepare(slow_spec(), within(milliseconds(100'000)))) return 2;  // the parent is making it
              engine.reset();
              return 0;
            }),
            0);
  EXPECT_TRUE(engine->prepare(slow_spec(), within(milliseconds(100'000))));
}

// No thread can be started: the caller's own does it, if late.
TEST_F(HostBounds, WithoutAThreadTheKernelIsMadeAllTheSame) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to be a user without processes";
  chmod(folder.c_str(), 0755);
  EXPECT_EQ(in_child([&] {
              const auto own =
                  Engine::create({.device = Device::Host, .disk_cache = false, .threads = 1, .tuned = false});
              const rlimit none = {0, 0};
              if (!own || setgid(kOtherUser) != 0 || setuid(kOtherUser) != 0 || setrlimit(RLIMIT_NPROC, &none) != 0)
                return 1;
              return (*own)->prepare("fwd fp32 d=16 heads=2", within(milliseconds(60'000))) ? 0 : 2;
            }),
            0);
}

}  // namespace
}  // namespace flashjit

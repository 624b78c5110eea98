// Time-outs and cancellation: of waiting for others, of locks, and of the compiler itself. No time is asserted.
#include "runtime/compile/compile_bounds.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "runtime/engine/environment.h"
#include "runtime/store/single_flight.h"
#include "tests/requests.h"
#include "tests/store_fixture.h"

namespace flashjit {
namespace {

using namespace std::chrono_literals;
using Flight = SingleFlight<int>;

std::shared_ptr<int> number(int value) { return std::make_shared<int>(value); }

TEST(CompileBounds, NoneAreNeverOver) {
  EXPECT_FALSE(CompileBounds().any());
  EXPECT_FALSE(CompileBounds().is_over());
  EXPECT_FALSE(CompileBounds(0ms, nullptr).any());
  EXPECT_FALSE(CompileBounds(std::chrono::milliseconds::max(), nullptr).is_over());
}

TEST(CompileBounds, SayWhichItWas) {
  std::atomic<bool> cancel = false;
  const CompileBounds bounds(1h, &cancel);
  EXPECT_FALSE(bounds.over());
  cancel = true;
  ASSERT_TRUE(bounds.over());
  EXPECT_EQ(bounds.over()->kind, ErrorKind::Cancelled);
  const CompileBounds short_ones(1ms, nullptr);
  std::this_thread::sleep_for(5ms);
  ASSERT_TRUE(short_ones.over());
  EXPECT_EQ(short_ones.over()->kind, ErrorKind::Timeout);
  EXPECT_NE(short_ones.over()->message.find("after 1 ms"), std::string::npos);
}

// While the maker is at work others wait for it; then it is called off.
TEST(SingleFlight, WhoWaitedForACancelledMakerMakesItself) {
  Flight flight;
  std::promise<void> started;
  std::atomic<bool> cancel = false;
  std::atomic<int> made = 0;
  const CompileBounds bounds(0ms, &cancel);
  std::thread maker([&] {
    const auto outcome = flight.get(
        "k",
        [&]() -> Result<std::shared_ptr<int>> {
          started.set_value();
          while (!bounds.is_over()) std::this_thread::sleep_for(1ms);
          return bounds.error();
        },
        bounds);
    EXPECT_FALSE(outcome.value);
  });
  started.get_future().wait();
  std::vector<std::thread> waiters;
  std::atomic<int> right = 0;
  for (int i = 0; i < 8; ++i) {
    waiters.emplace_back([&] {
      const auto outcome = flight.get("k", [&]() -> Result<std::shared_ptr<int>> {
        ++made;
        return number(42);
      });
      right += outcome.value && **outcome.value == 42;
    });
  }
  cancel = true;
  maker.join();
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(right, 8);
  EXPECT_EQ(made, 1);
}

TEST(SingleFlight, AWaiterThatIsCalledOffLeavesTheMakerAlone) {
  Flight flight;
  std::promise<void> started, go_on;
  std::thread maker([&] {
    const auto outcome = flight.get("k", [&]() -> Result<std::shared_ptr<int>> {
      started.set_value();
      go_on.get_future().wait();
      return number(7);
    });
    EXPECT_TRUE(outcome.value);
  });
  started.get_future().wait();
  std::atomic<bool> cancel = true;
  const auto never = []() -> Result<std::shared_ptr<int>> { return internal("a waiter must not make it"); };
  const auto called_off = flight.get("k", never, CompileBounds(0ms, &cancel));
  ASSERT_FALSE(called_off.value);
  EXPECT_EQ(called_off.value.error().kind, ErrorKind::Cancelled);
  const auto too_late = flight.get("k", never, CompileBounds(1ms, nullptr));
  ASSERT_FALSE(too_late.value);
  EXPECT_EQ(too_late.value.error().kind, ErrorKind::Timeout);
  go_on.set_value();
  maker.join();
  const auto found = flight.get("k", never);
  ASSERT_TRUE(found.value);
  EXPECT_EQ(**found.value, 7);
}

// Of a value that is being made and waited for, both by threads that the child does not have.
TEST(SingleFlight, AForkedChildMakesItAndGivesAllBack) {
  auto flight = std::make_unique<Flight>();
  std::promise<void> started, forked;
  std::thread maker([&] {
    flight->get("k", [&]() -> Result<std::shared_ptr<int>> {
      started.set_value();
      forked.get_future().wait();
      return number(1);
    });
  });
  started.get_future().wait();
  std::thread waiter([&] { flight->get("k", [] { return Result<std::shared_ptr<int>>(number(2)); }); });
  std::this_thread::sleep_for(20ms);  // it waits by now
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const auto outcome = flight->get("k", [] { return Result<std::shared_ptr<int>>(number(3)); });
    flight.reset();
    _exit(outcome.value && **outcome.value == 3 ? 0 : 1);
  }
  forked.set_value();
  maker.join();
  waiter.join();
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(SingleFlight, OtherErrorsGoToAll) {
  Flight flight;
  std::promise<void> started, go_on;
  std::thread maker([&] {
    (void)flight.get("k", [&]() -> Result<std::shared_ptr<int>> {
      started.set_value();
      go_on.get_future().wait();
      return invalid("wrong");
    });
  });
  started.get_future().wait();
  std::thread waiter([&] {
    const auto outcome = flight.get("k", []() -> Result<std::shared_ptr<int>> { return invalid("wrong"); });
    ASSERT_FALSE(outcome.value);
    EXPECT_EQ(outcome.value.error().message, "wrong");
  });
  go_on.set_value();
  maker.join();
  waiter.join();
}

class CompileBoundsOfAStore : public StoreFolderTest {};

TEST_F(CompileBoundsOfAStore, WaitingForAnotherProcess) {
  const StoreKey key = StoreFolderTest::key();
  KernelStore store({.directory = folder});
  const auto other = StoreDirectory::open(folder);
  ASSERT_TRUE(other);
  const auto never = []() -> Result<StoreEntry> { return internal("the lock is held"); };
  {
    const auto held = other->lock(key.digest, 0ms);
    ASSERT_TRUE(held);
    std::atomic<bool> cancel = true;
    auto outcome = store.fetch(key, never, CompileBounds(0ms, &cancel));
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().kind, ErrorKind::Cancelled);
    outcome = store.fetch(key, never, CompileBounds(30ms, nullptr));
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().kind, ErrorKind::Timeout);
  }
  EXPECT_TRUE(
      store.fetch(key, [] { return Result<StoreEntry>(StoreEntry{"", {}, {1, 2, 3}}); }, CompileBounds(1h, nullptr)));
}

class BoundedCompile : public testing::Test {
 protected:
  static constexpr char kSpec[] = "fwd bf16 d=128 heads=4/2 mask=\"causal\"";
  void SetUp() override {
    auto settings = read_environment();
    ASSERT_TRUE(settings);
    if (auto opened = Nvrtc::open(settings->nvrtc); !opened) GTEST_SKIP() << opened.error().message;
  }
};

TEST_F(BoundedCompile, TimeoutAndAHealthyCompilerAfterwards) {
  KernelStore store({.disk = false});
  const auto late = compile_spec(kSpec, "sm_80", "", {.store = &store, .bounds = CompileBounds(30ms, nullptr)});
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().kind, ErrorKind::Timeout);
  EXPECT_EQ(store.counters().compile_failures, 1);
  const auto good = compile_spec(kSpec, "sm_80", "", {.store = &store, .bounds = CompileBounds(1h, nullptr)});
  ASSERT_TRUE(good) << good.error().message;
  const auto reference = compile_spec(kSpec, "sm_80", "");
  ASSERT_TRUE(reference);
  EXPECT_EQ(good->binary->payload, reference->binary->payload);
  // What is there already costs nothing that a bound could forbid.
  EXPECT_TRUE(compile_spec(kSpec, "sm_80", "", {.store = &store, .bounds = CompileBounds(1ms, nullptr)}));
}

TEST_F(BoundedCompile, CancelledWhileOthersWaitForTheSameKernel) {
  KernelStore store({.disk = false});
  std::atomic<bool> cancel = false;
  std::thread canceller([&] {
    const auto outcome = compile_spec(kSpec, "sm_80", "", {.store = &store, .bounds = CompileBounds(0ms, &cancel)});
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().kind, ErrorKind::Cancelled);
  });
  std::atomic<int> got = 0;
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i) {
    others.emplace_back([&] {
      while (store.counters().misses == 0) std::this_thread::sleep_for(1ms);  // the canceller is the one who compiles
      const auto outcome = compile_spec(kSpec, "sm_80", "", {.store = &store});
      EXPECT_TRUE(outcome) << outcome.error().message;
      got += bool(outcome);
    });
  }
  while (store.counters().misses == 0) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(20ms);
  cancel = true;
  canceller.join();
  for (std::thread& other : others) other.join();
  EXPECT_EQ(got, 3);
  EXPECT_EQ(store.counters().compiles, 1);
}

}  // namespace
}  // namespace flashjit

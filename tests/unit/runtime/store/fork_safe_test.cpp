// A child that is forked while other threads hold the short locks of a prepare finds all of them free.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine/fork_safe_mutex.h"
#include "runtime/engine/host_library.h"
#include "runtime/engine/kernel_table.h"
#include "runtime/store/single_flight.h"
#include "runtime/store/store.h"
#include "runtime/tuned/choice.h"

namespace flashjit {
namespace {

// Threads do nothing else; the child does it once. False: a child did not come to its end.
bool survives_forks(const std::function<void()>& use) {
  std::atomic<bool> stop = false;
  std::vector<std::jthread> users;
  for (int i = 0; i < 2; ++i) {
    users.emplace_back([&] {
      while (!stop) use();
    });
  }
  bool sound = true;
  for (int i = 0; i < 40 && sound; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      use();
      _exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    sound = status == 0;
  }
  stop = true;
  return sound;
}

TEST(ForkSafe, AMutexIsFree) {
  ForkSafeMutex outer, inner;
  EXPECT_TRUE(survives_forks([&] {
    const std::lock_guard first(outer);
    const std::lock_guard second(inner);
  }));
}

TEST(ForkSafe, AThreadWithALockForks) {
  ForkSafeMutex mutex, other;
  const std::lock_guard lock(mutex);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    mutex.unlock();
    const std::lock_guard again(mutex), another(other);
    _exit(0);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(ForkSafe, ManyThreadsFork) {
  ForkSafeMutex mutex;
  std::atomic<int> wrong = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { wrong += !survives_forks([&] { const std::lock_guard lock(mutex); }); });
  }
  threads.clear();
  EXPECT_EQ(wrong, 0);
}

TEST(ForkSafe, ValuesThatWereMadeOnce) {
  SingleFlight<int> flight;
  const auto make = [] { return Result<std::shared_ptr<int>>(std::make_shared<int>(1)); };
  EXPECT_TRUE(survives_forks([&] { (void)flight.get("k", make); }));
}

TEST(ForkSafe, TextsOfKernels) {
  KernelTable table;
  EXPECT_TRUE(survives_forks([&] { table.add("fwd", "", nullptr); }));
}

TEST(ForkSafe, NotesOfTheStore) {
  KernelStore store({.directory = ""});
  EXPECT_TRUE(survives_forks([&] { (void)store.notes(); }));
}

TEST(ForkSafe, TheHostLibrary) {
  if (!host_library()) GTEST_SKIP() << "built without the host backend (LLVM 19)";
  EXPECT_TRUE(survives_forks([] { (void)host_library(); }));
}

TEST(ForkSafe, TuningRecords) {
  const auto request = Request::parse("fwd bf16 d=64 heads=4", "sm_90a", "");
  ASSERT_TRUE(request);
  TunedSchedules tuned({}, "", {}, {});
  EXPECT_TRUE(survives_forks([&] { (void)tuned.choose(*request, std::nullopt, false); }));
}

}  // namespace
}  // namespace flashjit

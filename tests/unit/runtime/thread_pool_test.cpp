#include "runtime/launch/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <numeric>

namespace flashjit {
namespace {

TEST(ThreadPool, EveryItemOnce) {
  for (const int workers : {1, 2, 7}) {
    ThreadPool pool(workers);
    EXPECT_EQ(pool.workers(), workers);
    for (const std::int64_t items : {0, 1, 2, 5, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(items));
      pool.run(items, [&](std::int64_t item, int) { ++seen[static_cast<std::size_t>(item)]; });
      for (const auto& count : seen) EXPECT_EQ(count, 1);
    }
  }
}

TEST(ThreadPool, NoTwoCallsShareAWorker) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<int> clashes = 0;
  const auto body = [&](std::int64_t, int worker) {
    if (++inside[static_cast<std::size_t>(worker)] != 1) ++clashes;
    std::this_thread::yield();
    --inside[static_cast<std::size_t>(worker)];
  };
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&, caller] {
      for (int round = 0; round < 100; ++round) pool.run(1 + caller * 20, body);
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(clashes, 0);
}

TEST(ThreadPool, ManyShortJobs) {
  ThreadPool pool(3);
  std::atomic<std::int64_t> sum = 0;
  for (int job = 0; job < 5000; ++job) pool.run(3, [&](std::int64_t item, int) { sum += item; });
  EXPECT_EQ(sum, 5000 * 3);
}

TEST(ThreadPool, AForkedChildWorksAlone) {
  ThreadPool pool(4);
  std::atomic<int> warm = 0;
  pool.run(8, [&](std::int64_t, int) { ++warm; });
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a hang must not stay
    std::int64_t sum = 0;
    pool.run(100, [&](std::int64_t item, int) { sum += item; });
    _exit(sum == 4950 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(ThreadPool, CoresAreThoseOfTheAffinityMask) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before)) {
      CPU_SET(cpu, &one);
      break;
    }
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(usable_cores(), 1);
  sched_setaffinity(0, sizeof before, &before);
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), CPU_COUNT(&before));
}

}  // namespace
}  // namespace flashjit

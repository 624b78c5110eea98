#include "runtime/launch/thread_pool.h"

#include <fenv.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <new>
#include <thread>
#include <vector>

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

TEST(ThreadPool, AForkedChildGivesThePoolBack) {
  auto pool = std::make_unique<ThreadPool>(4);
  std::atomic<int> warm = 0;
  pool->run(8, [&](std::int64_t, int) { ++warm; });
  usleep(1000);  // the threads wait by now
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    pool.reset();
    // Stacks of the parent's threads may be these threads' now.
    ThreadPool own(4);
    std::atomic<int> sum = 0;
    own.run(100, [&](std::int64_t, int) { ++sum; });
    _exit(sum == 100 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Thrown by the caller's own share and by that of a thread; either way no body is under way when run() ends.
TEST(ThreadPool, AnExceptionComesOutWhenAllAreDone) {
  ThreadPool pool(4);
  for (const bool by_caller : {true, false}) {
    for (int round = 0; round < 50; ++round) {
      std::atomic<int> inside = 0;
      std::atomic<bool> thrown = false;
      const auto body = [&](std::int64_t, int worker) {
        ++inside;
        usleep(200);
        --inside;
        if ((worker == 0) != by_caller) return;
        thrown = true;
        throw std::bad_alloc();
      };
      bool caught = false;
      try {
        pool.run(1000, body);
      } catch (const std::bad_alloc&) {
        caught = true;
      }
      EXPECT_EQ(inside, 0);
      EXPECT_EQ(caught, thrown);
      EXPECT_TRUE(caught);
    }
  }
  std::atomic<int> sum = 0;
  pool.run(100, [&](std::int64_t, int) { ++sum; });
  EXPECT_EQ(sum, 100) << "it is as good as before";
}

// Made by a thread with signals open and with another rounding.
TEST(ThreadPool, ThreadsHaveNoSignalsAndDefaultFloats) {
  fesetround(FE_UPWARD);
  ThreadPool pool(4);
  fesetround(FE_TONEAREST);
  std::atomic<int> wrong = 0;
  pool.run(64, [&](std::int64_t, int worker) {
    usleep(100);
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    for (const int signal : {SIGTERM, SIGINT, SIGALRM, SIGUSR1, SIGPROF, SIGCHLD})
      wrong += sigismember(&mask, signal) != (worker > 0);
    wrong += sigismember(&mask, SIGSEGV);
    wrong += fegetround() != FE_TONEAREST;
  });
  EXPECT_EQ(wrong, 0);
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

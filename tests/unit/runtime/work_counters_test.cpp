// Which launch gets which pair of counters: no two that may run at the same time the same one.
#include "runtime/launch/work_counters.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

namespace flashjit {
namespace {

TEST(CounterSlots, AStreamKeepsItsPairAndSharesItWithNobody) {
  CounterSlots places;
  std::set<int> taken;
  constexpr int kStreams = 1000;
  for (std::uint64_t id = 0; id < kStreams; ++id) {
    const int place = places.of_stream(id * 3);
    ASSERT_GE(place, 0);
    ASSERT_LT(place, CounterSlots::kStreams);
    EXPECT_TRUE(taken.insert(place).second) << id;
  }
  for (std::uint64_t id = 0; id < kStreams; ++id) EXPECT_TRUE(taken.contains(places.of_stream(id * 3)));
  EXPECT_EQ(places.of_stream(0), places.of_stream(0));
}

TEST(CounterSlots, WhenNoneIsLeftStreamsGoWithout) {
  CounterSlots places;
  std::set<int> taken;
  int without = 0;
  constexpr std::uint64_t kStreams = 2 * CounterSlots::kStreams;
  for (std::uint64_t id = 0; id < kStreams; ++id) {
    const int place = places.of_stream(id);
    if (place < 0) ++without;
    else EXPECT_TRUE(taken.insert(place).second) << id;
  }
  EXPECT_GT(taken.size(), CounterSlots::kStreams * 95u / 100);
  EXPECT_GE(without, CounterSlots::kStreams);
  EXPECT_GE(places.of_stream(0), 0);  // who has one keeps it
}

TEST(CounterSlots, GraphLaunchesNeverGetOneTwice) {
  CounterSlots places;
  const int of_stream = places.of_stream(7);
  std::set<int> taken = {of_stream};
  for (int i = 0; i < CounterSlots::kGraphLaunches; ++i) {
    const int place = places.of_graph_launch();
    ASSERT_GE(place, CounterSlots::kStreams);
    ASSERT_LT(place, CounterSlots::kPairs);
    EXPECT_TRUE(taken.insert(place).second);
  }
  EXPECT_EQ(places.of_graph_launch(), -1);
  EXPECT_EQ(places.of_graph_launch(), -1);
  EXPECT_EQ(places.of_stream(7), of_stream);
}

TEST(CounterSlots, ThreadsAgreeOnStreamsAndShareNoGraphLaunch) {
  CounterSlots places;
  constexpr int kThreads = 8, kIds = 2000, kLaunches = 500;
  std::vector<std::vector<int>> streams(kThreads), launches(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int id = 0; id < kIds; ++id) streams[t].push_back(places.of_stream(static_cast<std::uint64_t>(id)));
      for (int i = 0; i < kLaunches; ++i) launches[t].push_back(places.of_graph_launch());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<int> taken;
  for (int t = 0; t < kThreads; ++t) {
    EXPECT_EQ(streams[t], streams[0]);
    for (const int place : launches[t]) EXPECT_TRUE(taken.insert(place).second);
  }
  EXPECT_EQ(std::set<int>(streams[0].begin(), streams[0].end()).size(), std::size_t{kIds});
}

}  // namespace
}  // namespace flashjit

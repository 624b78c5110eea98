// Counters: buckets by hand, many threads, what a store counts, and both APIs.
#include "runtime/engine/counters.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "flashjit/flashjit.h"
#include "runtime/store/store.h"
#include "tests/store_fixture.h"

namespace flashjit {
namespace {

std::int64_t total(const Histogram& histogram) {
  return std::accumulate(std::begin(histogram.buckets), std::end(histogram.buckets), std::int64_t{0});
}

TEST(Counters, BucketsArePowersOfTwo) {
  const std::pair<std::int64_t, int> expected[] = {{-5, 0},
                                                   {0, 0},
                                                   {1, 1},
                                                   {2, 2},
                                                   {3, 2},
                                                   {4, 3},
                                                   {1023, 10},
                                                   {1024, 11},
                                                   {std::int64_t{1} << 30, 31},
                                                   {std::int64_t{1} << 45, 31}};
  for (const auto& [us, bucket] : expected) {
    TimeCounter counter;
    counter.add(std::chrono::microseconds(us));
    EXPECT_EQ(counter.read().buckets[bucket], 1) << us;
    EXPECT_EQ(total(counter.read()), 1) << us;
  }
}

TEST(Counters, ThreadsLoseNothing) {
  constexpr int kThreads = 40, kEach = 5000;  // more threads than cells
  StripedCounter counter;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < kEach; ++n) counter.add();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter.sum(), std::int64_t{kThreads} * kEach);
}

class CountersOfAStore : public StoreFolderTest {};

TEST_F(CountersOfAStore, OfEveryPlace) {
  const auto make = [] { return Result<StoreEntry>(StoreEntry{"", {}, std::vector<std::uint8_t>(1000, 1)}); };
  {
    KernelStore site({.directory = folder + "/site"});
    ASSERT_TRUE(site.fetch(key("shared"), make));
    KernelStore store({.directory = folder + "/own"});
    ASSERT_TRUE(store.fetch(key("a"), make));
    ASSERT_TRUE(store.fetch(key("a"), make));
    EXPECT_FALSE(store.fetch(key("b"), []() -> Result<StoreEntry> { return invalid("no"); }));
    const Counters counters = store.counters();
    EXPECT_EQ(counters.compiles, 1);
    EXPECT_EQ(counters.compile_failures, 1);
    EXPECT_EQ(counters.misses, 2);
    EXPECT_EQ(counters.memory_hits, 1);
    EXPECT_EQ(counters.bytes_written, 1000);
    EXPECT_EQ(total(counters.compile_us), 2);
    EXPECT_EQ(total(counters.lookup_us), 2);  // memory is not timed
  }
  KernelStore store({.directory = folder + "/own:" + folder + "/site"});
  const auto own = store.fetch(key("a"), make);
  const auto shared = store.fetch(key("shared"), make);
  ASSERT_TRUE(own && shared);
  EXPECT_EQ(own->layer, folder + "/own");
  EXPECT_EQ(own->miss, "");
  EXPECT_EQ(shared->layer, folder + "/site");
  EXPECT_EQ(store.counters().disk_hits, 1);
  EXPECT_EQ(store.counters().layer_hits, 1);
  EXPECT_EQ(store.counters().misses, 0);
  EXPECT_EQ(store.counters().bytes_read, 2000);
  const auto made = store.fetch(key("c"), make);
  ASSERT_TRUE(made);
  EXPECT_EQ(made->layer, "");
  EXPECT_EQ(made->miss, "no entry in " + folder + "/own; no entry in " + folder + "/site");
  const auto missing = store.find(key("d"));
  EXPECT_EQ(missing.entry, nullptr);
  EXPECT_NE(missing.miss.find("no entry in "), std::string::npos);
  EXPECT_STREQ(store.find(key("c")).source, "memory");
}

TEST(Counters, OfAnEngineThroughBothInterfaces) {
  auto engine = Engine::create({.device = Device::Host, .disk_cache = false, .threads = 1});
  if (!engine) GTEST_SKIP() << engine.error().message;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE((*engine)->prepare("fwd fp32 d=32 heads=2"));
  ASSERT_FALSE((*engine)->prepare("nonsense"));
  const Counters counters = (*engine)->counters();
  EXPECT_EQ(counters.compiles, 1);
  EXPECT_EQ(counters.memory_hits, 2);
  EXPECT_EQ(counters.compile_failures, 0);
  EXPECT_EQ(total(counters.compile_us), 1);

  flashjit_engine_options options = {};
  options.struct_size = sizeof options;
  options.host = 1;
  options.no_disk_cache = 1;
  flashjit_engine* c_engine = nullptr;
  flashjit_error* error = nullptr;
  ASSERT_EQ(flashjit_engine_create(&options, &c_engine, &error), FLASHJIT_OK) << flashjit_error_message(error);
  flashjit_counters c = {};
  EXPECT_EQ(flashjit_engine_counters(c_engine, &c, &error), FLASHJIT_INVALID);
  EXPECT_NE(std::string(flashjit_error_message(error)).find("struct_size: 0"), std::string::npos);
  flashjit_error_destroy(error);
  EXPECT_EQ(flashjit_engine_counters(nullptr, &c, nullptr), FLASHJIT_INVALID);
  EXPECT_EQ(flashjit_engine_counters(c_engine, nullptr, nullptr), FLASHJIT_INVALID);
  c.struct_size = sizeof c;
  flashjit_kernel* kernel = nullptr;
  ASSERT_EQ(flashjit_prepare(c_engine, "fwd fp32 d=32 heads=2", nullptr, &kernel, &error), FLASHJIT_OK);
  flashjit_kernel_destroy(kernel);
  ASSERT_EQ(flashjit_engine_counters(c_engine, &c, &error), FLASHJIT_OK);
  EXPECT_EQ(c.compiles, 1);
  EXPECT_EQ(c.memory_hits, 0);
  EXPECT_EQ(std::accumulate(std::begin(c.compile_us), std::end(c.compile_us), std::int64_t{0}), 1);
  flashjit_engine_destroy(c_engine);
}

}  // namespace
}  // namespace flashjit

// What goes when a store is full, and what counts as use.
#include "runtime/store/eviction.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/unit/runtime/store/store_test_fixture.h"

namespace flashjit {
namespace {

class StoreEvictionTest : public StoreTest {
 protected:
  void set_last_use(const char* name, std::int64_t seconds_ago) const {
    const timespec times[2] = {{0, UTIME_OMIT}, {time(nullptr) - seconds_ago, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, file_of(key(name)).c_str(), times, 0), 0);
  }
  std::int64_t seconds_since_use(const char* name) const {
    struct stat info = {};
    EXPECT_EQ(stat(file_of(key(name)).c_str(), &info), 0);
    return time(nullptr) - info.st_mtime;
  }
};

TEST_F(StoreEvictionTest, AboveTheCapWhatWasUsedLongestAgoGoes) {
  store_all({"f", "a", "c", "b", "e", "d"}, options());
  const std::uint64_t size = stat_store(store_path())->bytes / 6;
  int hours = 20;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) set_last_use(name, 3600 * hours--);
  {
    KernelStore reader(options());
    ASSERT_STREQ(reader.fetch(key("a"), must_not_make)->source, "disk");
  }
  // Seven are above the cap, 90 % of which is room for five: b and c go, a was used just now.
  KernelStore store({.directory = store_path(), .max_bytes = 6 * size + size / 2});
  ASSERT_TRUE(store.fetch(key("g"), make));
  EXPECT_EQ(kept({"a", "b", "c", "d", "e", "f", "g"}), "adefg");
  EXPECT_EQ(store.counters().evictions, 2);
}

TEST_F(StoreEvictionTest, TheNewestEntryStaysHoweverSmallTheCap) {
  store_all({"a", "b", "c"}, {.directory = store_path(), .max_bytes = 0});
  EXPECT_EQ(kept({"a", "b", "c"}), "c");
}

TEST_F(StoreEvictionTest, AnEntryWhoseKeyIsLockedStays) {
  store_all({"a", "b"}, options());
  set_last_use("a", 7200);
  auto directory = StoreDirectory::open(store_path());
  ASSERT_TRUE(directory);
  {
    const auto held = directory->lock(key("a").digest, std::chrono::milliseconds(0));
    ASSERT_TRUE(held);
    store_all({"c"}, {.directory = store_path(), .max_bytes = 0});
    EXPECT_EQ(kept({"a", "b", "c"}), "ac");
  }
  store_all({"d"}, {.directory = store_path(), .max_bytes = 0});
  EXPECT_EQ(kept({"a", "b", "c", "d"}), "d");
}

TEST_F(StoreEvictionTest, OneEvictsAtATime) {
  store_all({"a", "b"}, options());
  auto directory = StoreDirectory::open(store_path());
  ASSERT_TRUE(directory);
  KernelStore store({.directory = store_path(), .max_bytes = 0});
  const auto add = [&](const char* name) { ASSERT_TRUE(store.fetch(key(name), make)); };
  {
    const auto turn = directory->lock_evictions(std::chrono::milliseconds(0));
    ASSERT_TRUE(turn);
    EXPECT_FALSE(evict(*directory, {.max_bytes = 0}, std::chrono::milliseconds(5)));
    add("c");
    EXPECT_EQ(kept({"a", "b", "c"}), "abc");
  }
  add("d");
  EXPECT_EQ(kept({"a", "b", "c", "d"}), "d");
}

TEST_F(StoreEvictionTest, AnEntryThatWasUsedSinceItWasListedStays) {
  store_all({"a"}, options());
  set_last_use("a", 7200);
  auto directory = StoreDirectory::open(store_path());
  ASSERT_TRUE(directory);
  const auto listed = directory->list();
  ASSERT_EQ(listed.size(), 1u);
  directory->refresh(listed[0].digest, listed[0].used_ns);
  EXPECT_EQ(directory->evict(listed[0]), StoreDirectory::Eviction::Kept);
  EXPECT_EQ(directory->evict(directory->list()[0]), StoreDirectory::Eviction::Removed);
  EXPECT_EQ(directory->evict(listed[0]), StoreDirectory::Eviction::Gone);
}

TEST_F(StoreEvictionTest, AHitRefreshesTheLastUseOncePerHour) {
  store_all({"a"}, options());
  const auto hit_after = [&](std::int64_t seconds_ago) {
    set_last_use("a", seconds_ago);
    KernelStore reader(options());
    EXPECT_STREQ(reader.fetch(key("a"), must_not_make)->source, "disk");
    return seconds_since_use("a");
  };
  EXPECT_GE(hit_after(1800), 1800);
  EXPECT_LE(hit_after(7200), 60);
  EXPECT_GE(hit_after(-7200), -60);  // a clock was wrong
}

TEST_F(StoreEvictionTest, LookingAtAStoreIsNoUse) {
  store_all({"a"}, options());
  set_last_use("a", 7200);
  ASSERT_TRUE(list_store(store_path()));
  ASSERT_TRUE(remove_bad_entries(store_path()));
  EXPECT_GE(seconds_since_use("a"), 7200);
}

TEST_F(StoreEvictionTest, WhatOthersWriteCountsBeforeLong) {
  store_all({"x"}, options());
  const std::uint64_t size = stat_store(store_path())->bytes;
  KernelStore store({.directory = store_path(), .max_bytes = 960 * size});
  const auto add = [](KernelStore& to, const std::string& name) { ASSERT_TRUE(to.fetch(key(name), make)); };
  add(store, "first");
  {
    KernelStore other(options());
    for (int i = 0; i < 1000; ++i) add(other, "other" + std::to_string(i));
  }
  int publishes = 0;
  while (store.counters().evictions == 0 && publishes < 100) add(store, "own" + std::to_string(publishes++));
  EXPECT_GT(publishes, 3);  // but not by looking every time
  EXPECT_LE(publishes, 7);  // a tenth of the cap, over 16 writers
  EXPECT_LE(stat_store(store_path())->bytes, 865 * size);
}

TEST_F(StoreEvictionTest, Prune) {
  store_all({"a", "b", "c", "d"}, options());
  const std::uint64_t size = stat_store(store_path())->bytes / 4;
  for (const auto& [name, days] : {std::pair{"b", 40}, {"a", 30}, {"c", 20}, {"d", 10}})
    set_last_use(name, 86400 * days);
  const auto stat = stat_store(store_path());
  EXPECT_NEAR(static_cast<double>(time(nullptr) - stat->oldest_use), 40 * 86400, 60);
  EXPECT_NEAR(static_cast<double>(time(nullptr) - stat->newest_use), 10 * 86400, 60);
  const auto old = prune_store(store_path(), {.unused_since_ns = (time(nullptr) - 35 * 86400) * kNsPerSecond});
  ASSERT_TRUE(old);
  EXPECT_EQ(kept({"a", "b", "c", "d"}), "acd");
  EXPECT_EQ(old->removed, 1);
  EXPECT_EQ(old->left, 3);
  EXPECT_EQ(old->left_bytes, 3 * size);
  const auto large = prune_store(store_path(), {.max_bytes = 2 * size + 1});
  ASSERT_TRUE(large);
  EXPECT_EQ(kept({"a", "b", "c", "d"}), "cd");
  EXPECT_EQ(large->removed_bytes, size);
}

TEST_F(StoreEvictionTest, ADamagedGiantDrivesNothingElseOut) {
  store_all({"a", "b", "giant"}, options());
  std::filesystem::resize_file(file_of(key("giant")), std::uintmax_t{1} << 40);
  store_all({"c"}, options());
  EXPECT_EQ(kept({"a", "b", "giant", "c"}), "abc");
}

}  // namespace
}  // namespace flashjit

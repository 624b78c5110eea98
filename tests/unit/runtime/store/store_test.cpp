// The store: where an entry is looked for, who makes it, what is written.
#include "runtime/store/store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/unit/runtime/store/store_test_fixture.h"

namespace flashjit {
namespace {

namespace fs = std::filesystem;

TEST_F(StoreTest, MadeOnceThenMemoryThenDisk) {
  int made = 0;
  const auto make = [&]() -> Result<StoreEntry> {
    ++made;
    return kernel();
  };
  {
    KernelStore store(options());
    const auto first = store.fetch(key("a"), make);
    ASSERT_TRUE(first);
    EXPECT_STREQ(first->source, "compiled");
    const auto second = store.fetch(key("a"), make);
    ASSERT_TRUE(second);
    EXPECT_STREQ(second->source, "memory");
    EXPECT_TRUE(store.notes().empty());
  }
  KernelStore other(options());
  const auto third = other.fetch(key("a"), make);
  ASSERT_TRUE(third);
  EXPECT_STREQ(third->source, "disk");
  EXPECT_EQ(third->entry->payload, kernel().payload);
  EXPECT_EQ(third->entry->facts, kernel().facts);
  EXPECT_EQ(third->entry->key_text, key("a").text);
  EXPECT_EQ(made, 1);
}

TEST_F(StoreTest, PrivateModes) {
  umask(0);
  KernelStore store(options());
  ASSERT_TRUE(store.fetch(key("a"), make));
  umask(022);
  struct stat info;
  ASSERT_EQ(stat((store_path()).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  ASSERT_EQ(stat(file_of(key("a")).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
}

TEST_F(StoreTest, AFailureIsForgotten) {
  KernelStore store(options());
  const auto failed = store.fetch(key("a"), []() -> Result<StoreEntry> { return invalid("no"); });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "no");
  const auto second = store.fetch(key("a"), make);
  ASSERT_TRUE(second);
  EXPECT_STREQ(second->source, "compiled");
}

TEST_F(StoreTest, AnExceptionOfTheMakerWakesWhoWaits) {
  KernelStore store(options());
  std::atomic<bool> inside = false;
  std::thread thrower([&] {
    EXPECT_THROW((void)store.fetch(key("a"),
                                   [&]() -> Result<StoreEntry> {
                                     inside = true;
                                     std::this_thread::sleep_for(std::chrono::milliseconds(50));
                                     throw std::runtime_error("thrown");
                                   }),
                 std::runtime_error);
  });
  while (!inside) std::this_thread::yield();
  const auto waited = store.fetch(key("a"), make);
  thrower.join();
  EXPECT_TRUE(waited || waited.error().kind == ErrorKind::Internal);
}

TEST_F(StoreTest, OncePerKeyAmongThreadsAndKeysInParallel) {
  KernelStore store(options());
  constexpr int kKeys = 4, kThreads = 8;
  std::atomic<int> made[kKeys] = {};
  std::atomic<int> inside = 0;
  std::atomic<bool> together = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < kKeys * kThreads; ++i) {
    threads.emplace_back([&, i] {
      const auto fetched = store.fetch(key(std::to_string(i % kKeys)), [&]() -> Result<StoreEntry> {
        ++made[i % kKeys];
        if (++inside > 1) together = true;
        // Waits for another key's maker: if keys were made one after the other, this would run into its bound.
        for (int n = 0; n < 500 && !together; ++n) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        --inside;
        return kernel(static_cast<std::uint8_t>(i % kKeys));
      });
      ASSERT_TRUE(fetched);
      EXPECT_EQ(fetched->entry->payload[0], i % kKeys);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& count : made) EXPECT_EQ(count, 1);
  EXPECT_TRUE(together);
  const Counters counters = store.counters();
  EXPECT_EQ(counters.compiles, kKeys);
  EXPECT_EQ(counters.compiles + counters.waits + counters.memory_hits, kKeys * kThreads);
}

TEST_F(StoreTest, TwoStoresOnOneDirectoryCompileOnce) {
  KernelStore first(options()), second(options());
  std::atomic<int> made = 0;
  const auto make = [&]() -> Result<StoreEntry> {
    ++made;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return kernel();
  };
  std::thread other([&] { ASSERT_TRUE(second.fetch(key("a"), make)); });
  ASSERT_TRUE(first.fetch(key("a"), make));
  other.join();
  EXPECT_EQ(made, 1);
}

TEST_F(StoreTest, ALockThatIsNeverGivenBackOnlyCostsTime) {
  auto directory = StoreDirectory::open(store_path());
  ASSERT_TRUE(directory);
  const auto held = directory->lock(key("a").digest, std::chrono::milliseconds(0));
  ASSERT_TRUE(held);
  EXPECT_FALSE(directory->lock(key("a").digest, std::chrono::milliseconds(0)));
  EXPECT_TRUE(directory->lock(key("b").digest, std::chrono::milliseconds(0)));
  KernelStore store({.directory = store_path(), .lock_wait = std::chrono::milliseconds(30)});
  const auto fetched = store.fetch(key("a"), make);
  ASSERT_TRUE(fetched);
  EXPECT_STREQ(fetched->source, "compiled");
  EXPECT_EQ(store.counters().private_compiles, 1);
}

TEST_F(StoreTest, ListStatVerifyClear) {
  EXPECT_FALSE(stat_store(store_path()));  // looking does not create
  EXPECT_FALSE(fs::exists(store_path()));
  KernelStore store(options());
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_TRUE(store.fetch(key(name), make));
  }
  std::ofstream(file_of(key("b")), std::ios::app) << "x";
  const auto stat = stat_store(store_path());
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->entries, 3);
  EXPECT_GT(stat->bytes, 15000u);
  const auto listed = list_store(store_path());
  ASSERT_TRUE(listed);
  ASSERT_EQ(listed->size(), 3u);
  for (const StoreListing& item : *listed) {
    EXPECT_EQ(item.sound, item.digest != key("b").digest);
    EXPECT_EQ(item.facts.count("registers"), item.sound ? 1u : 0u);
  }
  const auto removed = remove_bad_entries(store_path());
  ASSERT_TRUE(removed);
  EXPECT_EQ(*removed, 1);
  const auto cleared = clear_store(store_path());
  ASSERT_TRUE(cleared);
  EXPECT_EQ(*cleared, 2);
  EXPECT_EQ(stat_store(store_path())->entries, 0);
}

TEST(StorePathTest, PrivateThenShared) {
  const auto one = parse_store_path("/own");
  ASSERT_TRUE(one);
  EXPECT_EQ(one->own, "/own");
  EXPECT_TRUE(one->layers.empty());
  const auto three = parse_store_path("own:/site:/vendor");
  ASSERT_TRUE(three);
  EXPECT_EQ(three->own, "own");
  EXPECT_EQ(three->layers, (std::vector<std::string>{"/site", "/vendor"}));
  EXPECT_EQ(parse_store_path("")->own, "");
  for (const char* bad : {":", "/own:", ":/own", "/own::/site"}) {
    const auto refused = parse_store_path(bad);
    ASSERT_FALSE(refused) << bad;
    EXPECT_NE(refused.error().message.find("an empty name"), std::string::npos) << refused.error().message;
  }
}

TEST_F(StoreTest, ANameWithAColonIsRefused) {
  const std::string odd = folder + "/a:b";
  fs::create_directory(odd);
  KernelStore store({.directory = odd});
  const auto fetched = store.fetch(key("a"), make);
  ASSERT_TRUE(fetched);
  ASSERT_EQ(store.notes().size(), 1u);
  EXPECT_NE(store.notes()[0].find("rename the directory"), std::string::npos) << store.notes()[0];
  EXPECT_FALSE(fs::exists(folder + "/a"));
}

TEST_F(StoreTest, LayersAreLookedInInOrderAndNeverWritten) {
  const auto fill = [&](const std::string& place, std::initializer_list<const char*> names, std::uint8_t fill) {
    KernelStore store({.directory = folder + place});
    for (const char* name : names)
      ASSERT_TRUE(store.fetch(key(name), [&] { return Result<StoreEntry>(kernel(fill)); }));
  };
  fill("/store", {"a"}, 1);
  fill("/site", {"a", "b"}, 2);
  fill("/vendor", {"a", "b", "c"}, 3);
  const auto files = [&](const char* place) {
    std::vector<std::pair<std::string, fs::file_time_type>> all;
    for (const auto& entry : fs::recursive_directory_iterator(folder + place)) {
      const timespec old[2] = {{0, UTIME_OMIT}, {1000000000, 0}};
      utimensat(AT_FDCWD, entry.path().c_str(), old, 0);
      all.emplace_back(entry.path(), entry.last_write_time());
    }
    std::sort(all.begin(), all.end());
    return all;
  };
  const auto times = [](std::vector<std::pair<std::string, fs::file_time_type>> all) {
    for (auto& [path, time] : all) time = fs::last_write_time(path);
    return all;
  };
  for (const char* place : {"/site", "/vendor"}) fs::remove(folder + place + "/v1/lock");  // a lock would make it again
  const auto site = files("/site"), vendor = files("/vendor");

  KernelStore store({.directory = folder + "/store:" + folder + "/site:" + folder + "/vendor", .max_bytes = 0});
  const std::pair<const char*, int> expected[] = {{"a", 1}, {"b", 2}, {"c", 3}};
  for (const auto& [name, from] : expected) {
    const auto hit = store.fetch(key(name), must_not_make);
    ASSERT_TRUE(hit) << name;
    EXPECT_STREQ(hit->source, "disk");
    EXPECT_EQ(hit->entry->payload[0], from) << name;
  }
  EXPECT_EQ(store.counters().disk_hits, 1);
  EXPECT_EQ(store.counters().layer_hits, 2);
  EXPECT_EQ(stat_store(store_path())->entries, 1);  // a hit in a layer is not copied
  ASSERT_TRUE(store.fetch(key("d"), [] { return Result<StoreEntry>(kernel(4)); }));
  EXPECT_EQ(kept({"a", "d"}), "d");
  EXPECT_EQ(times(site), site);
  EXPECT_EQ(times(vendor), vendor);
  EXPECT_EQ(fs::exists(folder + "/site/v1/lock") || fs::exists(folder + "/vendor/v1/lock"), false);
  EXPECT_TRUE(store.notes().empty());
}

TEST_F(StoreTest, ADamagedEntryOfALayerIsAMiss) {
  store_all({"a"}, options());
  std::ofstream(file_of(key("a")), std::ios::app) << "x";
  KernelStore store({.directory = folder + "/own:" + store_path()});
  const auto fetched = store.fetch(key("a"), make);
  ASSERT_TRUE(fetched);
  EXPECT_STREQ(fetched->source, "compiled");
  EXPECT_EQ(store.counters().bad_entries, 1);
  EXPECT_TRUE(fs::exists(file_of(key("a"))));
}

}  // namespace
}  // namespace flashjit

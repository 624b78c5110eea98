#include "runtime/store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

namespace flashjit {
namespace {

namespace fs = std::filesystem;

class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "flashjit-store-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override { fs::remove_all(folder); }

  static StoreKey key(std::string_view name) {
    KeyBuilder builder;
    builder.field("name", name);
    return builder.finish();
  }
  static StoreEntry kernel(std::uint8_t fill = 7) {
    return {.key_text = "", .facts = {{"registers", "128"}, {"log", "two\nlines \\ and a backslash"}},
            .payload = std::vector<std::uint8_t>(5000, fill)};
  }
  StoreOptions options() const { return {.directory = folder + "/store"}; }
  // The file of a key, or "" while there is none.
  std::string file_of(const StoreKey& key) const {
    return folder + "/store/v1/" + key.digest.substr(0, 2) + "/" + key.digest.substr(2);
  }

  void store_all(std::initializer_list<const char*> names, const StoreOptions& how) const {
    KernelStore store(how);
    for (const char* name : names) ASSERT_TRUE(store.fetch(key(name), [] { return Result<StoreEntry>(kernel()); }));
  }
  void set_last_use(const char* name, std::int64_t seconds_ago) const {
    const timespec times[2] = {{0, UTIME_OMIT}, {time(nullptr) - seconds_ago, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, file_of(key(name)).c_str(), times, 0), 0);
  }
  std::int64_t seconds_since_use(const char* name) const {
    struct stat info = {};
    EXPECT_EQ(stat(file_of(key(name)).c_str(), &info), 0);
    return time(nullptr) - info.st_mtime;
  }
  // The names among `names` that are on disk.
  std::string kept(std::initializer_list<const char*> names) const {
    std::string left;
    for (const char* name : names) left += fs::exists(file_of(key(name))) ? name : "";
    return left;
  }

  std::string folder;
};

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
  ASSERT_TRUE(store.fetch(key("a"), [] { return Result<StoreEntry>(kernel()); }));
  umask(022);
  struct stat info;
  ASSERT_EQ(stat((folder + "/store").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  ASSERT_EQ(stat(file_of(key("a")).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
}

TEST_F(StoreTest, AFailureIsForgotten) {
  KernelStore store(options());
  const auto failed = store.fetch(key("a"), []() -> Result<StoreEntry> { return invalid("no"); });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "no");
  const auto second = store.fetch(key("a"), [] { return Result<StoreEntry>(kernel()); });
  ASSERT_TRUE(second);
  EXPECT_STREQ(second->source, "compiled");
}

TEST_F(StoreTest, AnExceptionOfTheMakerWakesWhoWaits) {
  KernelStore store(options());
  std::atomic<bool> inside = false;
  std::thread thrower([&] {
    EXPECT_THROW((void)store.fetch(key("a"), [&]() -> Result<StoreEntry> {
      inside = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      throw std::runtime_error("thrown");
    }), std::runtime_error);
  });
  while (!inside) std::this_thread::yield();
  const auto waited = store.fetch(key("a"), [] { return Result<StoreEntry>(kernel()); });
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
  const StoreCounters counters = store.counters();
  EXPECT_EQ(counters.made, kKeys);
  EXPECT_EQ(counters.made + counters.waits + counters.memory_hits, kKeys * kThreads);
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
  auto directory = StoreDirectory::open(folder + "/store");
  ASSERT_TRUE(directory);
  const auto held = directory->lock(key("a").digest, std::chrono::milliseconds(0));
  ASSERT_TRUE(held);
  EXPECT_FALSE(directory->lock(key("a").digest, std::chrono::milliseconds(0)));
  EXPECT_TRUE(directory->lock(key("b").digest, std::chrono::milliseconds(0)));
  KernelStore store({.directory = folder + "/store", .lock_wait = std::chrono::milliseconds(30)});
  const auto fetched = store.fetch(key("a"), [] { return Result<StoreEntry>(kernel()); });
  ASSERT_TRUE(fetched);
  EXPECT_STREQ(fetched->source, "compiled");
  EXPECT_EQ(store.counters().private_makes, 1);
}

TEST_F(StoreTest, ListStatVerifyClear) {
  EXPECT_FALSE(stat_store(folder + "/store"));  // looking does not create
  EXPECT_FALSE(fs::exists(folder + "/store"));
  KernelStore store(options());
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_TRUE(store.fetch(key(name), [] { return Result<StoreEntry>(kernel()); }));
  }
  std::ofstream(file_of(key("b")), std::ios::app) << "x";
  const auto stat = stat_store(folder + "/store");
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->entries, 3);
  EXPECT_GT(stat->bytes, 15000u);
  const auto listed = list_store(folder + "/store");
  ASSERT_TRUE(listed);
  ASSERT_EQ(listed->size(), 3u);
  for (const StoreListing& item : *listed) {
    EXPECT_EQ(item.sound, item.digest != key("b").digest);
    EXPECT_EQ(item.facts.count("registers"), item.sound ? 1u : 0u);
  }
  const auto removed = remove_bad_entries(folder + "/store");
  ASSERT_TRUE(removed);
  EXPECT_EQ(*removed, 1);
  const auto cleared = clear_store(folder + "/store");
  ASSERT_TRUE(cleared);
  EXPECT_EQ(*cleared, 2);
  EXPECT_EQ(stat_store(folder + "/store")->entries, 0);
}

TEST_F(StoreTest, AboveTheCapWhatWasUsedLongestAgoGoes) {
  store_all({"f", "a", "c", "b", "e", "d"}, options());
  const std::uint64_t size = stat_store(folder + "/store")->bytes / 6;
  int hours = 20;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) set_last_use(name, 3600 * hours--);
  {
    KernelStore reader(options());
    ASSERT_STREQ(reader.fetch(key("a"), [] { return Result<StoreEntry>(invalid("a is on disk")); })->source, "disk");
  }
  // Seven are above the cap, 90 % of which is room for five: b and c go, a was used just now.
  KernelStore store({.directory = folder + "/store", .max_bytes = 6 * size + size / 2});
  ASSERT_TRUE(store.fetch(key("g"), [] { return Result<StoreEntry>(kernel()); }));
  EXPECT_EQ(kept({"a", "b", "c", "d", "e", "f", "g"}), "adefg");
  EXPECT_EQ(store.counters().evictions, 2);
}

TEST_F(StoreTest, TheNewestEntryStaysHoweverSmallTheCap) {
  store_all({"a", "b", "c"}, {.directory = folder + "/store", .max_bytes = 0});
  EXPECT_EQ(kept({"a", "b", "c"}), "c");
}

TEST_F(StoreTest, AnEntryWhoseKeyIsLockedStays) {
  store_all({"a", "b"}, options());
  set_last_use("a", 7200);
  auto directory = StoreDirectory::open(folder + "/store");
  ASSERT_TRUE(directory);
  {
    const auto held = directory->lock(key("a").digest, std::chrono::milliseconds(0));
    ASSERT_TRUE(held);
    store_all({"c"}, {.directory = folder + "/store", .max_bytes = 0});
    EXPECT_EQ(kept({"a", "b", "c"}), "ac");
  }
  store_all({"d"}, {.directory = folder + "/store", .max_bytes = 0});
  EXPECT_EQ(kept({"a", "b", "c", "d"}), "d");
}

TEST_F(StoreTest, OneEvictsAtATime) {
  store_all({"a", "b"}, options());
  auto directory = StoreDirectory::open(folder + "/store");
  ASSERT_TRUE(directory);
  KernelStore store({.directory = folder + "/store", .max_bytes = 0});
  const auto add = [&](const char* name) { ASSERT_TRUE(store.fetch(key(name), [] { return Result<StoreEntry>(kernel()); })); };
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

TEST_F(StoreTest, AnEntryThatWasUsedSinceItWasListedStays) {
  store_all({"a"}, options());
  set_last_use("a", 7200);
  auto directory = StoreDirectory::open(folder + "/store");
  ASSERT_TRUE(directory);
  const auto listed = directory->list();
  ASSERT_EQ(listed.size(), 1u);
  directory->refresh(listed[0].digest, listed[0].used_ns);
  EXPECT_EQ(directory->evict(listed[0]), StoreDirectory::Eviction::Kept);
  EXPECT_EQ(directory->evict(directory->list()[0]), StoreDirectory::Eviction::Removed);
  EXPECT_EQ(directory->evict(listed[0]), StoreDirectory::Eviction::Gone);
}

TEST_F(StoreTest, AHitRefreshesTheLastUseOncePerHour) {
  store_all({"a"}, options());
  const auto hit_after = [&](std::int64_t seconds_ago) {
    set_last_use("a", seconds_ago);
    KernelStore reader(options());
    EXPECT_STREQ(reader.fetch(key("a"), [] { return Result<StoreEntry>(invalid("a is on disk")); })->source, "disk");
    return seconds_since_use("a");
  };
  EXPECT_GE(hit_after(1800), 1800);
  EXPECT_LE(hit_after(7200), 60);
  EXPECT_GE(hit_after(-7200), -60);  // a clock was wrong
}

TEST_F(StoreTest, LookingAtAStoreIsNoUse) {
  store_all({"a"}, options());
  set_last_use("a", 7200);
  ASSERT_TRUE(list_store(folder + "/store"));
  ASSERT_TRUE(remove_bad_entries(folder + "/store"));
  EXPECT_GE(seconds_since_use("a"), 7200);
}

TEST_F(StoreTest, WhatOthersWriteCountsBeforeLong) {
  store_all({"x"}, options());
  const std::uint64_t size = stat_store(folder + "/store")->bytes;
  KernelStore store({.directory = folder + "/store", .max_bytes = 960 * size});
  const auto add = [](KernelStore& to, const std::string& name) {
    ASSERT_TRUE(to.fetch(key(name), [] { return Result<StoreEntry>(kernel()); }));
  };
  add(store, "first");
  {
    KernelStore other(options());
    for (int i = 0; i < 1000; ++i) add(other, "other" + std::to_string(i));
  }
  int publishes = 0;
  while (store.counters().evictions == 0 && publishes < 100) add(store, "own" + std::to_string(publishes++));
  EXPECT_GT(publishes, 3);  // but not by looking every time
  EXPECT_LE(publishes, 7);  // a tenth of the cap, over 16 writers
  EXPECT_LE(stat_store(folder + "/store")->bytes, 865 * size);
}

TEST_F(StoreTest, Prune) {
  store_all({"a", "b", "c", "d"}, options());
  const std::uint64_t size = stat_store(folder + "/store")->bytes / 4;
  for (const auto& [name, days] : {std::pair{"b", 40}, {"a", 30}, {"c", 20}, {"d", 10}}) set_last_use(name, 86400 * days);
  const auto stat = stat_store(folder + "/store");
  EXPECT_NEAR(static_cast<double>(time(nullptr) - stat->oldest_use), 40 * 86400, 60);
  EXPECT_NEAR(static_cast<double>(time(nullptr) - stat->newest_use), 10 * 86400, 60);
  const auto old = prune_store(folder + "/store", {.unused_since_ns = (time(nullptr) - 35 * 86400) * kNsPerSecond});
  ASSERT_TRUE(old);
  EXPECT_EQ(kept({"a", "b", "c", "d"}), "acd");
  EXPECT_EQ(old->removed, 1);
  EXPECT_EQ(old->left, 3);
  EXPECT_EQ(old->left_bytes, 3 * size);
  const auto large = prune_store(folder + "/store", {.max_bytes = 2 * size + 1});
  ASSERT_TRUE(large);
  EXPECT_EQ(kept({"a", "b", "c", "d"}), "cd");
  EXPECT_EQ(large->removed_bytes, size);
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
  const auto fetched = store.fetch(key("a"), [] { return Result<StoreEntry>(kernel()); });
  ASSERT_TRUE(fetched);
  ASSERT_EQ(store.notes().size(), 1u);
  EXPECT_NE(store.notes()[0].find("rename the directory"), std::string::npos) << store.notes()[0];
  EXPECT_FALSE(fs::exists(folder + "/a"));
}

TEST_F(StoreTest, LayersAreLookedInInOrderAndNeverWritten) {
  const auto fill = [&](const std::string& place, std::initializer_list<const char*> names, std::uint8_t fill) {
    KernelStore store({.directory = folder + place});
    for (const char* name : names) ASSERT_TRUE(store.fetch(key(name), [&] { return Result<StoreEntry>(kernel(fill)); }));
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
    const auto hit = store.fetch(key(name), [] { return Result<StoreEntry>(invalid("this is on disk")); });
    ASSERT_TRUE(hit) << name;
    EXPECT_STREQ(hit->source, "disk");
    EXPECT_EQ(hit->entry->payload[0], from) << name;
  }
  EXPECT_EQ(store.counters().disk_hits, 1);
  EXPECT_EQ(store.counters().layer_hits, 2);
  EXPECT_EQ(stat_store(folder + "/store")->entries, 1);  // a hit in a layer is not copied
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
  KernelStore store({.directory = folder + "/own:" + folder + "/store"});
  const auto fetched = store.fetch(key("a"), [] { return Result<StoreEntry>(kernel()); });
  ASSERT_TRUE(fetched);
  EXPECT_STREQ(fetched->source, "compiled");
  EXPECT_EQ(store.counters().bad_entries, 1);
  EXPECT_TRUE(fs::exists(file_of(key("a"))));
}

TEST_F(StoreTest, ADamagedGiantDrivesNothingElseOut) {
  store_all({"a", "b", "giant"}, options());
  fs::resize_file(file_of(key("giant")), std::uintmax_t{1} << 40);
  store_all({"c"}, options());
  EXPECT_EQ(kept({"a", "b", "giant", "c"}), "abc");
}

TEST(StoreKeyTest, EveryFieldAndItsBordersCount) {
  const auto digest = [](std::initializer_list<std::pair<const char*, const char*>> fields) {
    KeyBuilder builder;
    for (const auto& [label, value] : fields) builder.field(label, value);
    return builder.finish().digest;
  };
  const std::string base = digest({{"spec", "a"}, {"target", "b"}});
  EXPECT_EQ(base, digest({{"spec", "a"}, {"target", "b"}}));
  EXPECT_NE(base, digest({{"spec", "b"}, {"target", "b"}}));
  EXPECT_NE(base, digest({{"spec", "a"}, {"target", "c"}}));
  EXPECT_NE(base, digest({{"spec", "a"}, {"targe", "b"}}));
  EXPECT_NE(base, digest({{"target", "b"}, {"spec", "a"}}));
  EXPECT_NE(base, digest({{"spec", "a"}}));
  EXPECT_NE(digest({{"x", "ab"}, {"y", "c"}}), digest({{"x", "a"}, {"y", "bc"}}));
  EXPECT_NE(digest({{"x", ""}}), digest({{"", "x"}}));
}

TEST(StoreEntryTest, RoundTrip) {
  const StoreEntry entry{.key_text = "spec: a\n", .facts = {{"empty", ""}, {"text", "a\\n\nb=c"}}, .payload = {1, 2, 3}};
  const auto decoded = decode(encode(entry));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->key_text, entry.key_text);
  EXPECT_EQ(decoded->facts, entry.facts);
  EXPECT_EQ(decoded->payload, entry.payload);
}

TEST(StoreEntryTest, EveryFlippedBitAndEveryLengthIsFound) {
  const std::vector<std::uint8_t> good =
      encode({.key_text = "spec: a\n", .facts = {{"registers", "128"}}, .payload = std::vector<std::uint8_t>(300, 5)});
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      auto bad = good;
      bad[at] ^= static_cast<std::uint8_t>(1 << bit);
      ASSERT_FALSE(decode(bad)) << "byte " << at << " bit " << bit;
    }
    ASSERT_FALSE(decode(std::span(good).first(at))) << at;
  }
  auto longer = good;
  longer.push_back(0);
  EXPECT_FALSE(decode(longer));
}

TEST(StoreEntryTest, LengthsWithARightChecksumAreStillChecked) {
  // Anybody can compute the checksum: the lengths (offset 12: key, 16: facts, 20: payload) may be made up.
  const std::vector<std::uint8_t> good = encode({.key_text = "k", .facts = {{"a", "b"}}, .payload = {1, 2, 3, 4}});
  for (const std::size_t at : {12, 13, 15, 16, 19, 20, 24, 27}) {
    for (const int value : {0, 1, 2, 127, 255}) {
      auto bad = good;
      if (bad[at] == value) continue;
      bad[at] = static_cast<std::uint8_t>(value);
      Sha256 hash;
      hash.update(bad.data(), bad.size() - 32);
      const auto digest = hash.finish();
      std::copy(digest.begin(), digest.end(), bad.end() - 32);
      EXPECT_FALSE(decode(bad)) << "byte " << at << " = " << value;
    }
  }
}

TEST(StoreEntryTest, FactsInAnotherFormAreRefused) {
  const auto with_facts = [](const std::string& facts) {
    std::vector<std::uint8_t> bytes = encode({.key_text = "k", .facts = {{std::string(facts.size() - 2, 'x'), ""}}, .payload = {1}});
    std::copy(facts.begin(), facts.end(), bytes.begin() + 28 + 1);  // of the same length, behind header and key
    Sha256 hash;
    hash.update(bytes.data(), bytes.size() - 32);
    const auto digest = hash.finish();
    std::copy(digest.begin(), digest.end(), bytes.end() - 32);
    return bytes;
  };
  EXPECT_TRUE(decode(with_facts("a=1\nb=\\n\\\\\n")));
  for (const char* facts : {"b=1\na=2\n", "a=1\na=2\n", "a=1\na=1\n", "a=\\x\n", "a=\\\n"}) {
    EXPECT_FALSE(decode(with_facts(facts))) << facts;
  }
}

}  // namespace
}  // namespace flashjit

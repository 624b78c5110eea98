// The size cap of the store when things go wrong: evicting processes that die, several at once, file systems without
// writing.
#include "tests/fault/store_fixture.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>

#include <random>
#include <set>

namespace flashjit {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

class EvictionFault : public StoreFault {
 protected:
  static StoreEntry kernel() { return StoreFault::kernel(2000); }
  static Result<StoreEntry> make() { return kernel(); }

  void fill(int entries) const {
    KernelStore store({.directory = store_path()});
    for (int i = 0; i < entries; ++i) ASSERT_TRUE(store.fetch(key(std::to_string(i)), make));
  }

  static StoreKey favourite(int i) { return key("favourite " + std::to_string(i)); }

  // What is used again and again: a fresh store each time, as another process would be. Its time of use is set by
  // hand, because a hit tells it once an hour only. Gives the exit status of a child.
  int read_favourites(std::uint64_t cap, int favourites, const SharedCounter& writing, SharedCounter& reads) const {
    while (writing > 0) {
      KernelStore store({.directory = store_path(), .max_bytes = cap});
      for (int i = 0; i < favourites; ++i) {
        const auto fetched = store.fetch(favourite(i), make);
        if (!fetched || fetched->entry->payload != kernel().payload) return 1;
        ++reads;
        utimensat(AT_FDCWD, file_of(favourite(i)).c_str(), nullptr, 0);
      }
      if (store.counters().bad_entries != 0) return 2;
    }
    return 0;
  }

  // A listing takes time: what is written meanwhile and what is gone meanwhile may both be counted, so only names count
  // that two listings in a row have.
  std::uint64_t bytes_of_two_listings() const {
    const auto first = StoreDirectory::open(store_path())->list();
    std::set<std::string> names;
    for (const auto& item : first) names.insert(item.digest);
    std::uint64_t both = 0;
    for (const auto& item : StoreDirectory::open(store_path())->list())
      both += names.count(item.digest) ? item.bytes : 0;
    return both;
  }
};

TEST_F(EvictionFault, EvictorsThatAreKilledLeaveASoundStore) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  constexpr int kEntries = 60, kRounds = 15;
  const auto prune_all = [&] { return prune_store(store_path(), {.max_bytes = 0, .remaining_bytes = 0}) ? 0 : 1; };
  fill(kEntries);
  const auto began = Clock::now();
  ASSERT_EQ(end_of(start(prune_all)), 0);
  const auto whole = std::chrono::duration_cast<microseconds>(Clock::now() - began).count();

  int in_the_middle = 0;
  for (int round = 0; round < kRounds; ++round) {
    fill(kEntries);
    const pid_t child = start(prune_all);
    std::this_thread::sleep_for(microseconds(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(whole))));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const auto listed = list_store(store_path());
    ASSERT_TRUE(listed);
    for (const StoreListing& item : *listed) ASSERT_TRUE(item.sound);
    in_the_middle += !listed->empty() && listed->size() < kEntries;
    // No lock of the dead is left: nothing keeps an entry from going.
    const auto after = prune_store(store_path(), {.max_bytes = 0, .remaining_bytes = 0});
    ASSERT_TRUE(after);
    ASSERT_EQ(after->left, 0);
  }
  EXPECT_GT(in_the_middle, 0) << "no kill hit an eviction: the test shows nothing";
}

TEST_F(EvictionFault, ProcessesThatEvictAndPublishAtOnceLoseOnlyWhatIsOldest) {
  constexpr int kProcesses = 4, kRounds = 50, kSafeRounds = 6;
  {
    KernelStore store({.directory = store_path()});
    ASSERT_TRUE(store.fetch(key("process 0 round 00"), make));
  }
  const std::uint64_t size = stat_store(store_path())->bytes;
  ASSERT_TRUE(clear_store(store_path()));
  const std::uint64_t cap = 40 * size;  // 36 remain after an eviction: more than the last six rounds of four

  SharedCounter arrived;
  const auto name = [](int process, int round) {
    return "process " + std::to_string(process) + " round " + std::to_string(round + 10);
  };
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    children.push_back(start([&, process] {
      KernelStore store({.directory = store_path(), .max_bytes = cap});
      for (int round = 0; round < kRounds; ++round) {
        // Rounds keep step, so that the age of an entry is known.
        ++arrived;
        while (arrived < (round + 1) * kProcesses) std::this_thread::sleep_for(microseconds(50));
        if (!store.fetch(key(name(process, round)), make) || store.counters().not_persisted != 0) return 1;
        KernelStore reader({.directory = store_path()});
        const auto read = reader.fetch(key(name(process, round)), must_not_make);
        if (!read || read->entry->payload != kernel().payload) return 2;
        if (!prune_store(store_path(), {.max_bytes = cap, .remaining_bytes = cap / 10 * 9})) return 3;
      }
      return 0;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(end_of(child), 0);

  const auto listed = list_store(store_path());
  ASSERT_TRUE(listed);
  std::set<std::string> left;
  for (const StoreListing& item : *listed) {
    EXPECT_TRUE(item.sound);
    left.insert(item.digest);
  }
  EXPECT_LE(left.size(), 40u);
  EXPECT_GE(left.size(), 36u);
  for (int round = kRounds - kSafeRounds; round < kRounds; ++round) {
    for (int process = 0; process < kProcesses; ++process)
      EXPECT_TRUE(left.count(key(name(process, round)).digest)) << round;
  }
  EXPECT_FALSE(left.count(key(name(0, 0)).digest));
}

// Eight processes write ten times the cap, with readers beside them. All sizes are looked at from outside, all the
// time.
TEST_F(EvictionFault, TheCapHoldsWhileManyWriteAndRead) {
  constexpr int kWriters = 8, kReaders = 4;
  const int entries = is_long() ? 10'000 : 800;  // of all writers; the cap is a tenth
  fill(1);
  const std::uint64_t size = stat_store(store_path())->bytes;
  const std::uint64_t cap = static_cast<std::uint64_t>(entries) / 10 * size;
  const int favourites = entries / 200;
  SharedCounter writing, reads;
  writing->store(kWriters);
  std::vector<pid_t> writers, readers;
  for (int writer = 0; writer < kWriters; ++writer) {
    writers.push_back(start([&, writer] {
      KernelStore store({.directory = store_path(), .max_bytes = cap});
      int wrong = 0;
      for (int i = 0; i < entries / kWriters; ++i)
        wrong += !store.fetch(key(std::to_string(writer) + " " + std::to_string(i)), make);
      writing->fetch_sub(1);
      return wrong == 0 && store.counters().not_persisted + store.counters().bad_entries == 0 ? 0 : 1;
    }));
  }
  for (int reader = 0; reader < kReaders; ++reader) {
    readers.push_back(start([&] { return read_favourites(cap, favourites, writing, reads); }));
  }
  std::uint64_t most = 0;
  // Children that take too long are ended by their alarm, without a word.
  for (const auto until = Clock::now() + std::chrono::seconds(child_seconds()); writing > 0 && Clock::now() < until;) {
    most = std::max(most, bytes_of_two_listings());
  }
  for (const pid_t child : writers) EXPECT_EQ(end_of(child), 0);
  for (const pid_t child : readers) EXPECT_EQ(end_of(child), 0);
  const std::uint64_t limit = cap + cap / 10;
  EXPECT_LE(most, limit);
  const auto listed = list_store(store_path());
  ASSERT_TRUE(listed);
  std::set<std::string> left;
  std::uint64_t bytes = 0;
  for (const StoreListing& item : *listed) {
    EXPECT_TRUE(item.sound);
    left.insert(item.digest);
    bytes += item.bytes;
  }
  EXPECT_LE(bytes, limit);
  EXPECT_GE(bytes, cap / 2);
  for (int i = 0; i < favourites; ++i) EXPECT_TRUE(left.count(favourite(i).digest)) << i;
  printf("%d entries of %d kept, at most %.3f of the cap, %d reads\n", static_cast<int>(left.size()), entries,
         static_cast<double>(most) / static_cast<double>(cap), static_cast<int>(reads));
}

TEST_F(EvictionFault, AReadOnlyFileSystemStillServes) {
  fill(1);
  const std::string file = file_of(key("0"));
  const timespec old[2] = {{0, UTIME_OMIT}, {time(nullptr) - 7200, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, file.c_str(), old, 0), 0);
  const int result = end_of(start([&] {
    // Mounts of this child alone: they go away with it.
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount(store_path().c_str(), store_path().c_str(), nullptr, MS_BIND, nullptr) != 0 ||
        mount(nullptr, store_path().c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) != 0) {
      return kMayNotMount;
    }
    if (utimensat(AT_FDCWD, file.c_str(), nullptr, 0) == 0) return 1;
    KernelStore store({.directory = store_path(), .max_bytes = 0});
    const auto hit = store.fetch(key("0"), must_not_make);
    if (!hit || std::string_view(hit->source) != "disk") return 2;
    // What cannot be written is kept in memory, and nothing is evicted for it.
    const auto made = store.fetch(key("1"), make);
    if (!made || store.counters().not_persisted != 1 || store.counters().evictions != 0) return 3;
    const auto pruned = prune_store(store_path(), {.max_bytes = 0, .remaining_bytes = 0});
    return pruned && pruned->removed == 0 && pruned->left == 1 ? 0 : 4;
  }));
  if (result == kMayNotMount) GTEST_SKIP() << "needs the right to mount";
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace flashjit

// The size cap of the store when things go wrong: evicting processes that die, several at once, file systems without writing.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <new>
#include <random>
#include <set>
#include <thread>

#include "runtime/store.h"

namespace flashjit {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

class EvictionFault : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "flashjit-evict-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override { fs::remove_all(folder); }

  static StoreKey key(const std::string& name) {
    KeyBuilder builder;
    builder.field("name", name);
    return builder.finish();
  }
  static StoreEntry kernel() { return {.key_text = "", .facts = {}, .payload = std::vector<std::uint8_t>(2000, 7)}; }
  static Result<StoreEntry> make() { return kernel(); }
  static Result<StoreEntry> must_not_make() { return invalid("this should be on disk"); }

  static pid_t start(const std::function<int()>& body) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(120);
      _exit(body());
    }
    return child;
  }
  static int end_of(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

  void fill(int entries) const {
    KernelStore store({.directory = folder});
    for (int i = 0; i < entries; ++i) ASSERT_TRUE(store.fetch(key(std::to_string(i)), make));
  }

  std::string folder;
};

TEST_F(EvictionFault, EvictorsThatAreKilledLeaveASoundStore) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  constexpr int kEntries = 60, kRounds = 15;
  const auto prune_all = [&] { return prune_store(folder, {.max_bytes = 0, .remaining_bytes = 0}) ? 0 : 1; };
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
    const auto listed = list_store(folder);
    ASSERT_TRUE(listed);
    for (const StoreListing& item : *listed) ASSERT_TRUE(item.sound);
    in_the_middle += !listed->empty() && listed->size() < kEntries;
    // No lock of the dead is left: nothing keeps an entry from going.
    const auto after = prune_store(folder, {.max_bytes = 0, .remaining_bytes = 0});
    ASSERT_TRUE(after);
    ASSERT_EQ(after->left, 0);
  }
  EXPECT_GT(in_the_middle, 0) << "no kill hit an eviction: the test shows nothing";
}

TEST_F(EvictionFault, ProcessesThatEvictAndPublishAtOnceLoseOnlyWhatIsOldest) {
  constexpr int kProcesses = 4, kRounds = 50, kSafeRounds = 6;
  { KernelStore store({.directory = folder}); ASSERT_TRUE(store.fetch(key("process 0 round 00"), make)); }
  const std::uint64_t size = stat_store(folder)->bytes;
  ASSERT_TRUE(clear_store(folder));
  const std::uint64_t cap = 40 * size;  // 36 remain after an eviction: more than the last six rounds of four

  void* shared = mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  std::atomic<int>& arrived = *new (shared) std::atomic<int>(0);
  const auto name = [](int process, int round) { return "process " + std::to_string(process) + " round " + std::to_string(round + 10); };
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    children.push_back(start([&, process] {
      KernelStore store({.directory = folder, .max_bytes = cap});
      for (int round = 0; round < kRounds; ++round) {
        // Rounds keep step, so that the age of an entry is known.
        ++arrived;
        while (arrived < (round + 1) * kProcesses) std::this_thread::sleep_for(microseconds(50));
        if (!store.fetch(key(name(process, round)), make) || store.counters().not_persisted != 0) return 1;
        KernelStore reader({.directory = folder});
        const auto read = reader.fetch(key(name(process, round)), must_not_make);
        if (!read || read->entry->payload != kernel().payload) return 2;
        if (!prune_store(folder, {.max_bytes = cap, .remaining_bytes = cap / 10 * 9})) return 3;
      }
      return 0;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(end_of(child), 0);
  munmap(shared, sizeof(std::atomic<int>));

  const auto listed = list_store(folder);
  ASSERT_TRUE(listed);
  std::set<std::string> left;
  for (const StoreListing& item : *listed) {
    EXPECT_TRUE(item.sound);
    left.insert(item.digest);
  }
  EXPECT_LE(left.size(), 40u);
  EXPECT_GE(left.size(), 36u);
  for (int round = kRounds - kSafeRounds; round < kRounds; ++round) {
    for (int process = 0; process < kProcesses; ++process) EXPECT_TRUE(left.count(key(name(process, round)).digest)) << round;
  }
  EXPECT_FALSE(left.count(key(name(0, 0)).digest));
}

TEST_F(EvictionFault, AReadOnlyFileSystemStillServes) {
  fill(1);
  const std::string file = folder + "/v1/" + key("0").digest.substr(0, 2) + "/" + key("0").digest.substr(2);
  const timespec old[2] = {{0, UTIME_OMIT}, {time(nullptr) - 7200, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, file.c_str(), old, 0), 0);
  constexpr int kMayNotMount = 77;
  const int result = end_of(start([&] {
    // Mounts of this child alone: they go away with it.
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount(folder.c_str(), folder.c_str(), nullptr, MS_BIND, nullptr) != 0 ||
        mount(nullptr, folder.c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) != 0) {
      return kMayNotMount;
    }
    if (utimensat(AT_FDCWD, file.c_str(), nullptr, 0) == 0) return 1;
    KernelStore store({.directory = folder, .max_bytes = 0});
    const auto hit = store.fetch(key("0"), must_not_make);
    if (!hit || std::string_view(hit->source) != "disk") return 2;
    // What cannot be written is kept in memory, and nothing is evicted for it.
    const auto made = store.fetch(key("1"), make);
    if (!made || store.counters().not_persisted != 1 || store.counters().evictions != 0) return 3;
    const auto pruned = prune_store(folder, {.max_bytes = 0, .remaining_bytes = 0});
    return pruned && pruned->removed == 0 && pruned->left == 1 ? 0 : 4;
  }));
  if (result == kMayNotMount) GTEST_SKIP() << "needs the right to mount";
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace flashjit

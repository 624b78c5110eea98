// Processes that die, stop, fork or come all at once: nothing torn, nothing locked for ever, nothing made twice.
#include "tests/fault/store_fixture.h"

#include <fcntl.h>

#include <fstream>
#include <random>

namespace flashjit {
namespace {

TEST_F(StoreFault, WritersThatAreKilledLeaveNoTornEntry) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const int rounds = is_long() ? 2000 : 200;
  const auto store_one = [&](const StoreKey& name) {
    return start([&] {
      KernelStore store({.directory = store_path()});
      (void)store.fetch(name, make);
      return 0;
    });
  };
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) ASSERT_EQ(end_of(store_one(key("to take the time " + std::to_string(i)))), 0);
  const auto took =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - began).count() / 10;
  ASSERT_TRUE(clear_store(store_path()));
  int whole = 0;
  for (int round = 0; round < rounds; ++round) {
    const StoreKey name = key(std::to_string(round));
    const pid_t child = store_one(name);
    std::this_thread::sleep_for(
        std::chrono::microseconds(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(took * 5 / 4))));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    // The lock of the dead is free, and what it left is whole or not there.
    KernelStore store({.directory = store_path(), .lock_wait = milliseconds(5000)});
    const auto fetched = store.fetch(name, make);
    ASSERT_TRUE(fetched);
    ASSERT_EQ(fetched->entry->payload, kernel().payload);
    ASSERT_EQ(store.counters().bad_entries, 0) << round;
    ASSERT_EQ(store.counters().private_compiles, 0) << round;
    whole += std::string_view(fetched->source) == "disk";
  }
  const auto listed = list_store(store_path());
  ASSERT_TRUE(listed);
  EXPECT_EQ(listed->size(), static_cast<std::size_t>(rounds));
  for (const StoreListing& item : *listed) EXPECT_TRUE(item.sound);

  // What the dead left beside the entries goes once it is old.
  int temporaries = 0;
  const timespec old[2] = {{0, UTIME_OMIT}, {time(nullptr) - 7200, 0}};
  for (const auto& entry : fs::recursive_directory_iterator(store_path())) {
    if (!entry.path().filename().string().starts_with(".tmp-")) continue;
    ++temporaries;
    ASSERT_EQ(utimensat(AT_FDCWD, entry.path().c_str(), old, 0), 0);
  }
  ASSERT_TRUE(prune_store(store_path(), {}));
  EXPECT_EQ(files().size(), static_cast<std::size_t>(rounds));
  printf("%d killed: %d had published, %d temporaries swept\n", rounds, whole, temporaries);
}

TEST_F(StoreFault, LeftOverTemporariesAreSwept) {
  {
    KernelStore store({.directory = store_path()});
    ASSERT_TRUE(store.fetch(key(), make));
  }
  const std::string shelf = fs::path(file_of(key())).parent_path();
  std::ofstream(shelf + "/.tmp-1-old") << "x";
  std::ofstream(shelf + "/.tmp-1-new") << "x";
  const timespec old[2] = {{time(nullptr) - 7200, 0}, {time(nullptr) - 7200, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, (shelf + "/.tmp-1-old").c_str(), old, 0), 0);
  ASSERT_TRUE(remove_bad_entries(store_path()));
  EXPECT_FALSE(fs::exists(shelf + "/.tmp-1-old"));
  EXPECT_TRUE(fs::exists(shelf + "/.tmp-1-new"));
  ASSERT_TRUE(clear_store(store_path()));
  EXPECT_FALSE(fs::exists(shelf + "/.tmp-1-new"));
}

struct Crowd {
  int processes, threads, keys;
};

// Every thread of every process asks at the same moment; thread i for key i % keys.
class OneCompile : public StoreFault, public testing::WithParamInterface<Crowd> {};

TEST_P(OneCompile, PerKeyAndTheSameBytesForAll) {
  const Crowd crowd = GetParam();
  for (int round = 0; round < (is_long() ? 20 : 1); ++round) {
    SharedCounter made, ready;
    const auto one_thread = [&](KernelStore& store, int key_number) {
      ++ready;
      if (!ready.reaches(crowd.processes * crowd.threads)) return false;
      const auto fetched = store.fetch(key(std::to_string(key_number)), [&]() -> Result<StoreEntry> {
        ++made;
        std::this_thread::sleep_for(milliseconds(100));
        return kernel(1000 + static_cast<std::size_t>(key_number));
      });
      return fetched && fetched->entry->payload == kernel(1000 + static_cast<std::size_t>(key_number)).payload;
    };
    std::vector<pid_t> children;
    for (int process = 0; process < crowd.processes; ++process) {
      children.push_back(start([&] {
        KernelStore store({.directory = store_path()});
        std::atomic<int> wrong = 0;
        std::vector<std::thread> threads;
        for (int i = 0; i < crowd.threads; ++i)
          threads.emplace_back([&, i] { wrong += !one_thread(store, i % crowd.keys); });
        for (std::thread& thread : threads) thread.join();
        const Counters counters = store.counters();
        return wrong == 0 && counters.bad_entries + counters.private_compiles + counters.not_persisted == 0 ? 0 : 1;
      }));
    }
    for (const pid_t child : children) EXPECT_EQ(end_of(child), 0);
    EXPECT_EQ(made, crowd.keys);
    ASSERT_TRUE(clear_store(store_path()));
  }
}

INSTANTIATE_TEST_SUITE_P(Crowds, OneCompile,
                         testing::Values(Crowd{64, 1, 1}, Crowd{1, 64, 1}, Crowd{8, 8, 1}, Crowd{8, 8, 4}),
                         [](const auto& info) {
                           const Crowd& crowd = info.param;
                           return std::to_string(crowd.processes) + "Processes" + std::to_string(crowd.threads) +
                                  "Threads" + std::to_string(crowd.keys) + "Keys";
                         });

TEST_F(StoreFault, ProcessesMakeDifferentKeysInParallel) {
  constexpr int kProcesses = 4;
  SharedCounter inside;
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    children.push_back(start([&, process] {
      KernelStore store({.directory = store_path()});
      bool together = false;
      // Each stays in its compile until all are in theirs.
      const auto fetched = store.fetch(key(std::to_string(process)), [&]() -> Result<StoreEntry> {
        ++inside;
        together = inside.reaches(kProcesses);
        return kernel();
      });
      return fetched && together ? 0 : 1;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(end_of(child), 0);
}

// A child that holds the lock of key() and says so in `inside`; it makes the kernel when it may `go`.
class HeldLock : public StoreFault {
 protected:
  void hold() {
    holder = start([&] {
      KernelStore store({.directory = store_path()});
      return store.fetch(key(),
                         [&]() -> Result<StoreEntry> {
                           ++inside;
                           if (!go.reaches(1)) return invalid("nobody said go");
                           return kernel();
                         })
                 ? 0
                 : 1;
    });
    ASSERT_TRUE(inside.reaches(1));
  }
  pid_t holder = 0;
  SharedCounter inside, go;
};

TEST_F(HeldLock, OfAKilledCompilerIsTakenOver) {
  hold();
  std::thread killer([&] {
    std::this_thread::sleep_for(milliseconds(50));
    kill(holder, SIGKILL);
  });
  KernelStore store({.directory = store_path(), .lock_wait = milliseconds(30'000)});
  const auto fetched = store.fetch(key(), make);
  killer.join();
  EXPECT_EQ(end_of(holder), 1000 + SIGKILL);
  ASSERT_TRUE(fetched);
  EXPECT_EQ(store.counters().private_compiles, 0);
}

TEST_F(HeldLock, OfAStoppedCompilerIsWaitedForWithABound) {
  hold();
  kill(holder, SIGSTOP);
  KernelStore store({.directory = store_path(), .lock_wait = milliseconds(200)});
  const auto fetched = store.fetch(key(), make);
  ASSERT_TRUE(fetched);
  EXPECT_STREQ(fetched->source, "compiled");
  EXPECT_NE(fetched->miss.find("another process took too long"), std::string::npos) << fetched->miss;
  EXPECT_EQ(store.counters().private_compiles, 1);
  EXPECT_TRUE(is_on_disk());
  ++go;
  kill(holder, SIGCONT);
  EXPECT_EQ(end_of(holder), 0);  // it publishes the same again
  EXPECT_TRUE(is_on_disk());
}

// The child has all handles of its parent, and none of its threads.
TEST_F(StoreFault, AChildForkedDuringACompileNeitherWaitsNorKeepsTheLock) {
  KernelStore store({.directory = store_path()});
  SharedCounter inside, go, done;
  std::thread compiling([&] {
    (void)store.fetch(key(), [&]() -> Result<StoreEntry> {
      ++inside;
      (void)go.reaches(1);
      return invalid("as if the compiler had refused");
    });
  });
  ASSERT_TRUE(inside.reaches(1));
  const pid_t child = start([&] {
    if (!done.reaches(1)) return 1;
    const auto fetched = store.fetch(key("b"), make);
    const auto same = store.fetch(key(), make);  // its maker is in the parent alone
    return fetched && same ? 0 : 2;
  });
  ++go;
  compiling.join();
  // The child lives, and the lock is free.
  KernelStore other({.directory = store_path(), .lock_wait = milliseconds(5000)});
  EXPECT_TRUE(other.fetch(key(), make));
  EXPECT_EQ(other.counters().private_compiles, 0);
  ++done;
  EXPECT_EQ(end_of(child), 0);
}

}  // namespace
}  // namespace flashjit

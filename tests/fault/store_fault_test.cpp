// The store when things go wrong: processes that die, damaged files, directories that cannot be used.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <new>
#include <random>
#include <thread>

#include "runtime/store.h"

namespace flashjit {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr uid_t kOtherUser = 65534;

class StoreFault : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "flashjit-fault-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override {
    chmod(folder.c_str(), 0700);
    fs::remove_all(folder);
  }

  static StoreKey key(std::string_view name = "a") {
    KeyBuilder builder;
    builder.field("name", name);
    return builder.finish();
  }
  static StoreEntry kernel(std::size_t bytes = 25000) {
    StoreEntry entry{.facts = {{"registers", "128"}}, .payload = std::vector<std::uint8_t>(bytes)};
    for (std::size_t i = 0; i < bytes; ++i) entry.payload[i] = static_cast<std::uint8_t>(i * 31);
    return entry;
  }
  static Result<StoreEntry> make() { return kernel(); }
  std::string store_path() const { return folder + "/store"; }
  std::string file_of(const StoreKey& key) const {
    return store_path() + "/v1/" + key.digest.substr(0, 2) + "/" + key.digest.substr(2);
  }

  // In a child process, so that limits and users can be changed. The exit status is that of the child.
  static int in_child(const std::function<int()>& body) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      _exit(body());
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

  // Everything still works, from memory, and one note says why, containing `words`.
  static int works_from_memory(const StoreOptions& options, const char* words) {
    KernelStore store(options);
    const auto first = store.fetch(key(), make);
    if (!first || first->entry->payload != kernel().payload) return 1;
    const auto second = store.fetch(key(), make);
    if (!second || std::string_view(second->source) != "memory") return 2;
    if (store.counters().not_persisted != 1) return 3;
    if (store.notes().size() != 1) return 4;
    if (store.notes()[0].find(words) == std::string::npos) {
      fprintf(stderr, "note: %s\n", store.notes()[0].c_str());
      return 5;
    }
    return 0;
  }

  std::string folder;
};

TEST_F(StoreFault, WritersThatAreKilledLeaveNoTornEntry) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  int whole = 0;
  for (int round = 0; round < 200; ++round) {
    const StoreKey name = key(std::to_string(round));
    const pid_t child = fork();
    if (child == 0) {
      KernelStore store({.directory = store_path()});
      (void)store.fetch(name, make);
      _exit(0);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    // The lock of the dead is free, and what it left is whole or not there.
    KernelStore store({.directory = store_path(), .lock_wait = milliseconds(5000)});
    const auto fetched = store.fetch(name, make);
    ASSERT_TRUE(fetched);
    ASSERT_EQ(fetched->entry->payload, kernel().payload);
    ASSERT_EQ(store.counters().bad_entries, 0) << round;
    ASSERT_EQ(store.counters().private_makes, 0) << round;
    whole += std::string_view(fetched->source) == "disk";
  }
  RecordProperty("whole", whole);
  const auto listed = list_store(store_path());
  ASSERT_TRUE(listed);
  EXPECT_EQ(listed->size(), 200u);
  for (const StoreListing& item : *listed) EXPECT_TRUE(item.sound);
}

TEST_F(StoreFault, LeftOverTemporariesAreSwept) {
  { KernelStore store({.directory = store_path()}); ASSERT_TRUE(store.fetch(key(), make)); }
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

TEST_F(StoreFault, SixteenProcessesCompileOnce) {
  auto* made = static_cast<std::atomic<int>*>(
      mmap(nullptr, 2 * sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(made, MAP_FAILED);
  std::atomic<int>& ready = *new (made + 1) std::atomic<int>(0);
  new (made) std::atomic<int>(0);
  constexpr int kProcesses = 16;
  pid_t children[kProcesses];
  for (pid_t& child : children) {
    child = fork();
    if (child != 0) continue;
    alarm(60);
    KernelStore store({.directory = store_path()});
    ++ready;
    while (ready < kProcesses) std::this_thread::yield();
    const auto fetched = store.fetch(key(), [&]() -> Result<StoreEntry> {
      ++*made;
      std::this_thread::sleep_for(milliseconds(100));
      return kernel();
    });
    _exit(fetched && fetched->entry->payload == kernel().payload ? 0 : 1);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  EXPECT_EQ(*made, 1);
  munmap(made, 2 * sizeof(std::atomic<int>));
}

TEST_F(StoreFault, TheLockOfAKilledCompilerIsTakenOver) {
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  const pid_t child = fork();
  if (child == 0) {
    KernelStore store({.directory = store_path()});
    (void)store.fetch(key(), [&]() -> Result<StoreEntry> {
      if (write(pipes[1], "x", 1) != 1) _exit(1);
      pause();
      return kernel();
    });
    _exit(0);
  }
  char byte;
  ASSERT_EQ(read(pipes[0], &byte, 1), 1);
  std::thread killer([&] {
    std::this_thread::sleep_for(milliseconds(50));
    kill(child, SIGKILL);
  });
  KernelStore store({.directory = store_path(), .lock_wait = milliseconds(30'000)});
  const auto fetched = store.fetch(key(), make);
  killer.join();
  waitpid(child, nullptr, 0);
  close(pipes[0]);
  close(pipes[1]);
  ASSERT_TRUE(fetched);
  EXPECT_EQ(store.counters().private_makes, 0);
}

struct Damage {
  const char* name;
  std::function<void(const std::string& file)> make;
};

TEST_F(StoreFault, DamagedEntriesAreMisses) {
  const auto replace = [](const std::string& file, const std::function<void()>& with) {
    fs::remove(file);
    with();
  };
  const Damage damages[] = {
      {"empty", [](const std::string& f) { fs::resize_file(f, 0); }},
      {"cut in the header", [](const std::string& f) { fs::resize_file(f, 13); }},
      {"cut at the end", [](const std::string& f) { fs::resize_file(f, fs::file_size(f) - 1); }},
      {"one byte more", [](const std::string& f) { std::ofstream(f, std::ios::app) << 'x'; }},
      {"a flipped byte", [](const std::string& f) {
         std::fstream file(f, std::ios::in | std::ios::out | std::ios::binary);
         file.seekp(9000);
         file.put('\x55');
       }},
      {"huge and sparse", [](const std::string& f) { fs::resize_file(f, std::uintmax_t{1} << 40); }},
      {"a directory", [&](const std::string& f) { replace(f, [&] { fs::create_directory(f); }); }},
      {"a FIFO", [&](const std::string& f) { replace(f, [&] { ASSERT_EQ(mkfifo(f.c_str(), 0600), 0); }); }},
      {"a symbolic link", [&](const std::string& f) {
         fs::rename(f, f + "x");
         fs::create_symlink(f + "x", f);
       }},
      {"a link to nowhere", [&](const std::string& f) { replace(f, [&] { fs::create_symlink("nowhere", f); }); }},
      {"writable by others", [](const std::string& f) { chmod(f.c_str(), 0666); }},
  };
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.name);
    fs::remove_all(store_path());
    { KernelStore store({.directory = store_path()}); ASSERT_TRUE(store.fetch(key(), make)); }
    damage.make(file_of(key()));
    KernelStore store({.directory = store_path()});
    const auto fetched = store.fetch(key(), make);
    ASSERT_TRUE(fetched);
    EXPECT_STREQ(fetched->source, "compiled");
    EXPECT_EQ(fetched->entry->payload, kernel().payload);
    EXPECT_GE(store.counters().bad_entries, 1);
    if (fs::is_directory(file_of(key()))) continue;  // nothing of ours: it is left alone
    KernelStore again({.directory = store_path()});
    const auto healed = again.fetch(key(), make);
    ASSERT_TRUE(healed);
    EXPECT_STREQ(healed->source, "disk");
  }
}

TEST_F(StoreFault, AnEntryUnderAnotherNameIsAMiss) {
  KernelStore store({.directory = store_path()});
  ASSERT_TRUE(store.fetch(key("a"), make));
  fs::create_directories(fs::path(file_of(key("b"))).parent_path());
  fs::copy_file(file_of(key("a")), file_of(key("b")));
  const auto fetched = store.fetch(key("b"), [] { return Result<StoreEntry>(kernel(10)); });
  ASSERT_TRUE(fetched);
  EXPECT_STREQ(fetched->source, "compiled");
  EXPECT_EQ(fetched->entry->payload.size(), 10u);
}

TEST_F(StoreFault, DirectoryOfSomebodyElse) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to make a directory of another user";
  fs::create_directory(store_path());
  ASSERT_EQ(chown(store_path().c_str(), kOtherUser, kOtherUser), 0);
  EXPECT_EQ(in_child([&] { return works_from_memory({.directory = store_path()}, "belongs to user 65534"); }), 0);
}

TEST_F(StoreFault, DirectoryThatOthersCanWrite) {
  for (const mode_t mode : {0770, 0702, 0777}) {
    fs::create_directory(store_path());
    chmod(store_path().c_str(), mode);
    EXPECT_EQ(in_child([&] { return works_from_memory({.directory = store_path()}, "lets other users write"); }), 0);
    fs::remove_all(store_path());
  }
}

TEST_F(StoreFault, NoDirectoryCanBeNamed) {
  EXPECT_EQ(in_child([&] { return works_from_memory({.directory = ""}, "HOME is not set, or has a ':' in it; set FLASHJIT_CACHE_DIR"); }), 0);
}

TEST_F(StoreFault, AFileWhereTheDirectoryShouldBe) {
  std::ofstream(store_path()) << "x";
  EXPECT_EQ(in_child([&] { return works_from_memory({.directory = store_path()}, store_path().c_str()); }), 0);
  EXPECT_EQ(in_child([&] { return works_from_memory({.directory = store_path() + "/below"}, "Not a directory"); }), 0);
}

TEST_F(StoreFault, ReadOnlyDirectoryStillServes) {
  if (geteuid() == 0) chown(folder.c_str(), kOtherUser, kOtherUser);
  const auto as_user = [&](const std::function<int()>& body) {
    return in_child([&] {
      // Root ignores permission bits.
      if (geteuid() == 0 && (setgid(kOtherUser) != 0 || setuid(kOtherUser) != 0)) return 99;
      return body();
    });
  };
  ASSERT_EQ(as_user([&] {
    KernelStore store({.directory = store_path()});
    return store.fetch(key("old"), make) && store.notes().empty() ? 0 : 1;
  }), 0);
  for (const auto& entry : fs::recursive_directory_iterator(store_path())) {
    if (entry.is_directory()) chmod(entry.path().c_str(), 0500);
  }
  chmod(store_path().c_str(), 0500);
  EXPECT_EQ(as_user([&] {
    KernelStore store({.directory = store_path()});
    const auto fetched = store.fetch(key("old"), make);
    return fetched && std::string_view(fetched->source) == "disk" ? 0 : 1;
  }), 0);
  EXPECT_EQ(as_user([&] { return works_from_memory({.directory = store_path()}, "Permission denied"); }), 0);
  EXPECT_EQ(as_user([&] { return works_from_memory({.directory = store_path() + "/new"}, "Permission denied"); }), 0);
}

// What is said about a layer, and whether its kernel was found all the same.
struct LayerLook {
  std::string note;
  bool hit = false;
};

TEST_F(StoreFault, LayersThatOthersCouldWriteArePassedOver) {
  const std::string layer = folder + "/layer";
  { KernelStore store({.directory = layer}); ASSERT_TRUE(store.fetch(key(), make)); }
  const auto look = [&] {
    fs::remove_all(store_path());
    KernelStore store({.directory = store_path() + ":" + layer});
    const auto fetched = store.fetch(key(), make);
    EXPECT_TRUE(fetched);
    return LayerLook{store.notes().empty() ? "" : store.notes()[0], fetched && std::string_view(fetched->source) == "disk"};
  };
  EXPECT_TRUE(look().hit);
  for (const std::string& place : {layer, layer + "/v1"}) {
    for (const mode_t mode : {0770, 0702}) {
      chmod(place.c_str(), mode);
      const LayerLook seen = look();
      EXPECT_FALSE(seen.hit) << place;
      EXPECT_NE(seen.note.find(place + ": mode"), std::string::npos) << seen.note;
    }
    chmod(place.c_str(), 0755);
  }
  EXPECT_TRUE(look().hit);
  const std::string file = layer + "/v1/" + key().digest.substr(0, 2) + "/" + key().digest.substr(2);
  chmod(file.c_str(), 0664);
  EXPECT_FALSE(look().hit);  // an entry that others can write: a miss
  chmod(file.c_str(), 0644);
  if (geteuid() == 0) {
    ASSERT_EQ(chown(layer.c_str(), kOtherUser, kOtherUser), 0);
    const LayerLook seen = look();
    EXPECT_FALSE(seen.hit);
    EXPECT_NE(seen.note.find("belongs to user 65534"), std::string::npos) << seen.note;
  }
  fs::remove_all(layer);
  const LayerLook seen = look();
  EXPECT_FALSE(seen.hit);
  EXPECT_NE(seen.note.find("No such file"), std::string::npos) << seen.note;
  EXPECT_FALSE(fs::exists(layer));
}

TEST_F(StoreFault, ALayerOfRootServesEverybody) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to make a directory of root";
  const std::string layer = folder + "/layer";
  { KernelStore store({.directory = layer}); ASSERT_TRUE(store.fetch(key(), make)); }
  for (const auto& entry : fs::recursive_directory_iterator(layer)) chmod(entry.path().c_str(), entry.is_directory() ? 0755 : 0644);
  chmod(layer.c_str(), 0755);
  chmod(folder.c_str(), 0755);
  EXPECT_EQ(in_child([&] {
    if (setgid(kOtherUser) != 0 || setuid(kOtherUser) != 0) return 99;
    // Its own directory cannot be made, which is another matter.
    KernelStore store({.directory = store_path() + ":" + layer});
    const auto fetched = store.fetch(key(), make);
    return fetched && std::string_view(fetched->source) == "disk" ? 0 : 1;
  }), 0);
}

TEST_F(StoreFault, FullDiskLeavesNothingBehind) {
  // A limit on file size is what an unprivileged test can have of a full disk; it also raises SIGXFSZ.
  EXPECT_EQ(in_child([&] {
    const rlimit limit = {4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    return works_from_memory({.directory = store_path()}, "File too large");
  }), 0);
  for (const auto& entry : fs::recursive_directory_iterator(store_path())) {
    EXPECT_TRUE(entry.is_directory() || entry.path().filename() == "lock") << entry.path();
  }
}

TEST_F(StoreFault, FullFileSystem) {
  fs::create_directory(store_path());
  constexpr int kMayNotMount = 77;
  const int result = in_child([&] {
    // A mount of this child alone: it goes away with it.
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", store_path().c_str(), "tmpfs", 0, "size=16k,mode=0700") != 0) {
      return kMayNotMount;
    }
    if (const int wrong = works_from_memory({.directory = store_path()}, "No space left on device")) return wrong;
    for (const auto& entry : fs::recursive_directory_iterator(store_path())) {
      if (!entry.is_directory() && entry.path().filename() != "lock") return 50;
    }
    return 0;
  });
  if (result == kMayNotMount) GTEST_SKIP() << "needs the right to mount";
  EXPECT_EQ(result, 0);
}

TEST_F(StoreFault, NoFileHandlesLeft) {
  EXPECT_EQ(in_child([&] {
    KernelStore store({.directory = store_path()});
    const rlimit limit = {0, 0};
    setrlimit(RLIMIT_NOFILE, &limit);
    const auto fetched = store.fetch(key(), make);
    return fetched && fetched->entry->payload == kernel().payload && store.counters().not_persisted == 1 ? 0 : 1;
  }), 0);
}

}  // namespace
}  // namespace flashjit

// Directories that cannot be used, full disks, limits, file systems that lie: kernels are made and kept in memory.
#include "tests/fault/store_fixture.h"

#include <errno.h>
#include <pwd.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <fstream>

#include "runtime/engine/environment.h"
#include "tests/fault/system_calls.h"

namespace flashjit {
namespace {

TEST_F(StoreFault, NoDirectoryCanBeNamed) {
  EXPECT_EQ(in_child([&] {
              return works_from_memory(
                  {.directory = ""},
                  "HOME is not set, is '/' or no absolute path, or has a ':' in it; set FLASHJIT_CACHE_DIR");
            }),
            0);
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
            }),
            0);
  for (const auto& entry : fs::recursive_directory_iterator(store_path())) {
    if (entry.is_directory()) chmod(entry.path().c_str(), 0500);
  }
  chmod(store_path().c_str(), 0500);
  EXPECT_EQ(as_user([&] {
              KernelStore store({.directory = store_path()});
              const auto fetched = store.fetch(key("old"), make);
              return fetched && std::string_view(fetched->source) == "disk" ? 0 : 1;
            }),
            0);
  EXPECT_EQ(as_user([&] { return works_from_memory({.directory = store_path()}, "Permission denied"); }), 0);
  EXPECT_EQ(as_user([&] { return works_from_memory({.directory = store_path() + "/new"}, "Permission denied"); }), 0);
}

TEST_F(StoreFault, FullDiskLeavesNothingBehind) {
  // A limit on file size is what an unprivileged test can have of a full disk; it also raises SIGXFSZ.
  EXPECT_EQ(in_child([&] {
              const rlimit limit = {4096, 4096};
              setrlimit(RLIMIT_FSIZE, &limit);
              return works_from_memory({.directory = store_path()}, "File too large");
            }),
            0);
  for (const auto& entry : fs::recursive_directory_iterator(store_path())) {
    EXPECT_TRUE(entry.is_directory() || entry.path().filename() == "lock") << entry.path();
  }
}

// A file system of `options` that only this child sees; it goes away with it.
bool mount_small(const std::string& place, const char* options) {
  return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", place.c_str(), "tmpfs", 0, options) == 0;
}

TEST_F(StoreFault, FullFileSystem) {
  fs::create_directory(store_path());
  // Full of bytes; of files, at each step: the lock, the version's folder, a shelf.
  for (const char* options :
       {"size=16k,mode=0700", "nr_inodes=4,mode=0700", "nr_inodes=3,mode=0700", "nr_inodes=2,mode=0700"}) {
    const int result = in_child([&] {
      if (!mount_small(store_path(), options)) return kMayNotMount;
      if (const int wrong = works_from_memory({.directory = store_path()}, "No space left on device")) return wrong;
      return files().empty() ? 0 : 50;
    });
    if (result == kMayNotMount) GTEST_SKIP() << "needs the right to mount";
    EXPECT_EQ(result, 0) << options;
  }
}

TEST_F(StoreFault, AMissSaysWhyThereWasNoLock) {
  KernelStore store({.directory = store_path()});
  EXPECT_EQ(in_child([&] {
              system_calls::fail("fcntl", ENOLCK);
              const auto fetched = store.fetch(key(), make);
              return fetched && fetched->miss.ends_with("; it cannot be locked: No locks available") ? 0 : 50;
            }),
            0);
}

TEST_F(StoreFault, EveryStepOfAPublishMayFail) {
  for (const int error : {ENOSPC, EDQUOT, EIO, EROFS, ESTALE}) {
    for (const char* step : {"mkdirat", "openat", "write", "fsync", "renameat"}) {
      SCOPED_TRACE(::testing::Message() << step << ": " << strerror(error));
      fs::remove_all(store_path());
      {
        KernelStore store({.directory = store_path()});
      }
      EXPECT_EQ(in_child([&] {
                  system_calls::fail(step, error);
                  return works_from_memory({.directory = store_path()}, strerrordesc_np(error));
                }),
                0);
      EXPECT_TRUE(files().empty());
      KernelStore store({.directory = store_path()});  // and all is well when the disk is
      EXPECT_TRUE(store.fetch(key(), make));
      EXPECT_TRUE(is_on_disk());
    }
  }
}

TEST_F(StoreFault, HalfAWriteAtATime) {
  EXPECT_EQ(in_child([&] {
              system_calls::short_transfers = true;
              KernelStore store({.directory = store_path()});
              return store.fetch(key(), make) && is_on_disk() ? 0 : 1;
            }),
            0);
  EXPECT_TRUE(is_on_disk());
}

// A network file system loses the answer to a rename, asks again, and hears that there is no such file.
TEST_F(StoreFault, ARenameThatWasDoneAndReportsFailure) {
  for (const int error : {ENOENT, EBUSY, EIO}) {
    fs::remove_all(store_path());
    EXPECT_EQ(in_child([&] {
                system_calls::fail("renameat", error);
                system_calls::rename_is_done = true;
                KernelStore store({.directory = store_path()});
                const auto fetched = store.fetch(key(), make);
                return fetched && store.counters().not_persisted == 0 && store.notes().empty() ? 0 : 1;
              }),
              0);
    EXPECT_EQ(files().size(), 1u);
    EXPECT_TRUE(is_on_disk());
  }
}

TEST_F(StoreFault, AFileSystemWithoutLocks) {
  for (const int error : {ENOLCK, EINVAL, ENOSYS, EOPNOTSUPP}) {
    fs::remove_all(store_path());
    EXPECT_EQ(in_child([&] {
                system_calls::fail("fcntl", error);
                KernelStore store({.directory = store_path(), .max_bytes = 0});
                for (const char* name : {"b", "a"}) {
                  if (!store.fetch(key(name), make)) return 1;
                }
                // Nobody waited, it was stored, and the cap holds.
                if (store.counters().private_compiles != 2 || store.counters().not_persisted != 0 ||
                    store.counters().evictions != 1)
                  return 2;
                return is_on_disk() ? 0 : 3;
              }),
              0);
  }
}

// A client that remembers, for a while, that a file was not there, or how long it was.
TEST_F(StoreFault, StaleAnswersAboutFiles) {
  {
    KernelStore store({.directory = store_path()});
    ASSERT_TRUE(store.fetch(key(), make));
  }
  const auto still_right = [&](const std::function<void()>& stale) {
    EXPECT_EQ(in_child([&] {
                stale();
                KernelStore store({.directory = store_path()});
                const auto fetched = store.fetch(key(), make);
                if (!fetched || fetched->entry->payload != kernel().payload || store.counters().not_persisted != 0)
                  return 1;
                return std::string_view(fetched->source) == "compiled" ? 0 : 2;
              }),
              0);
    EXPECT_TRUE(is_on_disk());
  };
  still_right([&] { system_calls::hidden = key().digest.substr(2); });
  for (const off_t size : {off_t{0}, off_t{100}, off_t{24'000}, off_t{30'000}}) {
    still_right([&] { system_calls::stale_size = size; });
  }
}

// Where a process may find itself: no home, nobody, nearly no limits.
TEST_F(StoreFault, Surroundings) {
  chmod(folder.c_str(), 0755);
  const auto directory_of = [](const char* home) {
    for (const char* name : {"FLASHJIT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"}) unsetenv(name);
    if (home) setenv("HOME", home, 1);
    return read_environment()->cache_dir;
  };
  EXPECT_EQ(in_child([&] { return works_from_memory({.directory = directory_of(nullptr)}, "HOME is not set"); }), 0);
  EXPECT_EQ(in_child([&] { return works_from_memory({.directory = directory_of("/")}, "set FLASHJIT_CACHE_DIR"); }), 0);
  EXPECT_EQ(in_child([&] { return works_from_memory({.directory = directory_of("/dev/null")}, "Not a directory"); }),
            0);
  if (geteuid() == 0) {
    constexpr uid_t kNobodyAtAll = 54321;
    ASSERT_EQ(getpwuid(kNobodyAtAll), nullptr);
    EXPECT_EQ(
        as_user(kNobodyAtAll,
                [&] { return works_from_memory({.directory = directory_of("/nonexistent")}, "Permission denied"); }),
        0);
    fs::create_directory(folder + "/home");
    ASSERT_EQ(chown((folder + "/home").c_str(), kNobodyAtAll, kNobodyAtAll), 0);
    EXPECT_EQ(as_user(kNobodyAtAll,
                      [&] {
                        KernelStore store({.directory = directory_of((folder + "/home").c_str())});
                        return store.fetch(key(), make) && store.notes().empty() ? 0 : 1;
                      }),
              0);
  }
  const auto limited = [](int what, rlim_t value) {
    const rlimit limit = {value, value};
    setrlimit(what, &limit);
  };
  EXPECT_EQ(in_child([&] {
              limited(RLIMIT_FSIZE, 0);
              return works_from_memory({.directory = store_path()}, "File too large");
            }),
            0);
  EXPECT_EQ(in_child([&] {
              limited(RLIMIT_NOFILE, 16);
              KernelStore store({.directory = store_path()});
              return store.fetch(key(), make) && store.notes().empty() && is_on_disk() ? 0 : 1;
            }),
            0);
}

TEST_F(StoreFault, NoFileHandlesLeft) {
  EXPECT_EQ(in_child([&] {
              KernelStore store({.directory = store_path()});
              const rlimit limit = {0, 0};
              setrlimit(RLIMIT_NOFILE, &limit);
              const auto fetched = store.fetch(key(), make);
              return fetched && fetched->entry->payload == kernel().payload && store.counters().not_persisted == 1 ? 0
                                                                                                                   : 1;
            }),
            0);
}

}  // namespace
}  // namespace flashjit

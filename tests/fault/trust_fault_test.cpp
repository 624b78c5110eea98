// Who else could have written what is read: directories and links of others, the way to a directory, races.
#include "tests/fault/store_fixture.h"

#include <fcntl.h>

namespace flashjit {
namespace {

TEST_F(StoreFault, DirectoryOfSomebodyElse) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to make a directory of another user";
  fs::create_directory(store_path());
  ASSERT_EQ(chown(store_path().c_str(), kOtherUser, kOtherUser), 0);
  EXPECT_EQ(in_child([&] { return works_from_memory({.directory = store_path()}, "belongs to user 65534"); }), 0);
  // The way out of who found the one of root, and of who can write nowhere there.
  ASSERT_EQ(chown(store_path().c_str(), 0, 0), 0);
  ASSERT_EQ(chmod(store_path().c_str(), 0755), 0);
  ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
  const auto says = [&](const std::string& path, const char* words) {
    return as_user(kOtherUser, [&] { return works_from_memory({.directory = path}, words); });
  };
  EXPECT_EQ(says(store_path(), "or to OWN:SHARED with this one as SHARED"), 0);
  EXPECT_EQ(says(store_path() + "/own", "set FLASHJIT_CACHE_DIR to a directory that this user can write"), 0);
}

TEST_F(StoreFault, DirectoryThatOthersCanWrite) {
  for (const mode_t mode : {0770, 0702, 0777}) {
    fs::create_directory(store_path());
    chmod(store_path().c_str(), mode);
    EXPECT_EQ(in_child([&] { return works_from_memory({.directory = store_path()}, "lets other users write"); }), 0);
    fs::remove_all(store_path());
  }
}

// What is said about a layer, and whether its kernel was found all the same.
struct LayerLook {
  std::string note;
  bool hit = false;
};

TEST_F(StoreFault, LayersThatOthersCouldWriteArePassedOver) {
  const std::string layer = folder + "/layer";
  {
    KernelStore store({.directory = layer});
    ASSERT_TRUE(store.fetch(key(), make));
  }
  const auto look = [&] {
    fs::remove_all(store_path());
    KernelStore store({.directory = store_path() + ":" + layer});
    const auto fetched = store.fetch(key(), make);
    EXPECT_TRUE(fetched);
    return LayerLook{store.notes().empty() ? "" : store.notes()[0],
                     fetched && std::string_view(fetched->source) == "disk"};
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
  {
    KernelStore store({.directory = layer});
    ASSERT_TRUE(store.fetch(key(), make));
  }
  for (const auto& entry : fs::recursive_directory_iterator(layer))
    chmod(entry.path().c_str(), entry.is_directory() ? 0755 : 0644);
  chmod(layer.c_str(), 0755);
  chmod(folder.c_str(), 0755);
  EXPECT_EQ(in_child([&] {
              if (setgid(kOtherUser) != 0 || setuid(kOtherUser) != 0) return 99;
              // Its own directory cannot be made, which is another matter.
              KernelStore store({.directory = store_path() + ":" + layer});
              const auto fetched = store.fetch(key(), make);
              return fetched && std::string_view(fetched->source) == "disk" ? 0 : 1;
            }),
            0);
}

// The way to the store: who can write a directory on it can put another store in its place.
TEST_F(StoreFault, ADirectoryOnTheWayThatOthersCanWrite) {
  const std::string way = folder + "/way", place = way + "/between/store";
  fs::create_directories(way + "/between");
  const auto refused = [&](const char* words) {
    return in_child([&] { return works_from_memory({.directory = place}, words); });
  };
  for (const mode_t mode : {0770, 0757, 0777}) {
    chmod(way.c_str(), mode);
    EXPECT_EQ(refused("way: mode 7"), 0);
    EXPECT_FALSE(fs::exists(place)) << "made before it was refused";
  }
  if (geteuid() == 0) {
    chmod(way.c_str(), 0755);
    ASSERT_EQ(chown(way.c_str(), kOtherUser, kOtherUser), 0);
    EXPECT_EQ(refused("way: belongs to user 65534"), 0);
    ASSERT_EQ(chown(way.c_str(), 0, 0), 0);
  }
  // As /tmp: others can write, but not change what is there.
  chmod(way.c_str(), 01777);
  KernelStore store({.directory = place});
  ASSERT_TRUE(store.fetch(key(), make));
  EXPECT_TRUE(store.notes().empty());
  EXPECT_TRUE(fs::exists(place + "/v1"));
}

TEST_F(StoreFault, LinksOnTheWay) {
  fs::create_directory(folder + "/real");
  chmod((folder + "/real").c_str(), 0700);
  fs::create_directory_symlink("real", folder + "/relative");
  fs::create_directory_symlink(folder + "/relative", folder + "/absolute");
  fs::create_directory_symlink("circle", folder + "/circle");
  // Own links are followed, wherever they stand: people keep their caches on other disks.
  KernelStore store({.directory = folder + "/absolute/../absolute/./store/"});
  ASSERT_TRUE(store.fetch(key(), make));
  EXPECT_TRUE(store.notes().empty()) << store.notes()[0];
  EXPECT_TRUE(fs::exists(folder + "/real/store/v1"));
  EXPECT_EQ(in_child([&] { return works_from_memory({.directory = folder + "/circle/store"}, "Too many levels"); }), 0);
  // What a link leads through counts as well.
  fs::create_directories(folder + "/open/inside");
  chmod((folder + "/open").c_str(), 0777);
  fs::create_directory_symlink(folder + "/open/inside", folder + "/into");
  EXPECT_EQ(in_child([&] { return works_from_memory({.directory = folder + "/into"}, "open: mode 777"); }), 0);
  if (geteuid() != 0) GTEST_SKIP() << "needs root to make a link of another user";
  chmod(folder.c_str(), 01777);
  ASSERT_EQ(lchown((folder + "/relative").c_str(), kOtherUser, kOtherUser), 0);
  EXPECT_EQ(in_child([&] {
              return works_from_memory({.directory = folder + "/relative/store"}, "relative: a link of user 65534");
            }),
            0);
}

TEST_F(StoreFault, ModesWhateverTheUmask) {
  EXPECT_EQ(
      in_child([&] {
        for (const mode_t mask : {0, 022, 0777}) {
          umask(mask);
          fs::remove_all(store_path());
          KernelStore store({.directory = store_path()});
          if (!store.fetch(key(), make) || !store.notes().empty()) return 1;
          for (const std::string& place : {store_path(), store_path() + "/v1", store_path() + "/v1/lock",
                                           fs::path(file_of(key())).parent_path().string(), file_of(key())}) {
            struct stat info;
            if (stat(place.c_str(), &info) != 0 || (info.st_mode & 07777) != (S_ISDIR(info.st_mode) ? 0700u : 0600u))
              return 2;
          }
        }
        return 0;
      }),
      0);
}

// What was opened is meant, whatever stands under its name later; and no name inside is followed anywhere.
TEST_F(StoreFault, LinksThatReplaceWhatIsInUse) {
  const std::string victim = folder + "/victim";
  fs::create_directory(victim);
  {
    KernelStore store({.directory = store_path()});
    fs::rename(store_path(), folder + "/moved");
    fs::create_directory_symlink(victim, store_path());
    ASSERT_TRUE(store.fetch(key(), make));
    EXPECT_TRUE(store.notes().empty());
  }
  EXPECT_TRUE(fs::is_empty(victim));
  fs::remove(store_path());
  fs::rename(folder + "/moved", store_path());
  EXPECT_TRUE(is_on_disk());

  const std::string shelf = fs::path(file_of(key())).parent_path(), lock = store_path() + "/v1/lock";
  fs::remove_all(shelf);
  fs::create_directory_symlink(victim, shelf);
  fs::remove(lock);
  fs::create_symlink(victim + "/lock", lock);
  EXPECT_EQ(in_child([&] { return works_from_memory({.directory = store_path()}, "cannot be written"); }), 0);
  ASSERT_TRUE(clear_store(store_path()));
  EXPECT_TRUE(fs::is_empty(victim));

  fs::remove_all(store_path() + "/v1");
  fs::create_directory_symlink(victim, store_path() + "/v1");
  EXPECT_EQ(
      in_child([&] { return works_from_memory({.directory = store_path()}, "cannot be written: Not a directory"); }),
      0);
  EXPECT_TRUE(fs::is_empty(victim));
}

// Another user changes, as fast as it can, what stands under the name of a store in /tmp: into a link to a directory of
// ours, a directory of its own, nothing. No kernel may reach either.
TEST_F(StoreFault, ARaceForTheName) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root for a second user";
  const std::string open_place = folder + "/open", name = open_place + "/store", victim = folder + "/victim";
  fs::create_directory(open_place);
  fs::create_directory(victim);
  chmod(folder.c_str(), 0755);
  chmod(open_place.c_str(), 01777);
  chmod(victim.c_str(), 0700);
  const pid_t attacker = start([&] {
    if (setgid(kOtherUser) != 0 || setuid(kOtherUser) != 0) return 1;
    for (int i = 0;; ++i) {
      if (i % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
      if (symlink(victim.c_str(), name.c_str()) == 0) unlink(name.c_str());
      if (mkdir(name.c_str(), 0777) == 0) {
        mkdir((name + "/v1").c_str(), 0777);
        rmdir((name + "/v1").c_str());
        rmdir(name.c_str());
      }
    }
  });
  int ours = 0, refused = 0;
  for (int round = 0; round < (is_long() ? 20'000 : 1000); ++round) {
    KernelStore store({.directory = name});
    ASSERT_TRUE(store.fetch(key(), make));
    ASSERT_EQ(store.counters().disk_hits, 0);
    const bool stored = store.counters().not_persisted == 0;
    (stored ? ours : refused) += 1;
    if (!stored) continue;
    struct stat info;
    ASSERT_EQ(lstat(name.c_str(), &info), 0);
    ASSERT_TRUE(S_ISDIR(info.st_mode) && info.st_uid == 0) << "a kernel was stored somewhere else";
    fs::remove_all(name);
  }
  kill(attacker, SIGKILL);
  EXPECT_EQ(end_of(attacker), 1000 + SIGKILL);
  EXPECT_TRUE(fs::is_empty(victim));
  EXPECT_GT(refused, 0) << "the other user never came first: the test shows nothing";
  printf("%d times ours, %d times refused\n", ours, refused);
}

}  // namespace
}  // namespace flashjit

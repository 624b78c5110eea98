// Entries that are not what was written: each is a miss, is made again, and is then sound.
#include "tests/fault/store_fixture.h"

#include <fcntl.h>

#include <fstream>

namespace flashjit {
namespace {

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
      {"twice",
       [](const std::string& f) {
         std::ifstream once(f, std::ios::binary);
         const std::string bytes((std::istreambuf_iterator<char>(once)), {});
         std::ofstream(f, std::ios::app | std::ios::binary) << bytes;
       }},
      {"huge and sparse", [](const std::string& f) { fs::resize_file(f, std::uintmax_t{1} << 40); }},
      {"a directory", [&](const std::string& f) { replace(f, [&] { fs::create_directory(f); }); }},
      {"a FIFO", [&](const std::string& f) { replace(f, [&] { ASSERT_EQ(mkfifo(f.c_str(), 0600), 0); }); }},
      {"a symbolic link",
       [&](const std::string& f) {
         fs::rename(f, f + "x");
         fs::create_symlink(f + "x", f);
       }},
      {"a link to nowhere", [&](const std::string& f) { replace(f, [&] { fs::create_symlink("nowhere", f); }); }},
      {"a link to itself", [&](const std::string& f) { replace(f, [&] { fs::create_symlink(f, f); }); }},
      {"writable by others", [](const std::string& f) { chmod(f.c_str(), 0666); }},
  };
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.name);
    fs::remove_all(store_path());
    {
      KernelStore store({.directory = store_path()});
      ASSERT_TRUE(store.fetch(key(), make));
    }
    damage.make(file_of(key()));
    KernelStore store({.directory = store_path()});
    const auto fetched = store.fetch(key(), make);
    ASSERT_TRUE(fetched);
    EXPECT_STREQ(fetched->source, "compiled");
    EXPECT_EQ(fetched->entry->payload, kernel().payload);
    EXPECT_GE(store.counters().bad_entries, 1);
    if (fs::is_directory(file_of(key()))) continue;  // nothing of ours: it is left alone
    EXPECT_TRUE(is_on_disk());
  }
}

// A file whose bytes are changed and read as the store reads it.
class EveryByte : public StoreFault {
 protected:
  void SetUp() override {
    StoreFault::SetUp();
    KernelStore store({.directory = store_path()});
    ASSERT_TRUE(store.fetch(key(), [&] { return Result<StoreEntry>(kernel(is_long() ? 25000 : 4000)); }));
    file = open(file_of(key()).c_str(), O_RDWR | O_CLOEXEC);
    struct stat info;
    ASSERT_EQ(fstat(file, &info), 0);
    bytes.resize(static_cast<std::size_t>(info.st_size));
    ASSERT_EQ(pread(file, bytes.data(), bytes.size(), 0), info.st_size);
    auto opened = StoreDirectory::open(store_path(), StoreDirectory::Access::Existing);
    ASSERT_TRUE(opened);
    directory = std::move(*opened);
    ASSERT_EQ(look(), StoreDirectory::Lookup::Hit);
  }
  void TearDown() override {
    close(file);
    StoreFault::TearDown();
  }
  void put(std::size_t at, std::uint8_t byte) const { ASSERT_EQ(pwrite(file, &byte, 1, static_cast<off_t>(at)), 1); }
  StoreDirectory::Lookup look() const { return directory->load(key().digest).lookup; }

  int file = -1;
  std::vector<std::uint8_t> bytes;
  std::optional<StoreDirectory> directory;
};

TEST_F(EveryByte, FlippedIsFound) {
  constexpr std::size_t kHeader = 28;
  std::size_t flips = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    // Of the header each bit alone, elsewhere all of a byte; in the long form each bit everywhere.
    for (int bit = 0; bit < 8; ++bit) {
      const bool all = !is_long() && at >= kHeader;
      put(at, static_cast<std::uint8_t>(bytes[at] ^ (all ? 0xff : 1 << bit)));
      ASSERT_EQ(look(), StoreDirectory::Lookup::Bad) << "byte " << at << " bit " << bit;
      ++flips;
      if (all) break;
    }
    put(at, bytes[at]);
  }
  EXPECT_EQ(look(), StoreDirectory::Lookup::Hit);
  printf("%zu flips in %zu bytes, all found\n", flips, bytes.size());
}

TEST_F(EveryByte, CutOffIsFound) {
  for (std::size_t length = bytes.size(); length-- > 0;) {
    ASSERT_EQ(ftruncate(file, static_cast<off_t>(length)), 0);
    ASSERT_EQ(look(), StoreDirectory::Lookup::Bad) << "length " << length;
  }
  // Lengths of before, zeros since: what a file system that lost its last writes shows after a power failure.
  ASSERT_EQ(ftruncate(file, static_cast<off_t>(bytes.size())), 0);
  EXPECT_EQ(look(), StoreDirectory::Lookup::Bad);
  ASSERT_EQ(pwrite(file, bytes.data(), bytes.size() / 2, 0), static_cast<ssize_t>(bytes.size() / 2));
  EXPECT_EQ(look(), StoreDirectory::Lookup::Bad);
}

TEST_F(StoreFault, SwappedEntriesAreMisses) {
  {
    KernelStore store({.directory = store_path()});
    for (const char* name : {"a", "b"})
      ASSERT_TRUE(store.fetch(key(name), [&] { return Result<StoreEntry>(kernel(*name == 'a' ? 10 : 20)); }));
  }
  fs::rename(file_of(key("a")), folder + "/a");
  fs::rename(file_of(key("b")), file_of(key("a")));
  fs::rename(folder + "/a", file_of(key("b")));
  KernelStore store({.directory = store_path()});
  for (const char* name : {"a", "b"}) {
    const auto fetched = store.fetch(key(name), [] { return Result<StoreEntry>(kernel()); });
    ASSERT_TRUE(fetched);
    EXPECT_STREQ(fetched->source, "compiled");
    EXPECT_TRUE(is_on_disk(key(name)));
  }
  EXPECT_EQ(store.counters().bad_entries, 4);  // each before and under the lock
}

// Everything alike but the target, and the checksum is right.
TEST_F(StoreFault, AnEntryForAnotherTargetIsAMiss) {
  const auto key_for = [](const char* target) {
    KeyBuilder builder;
    builder.field("spec", "fwd bf16 d=64");
    builder.field("target", target);
    return builder.finish();
  };
  const StoreKey wanted = key_for("sm_90a"), other = key_for("sm_100a");
  auto directory = StoreDirectory::open(store_path());
  ASSERT_TRUE(directory);
  StoreEntry entry = kernel(10);
  entry.key_text = other.text;
  ASSERT_TRUE(directory->publish(wanted.digest, entry));
  ASSERT_EQ(directory->load(wanted.digest).lookup, StoreDirectory::Lookup::Hit);
  for (const std::string& path :
       {store_path(), folder + "/own:" + store_path()}) {  // as the own directory and as a layer
    KernelStore store({.directory = path});
    const auto fetched = store.fetch(wanted, make);
    ASSERT_TRUE(fetched);
    EXPECT_STREQ(fetched->source, "compiled");
    EXPECT_EQ(fetched->entry->payload, kernel().payload);
    EXPECT_GE(store.counters().bad_entries, 1);
    ASSERT_TRUE(directory->publish(wanted.digest, entry));
  }
}

}  // namespace
}  // namespace flashjit

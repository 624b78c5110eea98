// Code from elsewhere that is sound by all its own checksums, and not what was listed (S5).
#include <fstream>

#include "runtime/bundle/bundle.h"
#include "runtime/store/trusted_list.h"
#include "tests/fault/store_fixture.h"

namespace flashjit {
namespace {

class TrustedListFault : public StoreFault {
 protected:
  using Bytes = std::vector<std::uint8_t>;

  static void write(const std::string& path, const Bytes& bytes) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    chmod(path.c_str(), 0644);
  }
  std::string write_list(const std::string& text) const {
    const std::string path = folder + "/list";
    write(path, Bytes(text.begin(), text.end()));
    return path;
  }
  // By the program that makes them for users.
  std::shared_ptr<const TrustedList> listed(const std::string& file) const {
    const std::string path = folder + "/list";
    EXPECT_EQ(std::system(("sha256sum '" + file + "' > '" + path + "'").c_str()), 0);
    chmod(path.c_str(), 0644);
    const auto list = TrustedList::read(path);
    EXPECT_TRUE(list) << list.error().message;
    return list ? *list : nullptr;
  }
  std::string refused(const std::string& path) const {
    const auto list = TrustedList::read(path);
    return list ? "was read" : list.error().message;
  }

  static Bytes bundle(std::uint8_t byte) {
    BundleIndex index{.templates = templates_digest(), .items = {{.key = {"sm_80", "fwd bf16 d=64", ""}}}};
    return encode_bundle(std::move(index), {pack(Bytes(70'000, byte))});
  }
};

TEST_F(TrustedListFault, ABundleWithOtherCode) {
  const std::string path = folder + "/x.fjb";
  write(path, bundle(1));
  const auto list = listed(path);
  ASSERT_TRUE(list);
  EXPECT_TRUE(Bundles::open({path}, list.get()));
  write(path, bundle(2));
  EXPECT_TRUE(Bundles::open({path})) << "without a list it is a sound bundle";
  const auto opened = Bundles::open({path}, list.get());
  ASSERT_FALSE(opened);
  for (const char* words : {"x.fjb: its SHA-256, ", "/list, the list of trusted files", "add the line"}) {
    EXPECT_NE(opened.error().message.find(words), std::string::npos) << opened.error().message;
  }
}

TEST_F(TrustedListFault, ABundleOfManyParts) {  // its file is read piece by piece
  BundleIndex index{.templates = templates_digest()};
  std::vector<PackedCode> codes;
  std::uint32_t state = 1;
  for (int i = 0; i < 5; ++i) {
    Bytes code(700'000);
    for (std::uint8_t& byte : code)
      byte = static_cast<std::uint8_t>((state = state * 1664525 + 1013904223) >> 24);  // zstd leaves it as it is
    index.items.push_back({.key = {"sm_80", "fwd bf16 d=" + std::to_string(8 * (i + 1)), ""}});
    codes.push_back(pack(code));
  }
  const Bytes file = encode_bundle(std::move(index), std::move(codes));
  ASSERT_GT(file.size(), 3u << 20);
  write(folder + "/x.fjb", file);
  const auto list = listed(folder + "/x.fjb");
  ASSERT_TRUE(list);
  EXPECT_TRUE(Bundles::open({folder + "/x.fjb"}, list.get()));
  for (const std::size_t at : {file.size() - 1, file.size() / 2, (std::size_t{1} << 20) + 1}) {
    Bytes other = file;
    other[at] ^= 1;  // of a frame, which is not looked at before it is needed
    write(folder + "/x.fjb", other);
    EXPECT_TRUE(Bundles::open({folder + "/x.fjb"}));
    EXPECT_FALSE(Bundles::open({folder + "/x.fjb"}, list.get())) << at;
  }
}

TEST_F(TrustedListFault, AnEntryOfASharedDirectoryWithOtherCode) {
  {
    ASSERT_TRUE(KernelStore({.directory = store_path()}).fetch(key(), make));
  }
  const std::string both = folder + "/own:" + store_path();
  const auto list = listed(file_of(key()));
  ASSERT_TRUE(list);
  {
    KernelStore store({.directory = both, .trusted = list});
    const auto fetched = store.fetch(key(), must_not_make);
    ASSERT_TRUE(fetched) << fetched.error().message;
    EXPECT_EQ(fetched->layer, store_path());
  }
  StoreEntry other = kernel();
  other.key_text = key().text;
  other.payload.back() ^= 1;
  write(file_of(key()), encode(other));
  {
    const auto fetched = KernelStore({.directory = both}).fetch(key(), must_not_make);
    ASSERT_TRUE(fetched) << "without a list it is a sound entry";
    EXPECT_EQ(fetched->entry->payload, other.payload);
  }
  KernelStore store({.directory = both, .trusted = list});
  const auto fetched = store.fetch(key(), make);
  ASSERT_TRUE(fetched);
  EXPECT_EQ(fetched->entry->payload, kernel().payload);
  EXPECT_EQ(fetched->miss,
            "no entry in " + folder + "/own; an entry that is not on the list of trusted files in " + store_path());
  EXPECT_EQ(store.counters().bad_entries, 1);
  // What this user alone writes need not be listed.
  EXPECT_STREQ(KernelStore({.directory = both, .trusted = list}).fetch(key(), must_not_make)->source, "disk");
}

TEST_F(TrustedListFault, ListsThatAreNone) {
  const std::string digits(64, 'a'),
      good = "# ours\n\n" + digits + "  a name\n\\" + digits + " *other\\nname\r\n" + digits + "\n";
  EXPECT_EQ(refused(write_list(good)), "was read");
  for (const std::string& line :
       {digits.substr(1) + "  x", digits + "a  x", std::string("g") + digits.substr(1) + "  x",
        std::string("-1") + digits.substr(2), " " + digits + "  x", std::string("x")}) {
    EXPECT_NE(refused(write_list(good + line)).find("/list:6: this is no line of sha256sum"), std::string::npos)
        << line;
  }
  EXPECT_NE(refused(folder + "/nowhere").find("cannot be opened"), std::string::npos);
  EXPECT_NE(refused(folder).find("is no file"), std::string::npos);
  ASSERT_EQ(mkfifo((folder + "/fifo").c_str(), 0600), 0);
  EXPECT_NE(refused(folder + "/fifo").find("is no file"), std::string::npos);
  chmod(write_list(good).c_str(), 0666);
  EXPECT_NE(refused(folder + "/list").find("mode 666 lets other users write to it"), std::string::npos);
}

}  // namespace
}  // namespace flashjit

// A bundle of real kernels: every byte and every length damaged, threads that read it while it is damaged, builders
// that are killed. Skipped where NVRTC is not installed.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "runtime/bundle/bundle.h"
#include "runtime/engine/environment.h"
#include "tests/temporary_folder.h"

namespace flashjit {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;

constexpr const char* kSpecs[] = {"fwd bf16 d=64 heads=4", "fwd fp16 d=64 heads=4"};
constexpr char kTarget[] = "sm_80";

class BundleFaultTest : public testing::Test {
 protected:
  void SetUp() override {
    auto settings = read_environment();
    ASSERT_TRUE(settings);
    auto nvrtc = Nvrtc::open(settings->nvrtc);
    if (!nvrtc) GTEST_SKIP() << nvrtc.error().message;
    BundleIndex index{.templates = templates_digest()};
    std::vector<PackedCode> codes;
    for (const char* spec : kSpecs) {
      auto compiled = compile_spec(spec, kTarget, "");
      ASSERT_TRUE(compiled) << compiled.error().message;
      index.items.push_back(bundle_item(key(spec), *compiled, (*nvrtc)->identity()));
      codes.push_back(pack(compiled->binary->payload));
      code.push_back(compiled->binary->payload);
    }
    file = encode_bundle(std::move(index), std::move(codes));
  }

  static BundleKey key(const char* spec) { return *bundle_key(spec, kTarget, ""); }
  std::string write(const Bytes& bytes) const {
    const std::string path = folder + "/x.fjb";
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    chmod(path.c_str(), 0644);
    return path;
  }

  const TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  Bytes file;
  std::vector<Bytes> code;
};

// Which kernels are found in `bytes`, as `flashjit bundle verify` would; all of them must be as they were built.
int sound_kernels(const Bytes& file, const std::vector<Bytes>& expected) {
  const std::span<const std::uint8_t> bytes = file;
  const auto head = bundle_head_bytes(bytes.first(std::min(file.size(), kBundleHeaderBytes)), file.size());
  if (!head) return 0;
  const auto index = decode_index(bytes.first(*head), file.size());
  if (!index) return 0;
  int sound = 0;
  for (const BundleItem& item : index->items) {
    const auto code = unpack(item, bytes.subspan(item.offset, item.packed_bytes));
    if (!code) continue;
    EXPECT_NE(std::ranges::find(expected, *code), expected.end()) << "a damaged kernel was accepted";
    ++sound;
  }
  return sound;
}

TEST_F(BundleFaultTest, EveryByteFlipped) {
  ASSERT_EQ(sound_kernels(file, code), 2);
  for (std::size_t i = 0; i < file.size(); ++i) {
    Bytes bad = file;
    bad[i] ^= static_cast<std::uint8_t>(1u << i % 8);
    EXPECT_LT(sound_kernels(bad, code), 2) << i;
  }
}

TEST_F(BundleFaultTest, EveryTruncation) {
  for (std::size_t i = 0; i < file.size(); ++i) {
    EXPECT_EQ(sound_kernels(Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(i)), code), 0) << i;
  }
}

TEST_F(BundleFaultTest, OneDamagedKernelLeavesTheOthers) {
  Bytes bad = file;
  bad.back() ^= 1;
  const auto bundles = Bundles::open({write(bad)});
  ASSERT_TRUE(bundles) << bundles.error().message;
  int good = 0;
  for (const char* spec : kSpecs) good += bool(bundles->find(key(spec), 0));
  EXPECT_EQ(good, 1);
}

TEST_F(BundleFaultTest, ReadersSeeDamageAndNeverCrash) {
  const std::string path = write(file);
  const auto bundles = Bundles::open({path});
  ASSERT_TRUE(bundles);
  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> readers;
  for (int t = 0; t < 4; ++t) {
    readers.emplace_back([&] {
      while (!stop) {
        for (std::size_t i = 0; i < code.size(); ++i) {
          const auto found = bundles->find(key(kSpecs[i]), 0);
          if (found && (!*found || (*found)->binary->payload != code[i])) ++wrong;
        }
      }
    });
  }
  for (std::size_t i = 0; i < 60; ++i) {
    fs::resize_file(path, file.size() * (i % 7) / 7);
    write(file);
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
}

// The whole command, killed at moments that are spread over its life.
TEST_F(BundleFaultTest, AKilledBuildLeavesTheOldBundle) {
  const std::string path = write(file), manifest = folder + "/m.txt";
  std::ofstream(manifest) << kSpecs[0] << "\n";
  bool replaced = false;
  for (int i = 0; i < 12; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);  // kill(-1) would end everything
    if (child == 0) {
      setenv("FLASHJIT_CACHE_DIR", (folder + "/store").c_str(), 1);
      if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(1);
      execl(FLASHJIT_BINARY_DIR "/bin/flashjit", "flashjit", "build", manifest.c_str(), "--arch", kTarget, "-o",
            path.c_str(), nullptr);
      _exit(127);
    }
    usleep(static_cast<useconds_t>(i) * 30'000);
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    const auto bundle = Bundle::open(path);
    ASSERT_TRUE(bundle) << bundle.error().message;
    for (const BundleItem& item : (*bundle)->index().items) EXPECT_TRUE((*bundle)->code(item));
    // The kill may also come between the renaming and the end.
    const std::size_t kernels = (*bundle)->index().items.size();
    EXPECT_TRUE(kernels == 1 || (kernels == 2 && !replaced && !WIFEXITED(status))) << kernels;
    replaced = kernels == 1;
  }
}

}  // namespace
}  // namespace flashjit

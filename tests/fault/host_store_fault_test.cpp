// Host kernels in the store, through engines in processes of their own: found by the next, whatever happened to the one
// before.
#include "tests/fault/store_fixture.h"

#include <cstring>
#include <fstream>
#include <random>

#include "flashjit/flashjit.hpp"
#include "runtime/engine/host_library.h"

namespace flashjit {
namespace {

constexpr char kSpecOfOneHead[] = "fwd fp32 d=16 heads=1 mask=\"causal\"";

class HostStoreFault : public StoreFault {
 protected:
  enum End { kCompiled = 0, kDisk = 1, kWaited = 2, kWrong = 90 };

  // How a process of its own comes to the kernel; kWrong: what it computes is wrong. Nobody opens LLVM in this process,
  // so that a child has it all to itself.
  int come_by(const char* spec = kSpecOfOneHead, const char* target = "host") const {
    auto engine = Engine::create({.device = Device::Host, .target = target, .cache_dir = store_path(), .threads = 1});
    if (!engine) return 91;
    auto kernel = (*engine)->prepare(spec);
    if (!kernel) return 92;
    constexpr int kTokens = 3, kDim = 16;
    std::vector<float> q(kTokens * kDim, 0.5f), v(kTokens * kDim), o(kTokens * kDim, -1);
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i);
    const auto tensor = [](std::vector<float>& data) { return Tensor{data.data(), "fp32", {1, kTokens, 1, kDim}, {}}; };
    Arguments a;
    a.q = a.k = tensor(q);
    a.v = tensor(v);
    a.o = tensor(o);
    if (!(*kernel)->run(a)) return 93;
    // All scores are alike: a row is the mean of the rows of V that it sees.
    for (std::size_t i = 0; i < o.size(); ++i) {
      const std::size_t row = i / kDim, d = i % kDim;
      if (std::abs(o[i] - (static_cast<float>(row * kDim) / 2 + static_cast<float>(d))) > 1e-3f) return kWrong;
    }
    const std::string& source = (*kernel)->facts().source;
    return source == "compiled" ? kCompiled : source == "disk" ? kDisk : kWaited;
  }
  int in_process(const char* spec = kSpecOfOneHead, const char* target = "host") const {
    return in_child([&] { return come_by(spec, target); });
  }
  void SetUp() override {
    StoreFault::SetUp();
    if (in_child([] { return host_library() ? 0 : 1; }) != 0)
      GTEST_SKIP() << "built without the host backend (LLVM 19)";
  }
  std::string only_entry() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(store_path())) {
      if (entry.is_regular_file() && entry.path().filename().string().size() == 62) found.push_back(entry.path());
    }
    EXPECT_EQ(found.size(), 1u);
    return found.empty() ? "" : found.front();
  }
};

TEST_F(HostStoreFault, ASecondProcessFindsItInAnyWords) {
  EXPECT_EQ(in_process(), kCompiled);
  EXPECT_EQ(in_process(), kDisk);
  EXPECT_EQ(in_process("fwd  fp32 heads=1 mask=\" k<=qpos\" d=16/16"), kDisk);
  only_entry();
  EXPECT_EQ(in_process("fwd fp32 d=16 heads=1 mask=\"causal\" numerics=deterministic"), kCompiled);
}

TEST_F(HostStoreFault, WhatIsDamagedIsCompiledAgain) {
  ASSERT_EQ(in_process(), kCompiled);
  const std::string file = only_entry();
  std::ifstream in(file, std::ios::binary);
  const std::string sound((std::istreambuf_iterator<char>(in)), {});
  const auto put = [&](const std::string& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  };
  std::mt19937 random(7);
  for (int i = 0; i < 6; ++i) {
    std::string bytes = sound;
    bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    put(bytes);
    EXPECT_EQ(in_process(), kCompiled) << i;
    EXPECT_EQ(in_process(), kDisk) << i;
  }
  for (const std::size_t length : {std::size_t{0}, std::size_t{40}, sound.size() / 2, sound.size() - 1}) {
    put(sound.substr(0, length));
    EXPECT_EQ(in_process(), kCompiled) << length;
  }
}

// Right checksums and the right key, but other code: that of another machine, and no code at all.
TEST_F(HostStoreFault, WhatCannotBeLinkedIsCompiledAnew) {
  ASSERT_EQ(in_process(), kCompiled);
  const std::string file = only_entry();
  std::ifstream in(file, std::ios::binary);
  const std::vector<std::uint8_t> bytes((std::istreambuf_iterator<char>(in)), {});
  const auto sound = decode(bytes);
  ASSERT_TRUE(sound);
  for (const bool machine : {true, false}) {
    StoreEntry entry = *sound;
    if (machine) {
      entry.payload[18] = 183;  // AArch64
    } else {
      entry.payload.assign(1000, 0xcc);
    }
    const std::vector<std::uint8_t> changed = encode(entry);
    std::ofstream(file, std::ios::binary | std::ios::trunc)
        .write(reinterpret_cast<const char*>(changed.data()), static_cast<std::streamsize>(changed.size()));
    EXPECT_EQ(in_process(), kCompiled) << machine;
  }
}

// A store that machines share has kernels of better processors beside those of this one.
TEST_F(HostStoreFault, AnotherProcessorsKernelIsNotTaken) {
  ASSERT_EQ(in_process(kSpecOfOneHead, "x86-64-v3"), kCompiled);
  const std::string simple = only_entry();
  fs::remove(simple);
  ASSERT_EQ(in_process(), kCompiled);
  const std::string better = only_entry();
  if (better == simple) GTEST_SKIP() << "this processor is an x86-64-v3";
  fs::create_directories(fs::path(simple).parent_path());
  fs::copy_file(better, simple, fs::copy_options::overwrite_existing);
  EXPECT_EQ(in_process(kSpecOfOneHead, "x86-64-v3"), kCompiled) << "a sound entry, but of another key";
  EXPECT_EQ(in_process(kSpecOfOneHead, "x86-64-v3"), kDisk);
  EXPECT_EQ(in_process(), kDisk);
}

TEST_F(HostStoreFault, KilledWritersLeaveNothingTorn) {
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < (is_long() ? 100 : 6); ++round) {
    fs::remove_all(store_path());
    const pid_t child = start([&] { return come_by(); });
    std::this_thread::sleep_for(milliseconds(20 + random() % 200));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const int next = in_process();
    EXPECT_TRUE(next == kCompiled || next == kDisk) << next;
    EXPECT_EQ(in_process(), kDisk);
  }
}

TEST_F(HostStoreFault, OfManyAtOnceOneCompiles) {
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) children.push_back(start([&] { return come_by(); }));
  int compiled = 0;
  for (const pid_t child : children) {
    const int end = end_of(child);
    compiled += end == kCompiled;
    EXPECT_LT(end, kWrong);
  }
  EXPECT_EQ(compiled, 1);
}

TEST_F(HostStoreFault, NothingIsWrittenWhereTheStoreIsOff) {
  EXPECT_EQ(in_child([&] {
              const auto engine = Engine::create(
                  {.device = Device::Host, .cache_dir = store_path(), .disk_cache = false, .threads = 1});
              return engine && (*engine)->prepare(kSpecOfOneHead) ? 0 : 1;
            }),
            0);
  EXPECT_FALSE(fs::exists(store_path()));
  ASSERT_EQ(in_process(), kCompiled);
  EXPECT_EQ(in_child([&] {
              setenv("FLASHJIT_JIT", "off", 1);
              const auto engine = Engine::create({.device = Device::Host, .cache_dir = store_path()});
              return !engine && engine.error().message.find("FLASHJIT_JIT=off") != std::string::npos ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace flashjit

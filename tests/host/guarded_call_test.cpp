// Calls of any scalars and sizes on the host: none of them reads or writes beyond its tensors.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "fmt/format.h"
#include "tests/random/guarded_calls.h"

namespace flashjit {
namespace {

using testing_random::Guarded;
using testing_random::GuardedCalls;

char last_call[8192];  // for the one who looks into a fault

void print_last_call(int) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, last_call, std::strlen(last_call));
  signal(SIGSEGV, SIG_DFL);
  raise(SIGSEGV);
}

class HostGuarded : public Guarded {
 public:
  HostGuarded() {
    base_ = static_cast<char*>(
        mmap(nullptr, kSize + 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_, kPage, PROT_NONE);
    mprotect(base_ + kPage + kSize, kPage, PROT_NONE);
  }
  ~HostGuarded() override { munmap(base_, kSize + 2 * kPage); }
  HostGuarded(const HostGuarded&) = delete;
  HostGuarded& operator=(const HostGuarded&) = delete;
  char* begin() const override { return base_ + kPage; }
  char* end() const override { return begin() + kSize; }
  void write(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  static constexpr std::size_t kPage = 4096;
  char* base_;
};

TEST(GuardedCalls, AreRefusedOrStayInside) {
  auto engine = Engine::create({.device = Device::Host, .threads = 1});
  if (!engine) GTEST_SKIP() << engine.error().message;
  const auto start = std::chrono::steady_clock::now();
  const auto first = static_cast<std::uint64_t>(start.time_since_epoch().count());
  fmt::print("seeds from {} on\n", first);
  const auto before = signal(SIGSEGV, print_last_call);
  const HostGuarded owned[GuardedCalls::kTensors];
  std::vector<const Guarded*> memory;
  for (const HostGuarded& one : owned) memory.push_back(&one);
  int ran = 0, refused = 0;
  for (std::uint64_t seed = first; std::chrono::steady_clock::now() - start < std::chrono::seconds(4); ++seed) {
    GuardedCalls calls(seed, false);
    auto kernel = (*engine)->prepare(calls.spec());
    ASSERT_TRUE(kernel) << "seed " << seed << ": " << calls.spec() << "\n" << kernel.error().message;
    for (int i = 0; i < 300; ++i) {
      const Arguments call = calls.draw(memory);
      const std::string text =
          fmt::format("a fault: seed {}, call {}, {}\n{}\n", seed, i, calls.spec(), GuardedCalls::text(call));
      std::snprintf(last_call, sizeof last_call, "%s", text.c_str());
      const auto done = (*kernel)->run(call);
      (done ? ran : refused) += 1;
      if (done) continue;
      ASSERT_EQ(done.error().kind, ErrorKind::Invalid) << text;
      ASSERT_NE(done.error().message.find("clamp the index"), std::string::npos) << text << done.error().message;
    }
  }
  signal(SIGSEGV, before);
  fmt::print("{} calls ran, {} were refused\n", ran, refused);
  EXPECT_GT(ran, 20);
  EXPECT_GT(refused, 20);
}

// A window of a long cache: pages behind it cannot be read.
TEST(GuardedCalls, KeysThatNoQuerySeesAreNotRead) {
  auto engine = Engine::create({.device = Device::Host, .threads = 1});
  if (!engine) GTEST_SKIP() << engine.error().message;
  auto kernel = (*engine)->prepare("fwd fp32 d=64 heads=2/1 mask=\"k < 100\"");
  ASSERT_TRUE(kernel) << kernel.error().message;
  constexpr std::int64_t kKeys = 4096, kReadable = 128;
  constexpr std::size_t kBytes = kKeys * 64 * sizeof(float), kReadableBytes = kReadable * 64 * sizeof(float);
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::fill_n(static_cast<float*>(memory), kReadable * 64, 1.0f);
  mprotect(static_cast<char*>(memory) + kReadableBytes, kBytes - kReadableBytes, PROT_NONE);
  std::vector<float> q(3 * 2 * 64, 0.5f), o(q.size());
  Arguments call;
  call.q = {q.data(), "fp32", {1, 3, 2, 64}, {}};
  call.k = call.v = {memory, "fp32", {1, kKeys, 1, 64}, {}};
  call.o = {o.data(), "fp32", {1, 3, 2, 64}, {}};
  const auto done = (*kernel)->run(call);
  EXPECT_TRUE(done) << done.error().message;
  for (const float x : o) EXPECT_FLOAT_EQ(x, 1);
  munmap(memory, kBytes);
}

// A tensor says which keys are seen: tiles of keys that it hides are not read, either.
TEST(GuardedCalls, KeysThatATensorHidesAreNotRead) {
  auto engine = Engine::create({.device = Device::Host, .threads = 1});
  if (!engine) GTEST_SKIP() << engine.error().message;
  constexpr std::int64_t kKeys = 4096, kReadable = 512, kQueries = 3;  // no tile of keys is longer
  constexpr std::size_t kBytes = kKeys * 64 * sizeof(float), kReadableBytes = kReadable * 64 * sizeof(float);
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::fill_n(static_cast<float*>(memory), kReadable * 64, 1.0f);
  mprotect(static_cast<char*>(memory) + kReadableBytes, kBytes - kReadableBytes, PROT_NONE);
  std::vector<std::int32_t> ends = {100, 0, 130};
  std::vector<std::uint8_t> seen(kQueries * kKeys);
  seen[3] = seen[99] = seen[2 * kKeys + 7] = 1;
  const std::pair<const char*, Tensor> rows[] = {
      {"mask=\"k < t[q]\" params=\"t: i32[1]\"", {ends.data(), "i32", {kQueries}, {}}},
      {"mask=\"t[q, k] != 0\" params=\"t: u8[2]\"", {seen.data(), "u8", {kQueries, kKeys}, {}}}};
  for (const auto& [mask, tensor] : rows) {
    auto kernel = (*engine)->prepare(fmt::format("fwd fp32 d=64 heads=2/1 {}", mask));
    ASSERT_TRUE(kernel) << kernel.error().message;
    std::vector<float> q(kQueries * 2 * 64, 0.5f), o(q.size(), 9.0f);
    Arguments call;
    call.q = {q.data(), "fp32", {1, kQueries, 2, 64}, {}};
    call.k = call.v = {memory, "fp32", {1, kKeys, 1, 64}, {}};
    call.o = {o.data(), "fp32", {1, kQueries, 2, 64}, {}};
    call.params["t"] = tensor;
    const auto done = (*kernel)->run(call);
    EXPECT_TRUE(done) << done.error().message;
    for (std::size_t i = 0; i < o.size(); ++i) EXPECT_FLOAT_EQ(o[i], i / 128 == 1 ? 0 : 1) << mask << " " << i;
  }
  munmap(memory, kBytes);
}

// Gradients do not read hidden keys either, and those of such keys are zeros.
TEST(GuardedCalls, KeysThatATensorHidesAreNotReadForGradients) {
  auto engine = Engine::create({.device = Device::Host, .threads = 1});
  if (!engine) GTEST_SKIP() << engine.error().message;
  auto kernel = (*engine)->prepare("bwd fp32 d=64 mask=\"k < t[q]\" params=\"t: i32[1]\"");
  ASSERT_TRUE(kernel) << kernel.error().message;
  constexpr std::int64_t kKeys = 4096, kReadable = 512, kQueries = 2;
  constexpr std::size_t kBytes = kKeys * 64 * sizeof(float), kReadableBytes = kReadable * 64 * sizeof(float);
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::fill_n(static_cast<float*>(memory), kReadable * 64, 1.0f);
  mprotect(static_cast<char*>(memory) + kReadableBytes, kBytes - kReadableBytes, PROT_NONE);
  std::vector<std::int32_t> ends = {100, 100};
  std::vector<float> q(kQueries * 64, 0.0f), ones(kQueries * 64, 1.0f), lse(kQueries, std::log(100.0f));
  std::vector<float> dq(q.size()), dk(kKeys * 64, 9.0f), dv(kKeys * 64, 9.0f);
  const auto rows = [](std::vector<float>& data, std::int64_t tokens) {
    return Tensor{data.data(), "fp32", {1, tokens, 1, 64}, {}};
  };
  Arguments call;
  call.q = rows(q, kQueries);
  call.k = call.v = {memory, "fp32", {1, kKeys, 1, 64}, {}};
  call.o = rows(ones, kQueries);
  call.lse = {lse.data(), "fp32", {1, 1, kQueries}, {}};
  call.params["do"] = rows(ones, kQueries);
  call.params["dq"] = rows(dq, kQueries);
  call.params["dk"] = rows(dk, kKeys);
  call.params["dv"] = rows(dv, kKeys);
  call.params["t"] = {ends.data(), "i32", {kQueries}, {}};
  const auto done = (*kernel)->run(call);
  EXPECT_TRUE(done) << done.error().message;
  for (std::size_t i = 0; i < dv.size(); ++i) ASSERT_NEAR(dv[i], i < 6400 ? 0.02 : 0, 1e-6) << i;
  for (const float x : dk) ASSERT_NEAR(x, 0, 1e-6);
  munmap(memory, kBytes);
}

}  // namespace
}  // namespace flashjit

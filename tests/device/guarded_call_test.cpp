// Calls of any scalars and sizes on a GPU: none of them reads or writes beyond its tensors.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "tests/device/fenced_memory.h"
#include "tests/random/guarded_calls.h"

namespace flashjit {
namespace {

using testing_random::Guarded;
using testing_random::GuardedCalls;

class GpuGuarded : public Guarded {
 public:
  explicit GpuGuarded(FencedDeviceMemory memory) : memory_(std::move(memory)) {}
  char* begin() const override { return memory_.begin(); }
  char* end() const override { return memory_.end(); }
  void write(void* to, const void* from, std::size_t bytes) const override {
    EXPECT_TRUE(memory_.upload(to, from, bytes));
  }

 private:
  FencedDeviceMemory memory_;
};

TEST(GuardedCalls, AreRefusedOrStayInside) {
  auto driver = Driver::open();
  if (!driver) GTEST_SKIP() << driver.error().message;
  const auto gpu = GpuContext::open(*driver, 0);
  ASSERT_TRUE(gpu) << gpu.error().message;
  auto engine = Engine::create({.disk_cache = false});
  if (!engine && engine.error().kind == ErrorKind::NotFound) GTEST_SKIP() << engine.error().message;
  ASSERT_TRUE(engine) << engine.error().message;
  std::vector<std::unique_ptr<GpuGuarded>> owned;
  std::vector<const Guarded*> memory;
  for (std::size_t i = 0; i < GuardedCalls::kTensors; ++i) {
    auto fenced = FencedDeviceMemory::allocate(*gpu, Guarded::kSize);
    ASSERT_TRUE(fenced) << fenced.error().message;
    owned.push_back(std::make_unique<GpuGuarded>(std::move(*fenced)));
    memory.push_back(owned.back().get());
  }
  auto stream = Stream::create(*gpu);
  ASSERT_TRUE(stream);
  constexpr std::size_t kWorkspace = 64 << 20;  // more than any of these kernels needs
  const auto workspace = DeviceBuffer::allocate(*gpu, kWorkspace);
  ASSERT_TRUE(workspace);
  const auto start = std::chrono::steady_clock::now();
  const auto first = static_cast<std::uint64_t>(start.time_since_epoch().count());
  fmt::print("seeds from {} on\n", first);
  int ran = 0, refused = 0;
  for (std::uint64_t seed = first; std::chrono::steady_clock::now() - start < std::chrono::seconds(60); ++seed) {
    GuardedCalls calls(seed, true);
    auto kernel = (*engine)->prepare(calls.spec());
    ASSERT_TRUE(kernel) << "seed " << seed << ": " << calls.spec() << "\n" << kernel.error().message;
    for (int i = 0; i < 300; ++i) {
      Arguments call = calls.draw(memory);
      call.workspace = workspace->data();
      call.workspace_bytes = kWorkspace;
      const std::string text =
          fmt::format("seed {}, call {}, {}\n{}\n", seed, i, calls.spec(), GuardedCalls::text(call));
      const auto done = (*kernel)->run(call, stream->get());
      (done ? ran : refused) += 1;
      if (done) {
        ASSERT_TRUE(stream->synchronize()) << "a fault: " << text;
        continue;
      }
      ASSERT_EQ(done.error().kind, ErrorKind::Invalid) << text;
      ASSERT_NE(done.error().message.find("clamp the index"), std::string::npos) << text << done.error().message;
    }
  }
  fmt::print("{} calls ran, {} were refused\n", ran, refused);
  EXPECT_GT(ran, 20);
  EXPECT_GT(refused, 20);
}

}  // namespace
}  // namespace flashjit

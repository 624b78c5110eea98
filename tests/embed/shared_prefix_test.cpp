// A spec that three kernels compute, on the recording driver: what is launched, what it needs, what it refuses.
#include <cstdlib>
#include <vector>

#include "tests/embed/allocations.h"
#include "tests/embed/embed_fixture.h"

namespace flashjit {
namespace {

using fake_cuda::fake_cuda_counters;
using testing::allocations;

constexpr char kShared[] =
    "fwd bf16 d=64 heads=8/2 layout=paged(16) mask=\"causal\" lse=ln max_logit sink append shared_prefix";
constexpr int kBatch = 3, kQueries = 2;

// Lengths are not to be read here: this one is no address of the process.
void* on_device(int number) { return reinterpret_cast<void*>(0x10000000ull + 0x1000000ull * number); }

Arguments shared_arguments() {
  Arguments a;
  a.q = {on_device(0), "bf16", {kBatch, kQueries, 8, 64}, {}};
  a.k = {on_device(1), "bf16", {20, 16, 2, 64}, {}};
  a.v = {on_device(2), "bf16", {20, 16, 2, 64}, {}};
  a.o = {on_device(3), "bf16", {kBatch, kQueries, 8, 64}, {}};
  a.lse = {on_device(4), "fp32", {kBatch, 8, kQueries}, {}};
  a.max_logit = {on_device(5), "fp32", {kBatch, 8, kQueries}, {}};
  a.sink = {on_device(6), "fp32", {8}, {}};
  a.params["k_lens"] = {on_device(7), "i32", {kBatch}, {}};
  a.params["block_table"] = {on_device(8), "i32", {kBatch, 7}, {}};
  a.params["shared_prefix"] = {on_device(9), "i32", {1}, {}};
  a.params["k_new"] = {on_device(10), "bf16", {kBatch, kQueries, 2, 64}, {}};
  a.params["v_new"] = {on_device(11), "bf16", {kBatch, kQueries, 2, 64}, {}};
  return a;
}

struct Shared : ::testing::Test {
  void SetUp() override {
    engine = create_engine({.ordinal = 1, .tuned = false});
    if (!engine) GTEST_SKIP() << "no NVRTC on this machine";
    auto made = engine->prepare(kShared);
    ASSERT_TRUE(made) << made.error().message;
    kernel = *made;
    const auto bytes = kernel->workspace_bytes(shared_arguments());
    ASSERT_TRUE(bytes) << bytes.error().message;
    needed = *bytes;
  }
  Arguments call() const {
    Arguments a = shared_arguments();
    a.workspace = on_device(20);
    a.workspace_bytes = needed;
    return a;
  }
  void refused(const Arguments& a, const std::string& words) const {
    const int before = fake_cuda_counters().launches;
    const auto run = kernel->run(a);
    ASSERT_FALSE(run) << words;
    EXPECT_NE(run.error().message.find(words), std::string::npos) << run.error().message;
    EXPECT_EQ(fake_cuda_counters().launches, before);
  }
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Kernel> kernel;
  std::int64_t needed = 0;
};

TEST_F(Shared, LaunchesAllOfThemAndAllocatesNothing) {
  EXPECT_EQ(kernel->facts().spec, kShared);
  const Arguments a = call();
  ASSERT_TRUE(kernel->run(a));
  const int launches = fake_cuda_counters().launches;
  const std::int64_t before = allocations.made;
  ASSERT_TRUE(kernel->run(a));
  EXPECT_EQ(allocations.made, before);
  EXPECT_GE(fake_cuda_counters().launches - launches, 4) << "new rows, shared keys, own keys, the merge";
  EXPECT_EQ(*engine->prepare(kShared), kernel);
}

// Of each piece, and of what is each sequence's own: rows of O, LSE and maximum in fp32.
TEST_F(Shared, NeedsRoomForAllParts) {
  const std::int64_t of_part = std::int64_t{kBatch} * kQueries * 8 * (64 + 1 + 1) * 4;
  EXPECT_GE(needed, 2 * of_part);
  EXPECT_LE(needed, 33 * of_part + (1 << 20));
  Arguments a = call();
  a.workspace_bytes = needed - 1;
  refused(a, "workspace: " + std::to_string(needed - 1) + " bytes, this call needs " + std::to_string(needed));
  a.workspace = nullptr;
  refused(a, "workspace: missing");
}

TEST_F(Shared, RefusesWhatItCannotRead) {
  Arguments a = call();
  a.q.strides = {(kQueries + 1) * 8 * 64, 8 * 64, 64, 1};
  refused(a, "q.strides");
  a = call();
  a.params.erase("shared_prefix");
  refused(a, "shared_prefix: missing");
  a = call();
  a.params["shared_prefix"].shape = {2};
  refused(a, "shared_prefix.shape[0]: 2, must be 1");
  a = call();
  a.params["k_lens"].dtype = "i64";
  refused(a, "k_lens.dtype");
}

}  // namespace
}  // namespace flashjit

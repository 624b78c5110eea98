// A spec whose Q, K and V are rounded to 8 bits first, on the recording driver: what is launched, needed and refused.
#include <gtest/gtest.h>

#include <string>

#include "tests/embed/allocations.h"
#include "tests/embed/embed_fixture.h"

namespace flashjit {
namespace {

using fake_cuda::fake_cuda_counters;
using testing::allocations;

constexpr char kNarrowing[] = "fwd bf16 compute=e4m3 d=64 heads=8/2 mask=\"causal\" lse=ln rotate scales=block(128)";
constexpr std::int64_t kBatch = 2, kQueries = 200, kKeys = 300;

// Addresses only: nothing is read or written through them.
void* on_device(int number) { return reinterpret_cast<void*>(0x10000000ull + 0x1000000ull * number); }

struct Narrowing : ::testing::Test {
  void SetUp() override {
    engine = create_engine({.ordinal = 1, .tuned = false});
    if (!engine) GTEST_SKIP() << "no NVRTC on this machine";
    auto made = engine->prepare(kNarrowing);
    ASSERT_TRUE(made) << made.error().message;
    kernel = *made;
    a.q = {on_device(0), "bf16", {kBatch, kQueries, 8, 64}, {}};
    a.k = {on_device(1), "bf16", {kBatch, kKeys, 2, 64}, {}};
    a.v = {on_device(2), "bf16", {kBatch, kKeys, 2, 64}, {}};
    a.o = {on_device(3), "bf16", {kBatch, kQueries, 8, 64}, {}};
    a.lse = {on_device(4), "fp32", {kBatch, 8, kQueries}, {}};
    const auto bytes = kernel->workspace_bytes(a);
    ASSERT_TRUE(bytes) << bytes.error().message;
    needed = *bytes;
    a.workspace = on_device(20);
    a.workspace_bytes = needed;
  }
  void refused(const Arguments& arguments, const std::string& words) const {
    const int before = fake_cuda_counters().launches;
    const auto run = kernel->run(arguments);
    ASSERT_FALSE(run) << words;
    EXPECT_NE(run.error().message.find(words), std::string::npos) << run.error().message;
    EXPECT_EQ(fake_cuda_counters().launches, before);
  }
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Kernel> kernel;
  Arguments a;
  std::int64_t needed = 0;
};

TEST_F(Narrowing, LaunchesAllOfThemAndAllocatesNothing) {
  EXPECT_EQ(kernel->facts().spec, kNarrowing);
  ASSERT_TRUE(kernel->run(a));
  const int launches = fake_cuda_counters().launches;
  const std::int64_t before = allocations.made;
  ASSERT_TRUE(kernel->run(a));
  EXPECT_EQ(allocations.made, before);
  EXPECT_GE(fake_cuda_counters().launches - launches, 4) << "q, k, v, attention";
  EXPECT_EQ(*engine->prepare(kNarrowing), kernel);
}

TEST_F(Narrowing, NeedsRoomForAllOfThem) {
  const std::int64_t elements = kBatch * 64 * (kQueries * 8 + kKeys * 4), scales = kBatch * 4 * (2 * 8 + 3 * 4);
  EXPECT_GE(needed, elements + scales);
  EXPECT_LE(needed, elements + scales + 6 * 256);
  Arguments less = a;
  less.workspace_bytes = needed - 1;
  refused(less, "workspace: " + std::to_string(needed - 1) + " bytes, this call needs " + std::to_string(needed));
  less.workspace = nullptr;
  refused(less, "workspace: missing");
}

TEST_F(Narrowing, RefusesScalesOfTheCaller) {
  a.params["scale_k"] = {on_device(5), "fp32", {1}, {}};
  refused(a, "scale_k: given, and the elements of k have no scale in this spec");
}

// By their names, too, and with strides.
TEST_F(Narrowing, TakesTensorsByName) {
  a.params["q"] = a.q;
  a.q = {};
  a.k.strides = {kKeys * 4 * 64, 4 * 64, 64, 1};
  ASSERT_TRUE(kernel->run(a));
}

// Attention reads what has turned, and no tables; nobody takes positions, which follow from the lengths.
TEST_F(Narrowing, TurnsQueriesAndKeys) {
  auto made = engine->prepare(std::string(kNarrowing) + " rope=half(64)");
  ASSERT_TRUE(made) << made.error().message;
  kernel = *made;
  a.params["cos"] = a.params["sin"] = {on_device(6), "fp32", {kKeys, 32}, {}};
  const int before = fake_cuda_counters().launches;
  const auto run = kernel->run(a);
  ASSERT_TRUE(run) << run.error().message;
  EXPECT_GE(fake_cuda_counters().launches - before, 4) << "q, k, v, attention";
  a.params["positions"] = {on_device(7), "i32", {kBatch, kQueries}, {}};
  refused(a, "positions: given, and the spec does not ask for it");
  a.params.erase("positions");
  a.params["cos"].shape[0] = a.params["sin"].shape[0] = kKeys - 1;
  refused(a, "cos.shape[0]: 299 positions");
}

}  // namespace
}  // namespace flashjit

// Calls over caches, from outside: nothing that lies on the device is read by the host, nothing is allocated, and the
// driver is called for the launches alone.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "tests/embed/allocations.h"
#include "tests/embed/embed_fixture.h"

namespace flashjit {
namespace {

using fake_cuda::fake_cuda_counters;

// Addresses that nobody can read, apart from each other.
class Unreadable {
 public:
  Unreadable() : base_(mmap(nullptr, kRoom, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Unreadable() { munmap(base_, kRoom); }
  Unreadable(const Unreadable&) = delete;
  Unreadable& operator=(const Unreadable&) = delete;
  void* next() { return static_cast<char*>(base_) + kApart * ++given_; }

 private:
  static constexpr std::size_t kApart = std::size_t{1} << 24, kRoom = kApart * 20;
  void* base_;
  std::size_t given_ = 0;
};

struct Row {
  const char* spec;
  bool in_pages, packed, merge = false;
};
constexpr Row kRows[] = {
    {"fwd bf16 d=64 heads=4/2 q_len=1 k_lens lse=ln", false, false},
    {"fwd bf16 d=64 heads=4/2 q_len=1 layout=paged(16)", true, false},
    {"fwd bf16 d=64 heads=4/2 layout=packed/paged(16) mask=\"causal\"", true, true},
    {"fwd bf16 d=64 heads=4/2 q_len=1 layout=paged(16) numerics=batch_invariant", true, false},
    {"merge bf16 d=64 heads=4 lse=ln", false, false, true},
};

// Three sequences of one query, or of three, one and none.
Arguments arguments_of(const Row& row, Unreadable& memory) {
  const auto tensor = [&](const char* dtype, std::vector<std::int64_t> shape) {
    return Tensor{memory.next(), dtype, std::move(shape), {}};
  };
  Arguments a;
  a.o = row.packed ? tensor("bf16", {4, 4, 64}) : tensor("bf16", {3, 1, 4, 64});
  if (row.merge) {
    a.lse = tensor("fp32", {3, 4, 1});
    a.params["o_parts"] = tensor("bf16", {2, 3, 1, 4, 64});
    a.params["lse_parts"] = tensor("fp32", {2, 3, 4, 1});
    return a;
  }
  a.q = tensor("bf16", a.o.shape);
  a.k = row.in_pages ? tensor("bf16", {9, 16, 2, 64}) : tensor("bf16", {3, 100, 2, 64});
  a.v = tensor("bf16", a.k.shape);
  a.params["k_lens"] = tensor("i32", {3});
  if (row.in_pages) a.params["block_table"] = tensor("i32", {3, 7});
  else a.lse = tensor("fp32", {3, 4, 1});
  if (row.packed) a.offsets_q = tensor("i32", {4}), a.max_q_len = 3;
  return a;
}

TEST(Caches, RunLaunchesAndDoesNothingElse) {
  const auto engine = create_engine({.ordinal = 1});
  if (!engine) GTEST_SKIP() << "no NVRTC on this machine";
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.spec);
    const auto kernel = engine->prepare(row.spec);
    ASSERT_TRUE(kernel) << kernel.error().message;
    Unreadable memory;
    Arguments call = arguments_of(row, memory);
    const auto bytes = (*kernel)->workspace_bytes(call);
    ASSERT_TRUE(bytes) << bytes.error().message;
    call.workspace = memory.next();
    call.workspace_bytes = *bytes;
    const auto& counters = fake_cuda_counters();
    const int launches = counters.launches, calls = counters.calls, device_memory = counters.allocations;
    const std::int64_t allocated = testing::allocations.made;
    const auto done = (*kernel)->run(call);
    if (testing::kCountsAllocations) {
      EXPECT_EQ(testing::allocations.made, allocated);
    }
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_GT(counters.launches, launches);
    EXPECT_EQ(counters.allocations, device_memory);
    // Of the functions that the driver counts: none that allocates or waits. Kernels with work counters, which belong to
    // a stream, ask which one it is and whether it is being captured.
    constexpr int kOfStream = 2;
    EXPECT_LE(counters.calls - calls, counters.launches - launches + kOfStream);
  }
}

}  // namespace
}  // namespace flashjit

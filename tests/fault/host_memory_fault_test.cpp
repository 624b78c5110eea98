// No memory while kernels of a processor run: they need none, on no thread, for no operation.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/embed/allocations.h"
#include "tests/random/spec_generator.h"

namespace flashjit {
namespace {

using testing_random::Case;
using testing_random::FixedCase;

std::vector<Case> cases() {
  const FixedCase rows[] = {
      {"plain", "fwd fp32 d=64 heads=4/2 mask=\"causal\" lse=ln", {70, 70}, {200, 200}},
      {"bf16", "fwd bf16 d=64 heads=4/2 mask=\"causal\"", {70, 70}, {200, 200}},
      {"packed", "fwd fp16 d=64 heads=4/2 layout=packed mask=\"causal\"", {70, 1, 0, 33}, {200, 1, 5, 64}},
      {"8 bits", "fwd e4m3 d=64 heads=4/2 out=bf16", {70, 70}, {200, 200}},
      {"cache of 8 bits", "fwd bf16 kv=e4m3 d=64 heads=4/2 mask=\"causal\"", {70, 70}, {200, 200}},
      {"rounded first", "fwd bf16 compute=e4m3 d=64 heads=4/2 rotate scales=block(64)", {70, 70}, {200, 200}},
      {"dropout", "fwd fp32 d=64 heads=4/2 dropout=0.25", {70, 70}, {200, 200}},
      {"append", "fwd bf16 d=64 heads=4/2 mask=\"causal\" k_lens append rope=half(32)", {5, 5}, {200, 200}},
      {"gradients", "bwd fp32 d=64 heads=4/2 mask=\"causal\"", {70, 70}, {200, 200}},
      {"gradients in bf16", "bwd bf16 d=64 heads=4/2 sink", {70, 70}, {200, 200}},
      {"merge", "merge fp32 d=64 heads=4 out=bf16 lse=ln", {70, 70}, {3, 3}},
      {"quantize", "quantize bf16 d=64 heads=4 out=e4m3 rotate scales=block(64)", {300, 300}, {0, 0}},
      {"quantize what turns", "quantize bf16 d=64 heads=4 out=e4m3 rope=half(32)", {300, 300}, {0, 0}},
  };
  std::vector<Case> all;
  for (const FixedCase& row : rows) all.push_back(testing_random::make_case(row));
  for (std::uint64_t seed = 1; seed <= 25; ++seed) all.push_back(testing_random::draw_case(seed, {}));
  return all;
}

class HostMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::kCountsAllocations) GTEST_SKIP() << "allocations are not counted under this sanitizer";
    auto made = Engine::create({.device = Device::Host, .disk_cache = false, .threads = 3, .tuned = false});
    if (!made) GTEST_SKIP() << made.error().message;
    engine = *made;
  }
  static Result<void> run_without_memory(Kernel& kernel, const Arguments& arguments) {
    testing::all_allocations.fail = true;
    auto done = kernel.run(arguments);
    testing::all_allocations.fail = false;
    return done;
  }
  std::shared_ptr<Engine> engine;
};

// The first run maps its memory, and keeps it: without any it is an error, and nothing is spoilt.
TEST_F(HostMemory, ARunAllocatesNothing) {
  for (Case& c : cases()) {
    SCOPED_TRACE(c.spec + " " + c.shape);
    const auto kernel = engine->prepare(c.spec, {.schedule = c.schedule});
    ASSERT_TRUE(kernel) << kernel.error().message;
    const Arguments arguments = c.host_arguments();
    const auto first = run_without_memory(**kernel, arguments);
    EXPECT_TRUE(first || first.error().kind == ErrorKind::Io) << first.error().message;
    for (int i = 0; i < 2; ++i) {
      const auto warm = (*kernel)->run(arguments);
      ASSERT_TRUE(warm) << warm.error().message;
    }
    const std::int64_t before = testing::all_allocations.made;
    const auto done = run_without_memory(**kernel, arguments);
    const std::int64_t after = testing::all_allocations.made;
    EXPECT_EQ(after, before);
    EXPECT_TRUE(done) << done.error().message;
  }
}

}  // namespace
}  // namespace flashjit

// A forward kernel gives the same bits in every run, whichever blocks take which items: more items than blocks, of uneven
// length, which blocks take from a counter.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/device/gpu_fixture.h"

namespace flashjit {
namespace {

using RepeatsTest = GpuTensorsTest;

TEST_F(RepeatsTest, AForwardKernelHasTheSameBits) {
  constexpr std::int64_t kBatch = 2, kTokens = 2000, kHeads = 32;
  constexpr int kRuns = 30;
  const struct {
    const char *dtype, *rest;
    std::int64_t d;
  } rows[] = {
      {"bf16", "", 128},           {"e4m3", "", 64},
      {"e4m3", "", 128},           {"e4m3", "", 256},
      {"e4m3", " linear_exp", 64}, {"e4m3", " linear_exp", 128},
  };
  for (const auto& [dtype, rest, d] : rows) {
    const std::string spec =
        "fwd " + std::string(dtype) + " d=" + std::to_string(d) + " heads=32 mask=\"causal\"" + rest;
    SCOPED_TRACE(spec);
    const auto kernel = engine->prepare(spec);
    ASSERT_TRUE(kernel) << kernel.error().message;
    auto stream = Stream::create(gpu);
    ASSERT_TRUE(stream);
    memory.clear();
    const std::vector<std::int64_t> shape = {kBatch, kTokens, kHeads, d};
    Arguments a;
    a.q = tensor(dtype, shape, true), a.k = tensor(dtype, shape, true), a.v = tensor(dtype, shape, true);
    const std::size_t first = memory.size();
    a.o = tensor("bf16", shape);
    give_workspace(**kernel, a);
    std::vector<std::uint16_t> wanted, found(memory[first].bytes() / 2);
    for (int run = 0; run < kRuns; ++run) {
      spoil(first, run, *stream);
      ASSERT_TRUE((*kernel)->run(a, stream->get()));
      ASSERT_TRUE(stream->synchronize());
      ASSERT_TRUE(memory[first].download(found.data()));
      if (run == 0) wanted = found;
      ASSERT_TRUE(found == wanted) << "run " << run;
    }
  }
}

}  // namespace
}  // namespace flashjit

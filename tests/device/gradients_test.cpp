// Gradients with numerics=deterministic have the same bits in every run, launched or replayed from a CUDA graph, whatever
// lies in outputs and workspace before.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/device/gpu_fixture.h"

namespace flashjit {
namespace {

constexpr std::int64_t kBatch = 2, kTokens = 400, kHeads = 8, kKvHeads = 2;
constexpr int kRuns = 100, kReplays = 20;
constexpr char kRest[] = " heads=8/2 mask=\"causal\" lse=ln";

class GradientsTest : public GpuTensorsTest {
 protected:
  Tensor rows(std::int64_t heads, std::int64_t d, bool random = false) {
    return tensor("bf16", {kBatch, kTokens, heads, d}, random);
  }
  std::vector<std::uint16_t> results(std::size_t first, const Stream& on) {
    EXPECT_TRUE(on.synchronize());
    std::vector<std::uint16_t> all;
    for (std::size_t i = first; i < first + 3; ++i) {
      std::vector<std::uint16_t> part(memory[i].bytes() / 2);
      EXPECT_TRUE(memory[i].download(part.data()));
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  void expect_same_bits(int d, const char* schedule);
};

void GradientsTest::expect_same_bits(int d, const char* schedule) {
  const std::string head_dim = " bf16 d=" + std::to_string(d);
  SCOPED_TRACE(head_dim + " " + schedule);
  const auto forward = engine->prepare("fwd" + head_dim + kRest);
  ASSERT_TRUE(forward) << forward.error().message;
  const auto backward = engine->prepare("bwd" + head_dim + kRest + " numerics=deterministic", {.schedule = schedule});
  ASSERT_TRUE(backward) << backward.error().message;
  auto stream = Stream::create(gpu);
  ASSERT_TRUE(stream);

  memory.clear();
  Arguments a;
  a.q = rows(kHeads, d, true), a.k = rows(kKvHeads, d, true), a.v = rows(kKvHeads, d, true), a.o = rows(kHeads, d);
  a.lse = tensor("fp32", {kBatch, kHeads, kTokens});
  Arguments b = a;
  give_workspace(**forward, a);
  ASSERT_TRUE((*forward)->run(a, stream->get()));
  b.params["do"] = rows(kHeads, d, true);
  const std::size_t first = memory.size();
  b.params["dq"] = rows(kHeads, d), b.params["dk"] = rows(kKvHeads, d), b.params["dv"] = rows(kKvHeads, d);
  give_workspace(**backward, b);

  std::vector<std::uint16_t> wanted;
  for (int run = 0; run < kRuns; ++run) {
    spoil(first, run, *stream);
    ASSERT_TRUE((*backward)->run(b, stream->get()));
    const auto found = results(first, *stream);
    if (run == 0) {
      wanted = found;
      for (const std::uint16_t& bits : wanted)
        ASSERT_TRUE(std::isfinite(load_float(Dtype::BF16, &bits, 0))) << "element " << &bits - wanted.data();
    }
    ASSERT_TRUE(found == wanted) << "run " << run;
  }
  const auto graph = Graph::capture(gpu, *stream, [&] { return (*backward)->run(b, stream->get()); });
  ASSERT_TRUE(graph) << graph.error().message;
  for (int run = 0; run < kReplays; ++run) {
    spoil(first, run, *stream);
    ASSERT_TRUE(graph->launch(*stream));
    ASSERT_TRUE(results(first, *stream) == wanted) << "replay " << run;
  }
}

TEST_F(GradientsTest, DeterministicOnesHaveTheSameBitsInEveryRunAndReplay) {
  for (const int d : {64, 128, 256}) {
    for (const char* schedule : {"", "family=sync_backward"}) expect_same_bits(d, schedule);
  }
}

}  // namespace
}  // namespace flashjit

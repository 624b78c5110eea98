// A CUDA graph over a cache, captured once and replayed while lengths and page tables change on the device, against the
// float64 reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "autotune/reference/compare.h"
#include "compiler/spec/half.h"
#include "flashjit/flashjit.hpp"
#include "runtime/driver/device_memory.h"
#include "tests/device/gpu_fixture.h"

namespace flashjit {
namespace {

constexpr std::int64_t kBatch = 5, kPages = 60, kPage = 16, kLine = 40, kHeads = 8, kKvHeads = 2, kDim = 64,
                       kMostQueries = 3;

// A tensor here and on the device.
struct Mirrored {
  std::vector<std::uint8_t> bytes;
  Tensor here;
  DeviceBuffer there;

  Tensor on_device() const {
    Tensor tensor = here;
    tensor.data = there.data();
    return tensor;
  }
};

class CacheTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!engine) return;
    seed = std::random_device()();
    random.seed(seed);
  }

  // Random numbers; outputs and ints are all bits set.
  Mirrored make(const char* dtype, std::vector<std::int64_t> shape, bool output = false) {
    Mirrored made;
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    const std::int64_t width = size_of(*parse_dtype(dtype));
    made.bytes.assign(static_cast<std::size_t>(count * width), 0xff);
    if (!output && width == 2) {
      for (std::int64_t i = 0; i < count; ++i)
        store_float(Dtype::BF16, made.bytes.data(), i, std::normal_distribution<float>()(random));
    }
    made.here = {made.bytes.data(), dtype, std::move(shape), {}};
    auto buffer = DeviceBuffer::allocate(gpu, made.bytes.size());
    EXPECT_TRUE(buffer && buffer->upload(made.bytes.data()));
    made.there = std::move(*buffer);
    return made;
  }
  void change(Mirrored& tensor, const std::vector<std::int32_t>& values) {
    std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
    ASSERT_TRUE(tensor.there.upload(tensor.bytes.data()));
  }
  int below(std::int64_t n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); }

  void replay(const std::string& spec, const char* schedule, bool packed);

  std::uint64_t seed = 0;
  std::mt19937_64 random;
};

void CacheTest::replay(const std::string& text, const char* schedule, bool packed) {
  SCOPED_TRACE(text + " " + schedule + " seed " + std::to_string(seed));
  const auto spec = parse_spec(text);
  ASSERT_TRUE(spec) << spec.error().message;
  const auto kernel = engine->prepare(text, {.schedule = schedule});
  ASSERT_TRUE(kernel) << kernel.error().message;
  const std::int64_t tokens = kBatch * kMostQueries;
  const std::vector<std::int64_t> rows =
      packed ? std::vector<std::int64_t>{tokens, kHeads, kDim} : std::vector<std::int64_t>{kBatch, 1, kHeads, kDim};
  Mirrored q = make("bf16", rows), k = make("bf16", {kPages, kPage, kKvHeads, kDim}),
           v = make("bf16", {kPages, kPage, kKvHeads, kDim}), o = make("bf16", rows, true),
           lse = make("fp32",
                      packed ? std::vector<std::int64_t>{kHeads, tokens} : std::vector<std::int64_t>{kBatch, kHeads, 1},
                      true),
           k_lens = make("i32", {kBatch}), table = make("i32", {kBatch, kLine}), offsets = make("i32", {kBatch + 1});
  const auto arguments = [&](const auto& of) {
    Arguments a;
    a.q = of(q), a.k = of(k), a.v = of(v), a.o = of(o), a.lse = of(lse);
    a.params["k_lens"] = of(k_lens), a.params["block_table"] = of(table);
    if (packed) a.offsets_q = of(offsets), a.max_q_len = kMostQueries;
    return a;
  };
  Arguments call = arguments([](const Mirrored& tensor) { return tensor.on_device(); });
  const auto bytes = (*kernel)->workspace_bytes(call);
  ASSERT_TRUE(bytes) << bytes.error().message;
  const auto workspace = DeviceBuffer::allocate(gpu, static_cast<std::size_t>(*bytes));
  ASSERT_TRUE(workspace);
  call.workspace = workspace->data(), call.workspace_bytes = *bytes;
  const auto stream = Stream::create(gpu);
  ASSERT_TRUE(stream);
  // Captured with lengths and a table that are no such thing.
  const auto graph = Graph::capture(gpu, *stream, [&] { return (*kernel)->run(call, stream->get()); });
  ASSERT_TRUE(graph) << graph.error().message;
  for (int round = 0; round < 6; ++round) {
    std::vector<std::int32_t> lens, pages, starts = {0};
    for (std::int64_t b = 0; b < kBatch; ++b) {
      lens.push_back(round == 0 ? 0 : below(4) == 0 ? below(3) : below(kLine * kPage + 1));
      starts.push_back(starts.back() + below(kMostQueries + 1));
    }
    for (std::int64_t i = 0; i < kBatch * kLine; ++i) pages.push_back(below(kPages));
    change(k_lens, lens), change(table, pages), change(offsets, starts);
    ASSERT_TRUE(graph->launch(*stream) && stream->synchronize());
    for (Mirrored* output : {&o, &lse}) ASSERT_TRUE(output->there.download(output->bytes.data()));
    const Arguments here = arguments([](const Mirrored& tensor) { return tensor.here; });
    const auto problem = reference::Problem::create(*spec, here);
    ASSERT_TRUE(problem) << problem.error().message;
    const auto compared = reference::compare(*problem);
    EXPECT_TRUE(compared.ok) << "replay " << round << ": " << compared.problem;
  }
}

TEST_F(CacheTest, ReplaysFollowLengthsAndTables) {
  for (const char* schedule : {"", "family=decode,stages=1", "family=decode,stages=2", "family=sync"}) {
    replay("fwd bf16 d=64 heads=8/2 layout=paged(16) q_len=1 lse=ln", schedule, false);
    replay("fwd bf16 d=64 heads=8/2 layout=packed/paged(16) q_len<=3 mask=\"causal & window(200, 0)\" lse=ln", schedule,
           true);
    replay("fwd bf16 d=64 heads=8/2 layout=paged(16) q_len=1 lse=ln numerics=batch_invariant", schedule, false);
  }
}

}  // namespace
}  // namespace flashjit

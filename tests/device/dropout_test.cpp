// A captured graph finds seed and offset where they were written since, and each family drops what dropout_mask() says.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "compiler/spec/half.h"
#include "flashjit/flashjit.hpp"
#include "runtime/driver/device_memory.h"
#include "tests/device/gpu_fixture.h"

namespace flashjit {
namespace {

constexpr std::int64_t kBatch = 2, kQueries = 200, kKeys = 128, kHeads = 4, kKvHeads = 2, kD = kKeys;
constexpr double kDropout = 0.3;

class DropoutTest : public GpuTest {
 protected:
  // Of bf16, by the number of an element.
  template <class Value>
  Tensor tensor(std::vector<std::int64_t> shape, const Value& value) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    std::vector<std::uint16_t> numbers(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) store_float(Dtype::BF16, numbers.data(), i, value(i));
    return {place(numbers.data(), numbers.size() * sizeof numbers[0]), "bf16", std::move(shape), {}};
  }
  void* place(const void* bytes, std::size_t count) {
    auto buffer = DeviceBuffer::allocate(gpu, count);
    EXPECT_TRUE(buffer && buffer->upload(bytes));
    memory.push_back(std::move(*buffer));
    return memory.back().data();
  }
  void expect_masks(const char* schedule);
  void expect_mask(const DeviceBuffer& o, std::int64_t seed, std::int64_t offset);

  std::vector<DeviceBuffer> memory;
};

void DropoutTest::expect_mask(const DeviceBuffer& o, std::int64_t seed, std::int64_t offset) {
  std::vector<std::uint16_t> found(o.bytes() / 2);
  ASSERT_TRUE(o.download(found.data()));
  std::vector<std::uint8_t> kept(kBatch * kHeads * kQueries * kKeys);
  ASSERT_TRUE(dropout_mask(kDropout, seed, offset, {kept.data(), "u8", {kBatch, kHeads, kQueries, kKeys}, {}}));
  for (std::int64_t row = 0; row < kBatch * kQueries * kHeads; ++row) {
    const std::int64_t b = row / kHeads / kQueries, q = row / kHeads % kQueries, h = row % kHeads;
    for (std::int64_t k = 0; k < kKeys; ++k) {
      const bool is_kept = kept[static_cast<std::size_t>(((b * kHeads + h) * kQueries + q) * kKeys + k)] == 1;
      const float weight = load_float(Dtype::BF16, found.data(), row * kD + k);
      ASSERT_EQ(weight > 0, is_kept) << "b " << b << " h " << h << " q " << q << " k " << k << ": " << weight;
    }
  }
}

// All weights of a query are equal where K is 0, and O is they where the rows of V are those of a unit matrix.
void DropoutTest::expect_masks(const char* schedule) {
  SCOPED_TRACE(schedule);
  const auto kernel = engine->prepare("fwd bf16 d=128 heads=4/2 dropout=0.3", {.schedule = schedule});
  ASSERT_TRUE(kernel) << kernel.error().message;
  auto stream = Stream::create(gpu);
  ASSERT_TRUE(stream);
  memory.clear();
  const auto zero = [](std::int64_t) { return 0.0f; };
  Arguments a;
  a.o = tensor({kBatch, kQueries, kHeads, kD}, [](std::int64_t) { return -1.0f; });
  a.q = tensor({kBatch, kQueries, kHeads, kD}, [](std::int64_t i) { return static_cast<float>(i % 7); });
  a.k = tensor({kBatch, kKeys, kKvHeads, kD}, zero);
  a.v = tensor({kBatch, kKeys, kKvHeads, kD},
               [](std::int64_t i) { return i / (kKvHeads * kD) % kKeys == i % kD ? 1.0f : 0.0f; });
  std::int64_t seed = -7, offset = 0;
  a.params["seed"] = {place(&seed, sizeof seed), "i64", {1}, {}};
  a.params["offset"] = {place(&offset, sizeof offset), "i64", {1}, {}};
  const DeviceBuffer &o = memory[0], &offset_at = memory.back();
  const auto bytes = (*kernel)->workspace_bytes(a);
  ASSERT_TRUE(bytes) << bytes.error().message;
  auto workspace = DeviceBuffer::allocate(gpu, static_cast<std::size_t>(*bytes));
  ASSERT_TRUE(workspace);
  a.workspace = workspace->data(), a.workspace_bytes = *bytes;

  const auto graph = Graph::capture(gpu, *stream, [&] { return (*kernel)->run(a, stream->get()); });
  ASSERT_TRUE(graph) << graph.error().message;
  for (offset = 0; offset < 3; ++offset) {
    ASSERT_TRUE(offset_at.upload(&offset));
    ASSERT_TRUE(graph->launch(*stream));
    ASSERT_TRUE(stream->synchronize());
    expect_mask(o, seed, offset);
  }
  a.params.erase("seed"), a.params.erase("offset");
  a.scalars = {{"seed", 99}, {"offset", -1}};
  ASSERT_TRUE((*kernel)->run(a, stream->get()));
  ASSERT_TRUE(stream->synchronize());
  expect_mask(o, 99, -1);
}

TEST_F(DropoutTest, GraphsHaveTheMaskOfTheMoment) {
  for (const char* schedule : {"", "family=sync", "family=naive"}) expect_masks(schedule);
}

}  // namespace
}  // namespace flashjit

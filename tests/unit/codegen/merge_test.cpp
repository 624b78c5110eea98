// What merges are for: attention over all keys is that over the first ones and that over the rest, put together.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "flashjit/flashjit.hpp"

namespace flashjit {
namespace {

constexpr std::int64_t kBatch = 3, kQueries = 5, kKeys = 70, kFirst = 43, kHeads = 4, kKvHeads = 2, kDim = 32;
constexpr std::int64_t kRows = kBatch * kQueries * kHeads;

struct Results {
  std::vector<float> o = std::vector<float>(kRows * kDim, NAN), lse = std::vector<float>(kRows, NAN);
};

Tensor floats(void* data, std::vector<std::int64_t> shape, std::vector<std::int64_t> strides = {}) {
  return {data, "fp32", std::move(shape), std::move(strides)};
}
void run(Engine& engine, const std::string& spec, const Arguments& arguments) {
  const auto kernel = engine.prepare(spec);
  ASSERT_TRUE(kernel) << kernel.error().message;
  const auto done = (*kernel)->run(arguments);
  ASSERT_TRUE(done) << spec << ": " << done.error().message;
}

class Merge : public testing::TestWithParam<const char*> {};

TEST_P(Merge, OfTwoPartsIsTheWhole) {
  const auto engine = Engine::create({.device = Device::Host, .disk_cache = false, .threads = 2});
  if (!engine) GTEST_SKIP() << engine.error().message;
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::vector<float> q(kRows * kDim), k(kBatch * kKeys * kKvHeads * kDim), v(k.size());
  for (auto* values : {&q, &k, &v}) {
    for (float& value : *values) value = std::normal_distribution<float>()(random);
  }
  const std::string lse = GetParam(), spec = "fwd fp32 d=32 heads=4/2 " + lse;
  const std::int64_t of_token = kKvHeads * kDim;
  const auto attend = [&](std::int64_t first, std::int64_t keys, float* o, float* own_lse) {
    Arguments a;
    const std::vector<std::int64_t> shape = {kBatch, keys, kKvHeads, kDim},
                                    strides = {kKeys * of_token, of_token, kDim, 1};
    a.q = floats(q.data(), {kBatch, kQueries, kHeads, kDim});
    a.k = floats(k.data() + first * of_token, shape, strides);
    a.v = floats(v.data() + first * of_token, shape, strides);
    a.o = floats(o, {kBatch, kQueries, kHeads, kDim});
    a.lse = floats(own_lse, {kBatch, kHeads, kQueries});
    run(**engine, spec, a);
  };
  Results whole, merged;
  attend(0, kKeys, whole.o.data(), whole.lse.data());
  // The third part has no keys, and NaN in its place of O.
  std::vector<float> o_parts(3 * kRows * kDim, NAN), lse_parts(3 * kRows, -INFINITY);
  attend(0, kFirst, o_parts.data(), lse_parts.data());
  attend(kFirst, kKeys - kFirst, o_parts.data() + kRows * kDim, lse_parts.data() + kRows);
  Arguments a;
  a.params["o_parts"] = floats(o_parts.data(), {3, kBatch, kQueries, kHeads, kDim});
  a.params["lse_parts"] = floats(lse_parts.data(), {3, kBatch, kHeads, kQueries});
  a.o = floats(merged.o.data(), {kBatch, kQueries, kHeads, kDim});
  a.lse = floats(merged.lse.data(), {kBatch, kHeads, kQueries});
  run(**engine, "merge fp32 d=32 heads=4 " + lse, a);
  for (std::size_t i = 0; i < whole.o.size(); ++i) ASSERT_NEAR(merged.o[i], whole.o[i], 2e-6f) << i;
  for (std::size_t i = 0; i < whole.lse.size(); ++i) ASSERT_NEAR(merged.lse[i], whole.lse[i], 4e-6f) << i;
}

INSTANTIATE_TEST_SUITE_P(Bases, Merge, testing::Values("lse=ln", "lse=log2"),
                         [](const auto& row) { return std::string(row.param).substr(4); });

}  // namespace
}  // namespace flashjit

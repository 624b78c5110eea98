// V^T of elements of 8 bits, as calls give it.
#include <gtest/gtest.h>

#include <string>

#include "flashjit/flashjit.hpp"
#include "tests/unit/runtime/narrow/filled.h"

namespace flashjit {
namespace {

Arguments call(const std::vector<std::int64_t>& q, const std::vector<std::int64_t>& k,
               const std::vector<std::int64_t>& v) {
  void* const somewhere = reinterpret_cast<void*>(0x10000);
  Arguments a;
  a.q = {somewhere, "e4m3", q, {}};
  a.k = {somewhere, "e4m3", k, {}};
  a.v = {somewhere, "e4m3", v, {}};
  a.o = {reinterpret_cast<void*>(0x1000000), "bf16", q, {}};
  return a;
}

void expect_strides(const Result<KernelParams>& params, Int64 batch, Int64 head, Int64 column) {
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_EQ(params->v_stride.batch, batch);
  EXPECT_EQ(params->v_stride.head, head);
  EXPECT_EQ(params->v_stride.token, column);
}

TEST(Transposed, ColumnsHaveTheStrideOfTokens) {
  const std::string spec = "fwd e4m3 d=64 heads=4/2 v_transposed";
  expect_strides(fill(spec, call({2, 70, 4, 64}, {2, 208, 2, 64}, {2, 2, 64, 208})), 2 * 64 * 208, 64 * 208, 208);
  expect_strides(fill(spec + " layout=bhsd", call({2, 4, 70, 64}, {2, 2, 208, 64}, {2, 2, 64, 208})), 2 * 64 * 208,
                 64 * 208, 208);
  Arguments apart = call({2, 70, 4, 64}, {2, 200, 2, 64}, {2, 2, 64, 200});
  apart.v.strides = {2 * 64 * 256, 64 * 256, 256, 1};
  expect_strides(fill(spec, apart), 2 * 64 * 256, 64 * 256, 256);
}

TEST(Transposed, WrongTensorsAreRefused) {
  const std::string spec = "fwd e4m3 d=64 heads=4/2 v_transposed";
  expect_refused(spec, call({2, 70, 4, 64}, {2, 208, 2, 64}, {2, 208, 2, 64}),
                 "v.shape[2]: 2, must be 64 (d of V in the spec)");
  expect_refused(spec, call({2, 70, 4, 64}, {2, 208, 2, 64}, {2, 2, 64, 192}),
                 "v.shape[3]: 192, must be 208 (tokens of k)");
  expect_refused(spec, call({2, 70, 4, 64}, {2, 200, 2, 64}, {2, 2, 64, 200}), "v.strides: aligned to 8 bytes only");
  expect_refused(spec, call({2, 1, 4, 64}, {2, 1, 2, 64}, {2, 2, 64, 1}), "v.strides: aligned to 1 bytes only");
  Arguments rows = call({2, 70, 4, 64}, {2, 208, 2, 64}, {2, 2, 64, 208});
  rows.v.strides = {208 * 128, 64, 1, 128};
  expect_refused(spec, rows, "v.strides[3]: 128, the last dimension must be contiguous");
}

}  // namespace
}  // namespace flashjit

// Calls with new tokens: what they must bring, and what may not lie where K and V are written to.
#include "tests/unit/runtime/calls.h"

namespace flashjit {
namespace {

Arguments appending() {
  Arguments a = dense();
  a.params["k_new"] = {address(0x500000), "bf16", {kBatch, kQ, 2, 64}, {}};
  a.params["v_new"] = {address(0x600000), "bf16", {kBatch, kQ, 2, 64}, {}};
  a.params["cos"] = {address(0x700000), "fp32", {9, 16}, {}};
  a.params["sin"] = {address(0x710000), "fp32", {9, 16}, {}};
  return a;
}

TEST(Append, CallsThatAreRefused) {
  EXPECT_TRUE(fill(plan_of(kSpec + " append rope=half(32)"), appending()));
  constexpr const char* kRope = " append rope=half(32)";
  expect_refused(
      {
          {"too many", kRope, [](Arguments& a) { a.k.shape[1] = a.v.shape[1] = 4; },
           "q_len: 5 new tokens, k and v have room for 4"},
          {"other tokens", kRope, [](Arguments& a) { a.params["k_new"].shape[1] = 4; },
           "k_new.shape[1]: 4, must be 5 (tokens of q)"},
          {"short tables", kRope, [](Arguments& a) { a.params["cos"].shape[0] = a.params["sin"].shape[0] = 8; },
           "cos.shape[0]: 8 positions, sequences of this call can have 9 tokens"},
          {"other tables", kRope, [](Arguments& a) { a.params["sin"].shape[0] = 8; }, "sin.shape[0]: 8, must be 9"},
          {"pairs", kRope, [](Arguments& a) { a.params["cos"].shape[1] = 32; },
           "cos.shape[1]: 32, must be 16 (half the columns"},
          {"a base", " append rope=half(32) rope_base=10000", [](Arguments&) {}, "cos: given, and"},
          {"keys in values", kRope, [](Arguments& a) { a.v = a.k; }, "k: its bytes"},
          {"new keys in keys", kRope, [](Arguments& a) { a.params["k_new"].data = a.k.data; }, "k: its bytes"},
          {"expanded keys", kRope, [](Arguments& a) { a.k.strides = {0, 128, 64, 1}; },
           "k.strides[0]: 0 makes elements"},
      },
      appending);
}

// A cache of [batch, tokens, K or V, heads, d].
TEST(Append, KeysAndValuesOfOneTensor) {
  Arguments a = appending();
  a.v.data = static_cast<char*>(a.k.data) + 2 * 64 * 2;
  a.k.strides = a.v.strides = {9 * 4 * 64, 4 * 64, 64, 1};
  const auto params = fill(plan_of(kSpec + " append rope=half(32)"), a);
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_EQ(params->k_new, address(0x500000));
  EXPECT_EQ(params->v_new_stride.token, 2 * 64);
}

}  // namespace
}  // namespace flashjit

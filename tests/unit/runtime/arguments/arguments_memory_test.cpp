// What a call may read and write: indices of tensor parameters, memory that outputs share, rows of new tokens.
#include <gtest/gtest.h>

#include <limits>

#include "runtime/launch/index_check.h"
#include "tests/unit/runtime/calls.h"

namespace flashjit {
namespace {

TEST(Arguments, IndicesAreComputedFromTheSizes) {
  const char* spec = " params=\"near: fp32[1]\" score=\"s + near[max(q + k_len - q_len - k, 0)]\"";
  Arguments a = dense();
  a.params["near"] = {address(0x70000), "fp32", {kK}, {}};
  EXPECT_TRUE(fill(plan_of(kSpec + spec), a));  // largest: q = 4, k = 0 gives 4 + 9 - 5 = 8
  a.params["near"].shape = {kK - 1};
  const auto small = fill(plan_of(kSpec + spec), a);
  ASSERT_FALSE(small);
  EXPECT_NE(small.error().message.find("runs from 0 to 8"), std::string::npos) << small.error().message;
}

// What a tensor must be at least, for who makes one.
TEST(Arguments, IndicesHaveRanges) {
  const auto ranges = [](const std::string& text) {
    const auto spec = parse_spec("fwd bf16 d=64 heads=8/2 " + text);
    EXPECT_TRUE(spec) << spec.error().message;
    const std::int64_t scalars[kMaxParams] = {0, 1000};
    std::vector<IntInterval> found;
    const auto range_of_read = [](int, std::span<const IntInterval>) { return IntInterval{}; };
    for (const auto& index : IndexChecker(*spec).ranges(*spec, {4, 100, 1000}, scalars, range_of_read)) {
      EXPECT_EQ(index.dimension, static_cast<int>(found.size()));
      found.push_back(index.range);
    }
    return found;
  };
  using Ranges = std::vector<IntInterval>;
  EXPECT_EQ(ranges("params=\"t: fp32[4]\" score=\"s + t[b, h / 2, max(q + k_len - q_len, 0), k % 16]\""),
            (Ranges{{0, 3}, {0, 3}, {900, 999}, {0, 15}}));
  // Named rows never read outside a tensor of the obvious shape.
  EXPECT_EQ(ranges("mask=\"tree(t)\""), (Ranges{{0, 3}, {0, 99}, {0, 1}}));
  // A scalar is what it is in this call.
  EXPECT_EQ(ranges("params=\"t: fp32[1], n: i32\" score=\"s + t[k + n]\""), (Ranges{{1000, 1999}}));
}

// On processors what another tensor holds is looked through.
TEST(Arguments, LookedUpIndicesAreCheckedByValue) {
  struct Row {
    const char *params, *score;
    std::int64_t extent;
    const char* words;  // empty: accepted
  };
  // `a` holds 100 b + i for [b, i], and -7 in one place behind the queries of each row.
  static const Row kRows[] = {
      {"a: i32[2]", "t[a[b, q]]", 105, ""},
      {"a: i32[2]", "t[a[b, q]]", 104,
       "params.t: index 0 (`a[b, q]`) runs from 0 to 104 at these sizes (b=2, q_len=5, "
       "k_len=9), the tensor has 104 there; pass a larger tensor, other values in a or"},
      {"a: i32[2]", "t[a[0, q] - 1]", 104, "`a[0, q] - 1`) runs from -1 to 3"},
      {"a: i32[2]", "t[a[b, k]]", 110, "runs from -7 to 108"},
      {"a: i32[2]", "t[min(max(a[b, k], 0), 99)]", 100, ""},
      {"a: i32[2]", "t[min(max(a[b, k], 0), 99)]", 99, "runs from 0 to 99"},
      {"a: i32[2]", "t[a[a[0, q] / 4, 3]]", 104, ""},
      {"a: i32[2]", "t[a[0, a[b, 3]]]", 999, "params.a: index 1 (`a[b, 3]`) runs from 3 to 103"},
      {"a: i32[2]", "t[a[b, q + 8]]", 999, "params.a: index 1 (`q + 8`) runs from 8 to 12"},
      {"a: i32[2], n: i32", "t[a[b, n]]", 999, ""},
      {"a: i32[2], n: i32", "t[a[b, n]]", 101,
       "k_len=9, n=2), the tensor has 101 there; pass a larger tensor, another "
       "scalar, other values in a or clamp"},
      {"a: i32[2]", "t[a[b, q]]", 0, "the tensor has 0 there"},
  };
  std::int32_t a[2][10];
  for (int b = 0; b < 2; ++b)
    for (int i = 0; i < 10; ++i) a[b][i] = i == 7 ? -7 : 100 * b + i;
  for (const Row& row : kRows) {
    SCOPED_TRACE(std::string(row.score) + " of " + std::to_string(row.extent));
    Arguments call = dense();
    call.params["t"] = {address(0x70000), "fp32", {row.extent}, {}};
    call.params["a"] = {a, "i32", {2, 10}, {}};
    if (std::string_view(row.params).find("n:") != std::string_view::npos) call.scalars["n"] = 2;
    const std::string spec = kSpec + " params=\"t: fp32[1], " + row.params + "\" score=\"s + " + row.score + "\"";
    const auto params = fill(plan_of(spec, false), call);
    ASSERT_EQ(static_cast<bool>(params), row.words[0] == 0) << (params ? "" : params.error().message);
    if (params) continue;
    EXPECT_NE(params.error().message.find(row.words), std::string::npos) << params.error().message;
  }
}

// Kernels on GPUs cut them to a tensor that must have something; what other indices read is checked as ever.
TEST(Arguments, LookedUpIndicesAreCutOnGpus) {
  const Plan plan = plan_of(kSpec + " params=\"t: fp32[1], a: i32[2]\" score=\"s + t[a[b, q] * 1000]\"");
  Arguments a = dense();
  a.params["t"] = {address(0x70000), "fp32", {3}, {}};
  a.params["a"] = {address(0x80000), "i32", {2, 6}, {}};
  const auto params = fill(plan, a);
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_EQ(params->extra_size[0][0], 3);
  EXPECT_EQ(params->extra_size[1][1], 6);
  a.params["t"].shape = {0};
  EXPECT_NE(fill(plan, a).error().message.find("the tensor has 0 there"), std::string::npos);
  a.params["t"].shape = {3};
  a.params["a"].shape = {2, 4};
  EXPECT_NE(fill(plan, a).error().message.find("params.a: index 1 (`q`) runs from 0 to 4"), std::string::npos);
}

// Rows with gaps, an axis that is repeated, and a box that leaves the tensor.
TEST(Arguments, WhatATensorHolds) {
  const std::uint8_t bytes[] = {9, 200, 3, 0, 255, 7, 8, 1};
  const std::int64_t shape[] = {3, 2, 2}, strides[] = {0, 4, 2};
  const TensorView view = {.data = const_cast<std::uint8_t*>(bytes), .rank = 3, .shape = shape, .strides = strides};
  const auto range = [&](std::initializer_list<IntInterval> box) {
    return range_of_values(view, Dtype::U8, {box.begin(), box.size()});
  };
  EXPECT_EQ(range({{0, 2}, {0, 1}, {0, 1}}), (IntInterval{3, 255}));
  EXPECT_EQ(range({{1, 1}, {0, 0}, {0, 1}}), (IntInterval{3, 9}));
  EXPECT_EQ(range({{-5, 99}, {1, 1}, {1, 7}}), (IntInterval{8, 8}));
  EXPECT_EQ(range({{3, 4}, {0, 1}, {0, 1}}), (IntInterval{0, 0}));
}

// Who makes the tensors says what they will hold.
TEST(Arguments, LookedUpIndicesHaveRanges) {
  const auto spec = parse_spec(kSpec + " params=\"t: fp32[1], a: i32[2]\" score=\"s + t[a[h, b] * 2 + 1]\"");
  ASSERT_TRUE(spec) << spec.error().message;
  const auto holds = [](int param, std::span<const IntInterval> box) {
    EXPECT_EQ(param, 1);
    EXPECT_EQ(box.size(), 2u);
    EXPECT_EQ(box[0], (IntInterval{0, 3}));
    return IntInterval{2, 6};
  };
  const std::int64_t scalars[kMaxParams] = {};
  const auto ranges = IndexChecker(*spec).ranges(*spec, {4, 100, 1000}, scalars, holds);
  ASSERT_EQ(ranges.size(), 3u);
  EXPECT_EQ(ranges[2].text, "a[h, b] * 2 + 1");
  EXPECT_EQ(ranges[2].range, (IntInterval{5, 13}));
}

TEST(Arguments, IndicesAreComputedFromScalars) {
  struct Row {
    const char *params, *index;
    double n;
    const char* words;  // empty: accepted
  };
  static const Row kRows[] = {
      {"n: i32", "n", 7, ""},
      {"n: i32", "n", 8, "params.t: index 0 (`n`) is 8 at these sizes (b=2, q_len=5, k_len=9, n=8), the tensor has 8"},
      {"n: i32", "n", -1, "is -1 at"},
      {"n: i32", "n", 1e9, "is 1000000000 at"},
      {"n: u32", "n", 4e9, "is 4000000000 at"},
      {"n: i64", "n", -9007199254740992.0, "is -9007199254740992 at"},
      {"n: u8", "n", 255, "is 255 at"},
      {"n: i32", "k + n", -1, "index 0 (`k + n`) runs from -1 to 7"},
      {"n: i32", "k / 2 + n", 3, ""},
      {"n: i32", "k / 2 + n", 4, "runs from 4 to 8"},
      {"n: i32", "min(n, 7)", -1, "is -1 at"},
      {"n: i32", "min(max(n, 0), 7)", -2147483648.0, ""},
      {"n: i32", "k % max(n, 1)", 8, ""},
      {"n: i32", "k % max(n, 1)", 10, "runs from 0 to 8"},
      {"n: i32, c: fp32", "where(c > 1.0, n, 2)", 8, "runs from 2 to 8"},
  };
  for (const Row& row : kRows) {
    SCOPED_TRACE(std::string(row.index) + ", n=" + std::to_string(row.n));
    Arguments a = dense();
    a.params["t"] = {address(0x70000), "fp32", {8}, {}};
    a.scalars["n"] = row.n;
    if (std::string_view(row.params).find("c:") != std::string_view::npos) a.scalars["c"] = 0.5;
    const std::string spec = kSpec + " params=\"t: fp32[1], " + row.params + "\" score=\"s + t[" + row.index + "]\"";
    for (const bool gpu : {false, true}) {
      const auto params = fill(plan_of(spec, gpu), a);
      ASSERT_EQ(static_cast<bool>(params), row.words[0] == 0) << (params ? "" : params.error().message);
      if (params) continue;
      EXPECT_NE(params.error().message.find(row.words), std::string::npos) << params.error().message;
    }
  }
}

// Where no key is read, an element that all keys share still is: ends of tiles depend on it.
TEST(Arguments, WithoutKeysElementsOfBatchesAreRead) {
  Arguments a = dense();
  a.k.shape[1] = a.v.shape[1] = 0;
  a.params["t"] = {address(0x70000), "i32", {1}, {}};
  const auto by_batch = fill(plan_of(kSpec + " params=\"t: i32[1]\" mask=\"k < t[b]\""), a);
  ASSERT_FALSE(by_batch);
  EXPECT_NE(by_batch.error().message.find("(`b`) runs from 0 to 1"), std::string::npos) << by_batch.error().message;
  a.params["t"].shape = {0};
  EXPECT_TRUE(fill(plan_of(kSpec + " params=\"t: i32[1]\" mask=\"q < t[k]\""), a));
}

TEST(Arguments, OutputsShareNoMemory) {
  const char* spec = " lse=ln params=\"pos: fp32[1]\" score=\"s + pos[h]\"";
  const auto base = [] {
    Arguments a = dense();
    a.lse = {address(0x80000), "fp32", {kBatch, 4, kQ}, {}};
    a.params["pos"] = {address(0x70000), "fp32", {4}, {}};
    return a;
  };
  ASSERT_TRUE(fill(plan_of(kSpec + spec), base()));
  const auto bytes_of_o = kBatch * kQ * 4 * 64 * 2;
  expect_refused(
      {
          {"o is q", spec, [](Arguments& a) { a.o.data = a.q.data; },
           "o: its bytes 0x1000..0x23ff overlap 0x1000..0x23ff of q, which the kernel reads at the same time; give o "
           "memory of its own"},
          {"o and k", spec, [](Arguments& a) { a.k.data = static_cast<char*>(a.o.data) + 512; }, "o: its bytes"},
          {"last byte", spec, [=](Arguments& a) { a.v.data = static_cast<char*>(a.o.data) + bytes_of_o - 16; },
           " of v, which the kernel reads"},
          {"o and lse", spec, [](Arguments& a) { a.lse.data = a.o.data; }, " of lse, which the kernel writes"},
          {"parameter", spec, [](Arguments& a) { a.params["pos"].data = a.lse.data; },
           "lse: its bytes 0x80000..0x8009f overlap 0x80000..0x8000f of params.pos"},
          {"beyond 64 bits", spec, [](Arguments& a) { a.q.data = address(~std::uintptr_t{0} - 15); },
           "q.data: 0xfffffffffffffff0 and the 5120 bytes of the tensor end beyond 64 bits"},
      },
      base);
  Arguments a = base();
  a.v.data = static_cast<char*>(a.o.data) + bytes_of_o;  // right behind it
  a.k.data = a.v.data;                                   // inputs may be one
  EXPECT_TRUE(fill(plan_of(kSpec + spec), a));
}

TEST(Arguments, TheWorkspaceSharesNoMemory) {
  Plan plan = plan_of(kSpec);
  plan.workspace = {{.name = "scores", .bytes = 4096, .extents = {}}};
  Arguments a = dense();
  a.workspace = address(0x100000);
  a.workspace_bytes = 4096;
  EXPECT_TRUE(fill(plan, a));
  a.workspace = a.k.data;
  const auto in_k = fill(plan, a);
  ASSERT_FALSE(in_k);
  EXPECT_NE(in_k.error().message.find("workspace: its bytes 0x20000..0x20fff overlap"), std::string::npos)
      << in_k.error().message;
  a.workspace = static_cast<char*>(a.o.data) - 256;
  EXPECT_FALSE(fill(plan, a));
  plan.workspace.clear();
  EXPECT_TRUE(fill(plan, a)) << "given, and not used";
}

// Slices of one tensor interleave, and share no byte.
TEST(Arguments, OutputsMayBeColumnsBesideInputs) {
  const std::string spec = "fwd bf16 d=64 heads=4";
  constexpr std::int64_t kRow = 4 * 64, kPart = 2 * kRow;  // elements, bytes of the heads of a token
  const auto slice = [](int part, std::int64_t tokens) {   // of [batch, tokens, q k v o, heads, d]
    const std::int64_t token = 4 * kRow;
    return Tensor{address(0x1000 + static_cast<std::uintptr_t>(part * kPart)),
                  "bf16",
                  {kBatch, tokens, 4, 64},
                  {tokens * token, token, 64, 1}};
  };
  Arguments a;
  a.q = slice(0, kQ), a.k = slice(1, kQ), a.v = slice(2, kQ), a.o = slice(3, kQ);
  const auto filled = fill(plan_of(spec), a);
  EXPECT_TRUE(filled) << filled.error().message;
  std::swap(a.q, a.o);
  EXPECT_TRUE(fill(plan_of(spec), a));
  a.o.data = static_cast<char*>(a.o.data) + kPart / 2;  // half in the columns of k
  const auto half = fill(plan_of(spec), a);
  ASSERT_FALSE(half);
  EXPECT_NE(half.error().message.find(" of k, which the kernel reads"), std::string::npos) << half.error().message;

  // Columns of each head: [batch, tokens, heads, q k v o, d].
  const auto column = [](int part) {
    return Tensor{address(0x1000 + static_cast<std::uintptr_t>(part) * 128),
                  "bf16",
                  {kBatch, kQ, 4, 64},
                  {kQ * 4 * kRow, 4 * kRow, 256, 1}};
  };
  a.q = column(3), a.k = column(1), a.v = column(2), a.o = column(0);
  EXPECT_TRUE(fill(plan_of(spec), a));
  a.k.strides[1] += 64;  // no longer in step
  EXPECT_FALSE(fill(plan_of(spec), a));
}

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

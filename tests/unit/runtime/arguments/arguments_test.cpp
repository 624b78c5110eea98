// What run() refuses, and with which words. Each case changes one thing of a call that is right.
#include <gtest/gtest.h>

#include <functional>

#include "tests/unit/runtime/calls.h"

namespace flashjit {
namespace {

// Two sequences of up to 4 pages of 16 tokens, in a pool of 6.
Arguments paged() {
  Arguments a = dense();
  a.k = {address(0x100000), "bf16", {6, 16, 2, 64}, {}};
  a.v = {address(0x200000), "bf16", {6, 16, 2, 64}, {}};
  a.params["k_lens"] = {address(0x80000), "i32", {kBatch}, {}};
  a.params["block_table"] = {address(0x80100), "i32", {kBatch, 4}, {}};
  return a;
}

TEST(Arguments, DenseParameters) {
  Arguments a = dense();
  a.k.strides = {9 * 1000, 1000, 128, 1};
  const auto params = fill(plan_of(kSpec), a);
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_EQ(params->q, address(0x1000));
  EXPECT_EQ(params->o, address(0x60000));
  EXPECT_EQ(params->batch, 2);
  EXPECT_EQ(params->q_len, 5);
  EXPECT_EQ(params->k_len, 9);
  EXPECT_EQ(params->tiles_q, 2);
  EXPECT_EQ(params->q_stride.batch, 5 * 4 * 64);
  EXPECT_EQ(params->q_stride.token, 4 * 64);
  EXPECT_EQ(params->q_stride.head, 64);
  EXPECT_EQ(params->k_stride.batch, 9000);
  EXPECT_EQ(params->k_stride.token, 1000);
  EXPECT_EQ(params->k_stride.head, 128);
  EXPECT_EQ(params->lse, nullptr);
}

TEST(Arguments, TilesAndGroupsOfHeadsForHopper) {
  const auto group = [](int keys, int batch, bool grouped) {
    Plan plan = plan_of("fwd bf16 d=64 heads=8/2");
    plan.launches[0].grid = {.queries = grouped ? 64 : 256, .heads = grouped ? 2 : 8};
    plan.head_groups.row_bytes = 256;  // 128 Ki keys are the 32 MB that stay in L2
    Arguments a;
    a.q = {address(0x1000), "bf16", {batch, 1000, 8, 64}, {}};
    a.o = {address(std::uintptr_t{1} << 50), "bf16", {batch, 1000, 8, 64}, {}};
    a.k = a.v = {address(0x20000), "bf16", {batch, keys, 2, 64}, {}};
    const auto params = fill(plan, a);
    EXPECT_TRUE(params) << params.error().message;
    EXPECT_EQ(params->tiles_q, grouped ? 16 : 4);  // 256 rows: 256 queries, or 64 of four heads each
    return params->heads_per_group;
  };
  EXPECT_EQ(group(40000, 9, false), 3 * 4);  // three KV heads fit, each with its four query heads
  EXPECT_EQ(group(40000, 9, true), 3);
  EXPECT_EQ(group(40000, 1, false), 2 * 4);  // there are no more
  EXPECT_EQ(group(40000, 1, true), 2);
  EXPECT_EQ(group(1 << 17, 9, true), 1);
  EXPECT_EQ(group(1 << 20, 9, true), 1);  // not even one fits
  EXPECT_EQ(group(0, 3, false), 6 * 4);
}

TEST(Arguments, WithSumsInOrderAWindowIsAllThatL2Holds) {
  const auto group = [](const std::string& rest, const std::string& dq) {
    const auto spec = parse_spec("bwd bf16 heads=64 " + rest);
    EXPECT_TRUE(spec) << rest;
    const auto plan = make_plan(*spec, **find_target("sm_90a"), *parse_schedule("family=hopper_backward,dq=" + dq));
    EXPECT_TRUE(plan) << plan.error().message;
    return HeadGroups(*plan).heads({.batch = 1, .q_len = 16384, .k_len = 16384});
  };
  // A query is 512 bytes of Q, dO and sums of dQ; of a window of 1024, and the 128 keys of a tile that sees it, so many fit.
  constexpr int kFit = (32 << 20) / ((1024 + 128) * 512);
  EXPECT_EQ(group("d=64", "ordered"), 4);
  EXPECT_EQ(group("d=64 mask=\"causal\"", "ordered"), 4);
  EXPECT_EQ(group("d=64 mask=\"window(1024, 0)\"", "ordered"), kFit);
  EXPECT_EQ(group("d=64 mask=\"window(0, 1024)\"", "ordered"), kFit);
  EXPECT_EQ(group("d=64 mask=\"window(1024, 0)\"", "atomics"), 4);
  EXPECT_EQ(group("d=128 mask=\"window(1024, 0)\"", "ordered"), 2);  // two steps for a tile of keys
}

TEST(Arguments, PackedTensorsThatTmaCannotReach) {
  const auto filled = [](bool tensor_maps, std::int64_t tokens) {
    Plan plan = plan_of(kSpec + " layout=packed");
    plan.launches[0].tensor_maps = tensor_maps;
    Arguments a = packed();
    for (Tensor* t : {&a.k, &a.v}) t->shape[0] = tokens;
    a.o.data = address(std::uintptr_t{1} << 50);  // beyond both
    a.max_k_len = 100;
    return fill(plan, a);
  };
  EXPECT_TRUE(filled(true, 0x7fff0000));
  EXPECT_TRUE(filled(false, 0x7fff0001));
  const auto params = filled(true, 0x7fff0001);
  ASSERT_FALSE(params);
  EXPECT_NE(params.error().message.find(
                "k.shape[0]: 2147418113 tokens, this kernel reaches 2147418112 in packed tensors; split"),
            std::string::npos)
      << params.error().message;
}

TEST(Arguments, HeadsBeforeTokens) {
  Arguments a = dense();
  for (Tensor* tensor : {&a.q, &a.k, &a.v, &a.o}) std::swap(tensor->shape[1], tensor->shape[2]);
  const auto params = fill(plan_of(kSpec + " layout=bhsd"), a);
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_EQ(params->q_len, 5);
  EXPECT_EQ(params->q_stride.head, 5 * 64);
  EXPECT_EQ(params->q_stride.token, 64);
}

TEST(Arguments, PackedParameters) {
  Arguments a = packed();
  a.lse = {address(0x90000), "fp32", {4, 10}, {}};
  const auto params = fill(plan_of(kSpec + " layout=packed lse=ln"), a);
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_EQ(params->batch, 3);
  EXPECT_EQ(params->q_len, 6);
  EXPECT_EQ(params->k_len, 12);
  EXPECT_EQ(params->tiles_q, 2);
  EXPECT_EQ(params->offsets_q, address(0x80000));
  EXPECT_EQ(params->row_stride_head, 10);
}

TEST(Arguments, NothingToDoIsNoError) {
  Arguments a = dense();
  a.q = a.o = {nullptr, "bf16", {kBatch, 0, 4, 64}, {}};
  auto params = fill(plan_of(kSpec), a);
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_EQ(params->tiles_q, 0);
  a = dense();
  for (Tensor* tensor : {&a.q, &a.k, &a.v, &a.o}) tensor->shape[0] = 0;
  params = fill(plan_of(kSpec), a);
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_EQ(params->tiles_q, 0);
  // Without keys the kernel still writes zeros.
  a = dense();
  a.k = a.v = {nullptr, "bf16", {kBatch, 0, 2, 64}, {}};
  params = fill(plan_of(kSpec), a);
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_EQ(params->tiles_q, 2);
  EXPECT_EQ(params->k_len, 0);
}

TEST(Arguments, ScalarsAndTensorsOfMasks) {
  const std::string spec =
      kSpec + " params=\"pos: fp32[3], cap: fp32, left: i32\" mask=\"k >= q - left\" score=\"s * cap + pos[h, q, k]\"";
  Arguments a = dense();
  a.params["pos"] = {address(0x70000), "fp32", {4, kQ, kK}, {0, kK, 1}};
  a.scalars["cap"] = 0.5;
  a.scalars["left"] = -3;
  const Plan gpu = plan_of(spec), host = plan_of(spec, false);
  ASSERT_EQ(gpu.spec.params.size(), 3u);
  auto params = fill(gpu, a);
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_EQ(params->extra[0].data, address(0x70000));
  EXPECT_EQ(params->extra[0].stride[0], 0);
  EXPECT_EQ(params->extra[0].stride[1], kK);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(params->extra[1].data), 0x3f000000u);  // 0.5f
  EXPECT_EQ(static_cast<int>(reinterpret_cast<std::intptr_t>(params->extra[2].data)), -3);

  const ArgumentChecker checker(host);
  KernelParams on_host;
  CallArguments call;
  ASSERT_TRUE(view(a, call));
  CallSizes sizes;
  ASSERT_TRUE(checker.fill(call, on_host, sizes));
  EXPECT_EQ(*static_cast<const float*>(on_host.extra[1].data), 0.5f);
  EXPECT_EQ(*static_cast<const int*>(on_host.extra[2].data), -3);
}

TEST(Arguments, RefusedTensors) {
  expect_refused(
      {
          {"missing", "", [](Arguments& a) { a.k = {}; }, "k: missing"},
          {"null", "", [](Arguments& a) { a.v.data = nullptr; }, "v.data: null"},
          {"dtype", "", [](Arguments& a) { a.q.dtype = "fp16"; }, "q.dtype: 'fp16', must be bf16"},
          {"no dtype", "", [](Arguments& a) { a.q.dtype = "float"; }, "must be bf16; dtypes are called fp16, bf16"},
          {"rank", "", [](Arguments& a) { a.q.shape = {1, 2, 3}; }, "q.shape: 3 dimensions, must have 4"},
          {"rank 5", "", [](Arguments& a) { a.q.shape = {1, 1, 1, 2, 3, 4}; }, "q.shape: 6 dimensions, at most 5"},
          {"negative size", "", [](Arguments& a) { a.q.shape[1] = -1; }, "q.shape[1]: -1 is negative"},
          {"heads of q", "", [](Arguments& a) { a.q.shape[2] = 3; }, "q.shape[2]: 3, must be 4 (query heads"},
          {"heads of k", "", [](Arguments& a) { a.k.shape[2] = 4; }, "k.shape[2]: 4, must be 2 (KV heads"},
          {"d", "", [](Arguments& a) { a.k.shape[3] = 128; }, "k.shape[3]: 128, must be 64"},
          {"tokens of v", "", [](Arguments& a) { a.v.shape[1] = 8; }, "v.shape[1]: 8, must be 9 (tokens of k)"},
          {"tokens of o", "", [](Arguments& a) { a.o.shape[1] = 4; }, "o.shape[1]: 4, must be 5 (tokens of q)"},
          {"batch", "", [](Arguments& a) { a.k.shape[0] = 3; }, "k.shape[0]: 3, must be 2 (batch of q)"},
          {"strides short", "", [](Arguments& a) { a.q.strides = {1, 2}; }, "q.strides: 2 of them for 4 dimensions"},
          {"strides negative", "", [](Arguments& a) { a.q.strides = {1280, -256, 64, 1}; },
           "q.strides[1]: -256 is negative"},
          {"last dimension", "", [](Arguments& a) { a.q.strides = {1280, 256, 1, 4}; },
           "q.strides[3]: 4, the last dimension must be contiguous"},
          {"overlapping output", "", [](Arguments& a) { a.o.strides = {1280, 64, 64, 1}; },
           "o.strides[2]: 64 makes elements of this output share"},
          {"expanded output", "", [](Arguments& a) { a.o.strides = {0, 256, 64, 1}; },
           "o.strides[0]: 0 makes elements"},
          {"pointer alignment", "", [](Arguments& a) { a.q.data = address(0x1008); },
           "q.data: aligned to 8 bytes only, the kernel was made for 16; add bytes=8"},
          {"stride alignment", "", [](Arguments& a) { a.k.strides = {9 * 130, 130, 66, 1}; },
           "k.strides: aligned to 4 bytes only, the kernel was made for 16; add bytes=4"},
          {"rows that overlap", "", [](Arguments& a) { a.k.strides = {9, 1, 128, 1}; },
           "k.strides: aligned to 2 bytes only, the kernel was made for 16; add bytes=2"},
          {"odd address", " bytes=2", [](Arguments& a) { a.q.data = address(0x1001); },
           "q.data: the address is no multiple of 2"},
          {"too large", "", [](Arguments& a) { a.q.shape[0] = std::int64_t{1} << 60; },
           "q: shape and strides reach beyond 2^56"},
          {"stride too large", "", [](Arguments& a) { a.q.strides = {std::int64_t{1} << 62, 256, 64, 1}; },
           "reach beyond 2^56"},
      },
      dense);
}

TEST(Arguments, RefusedSizes) {
  expect_refused(
      {
          {"pinned", " q_len=1", [](Arguments&) {}, "q_len: 5, the spec pins q_len=1"},
          {"bounded", " k_len<=8", [](Arguments&) {}, "k_len: 9 is outside 0..8"},
          {"unpacked length", "", [](Arguments& a) { a.max_k_len = 5; }, "max_k_len: 5, and no sequence is packed"},
          {"batch bound", " b<=1", [](Arguments&) {}, "b: 2 is outside 0..1"},
          {"offsets of a dense layout", "", [](Arguments& a) { a.offsets_q = {address(0x80000), "i32", {3}, {}}; },
           "the spec's layout is not packed"},
          {"grid", "",
           [](Arguments& a) {
             // Expanded along the batch: no memory is needed to ask for too many blocks.
             for (Tensor* t : {&a.q, &a.k, &a.v}) t->strides = {0, t->shape[2] * 64, 64, 1};
             for (Tensor* t : {&a.q, &a.k, &a.v, &a.o}) t->shape[0] = 1 << 29;
           },
           "more blocks than a launch can have"},
      },
      dense);
}

TEST(Arguments, RefusedOptionalTensors) {
  const auto lse = [](Arguments& a) { a.lse = {address(0x90000), "fp32", {kBatch, 4, kQ}, {}}; };
  expect_refused(
      {
          {"lse not asked for", "", lse, "lse: given, and the spec does not ask for it; add lse=ln"},
          {"lse missing", " lse=ln", [](Arguments&) {}, "lse: missing"},
          {"lse shape", " lse=log2", [](Arguments& a) { a.lse = {address(0x90000), "fp32", {kBatch, kQ, 4}, {}}; },
           "lse.shape[1]: 5, must be 4"},
          {"lse overlap", " lse=ln",
           [&](Arguments& a) {
             lse(a);
             a.lse.strides = {0, 5, 1};
           },
           "lse.strides[0]: 0 makes elements"},
          {"max_logit not asked for", "",
           [](Arguments& a) { a.max_logit = {address(0x90000), "fp32", {kBatch, 4, kQ}, {}}; }, "max_logit: given"},
          {"strides differ", " lse=ln max_logit",
           [&](Arguments& a) {
             lse(a);
             a.max_logit = a.lse;
             a.max_logit.strides = {40, 10, 1};
           },
           "max_logit.strides: differ from those of lse"},
          {"sink missing", " sink", [](Arguments&) {}, "sink: missing"},
          {"sink size", " sink", [](Arguments& a) { a.sink = {address(0x90000), "fp32", {2}, {}}; },
           "sink.shape[0]: 2, must be 4"},
          {"sink not asked for", "", [](Arguments& a) { a.sink = {address(0x90000), "fp32", {4}, {}}; }, "sink: given"},
      },
      dense);
}

TEST(Arguments, RefusedPacked) {
  expect_refused(
      {
          {"no offsets", " layout=packed", [](Arguments& a) { a.offsets_k = {}; }, "offsets_k: missing"},
          {"offsets type", " layout=packed", [](Arguments& a) { a.offsets_q.dtype = "i64"; },
           "offsets_q.dtype: 'i64', must be i32"},
          {"offsets differ", " layout=packed", [](Arguments& a) { a.offsets_k.shape = {3}; },
           "offsets_k.shape[0]: 3, must be 4 (as many as offsets_q)"},
          {"empty offsets", " layout=packed", [](Arguments& a) { a.offsets_q.shape = a.offsets_k.shape = {0}; },
           "number of sequences plus 1"},
          {"no max_q_len", " layout=packed", [](Arguments& a) { a.max_q_len = 0; },
           "max_q_len: missing; give the length of the longest query sequence (10 tokens"},
          {"negative max_q_len", " layout=packed", [](Arguments& a) { a.max_q_len = -1; }, "must not be negative"},
          {"bound", " layout=packed k_len<=8", [](Arguments&) {}, "k_len: 12 is outside 0..8"},
      },
      packed);
}

TEST(Arguments, RefusedParameters) {
  const char* spec = " params=\"pos: fp32[3], cap: fp32\" score=\"s * cap + pos[h, q, k]\"";
  const auto base = [] {
    Arguments a = dense();
    a.params["pos"] = {address(0x70000), "fp32", {4, kQ, kK}, {}};
    a.scalars["cap"] = 2;
    return a;
  };
  expect_refused(
      {
          {"missing tensor", spec, [](Arguments& a) { a.params.clear(); }, "params.pos: missing"},
          {"missing scalar", spec, [](Arguments& a) { a.scalars.clear(); }, "scalars.cap: missing"},
          {"unknown", spec, [](Arguments& a) { a.scalars["gap"] = 1; },
           "params.gap: the spec has no parameter of this name; it has pos, cap"},
          {"twice", spec, [](Arguments& a) { a.params["cap"] = a.params["pos"]; }, "params.cap: "},
          {"number", spec, [](Arguments& a) { a.scalars["pos"] = 1, a.params.clear(); },
           "scalars.pos: the spec declares a tensor; give it in params"},
          {"tensor", spec, [](Arguments& a) { a.params["cap"] = a.params["pos"], a.scalars.clear(); },
           "params.cap: the spec declares a scalar; give its number in scalars, or declare `cap: fp32[1]`"},
          {"dtype", spec, [](Arguments& a) { a.params["pos"].dtype = "bf16"; },
           "params.pos.dtype: 'bf16', must be fp32"},
          {"rank", spec, [](Arguments& a) { a.params["pos"].shape = {4, kQ}; },
           "params.pos.shape: 2 dimensions, must have 3"},
          {"too small", spec, [](Arguments& a) { a.params["pos"].shape = {4, kQ, kK - 1}; },
           "params.pos: index 2 (`k`) runs from 0 to 8 at these sizes (b=2, q_len=5, k_len=9), the tensor has 8"},
          {"heads", spec, [](Arguments& a) { a.params["pos"].shape = {3, kQ, kK}; },
           "params.pos: index 0 (`h`) runs from 0 to 3"},
          {"null", spec, [](Arguments& a) { a.params["pos"].data = nullptr; }, "params.pos.data: null"},
          {"many unknown", "",
           [](Arguments& a) {
             for (int i = 0; i < 40; ++i) a.scalars["x" + std::to_string(i)] = i;
           },
           "the spec has no parameter of this name; it has "},
      },
      base);
}

TEST(Arguments, ScalarsMustFitTheirType) {
  for (const auto& [type, value, fits] : std::initializer_list<std::tuple<const char*, double, bool>>{
           {"i32", 2147483647.0, true},
           {"i32", 2147483648.0, false},
           {"i32", 1.5, false},
           {"i32", -5, true},
           {"u8", 255, true},
           {"u8", 256, false},
           {"u32", -1, false},
           {"i64", 1e15, true},
           {"i64", 1e300, false},
           {"i32", std::numeric_limits<double>::quiet_NaN(), false}}) {
    Arguments a = dense();
    a.scalars["n"] = value;
    const auto params = fill(plan_of(kSpec + " params=\"n: " + type + "\" mask=\"k < n\""), a);
    EXPECT_EQ(static_cast<bool>(params), fits) << type << " " << value;
    if (!params) {
      EXPECT_NE(params.error().message.find("scalars.n: "), std::string::npos) << params.error().message;
    }
  }
}

Result<void> check_contents(const ArgumentChecker& checker, const Arguments& a) {
  CallArguments call;
  KernelParams params;
  CallSizes sizes;
  FLASHJIT_TRY(view(a, call));
  FLASHJIT_TRY(checker.fill(call, params, sizes));
  return checker.check_contents(call, params, sizes);
}

TEST(Arguments, PagedParameters) {
  Arguments a = paged();
  a.k.strides = {2 * 16 * 64, 64, 16 * 64, 1};  // [pages, heads, tokens, d] as it is seen
  a.params["block_table"].strides = {1, 3};
  const auto params = fill(plan_of(kSpec + " layout=paged(16)"), a);
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_EQ(params->k_len, 4 * 16);
  EXPECT_EQ(params->pages, 6);
  EXPECT_EQ(params->k_stride.batch, 2 * 16 * 64);
  EXPECT_EQ(params->k_stride.token, 64);
  EXPECT_EQ(params->k_stride.head, 16 * 64);
  EXPECT_EQ(params->v_stride.token, 2 * 64);
  EXPECT_EQ(params->table_stride_batch, 1);
  EXPECT_EQ(params->table_stride_page, 3);
  EXPECT_EQ(params->block_table, address(0x80100));
  EXPECT_EQ(params->k_lens, address(0x80000));
}

TEST(Arguments, PagedRoomForKeys) {
  const auto room = [](const std::string& bound, std::int64_t pages) {
    Arguments a = paged();
    a.k.shape[0] = a.v.shape[0] = pages;
    const auto params = fill(plan_of(kSpec + " layout=paged(16)" + bound), a);
    return params ? params->k_len : -1;
  };
  EXPECT_EQ(room("", 6), 64);
  EXPECT_EQ(room("", 0), 0);  // a pool without pages holds nothing, whatever the table says
  EXPECT_EQ(room(" k_len<=63", 6), 63);
  EXPECT_EQ(room(" k_len=49", 6), 49);
  EXPECT_EQ(room(" k_len<=48", 6), -1);  // a page too many
  EXPECT_EQ(room(" k_len=65", 6), -1);
  EXPECT_EQ(room(" k_len<=65", 6), 64);
}

TEST(Arguments, PackedQueriesOverPages) {
  Arguments a = packed();
  a.offsets_k = {};
  a.k = {address(0x100000), "bf16", {6, 16, 2, 64}, {}};
  a.v = {address(0x200000), "bf16", {6, 16, 2, 64}, {}};
  a.params["k_lens"] = {address(0x80200), "i32", {3}, {}};
  a.params["block_table"] = {address(0x80300), "i32", {3, 4}, {}};
  Plan plan = plan_of(kSpec + " layout=packed/paged(16)");
  plan.launches[0].grid = {.queries = 4, .heads = 2, .numbered = true};
  const auto params = fill(plan, a);
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_EQ(params->tiles_q, 10 / 4 + 3);  // of all tokens, whichever lengths the sequences have
  EXPECT_EQ(params->batch, 3);
  EXPECT_EQ(params->q_len, 6);
  EXPECT_EQ(params->k_len, 64);
  EXPECT_EQ(params->offsets_k, nullptr);
  a.params["block_table"].shape[0] = 2;
  const auto refused = fill(plan_of(kSpec + " layout=packed/paged(16)"), a);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("block_table.shape[0]: 2, must be 3"), std::string::npos)
      << refused.error().message;
}

TEST(Arguments, PagedCallsThatAreRefused) {
  expect_refused(
      {
          {"no table", " layout=paged(16)", [](Arguments& a) { a.params.erase("block_table"); },
           "block_table: missing"},
          {"no lengths", " layout=paged(16)", [](Arguments& a) { a.params.erase("k_lens"); }, "k_lens: missing"},
          {"columns", " layout=paged(16) k_len<=40", [](Arguments&) {},
           "block_table: 4 columns of 16 tokens have room for 64 keys, and the spec bounds k_len by 40; give it the first 3,"},
          {"another page", " layout=paged(8)", [](Arguments&) {}, "k.shape[1]: 16, must be 8 (tokens of a page"},
          {"other pages", " layout=paged(16)", [](Arguments& a) { a.v.shape[0] = 5; },
           "v.shape[0]: 5, must be 6 (pages of k)"},
          {"no pages", "",
           [](Arguments& a) {
             a.k = a.v = dense().k;
             a.params.erase("k_lens");
           },
           "block_table: given, and the spec's layout is not paged"},
          {"offsets", " layout=paged(16)", [](Arguments& a) { a.offsets_k = {address(0x1), "i32", {3}, {}}; },
           "offsets_k: given, and"},
      },
      paged);
}

TEST(Arguments, HostTablesAreRead) {
  const ArgumentChecker checker(plan_of(kSpec + " layout=paged(16)", false));
  int lengths[] = {33, 64}, table[] = {5, 0, 5, -1, 1, 2, 3, 4};
  const auto check = [&] {
    Arguments a = paged();
    a.params["k_lens"].data = lengths;
    a.params["block_table"].data = table;
    return check_contents(checker, a);
  };
  EXPECT_TRUE(check());  // what lies behind 33 keys is not looked at
  lengths[0] = 49;
  auto result = check();
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("block_table[0, 3]: -1, k and v have pages 0 to 5"), std::string::npos)
      << result.error().message;
  lengths[0] = -7, lengths[1] = 1000, table[7] = 6;
  result = check();
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("block_table[1, 3]: 6"), std::string::npos) << result.error().message;
  lengths[1] = 48;
  EXPECT_TRUE(check());
}

TEST(Arguments, NoPageHoldsKeys) {
  const ArgumentChecker checker(plan_of(kSpec + " layout=paged(16)", false));
  int lengths[] = {0, 3}, table[8] = {};
  Arguments a = paged();
  a.k.shape[0] = a.v.shape[0] = 0;
  a.params["k_lens"].data = lengths;
  a.params["block_table"].data = table;
  const auto result = check_contents(checker, a);
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("k_lens[1]: 3 keys, and k and v have no pages"), std::string::npos)
      << result.error().message;
  lengths[1] = 0;
  EXPECT_TRUE(check_contents(checker, a));
}

TEST(Arguments, HostOffsetsAreRead) {
  const ArgumentChecker checker(plan_of(kSpec + " layout=packed", false));
  int q[] = {0, 4, 4, 10}, k[] = {0, 2, 8, 12};
  const auto check = [&] {
    Arguments a = packed();
    a.offsets_q.data = q;
    a.offsets_k.data = k;
    return check_contents(checker, a);
  };
  EXPECT_TRUE(check());
  q[0] = 1, k[0] = 2, k[3] = 11;  // tokens at both ends that are of no sequence
  EXPECT_TRUE(check());
  q[0] = -1;
  ASSERT_FALSE(check());
  EXPECT_NE(check().error().message.find("offsets_q[0]: -1"), std::string::npos) << check().error().message;
  q[0] = 0, k[0] = 0, k[3] = 12;
  q[1] = 5, q[2] = 4;
  auto result = check();
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("offsets_q[2]: 4"), std::string::npos) << result.error().message;
  q[1] = 0, q[2] = 8;
  result = check();
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("the sequence has 8 tokens, more than the 6"), std::string::npos)
      << result.error().message;
  q[1] = 4, q[2] = 4, k[3] = 13;
  result = check();
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("offsets_k[3]: 13"), std::string::npos) << result.error().message;
}

}  // namespace
}  // namespace flashjit

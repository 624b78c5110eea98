// Lists of keys as calls give them: for kernels each query is a sequence of its own.
#include <gtest/gtest.h>

#include "flashjit/flashjit.hpp"
#include "tests/unit/runtime/narrow/filled.h"

namespace flashjit {
namespace {

const std::string kSelecting = "fwd bf16 d=64 heads=4/2 select=keys(40)";

// Outputs, and lists that are read, lie apart.
Tensor tensor(const char* dtype, std::vector<std::int64_t> shape, std::uintptr_t at = 0x10000) {
  return {reinterpret_cast<void*>(at), dtype, std::move(shape), {}};
}

Arguments call(const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& keys) {
  const auto with = [](std::vector<std::int64_t> shape, std::initializer_list<std::int64_t> more) {
    shape.insert(shape.end(), more);
    return shape;
  };
  Arguments a;
  a.q = tensor("bf16", with(rows, {4, 64}));
  a.o = tensor("bf16", with(rows, {4, 64}), 0x1000000);
  a.k = a.v = tensor("bf16", with(keys, {2, 64}));
  a.params["key_index"] = tensor("i32", with(rows, {2, 40}), 0x2000000);
  return a;
}

void expect_sizes(const KernelParams& p, int queries, int of_sequence, int rows) {
  EXPECT_EQ(p.batch, queries);
  EXPECT_EQ(p.q_len, 1);
  EXPECT_EQ(p.k_len, 40);
  EXPECT_EQ(p.queries_of_sequence, of_sequence);
  EXPECT_EQ(p.key_rows, rows);
}

TEST(Selected, QueriesAreSequences) {
  Arguments arguments = call({3, 7}, {3, 100});
  const auto dense = fill(kSelecting, arguments);
  ASSERT_TRUE(dense) << dense.error().message;
  expect_sizes(*dense, 21, 7, 100);
  EXPECT_EQ(dense->key_count, nullptr);
  EXPECT_EQ(dense->key_index_stride.batch, 7 * 80);
  EXPECT_EQ(dense->key_index_stride.token, 80);
  EXPECT_EQ(dense->key_index_stride.head, 40);
  arguments.params["key_count"] = tensor("i32", {3, 7, 2});
  const auto counted = fill(kSelecting, arguments);
  ASSERT_TRUE(counted) << counted.error().message;
  EXPECT_NE(counted->key_count, nullptr);
  EXPECT_EQ(counted->key_count_stride.batch, 14);
  EXPECT_EQ(counted->key_count_stride.token, 2);
  EXPECT_EQ(counted->key_count_stride.head, 1);
}

TEST(Selected, PackedQueriesAreThoseOfOneSequence) {
  const auto packed = fill(kSelecting + " layout=packed", call({7}, {100}));
  ASSERT_TRUE(packed) << packed.error().message;
  expect_sizes(*packed, 7, 7, 100);
  EXPECT_EQ(packed->q_stride.batch, 0);
  Arguments with_length = call({7}, {100});
  with_length.max_q_len = 7;
  expect_refused(kSelecting + " layout=packed", with_length, "max_q_len: 7, and no sequence is packed");
  Arguments with_offsets = call({7}, {100});
  with_offsets.offsets_q = tensor("i32", {2});
  expect_refused(kSelecting + " layout=packed", with_offsets, "offsets_q: given, and the spec's layout is not packed");
}

TEST(Selected, RowsOfPagesAreThoseOfThePool) {
  for (const bool packed : {false, true}) {
    const std::string spec = kSelecting + (packed ? " layout=packed/paged(16)" : " layout=paged(16)");
    const auto paged = fill(spec, packed ? call({14}, {5, 16}) : call({2, 7}, {5, 16}));
    ASSERT_TRUE(paged) << paged.error().message;
    expect_sizes(*paged, 14, packed ? 14 : 7, 80);
    EXPECT_EQ(paged->k_stride.batch, 16 * 2 * 64) << "from page to page";
  }
  Arguments arguments = call({2, 7}, {5, 16});
  arguments.params["block_table"] = tensor("i32", {2, 3});
  expect_refused(kSelecting + " layout=paged(16)", arguments, "block_table: given");
}

TEST(Selected, SizesOfListsAreThoseOfTheSpec) {
  Arguments longer = call({3, 7}, {3, 100}), fewer = longer, counts = longer;
  longer.params["key_index"].shape = {3, 7, 2, 41};
  expect_refused(kSelecting, longer, "key_index.shape[3]: 41, must be 40 (keys of a list in the spec)");
  fewer.params["key_index"].shape = {3, 6, 2, 40};
  expect_refused(kSelecting, fewer, "key_index.shape[1]: 6, must be 7 (tokens of q)");
  counts.params["key_count"] = tensor("i32", {3, 7, 4});
  expect_refused(kSelecting, counts, "key_count.shape[2]: 4, must be 2 (KV heads of the spec)");
  fewer.params.erase("key_index");
  expect_refused(kSelecting, fewer, "key_index: missing");
}

TEST(Selected, ListsOfPagesHaveTheKeysOfThese) {
  const std::string spec = "fwd bf16 d=64 heads=4/2 layout=paged(16) select=pages(40)";
  Arguments arguments = call({3, 7}, {5, 16});
  arguments.params["page_index"] = arguments.params["key_index"];
  arguments.params.erase("key_index");
  const auto all = fill(spec, arguments);
  ASSERT_TRUE(all) << all.error().message;
  EXPECT_EQ(all->batch, 21);
  EXPECT_EQ(all->k_len, 40 * 16);
  EXPECT_EQ(all->pages, 5);
  EXPECT_EQ(all->key_index_stride.head, 40);
  Arguments longer = arguments, of_keys = arguments;
  longer.params["page_index"].shape[3] = 41;
  expect_refused(spec, longer, "page_index.shape[3]: 41, must be 40 (pages of a list in the spec)");
  of_keys.params["key_index"] = of_keys.params["page_index"];
  expect_refused(spec, of_keys, "key_index: given, and the spec does not ask for it; add select=keys(N)");
  arguments.params.erase("page_index");
  expect_refused(spec, arguments, "page_index: missing");
}

// A mask beside lists reads its tensors where query and key are in the sequence, not at indices into a list.
TEST(Selected, TensorsOfAMaskAreAsLargeAsTheSequence) {
  const std::string spec = kSelecting + " mask=\"x[b, q] <= y[k]\" params=\"x: i32[2], y: i32[1]\"";
  Arguments arguments = call({3, 7}, {3, 100});
  arguments.params["x"] = tensor("i32", {3, 7});
  arguments.params["y"] = tensor("i32", {100});
  const auto enough = fill(spec, arguments);
  ASSERT_TRUE(enough) << enough.error().message;
  Arguments short_x = arguments, short_y = arguments;
  short_x.params["x"].shape = {3, 6};
  expect_refused(spec, short_x, "params.x: index 1 (`q`) runs from 0 to 6 at these sizes (b=3, q_len=7, k_len=100)");
  short_y.params["y"].shape = {99};
  expect_refused(spec, short_y, "params.y: index 0 (`k`) runs from 0 to 99 at these sizes (b=3, q_len=7, k_len=100)");
}

// In a pool it is asked at positions that the call gives, and pages become lists of their keys.
TEST(Selected, AMaskOfAPoolReadsPositions) {
  const std::string spec = "fwd bf16 d=64 heads=4/2 layout=paged(16) select=pages(40) mask=\"causal\"";
  Arguments arguments = call({3, 7}, {5, 16});
  arguments.params["page_index"] = arguments.params["k_positions"] = arguments.params["key_index"];
  arguments.params.erase("key_index");
  arguments.params["q_positions"] = tensor("i32", {3, 7});
  const auto filled = fill(spec, arguments);
  ASSERT_TRUE(filled) << filled.error().message;
  EXPECT_EQ(filled->q_positions_stride.batch, 7);
  EXPECT_EQ(filled->q_positions_stride.token, 1);
  EXPECT_EQ(filled->k_positions_stride.token, 80);
  EXPECT_EQ(filled->k_positions_stride.head, 40);
  const auto plan = make_plan(*parse_spec(spec), **find_target("sm_90a"));
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->config.selected, 640);
  EXPECT_FALSE(plan->config.whole_pages);
  EXPECT_EQ(plan->config.keys_of_entry, 16);
  Arguments without = arguments, longer = arguments;
  without.params.erase("q_positions");
  expect_refused(spec, without, "q_positions: missing");
  longer.params["k_positions"].shape[3] = 640;
  expect_refused(spec, longer, "k_positions.shape[3]: 640, must be 40 (pages of a list in the spec)");
  arguments.params["key_count"] = tensor("i32", {3, 7, 2});
  expect_refused("fwd bf16 d=64 heads=4/2 layout=paged(16) select=pages(40)", arguments,
                 "q_positions: given, and the spec does not ask for it; add a mask beside select=");
}

// Loops that gather rows know where they lie in 32 bits, in pieces of 16 bytes.
TEST(Selected, RowsLieWithinReach) {
  const auto plan =
      make_plan(*parse_spec("fwd bf16 d=576/512 heads=64/1 v_in_k select=keys(40)"), **find_target("sm_90a"));
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->key_reach, std::int64_t{1} << 36);
  Arguments arguments = call({3, 7}, {3, 100});
  arguments.k.strides = arguments.v.strides = {std::int64_t{1} << 34, 128, 64, 1};
  EXPECT_TRUE(fill(kSelecting, arguments));
  const auto far = fill(kSelecting, arguments, plan->key_reach);
  ASSERT_FALSE(far);
  EXPECT_EQ(
      far.error().message,
      "k.strides: 68719502336 bytes from the first to the last element, this kernel reaches less than 68719476736; "
      "pass a contiguous copy, or pin family=sync in the schedule");
  arguments.k.strides[0] = (std::int64_t{1} << 34) - 12800;
  EXPECT_TRUE(fill(kSelecting, arguments, plan->key_reach));
}

// A pool without pages has no rows, and a call without queries nothing to do.
TEST(Selected, NothingMayBeThere) {
  const auto no_keys = fill(kSelecting + " layout=paged(16)", call({2, 7}, {0, 16}));
  ASSERT_TRUE(no_keys) << no_keys.error().message;
  expect_sizes(*no_keys, 14, 7, 0);
  const auto no_queries = fill(kSelecting, call({3, 0}, {3, 100}));
  ASSERT_TRUE(no_queries) << no_queries.error().message;
  expect_sizes(*no_queries, 0, 0, 100);
}

}  // namespace
}  // namespace flashjit

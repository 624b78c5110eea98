// Lists of blocks as calls give them.
#include <gtest/gtest.h>

#include <array>
#include <climits>

#include "flashjit/flashjit.hpp"
#include "templates/block_lists/layout.h"
#include "tests/unit/runtime/narrow/filled.h"

namespace flashjit {
namespace {

constexpr char kSpec[] = "fwd bf16 d=64 heads=4/2 blocks=64/128/2 mask=\"k <= q + c\" params=\"c: i32\"";

// 2 sequences of 130 queries and 300 keys, which are 3 blocks each.
Arguments call_with_lists() {
  void* const somewhere = reinterpret_cast<void*>(0x10000);
  void* const lists = reinterpret_cast<void*>(0x2000000);
  Arguments a;
  a.q = {somewhere, "bf16", {2, 130, 4, 64}, {}};
  a.k = a.v = {somewhere, "bf16", {2, 300, 2, 64}, {}};
  a.o = {reinterpret_cast<void*>(0x1000000), "bf16", {2, 130, 4, 64}, {}};
  a.params["block_count"] = {lists, "i32", {2, 2, 3}, {}};
  a.params["block_index"] = {lists, "i32", {2, 2, 3, 5}, {}};
  a.scalars["c"] = 7;
  return a;
}

template <std::size_t n>
std::array<Int64, n> strides_of(const Int64 (&strides)[n]) {
  return std::to_array(strides);
}

TEST(BlockLists, HaveAnyStrides) {
  Arguments arguments = call_with_lists();
  const auto plain = fill(kSpec, arguments);
  ASSERT_TRUE(plain) << plain.error().message;
  EXPECT_EQ(strides_of(plain->listed_blocks.count_stride), (std::array<Int64, 3>{6, 3, 1}));
  EXPECT_EQ(strides_of(plain->listed_blocks.index_stride), (std::array<Int64, 4>{30, 15, 5, 1}));
  EXPECT_EQ(plain->listed_blocks.most, 5);
  EXPECT_EQ(plain->full_blocks.count, nullptr);
  // The tensor of states comes behind the parameters of the call, and as large as it is read.
  EXPECT_EQ(strides_of(plain->extra[1].stride), (std::array<Int64, 4>{18, 9, 3, 1}));
  EXPECT_EQ(strides_of(plain->extra_size[1]), (std::array<Int64, 4>{2, 2, 3, 3}));

  arguments.params["block_count"] = {arguments.params["block_count"].data, "i32", {2, 3}, {1, 2}};
  arguments.params["block_index"].shape = {2, 1, 3, 5};
  arguments.params["block_index"].strides = {1, 100, 2, 6};
  arguments.params["full_count"] = {arguments.params["block_count"].data, "i32", {3}, {}};
  arguments.params["full_index"] = {arguments.params["block_count"].data, "i32", {1, 1, 3, 1}, {}};
  const auto others = fill(kSpec, arguments);
  ASSERT_TRUE(others) << others.error().message;
  EXPECT_EQ(strides_of(others->listed_blocks.count_stride), (std::array<Int64, 3>{0, 1, 2}));
  EXPECT_EQ(strides_of(others->listed_blocks.index_stride), (std::array<Int64, 4>{1, 0, 2, 6}));
  EXPECT_EQ(strides_of(others->full_blocks.count_stride), (std::array<Int64, 3>{0, 0, 1}));
  EXPECT_EQ(others->full_blocks.index_stride[2], 1);
  EXPECT_EQ(others->full_blocks.most, 1);
}

TEST(BlockLists, OfPackedSequencesAreThoseOfTheLongest) {
  Arguments arguments = call_with_lists();
  void* const somewhere = reinterpret_cast<void*>(0x10000);
  arguments.q.shape = {200, 4, 64}, arguments.o.shape = {200, 4, 64};
  arguments.k.shape = arguments.v.shape = {400, 2, 64};
  arguments.offsets_q = arguments.offsets_k = {somewhere, "i32", {3}, {}};
  arguments.max_q_len = 130, arguments.max_k_len = 300;
  const std::string packed = std::string(kSpec) + " layout=packed";
  const auto params = fill(packed, arguments);
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_EQ(strides_of(params->extra_size[1]), (std::array<Int64, 4>{2, 2, 3, 3}));
  arguments.max_q_len = 128;
  expect_refused(packed, arguments, "block_count.shape[2]: 3, must be 2 (blocks of queries)");
}

TEST(BlockLists, OtherSizesAreRefused) {
  const auto with = [](const char* name, std::vector<std::int64_t> shape) {
    Arguments arguments = call_with_lists();
    arguments.params[name].shape = std::move(shape);
    return arguments;
  };
  expect_refused(kSpec, with("block_count", {3, 2, 3}), "block_count.shape[0]: 3, must be 2 (batch of q)");
  expect_refused(kSpec, with("block_count", {2, 4, 3}),
                 "block_count.shape[1]: 4, must be 2 (heads of lists in the spec)");
  expect_refused(kSpec, with("block_index", {2, 2, 2, 5}), "block_index.shape[2]: 2, must be 3 (blocks of queries)");
  expect_refused(kSpec, with("block_index", {2, 2, 3, 1, 5}), "block_index.shape: 5 dimensions, must have 4");
  Arguments half = call_with_lists();
  half.params["full_index"] = half.params["block_index"];
  expect_refused(kSpec, half,
                 "full_count: missing, and full_index is given; give both, or none where no block is full");
  Arguments states = call_with_lists();
  states.params["block_states"] = {states.params["block_count"].data, "u8", {2, 2, 3, 3}, {}};
  expect_refused(kSpec, states, "params.block_states: the spec has no parameter of this name; it has c");
}

TEST(BlockLists, NumbersThatAreNoneArePassedOver) {
  const int count[] = {100}, index[] = {1, -1, 3, INT_MAX, INT_MIN, 1, 0};
  BlockLists lists = {.count = count, .index = index, .most = 6};
  lists.index_stride[3] = 1;
  unsigned char states[3] = {};
  mark_blocks(lists, 0, 0, 0, 3, kBlockListed, 0, 1, states);
  EXPECT_EQ(states[0], kBlockLeftOut);  // it is behind the room
  EXPECT_EQ(states[1], kBlockListed);
  EXPECT_EQ(states[2], kBlockLeftOut);
  const int none[] = {-5};
  lists.count = none;
  mark_blocks(lists, 0, 0, 0, 3, kBlockFull, 0, 1, states);
  EXPECT_EQ(states[1], kBlockListed);
}

}  // namespace
}  // namespace flashjit

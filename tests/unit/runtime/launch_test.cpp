// Kernels on a driver that only records: what is launched, and that run() allocates nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "tests/unit/runtime/launch_fixture.h"

namespace {
thread_local std::int64_t allocations = 0;
}

// Not inlined: gcc would see malloc() beside operator delete and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes ? bytes : 1);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace flashjit {
namespace {

TEST_F(LaunchTest, OneBlockPerTileHeadAndSequence) {
  record.pushes = record.pops = 0;
  void* const stream = data(0x77);
  ASSERT_TRUE(static_cast<Kernel&>(*kernel).run(arguments, stream));
  EXPECT_EQ(record.launches, 1);
  EXPECT_EQ(record.config.grid_x, 3u * 3 * 4);
  EXPECT_EQ(record.config.block_x, 128u);
  EXPECT_EQ(record.config.shared_bytes, 70000u);
  EXPECT_EQ(static_cast<void*>(record.config.stream), stream);
  EXPECT_EQ(record.params.q, data(0x1000));
  EXPECT_EQ(record.params.tiles_q, 3);
  // Another context was current: ours is pushed, and taken away again.
  EXPECT_EQ(record.pushes, 1);
  EXPECT_EQ(record.pops, 1);
  record.current = kContext;
  ASSERT_TRUE(static_cast<Kernel&>(*kernel).run(arguments, stream));
  EXPECT_EQ(record.pushes, 1);
}

TEST_F(LaunchTest, HopperKernelsGetTensorMaps) {
  load(hopper());
  ASSERT_TRUE(static_cast<Kernel&>(*kernel).run(arguments, nullptr));
  EXPECT_EQ(record.launches, 1);
  EXPECT_EQ(record.encodings, 3);
  const TensorMap* maps[] = {&record.maps.q, &record.maps.k, &record.maps.v};
  const std::uint64_t addresses[] = {0x1000, 0x2000, 0x3000}, tokens[] = {130, 200, 200};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(maps[i]->words[0], addresses[i]);
    EXPECT_EQ(maps[i]->words[1], 4u);
    EXPECT_EQ(maps[i]->words[2], tokens[i]);
  }
  KernelConfig stores_by_tma = hopper();
  stores_by_tma.output = Element::bf16;
  stores_by_tma.hopper.q_stages = 2;
  load(stores_by_tma);
  ASSERT_TRUE(static_cast<Kernel&>(*kernel).run(arguments, nullptr));
  EXPECT_EQ(record.encodings, 4);
  EXPECT_EQ(record.maps.o.words[0], 0xa0000u);
}

TEST_F(LaunchTest, GridsOfHopperKernels) {
  KernelConfig c = hopper();
  expect_grid(c, 3 * 4 * 3, 3);  // tiles, heads, sequences
  c.hopper.grid = GridKind::persistent;
  expect_grid(c, 21, 3);  // one for each SM
  c.hopper.grid = GridKind::tiles;
  c.head_tiles = HeadTiles::grouped;
  expect_grid(c, 5 * 2 * 3, 5);  // 32 queries of both heads of a group
  c.hopper.grid = GridKind::persistent;
  expect_grid(c, 21, 5);
  for (Tensor* tensor : {&arguments.q, &arguments.k, &arguments.v, &arguments.o}) tensor->shape[0] = 1;
  arguments.q.shape[1] = arguments.o.shape[1] = 20;
  arguments.lse = {data(0x90000), "fp32", {1, 4, 20}, {}};
  ASSERT_TRUE(static_cast<Kernel&>(*kernel).run(arguments, nullptr));
  EXPECT_EQ(record.config.grid_x, 2u);  // fewer items than SMs
}

TEST_F(LaunchTest, CountersOfAStreamAndOfGraphs) {
  load(persistent());
  EXPECT_EQ(record.allocated, 1);
  EXPECT_EQ(record.zeroed, 1);
  EXPECT_EQ(record.waits, 1);  // for the zeros
  const int* one = counters_of_launch(data(0x1));
  const int* two = counters_of_launch(data(0x2));
  ASSERT_TRUE(one && two);
  EXPECT_NE(one, two);
  EXPECT_EQ(counters_of_launch(data(0x1)), one);
  EXPECT_EQ(counters_of_launch(data(0x2)), two);
  // Recorded launches: each its own, also on one stream.
  const int* first = counters_of_launch(data(0x1), true);
  const int* second = counters_of_launch(data(0x1), true);
  ASSERT_TRUE(first && second);
  EXPECT_NE(first, second);
  EXPECT_NE(first, one);
  EXPECT_NE(second, one);
  const auto* memory = reinterpret_cast<const int*>(kCounters);
  for (const int* pair : {one, two, first, second}) {
    EXPECT_GE(pair - memory, 0);
    EXPECT_LT(pair - memory, CounterSlots::kPairs * 2);
    EXPECT_EQ((pair - memory) % 2, 0);
  }
  for (int i = 2; i < CounterSlots::kGraphLaunches; ++i) EXPECT_NE(counters_of_launch(data(0x1), true), nullptr);
  EXPECT_EQ(counters_of_launch(data(0x1), true), nullptr);
  EXPECT_EQ(counters_of_launch(data(0x1)), one);
  kernel = nullptr;
  EXPECT_EQ(record.freed, 1);
}

TEST_F(LaunchTest, WhichKernelsTakeItems) {
  KernelConfig c = persistent();
  c.hopper.grid = GridKind::tiles;
  load(c);
  EXPECT_EQ(counters_of_launch(nullptr), nullptr);
  load(persistent(), Numerics::Deterministic);
  EXPECT_NE(counters_of_launch(nullptr), nullptr) << "who takes an item changes no bit of it";
}

TEST_F(LaunchTest, RunAllocatesNothing) {
  for (const KernelConfig& config : {KernelConfig{}, hopper(), persistent()}) {
    load(config);
    Kernel& prepared = *kernel;
    const std::int64_t before = allocations;
    for (int i = 0; i < 100; ++i) {
      if (!prepared.run(arguments, nullptr)) break;
    }
    const std::int64_t after = allocations;
    EXPECT_EQ(record.launches, 100);
    EXPECT_EQ(after - before, 0);
  }
}

TEST_F(LaunchTest, SeveralKernelsOneAfterTheOther) {
  load_three();
  EXPECT_EQ(record.loaded, 3);
  with_201_keys();
  ASSERT_EQ(*static_cast<Kernel&>(*kernel).workspace_bytes(arguments), kBuffers);
  arguments.workspace = data(0x100000);
  arguments.workspace_bytes = kBuffers;
  ASSERT_TRUE(static_cast<Kernel&>(*kernel).run(arguments, nullptr));
  ASSERT_EQ(record.launches, 3);
  void* const first = data(0x100000);
  void* const second = data(0x100000 + 1254400);
  const Step expected[] = {{data(0x41), 3 * 4 * 4 * 3, 96, 4096, 3, {first, second}},
                           {data(0x42), 130 * 4 * 3, 32, 0, 3, {second, first}},
                           {data(0x43), 7 * 2 * 3, 64, 0, 3, {second, second}}};
  for (int i = 0; i < 3; ++i) {
    SCOPED_TRACE(kEntries[i + 1]);
    EXPECT_EQ(record.steps[i].function, expected[i].function);
    EXPECT_EQ(record.steps[i].blocks, expected[i].blocks);
    EXPECT_EQ(record.steps[i].threads, expected[i].threads);
    EXPECT_EQ(record.steps[i].smem, expected[i].smem);
    EXPECT_EQ(record.steps[i].batch, expected[i].batch);
    EXPECT_EQ(record.steps[i].buffers[0], expected[i].buffers[0]);
    EXPECT_EQ(record.steps[i].buffers[1], expected[i].buffers[1]);
  }
}

TEST_F(LaunchTest, WorkspaceMustBeThere) {
  load_three();
  with_201_keys();
  const std::string needed = "this call needs " + std::to_string(kBuffers) +
                             " bytes; Kernel::workspace_bytes() and flashjit_workspace_bytes() tell";
  expect_refused("workspace: missing, " + needed);
  arguments.workspace_bytes = kBuffers;
  expect_refused("workspace: missing, " + needed);
  arguments.workspace = data(0x100000);
  arguments.workspace_bytes = kBuffers - 1;
  expect_refused("workspace: " + std::to_string(kBuffers - 1) + " bytes, " + needed);
  arguments.workspace_bytes = kBuffers;
  arguments.workspace = data(0x100080);
  expect_refused("workspace: address 0x100080, must be a multiple of 256");
  arguments.q.dtype = "fp16";
  const auto bytes = static_cast<Kernel&>(*kernel).workspace_bytes(arguments);
  ASSERT_FALSE(bytes);
  EXPECT_NE(bytes.error().message.find("q.dtype: 'fp16'"), std::string::npos) << bytes.error().message;
}

TEST_F(LaunchTest, NoWorkspaceForNothing) {
  EXPECT_EQ(*static_cast<Kernel&>(*kernel).workspace_bytes({}), 0) << "a kernel that uses none looks at no argument";
  load_three();
  for (Tensor* tensor : {&arguments.k, &arguments.v}) tensor->shape[1] = 0;
  EXPECT_EQ(*static_cast<Kernel&>(*kernel).workspace_bytes(arguments), 0);
  ASSERT_TRUE(static_cast<Kernel&>(*kernel).run(arguments, nullptr));
  ASSERT_EQ(record.launches, 1) << "what is cut along the keys has no blocks";
  EXPECT_EQ(record.steps[0].function, data(0x42));
}

TEST_F(LaunchTest, SeveralKernelsAllocateNothing) {
  load_three();
  arguments.workspace = data(0x100000);
  arguments.workspace_bytes = kBuffers;
  Kernel& prepared = *kernel;
  const std::int64_t before = allocations;
  for (int i = 0; i < 100; ++i) {
    if (!prepared.run(arguments, nullptr)) break;
  }
  const std::int64_t after = allocations;
  EXPECT_EQ(record.launches, 300);
  EXPECT_EQ(after - before, 0);
}

TEST_F(LaunchTest, NothingIsLaunchedForNothing) {
  for (Tensor* tensor : {&arguments.q, &arguments.o}) tensor->shape[1] = 0;
  arguments.lse.shape[2] = 0;
  ASSERT_TRUE(static_cast<Kernel&>(*kernel).run(arguments, nullptr));
  EXPECT_EQ(record.launches, 0);
}

TEST_F(LaunchTest, ADriverErrorHasNameTextAndRemedy) {
  record.launch_result = 700;
  const auto done = static_cast<Kernel&>(*kernel).run(arguments, nullptr);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().kind, ErrorKind::Driver);
  for (const char* words :
       {"cuLaunchKernelEx", "CUDA_ERROR_ILLEGAL_ADDRESS (700)", "an illegal memory access", "device pointers"}) {
    EXPECT_NE(done.error().message.find(words), std::string::npos) << done.error().message;
  }
}

}  // namespace
}  // namespace flashjit

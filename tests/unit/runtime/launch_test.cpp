// Kernels on a driver that only records: what is launched, and that run() allocates nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "compiler/families/family.h"
#include "runtime/launch/kernels.h"

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

// One launch of a kernel that uses a workspace.
struct Step {
  void* function;
  unsigned blocks, threads, smem;
  int batch;
  void* buffers[2];
};

struct Record {
  int launches = 0, pushes = 0, pops = 0, smem_limit = 0, loaded = 0;
  Step steps[8];
  CuLaunchConfig config;
  KernelParams params;
  TensorMaps maps;  // of hopper kernels
  int encodings = 0, allocated = 0, freed = 0, zeroed = 0, waits = 0;
  int capturing = 0;
  CuContext current = nullptr;
  CuResult launch_result = 0;
} record;
bool hopper_kernel = false;  // it has a second argument
int buffers_of_kernel = 0;   // as many arguments follow the first
constexpr const char* kEntries[] = {"flashjit_forward", "scores", "softmax", "product"};
constexpr CuPointer kCounters = 0x7000000;

const auto kContext = reinterpret_cast<CuContext>(0x10);

void record_contexts(DriverApi& api) {
  api.get_error_name = [](CuResult, const char** name) {
    *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
    return 0;
  };
  api.get_error_string = [](CuResult, const char** text) {
    *text = "an illegal memory access was encountered";
    return 0;
  };
  api.get_context = [](CuContext* context) {
    *context = record.current;
    return 0;
  };
  api.push_context = [](CuContext) {
    ++record.pushes;
    return 0;
  };
  api.pop_context = [](CuContext*) {
    ++record.pops;
    return 0;
  };
  api.exchange_capture_mode = [](int*) { return 0; };
}

void record_kernels(DriverApi& api) {
  api.library_load = [](CuLibrary* library, const void*, int*, void**, unsigned, int*, void**, unsigned) {
    *library = reinterpret_cast<CuLibrary>(0x20);
    return 0;
  };
  api.library_unload = [](CuLibrary) { return 0; };
  api.library_kernel = [](CuKernel* kernel, CuLibrary, const char* name) {
    const auto known = std::find_if(std::begin(kEntries), std::end(kEntries),
                                    [&](const char* entry) { return std::strcmp(entry, name) == 0; });
    *kernel = reinterpret_cast<CuKernel>(0x30 + (known - kEntries));
    return known == std::end(kEntries) ? 500 : 0;
  };
  api.kernel_set_attribute = [](int, int value, CuKernel, CuDevice) {
    record.smem_limit = value;
    return 0;
  };
  api.kernel_function = [](CuFunction* function, CuKernel kernel) {
    *function = reinterpret_cast<CuFunction>(reinterpret_cast<std::uintptr_t>(kernel) + 0x10);
    return 0;
  };
  api.function_load = [](CuFunction) {
    ++record.loaded;
    return 0;
  };
  api.tensor_map_encode = [](TensorMap* map, int, std::uint32_t rank, void* data, const std::uint64_t* size,
                             const std::uint64_t*, const std::uint32_t*, const std::uint32_t*, int, int, int, int) {
    ++record.encodings;
    *map = {{reinterpret_cast<std::uintptr_t>(data), rank, size[1]}};
    return 0;
  };
}

void record_memory(DriverApi& api) {
  api.memory_allocate = [](CuPointer* pointer, std::size_t) {
    ++record.allocated;
    *pointer = kCounters;
    return 0;
  };
  api.memory_free = [](CuPointer) {
    ++record.freed;
    return 0;
  };
  api.memory_set = [](CuPointer pointer, unsigned char value, std::size_t bytes, CuStream) {
    record.zeroed += pointer == kCounters && value == 0 && bytes == CounterPlaces::kPairs * 2 * sizeof(int);
    return 0;
  };
}

void record_streams(DriverApi& api) {
  api.stream_create = [](CuStream* stream, unsigned) {
    *stream = reinterpret_cast<CuStream>(0x50);
    return 0;
  };
  api.stream_destroy = [](CuStream) { return 0; };
  api.stream_synchronize = [](CuStream) {
    record.waits += record.zeroed;
    return 0;
  };
  api.stream_is_capturing = [](CuStream, int* capturing) {
    *capturing = record.capturing;
    return 0;
  };
  api.stream_id = [](CuStream stream, unsigned long long* id) {
    *id = reinterpret_cast<std::uintptr_t>(stream);
    return 0;
  };
}

void record_launches(DriverApi& api) {
  api.launch = [](const CuLaunchConfig* config, CuFunction function, void** arguments, void**) {
    Step& step = record.steps[record.launches++ % std::size(record.steps)];
    step = {function,
            config->grid_x,
            config->block_x,
            config->shared_bytes,
            static_cast<const KernelParams*>(arguments[0])->batch,
            {}};
    for (int i = 0; i < buffers_of_kernel; ++i) step.buffers[i] = *static_cast<void**>(arguments[1 + i]);
    record.config = *config;
    std::memcpy(&record.params, arguments[0], sizeof record.params);
    if (hopper_kernel) std::memcpy(&record.maps, arguments[1], sizeof record.maps);
    return record.launch_result;
  };
}

DriverApi recording_driver() {
  DriverApi api;
  record_contexts(api);
  record_kernels(api);
  record_memory(api);
  record_streams(api);
  record_launches(api);
  return api;
}

class LaunchTest : public testing::Test {
 protected:
  void SetUp() override { load({}); }

  // The kernel that every test launches; a configuration of the hopper loop makes it one of that family.
  void load(const KernelConfig& config, Numerics numerics = Numerics::Fast) {
    Compiled compiled;
    auto spec = parse_spec(
        "fwd bf16 d=64 heads=4/2 lse=ln params=\"pos: fp32[3], cap: fp32\" mask=\"causal\" "
        "score=\"s * cap + pos[h, q, k]\"");
    ASSERT_TRUE(spec) << spec.error().message;
    compiled.plan.spec = *spec;
    compiled.plan.spec.numerics = numerics;
    compiled.plan.target.gpu = true;
    compiled.plan.target.sm_count = 21;
    const KernelConfig& c = compiled.plan.config = config;
    const bool tma = c.hopper.warpgroups > 0;
    if (tma) find_family("hopper")->finish(compiled.plan);
    compiled.plan.launches = {{.entry = "flashjit_forward",
                               .threads = 128,
                               .smem_bytes = 70000,
                               .grid = {.queries = tma ? queries_per_tile(c) : 64,
                                        .heads = c.head_tiles == HeadTiles::grouped ? 2 : 4,
                                        .persistent = c.hopper.grid == GridKind::persistent},
                               .tensor_maps = tma}};
    load(compiled);
    EXPECT_EQ(record.smem_limit, 70000);
    EXPECT_EQ(record.loaded, 1);
    arguments.q = {data(0x1000), "bf16", {3, 130, 4, 64}, {}};
    arguments.k = {data(0x2000), "bf16", {3, 200, 2, 64}, {}};
    arguments.v = {data(0x3000), "bf16", {3, 200, 2, 64}, {}};
    arguments.o = {data(0xa0000), "bf16", {3, 130, 4, 64}, {}};
    arguments.lse = {data(0x90000), "fp32", {3, 4, 130}, {}};
    arguments.params["pos"] = {data(0x6000), "fp32", {4, 130, 200}, {}};
    arguments.scalars["cap"] = 1.5;
  }
  void load(Compiled& compiled) {
    kernel = nullptr;
    record = {};
    hopper_kernel = compiled.plan.launches.front().tensor_maps;
    buffers_of_kernel = 0;
    GpuContext gpu;
    gpu.driver = std::make_shared<Driver>(recording_driver());
    gpu.context = kContext;
    compiled.binary = std::make_shared<const StoreEntry>();
    auto counters = WorkCounters::create(gpu);
    ASSERT_TRUE(counters) << counters.error().message;
    auto loaded = GpuKernel::load(gpu, 0, compiled, *counters);
    ASSERT_TRUE(loaded) << loaded.error().message;
    kernel = *loaded;
  }
  // Three kernels that share two buffers: scores [batch, head, query, key], and something for whole tiles of 64 keys.
  void load_three() {
    Compiled compiled;
    auto spec = parse_spec("fwd bf16 d=64 heads=4/2");
    ASSERT_TRUE(spec);
    compiled.plan.spec = *spec;
    compiled.plan.target.gpu = true;
    compiled.plan.launches = {
        {.entry = "scores",
         .threads = 96,
         .smem_bytes = 4096,
         .grid = {.queries = 64, .keys = 64, .heads = 4},
         .buffers = {0, 1}},
        {.entry = "softmax", .threads = 32, .grid = {.queries = 1, .heads = 4}, .buffers = {1, 0}},
        {.entry = "product", .threads = 64, .grid = {.keys = 32, .heads = 2}, .buffers = {1, 1}}};
    const Extent batch{&CallSizes::batch}, queries{&CallSizes::q_len}, keys{&CallSizes::k_len};
    compiled.plan.workspace = {{"scores", "void", 4 * 4, {batch, queries, keys}},
                               {"probabilities", "void", 2 * 4, {batch, queries, {&CallSizes::k_len, 64}}}};
    load(compiled);
    buffers_of_kernel = 2;
    arguments.lse = {};
    arguments.params.clear();
    arguments.scalars.clear();
  }
  // 3 sequences of 130 queries and 201 keys; 4 heads.
  static constexpr std::int64_t kScores = 3 * 4 * 130 * 201 * 4;
  static constexpr std::int64_t kFree = 160;  // up to the next multiple of 256
  static constexpr std::int64_t kBuffers = kScores + kFree + 3 * 4 * 130 * 256 * 2;
  void with_201_keys() {
    for (Tensor* tensor : {&arguments.k, &arguments.v}) tensor->shape[1] = 201;
  }
  void expect_refused(const std::string& words) {
    const auto done = static_cast<Kernel&>(*kernel).run(arguments, nullptr);
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().kind, ErrorKind::Invalid);
    EXPECT_NE(done.error().message.find(words), std::string::npos) << done.error().message;
    EXPECT_EQ(record.launches, 0);
  }
  // Tiles of 64 queries; 130 queries are 3 of them.
  static KernelConfig hopper() {
    KernelConfig c;
    c.head_dim_qk = c.head_dim_v = 64;
    c.heads_q = 4, c.heads_kv = 2;
    c.hopper.warpgroups = 1;
    c.tile_q = 64, c.tile_kv = 128;
    return c;
  }
  void expect_grid(const KernelConfig& config, unsigned blocks, int tiles_q) {
    load(config);
    ASSERT_TRUE(static_cast<Kernel&>(*kernel).run(arguments, nullptr));
    EXPECT_EQ(record.config.grid_x, blocks);
    EXPECT_EQ(record.params.tiles_q, tiles_q);
  }
  const int* counters_of_launch(void* stream, bool capturing = false) {
    record.capturing = capturing;
    record.params.work_counters = nullptr;
    EXPECT_TRUE(static_cast<Kernel&>(*kernel).run(arguments, stream));
    return record.params.work_counters;
  }
  static KernelConfig persistent() {
    KernelConfig c = hopper();
    c.hopper.grid = GridKind::persistent;
    c.reference = Reference::first;
    return c;
  }
  static void* data(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

  std::shared_ptr<GpuKernel> kernel;
  Arguments arguments;
};

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
    EXPECT_LT(pair - memory, CounterPlaces::kPairs * 2);
    EXPECT_EQ((pair - memory) % 2, 0);
  }
  for (int i = 2; i < CounterPlaces::kGraphLaunches; ++i) EXPECT_NE(counters_of_launch(data(0x1), true), nullptr);
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

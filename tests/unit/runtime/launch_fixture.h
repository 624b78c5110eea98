// Kernels on a driver that only records what is launched.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "compiler/families/family.h"
#include "runtime/launch/kernels.h"

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
    record.zeroed += pointer == kCounters && value == 0 && bytes == CounterSlots::kPairs * 2 * sizeof(int);
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

}  // namespace
}  // namespace flashjit

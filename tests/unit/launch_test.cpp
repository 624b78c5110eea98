// Kernels on a driver that only records: what is launched, and that run() allocates nothing.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "runtime/kernels.h"

namespace {
thread_local std::int64_t allocations = 0;
}

void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes ? bytes : 1);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace flashjit {
namespace {

struct Record {
  int launches = 0, pushes = 0, pops = 0, smem_limit = 0, loaded = 0;
  CuLaunchConfig config;
  KernelParams params;
  CuContext current = nullptr;
  CuResult launch_result = 0;
} record;

const auto kContext = reinterpret_cast<CuContext>(0x10);

DriverApi recording_driver() {
  DriverApi api;
  api.get_error_name = [](CuResult, const char** name) { *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return 0; };
  api.get_error_string = [](CuResult, const char** text) { *text = "an illegal memory access was encountered"; return 0; };
  api.get_context = [](CuContext* context) { *context = record.current; return 0; };
  api.push_context = [](CuContext) { ++record.pushes; return 0; };
  api.pop_context = [](CuContext*) { ++record.pops; return 0; };
  api.exchange_capture_mode = [](int*) { return 0; };
  api.library_load = [](CuLibrary* library, const void*, int*, void**, unsigned, int*, void**, unsigned) {
    *library = reinterpret_cast<CuLibrary>(0x20);
    return 0;
  };
  api.library_unload = [](CuLibrary) { return 0; };
  api.library_kernel = [](CuKernel* kernel, CuLibrary, const char* name) {
    *kernel = reinterpret_cast<CuKernel>(0x30);
    return std::strcmp(name, "flashjit_forward") == 0 ? 0 : 500;
  };
  api.kernel_set_attribute = [](int, int value, CuKernel, CuDevice) { record.smem_limit = value; return 0; };
  api.kernel_function = [](CuFunction* function, CuKernel) { *function = reinterpret_cast<CuFunction>(0x40); return 0; };
  api.function_load = [](CuFunction) { ++record.loaded; return 0; };
  api.launch = [](const CuLaunchConfig* config, CuFunction, void** arguments, void**) {
    ++record.launches;
    record.config = *config;
    std::memcpy(&record.params, arguments[0], sizeof record.params);
    return record.launch_result;
  };
  return api;
}

class LaunchTest : public testing::Test {
 protected:
  void SetUp() override {
    record = {};
    GpuContext gpu;
    gpu.driver = std::make_shared<Driver>(recording_driver());
    gpu.context = kContext;
    Compiled compiled;
    auto spec = parse_spec("fwd bf16 d=64 heads=4/2 lse=ln params=\"pos: fp32[3], cap: fp32\" mask=\"causal\" "
                           "score=\"s * cap + pos[h, q, k]\"");
    ASSERT_TRUE(spec) << spec.error().message;
    compiled.plan.spec = *spec;
    compiled.plan.target.gpu = true;
    compiled.plan.schedule.tile_q = 64;
    compiled.plan.threads = 128;
    compiled.plan.smem_bytes = 70000;
    compiled.source.entries = {"flashjit_forward"};
    compiled.binary = std::make_shared<const StoreEntry>();
    auto loaded = GpuKernel::load(gpu, 0, compiled);
    ASSERT_TRUE(loaded) << loaded.error().message;
    kernel = *loaded;
    EXPECT_EQ(record.smem_limit, 70000);
    EXPECT_EQ(record.loaded, 1);
    arguments.q = {data(0x1000), "bf16", {3, 130, 4, 64}, {}};
    arguments.k = {data(0x2000), "bf16", {3, 200, 2, 64}, {}};
    arguments.v = {data(0x3000), "bf16", {3, 200, 2, 64}, {}};
    arguments.o = {data(0x4000), "bf16", {3, 130, 4, 64}, {}};
    arguments.lse = {data(0x5000), "fp32", {3, 4, 130}, {}};
    arguments.params["pos"] = {data(0x6000), "fp32", {4, 130, 200}, {}};
    arguments.scalars["cap"] = 1.5;
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

TEST_F(LaunchTest, RunAllocatesNothing) {
  Kernel& prepared = *kernel;
  const std::int64_t before = allocations;
  for (int i = 0; i < 100; ++i) {
    if (!prepared.run(arguments, nullptr)) break;
  }
  const std::int64_t after = allocations;
  EXPECT_EQ(record.launches, 100);
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
  for (const char* words : {"cuLaunchKernelEx", "CUDA_ERROR_ILLEGAL_ADDRESS (700)", "an illegal memory access", "device pointers"}) {
    EXPECT_NE(done.error().message.find(words), std::string::npos) << done.error().message;
  }
}

}  // namespace
}  // namespace flashjit

// The CUDA driver is opened at run time through its own entry point look-up, without a CUDA header. This is a thin,
// checked layer: calls return Result, and messages carry the driver's name for the error, its text and the remedy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include "compiler/result.h"
#include "templates/kernel_params.h"

namespace flashjit {

// These are the types of the driver's stable C interface that FlashJIT uses.
using CuResult = int;
using CuDevice = int;
using CuContext = struct CuContextOpaque*;
using CuStream = struct CuStreamOpaque*;
using CuEvent = struct CuEventOpaque*;
using CuFunction = struct CuFunctionOpaque*;
using CuKernel = struct CuKernelOpaque*;
using CuLibrary = struct CuLibraryOpaque*;
using CuGraph = struct CuGraphOpaque*;
using CuGraphExec = struct CuGraphExecOpaque*;
using CuPointer = std::uint64_t;

struct CuLaunchAttribute {
  static constexpr int kCluster = 4;  // The value is the number of blocks of a cluster.
  // Programmatic stream serialization: the launch may begin before the launch before it has ended, for which its kernel
  // itself waits.
  static constexpr int kOverlaps = 6;
  int id;
  int padding = 0;
  union {
    int value;
    unsigned dims[3];
    char all[64] = {};
  };
};

struct CuLaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  CuStream stream;
  CuLaunchAttribute* attributes;
  unsigned attribute_count;
};

// Each row is a function: its member, exported name and type, and the version whose signature is meant.
// clang-format off
#define FLASHJIT_DRIVER_FUNCTIONS(row)                                                                         \
  row(get_error_name, "cuGetErrorName", CuResult (*)(CuResult, const char**), 6000)                            \
  row(get_error_string, "cuGetErrorString", CuResult (*)(CuResult, const char**), 6000)                        \
  row(init, "cuInit", CuResult (*)(unsigned), 2000)                                                            \
  row(driver_version, "cuDriverGetVersion", CuResult (*)(int*), 2020)                                          \
  row(device_count, "cuDeviceGetCount", CuResult (*)(int*), 2000)                                              \
  row(device_get, "cuDeviceGet", CuResult (*)(CuDevice*, int), 2000)                                           \
  row(device_name, "cuDeviceGetName", CuResult (*)(char*, int, CuDevice), 2000)                                \
  row(device_uuid, "cuDeviceGetUuid", CuResult (*)(char*, CuDevice), 11040)                                    \
  row(device_attribute, "cuDeviceGetAttribute", CuResult (*)(int*, int, CuDevice), 2000)                       \
  row(device_memory, "cuDeviceTotalMem", CuResult (*)(std::size_t*, CuDevice), 3020)                           \
  row(retain_context, "cuDevicePrimaryCtxRetain", CuResult (*)(CuContext*, CuDevice), 7000)                    \
  row(get_context, "cuCtxGetCurrent", CuResult (*)(CuContext*), 4000)                                          \
  row(push_context, "cuCtxPushCurrent", CuResult (*)(CuContext), 4000)                                         \
  row(pop_context, "cuCtxPopCurrent", CuResult (*)(CuContext*), 4000)                                          \
  row(library_load, "cuLibraryLoadData",                                                                       \
      CuResult (*)(CuLibrary*, const void*, int*, void**, unsigned, int*, void**, unsigned), 12000)            \
  row(library_unload, "cuLibraryUnload", CuResult (*)(CuLibrary), 12000)                                       \
  row(library_kernel, "cuLibraryGetKernel", CuResult (*)(CuKernel*, CuLibrary, const char*), 12000)            \
  row(kernel_set_attribute, "cuKernelSetAttribute", CuResult (*)(int, int, CuKernel, CuDevice), 12000)         \
  row(kernel_function, "cuKernelGetFunction", CuResult (*)(CuFunction*, CuKernel), 12000)                      \
  row(launch, "cuLaunchKernelEx", CuResult (*)(const CuLaunchConfig*, CuFunction, void**, void**), 11060)      \
  row(active_clusters, "cuOccupancyMaxActiveClusters",                                                         \
      CuResult (*)(int*, CuFunction, const CuLaunchConfig*), 11070)                                            \
  row(tensor_map_encode, "cuTensorMapEncodeTiled",                                                             \
      CuResult (*)(TensorMap*, int, std::uint32_t, void*, const std::uint64_t*, const std::uint64_t*,          \
                   const std::uint32_t*, const std::uint32_t*, int, int, int, int), 12000)                     \
  row(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", CuResult (*)(int*), 10010)                   \
  row(stream_is_capturing, "cuStreamIsCapturing", CuResult (*)(CuStream, int*), 10000)                         \
  row(stream_id, "cuStreamGetId", CuResult (*)(CuStream, unsigned long long*), 12000)                          \
  row(stream_create, "cuStreamCreate", CuResult (*)(CuStream*, unsigned), 2000)                                \
  row(stream_destroy, "cuStreamDestroy", CuResult (*)(CuStream), 4000)                                         \
  row(stream_synchronize, "cuStreamSynchronize", CuResult (*)(CuStream), 2000)                                 \
  row(begin_capture, "cuStreamBeginCapture", CuResult (*)(CuStream, int), 10010)                               \
  row(end_capture, "cuStreamEndCapture", CuResult (*)(CuStream, CuGraph*), 10000)                              \
  row(graph_instantiate, "cuGraphInstantiateWithFlags",                                                         \
      CuResult (*)(CuGraphExec*, CuGraph, unsigned long long), 11040)                                          \
  row(graph_launch, "cuGraphLaunch", CuResult (*)(CuGraphExec, CuStream), 10000)                               \
  row(graph_exec_destroy, "cuGraphExecDestroy", CuResult (*)(CuGraphExec), 10000)                              \
  row(graph_destroy, "cuGraphDestroy", CuResult (*)(CuGraph), 10000)                                           \
  row(event_create, "cuEventCreate", CuResult (*)(CuEvent*, unsigned), 2000)                                   \
  row(event_destroy, "cuEventDestroy", CuResult (*)(CuEvent), 4000)                                            \
  row(event_record, "cuEventRecord", CuResult (*)(CuEvent, CuStream), 2000)                                    \
  row(event_synchronize, "cuEventSynchronize", CuResult (*)(CuEvent), 2000)                                    \
  row(event_elapsed, "cuEventElapsedTime", CuResult (*)(float*, CuEvent, CuEvent), 2000)                       \
  row(memory_allocate, "cuMemAlloc", CuResult (*)(CuPointer*, std::size_t), 3020)                              \
  row(memory_free, "cuMemFree", CuResult (*)(CuPointer), 3020)                                                 \
  row(memory_set, "cuMemsetD8Async", CuResult (*)(CuPointer, unsigned char, std::size_t, CuStream), 3020)      \
  row(copy_to_device, "cuMemcpyHtoDAsync", CuResult (*)(CuPointer, const void*, std::size_t, CuStream), 3020)  \
  row(copy_to_host, "cuMemcpyDtoHAsync", CuResult (*)(void*, CuPointer, std::size_t, CuStream), 3020)
// clang-format on

struct DriverApi {
#define FLASHJIT_DECLARE(member, name, type, version) std::add_pointer_t<std::remove_pointer_t<type>> member = nullptr;
  FLASHJIT_DRIVER_FUNCTIONS(FLASHJIT_DECLARE)
#undef FLASHJIT_DECLARE
  CuResult (*function_load)(CuFunction) = nullptr;  // It exists from 12.4 on. Without it the first launch loads.
};

struct GpuInfo {
  int ordinal = 0;
  std::string name, uuid;  // for example "NVIDIA H200" and "GPU-8f6f..."
  int major = 0, minor = 0;
  int sm_count = 0;
  int smem_per_block = 0;  // the most that a block can ask for
  std::int64_t l2_bytes = 0, memory_bytes = 0;
};

class Driver {
 public:
  // Opens and initialises the process-wide driver. Error NotFound means that there is no driver or no GPU; error Driver
  // means that it does not work.
  static Result<std::shared_ptr<const Driver>> open();
  explicit Driver(const DriverApi& functions, int version = 0) : api(functions), version_(version) {}

  const DriverApi api;
  int version() const { return version_; }  // 13000 is CUDA 13.0.
  const std::string& path() const { return path_; }
  int device_count() const { return device_count_; }
  Result<GpuInfo> device(int ordinal) const;

  // Returns nothing if the call worked, else an error with the driver's name for it, its text and the remedy.
  Result<void> check(CuResult code, const char* call) const {
    if (code == 0) return {};
    return error(code, call);
  }
  Error error(CuResult code, const char* call) const;

 private:
  static Result<std::shared_ptr<const Driver>> load();

  int version_, device_count_ = 0;
  std::string path_;
};

// A GPU's primary context is the one that the CUDA runtime and PyTorch use, too. It is never released, and lives as
// long as the process.
struct GpuContext {
  std::shared_ptr<const Driver> driver;
  CuDevice device = 0;
  CuContext context = nullptr;
  static Result<GpuContext> open(std::shared_ptr<const Driver> driver, int ordinal);
};

// Makes a context current on this thread for a scope. If it is current already, this costs one thread-local read.
class CurrentContext {
 public:
  explicit CurrentContext(const GpuContext& gpu) : driver_(*gpu.driver) {
    CuContext current = nullptr;
    status_ = driver_.api.get_context(&current);
    if (status_ != 0 || current == gpu.context) return;
    status_ = driver_.api.push_context(gpu.context);
    pushed_ = status_ == 0;
  }
  ~CurrentContext() {
    CuContext ignored = nullptr;
    if (pushed_) driver_.api.pop_context(&ignored);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  Result<void> status() const { return driver_.check(status_, "cuCtxPushCurrent"); }

 private:
  const Driver& driver_;
  CuResult status_ = 0;
  bool pushed_ = false;
};

// Puts this thread into relaxed capture mode for a scope. While some thread captures in the default mode, loading code
// or allocating in any other mode would break that capture.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) { driver_.api.exchange_capture_mode(&mode_); }
  ~RelaxedCapture() { driver_.api.exchange_capture_mode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  static constexpr int kRelaxed = 2;
  const Driver& driver_;
  int mode_ = kRelaxed;
};

// The driver has loaded this cubin.
class LoadedLibrary {
 public:
  static Result<std::unique_ptr<LoadedLibrary>> load(const GpuContext& gpu, std::span<const std::uint8_t> cubin);
  ~LoadedLibrary();
  // Returns a function that is loaded on the device and may use its shared memory, so that nothing is left for the
  // first launch to do.
  Result<CuFunction> function(const std::string& name, int dynamic_smem_bytes) const;

 private:
  explicit LoadedLibrary(const GpuContext& gpu) : gpu_(gpu) {}
  GpuContext gpu_;
  CuLibrary library_ = nullptr;
};

}  // namespace flashjit

#include "tests/device/fenced_memory.h"

#include <dlfcn.h>

#include <algorithm>
#include <utility>

namespace flashjit {
namespace {

// The driver's calls for addresses without memory, which only tests need.
struct Location {
  int type = 1;  // a device
  int ordinal = 0;
};
struct Properties {
  int type = 1;  // pinned
  int handle_types = 0;
  Location location;
  void* windows = nullptr;
  unsigned char flags[8] = {};
};
struct Access {
  Location location;
  int flags = 3;  // read and write
};
using Handle = unsigned long long;

struct VirtualMemory {
  template <class F>
  static F* find(const char* name) {
    return reinterpret_cast<F*>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), name));
  }
  CuResult (*granularity)(std::size_t*, const Properties*,
                          int) = find<CuResult(std::size_t*, const Properties*, int)>("cuMemGetAllocationGranularity");
  CuResult (*reserve)(CuPointer*, std::size_t, std::size_t, CuPointer, Handle) =
      find<CuResult(CuPointer*, std::size_t, std::size_t, CuPointer, Handle)>("cuMemAddressReserve");
  CuResult (*create)(Handle*, std::size_t, const Properties*,
                     Handle) = find<CuResult(Handle*, std::size_t, const Properties*, Handle)>("cuMemCreate");
  CuResult (*map)(CuPointer, std::size_t, std::size_t, Handle,
                  Handle) = find<CuResult(CuPointer, std::size_t, std::size_t, Handle, Handle)>("cuMemMap");
  CuResult (*set_access)(CuPointer, std::size_t, const Access*, std::size_t) =
      find<CuResult(CuPointer, std::size_t, const Access*, std::size_t)>("cuMemSetAccess");
  CuResult (*unmap)(CuPointer, std::size_t) = find<CuResult(CuPointer, std::size_t)>("cuMemUnmap");
  CuResult (*release)(Handle) = find<CuResult(Handle)>("cuMemRelease");
  CuResult (*give_back)(CuPointer, std::size_t) = find<CuResult(CuPointer, std::size_t)>("cuMemAddressFree");
};

const VirtualMemory& virtual_memory() {
  static const VirtualMemory memory;
  return memory;
}

}  // namespace

Result<FencedDeviceMemory> FencedDeviceMemory::allocate(const GpuContext& gpu, std::size_t bytes) {
  const CurrentContext current(gpu);
  FLASHJIT_TRY(current.status());
  const VirtualMemory& calls = virtual_memory();
  Properties properties;
  properties.location.ordinal = gpu.device;
  FencedDeviceMemory made;
  made.gpu_ = gpu;
  FLASHJIT_TRY(gpu.driver->check(calls.granularity(&made.fence_, &properties, 0), "cuMemGetAllocationGranularity"));
  made.size_ = (std::max<std::size_t>(bytes, 1) + 15 + made.fence_ - 1) / made.fence_ * made.fence_;
  FLASHJIT_TRY(
      gpu.driver->check(calls.reserve(&made.reserved_, made.size_ + 2 * made.fence_, 0, 0, 0), "cuMemAddressReserve"));
  FLASHJIT_TRY(gpu.driver->check(calls.create(&made.memory_, made.size_, &properties, 0), "cuMemCreate"));
  const CuPointer address = made.reserved_ + made.fence_;
  FLASHJIT_TRY(gpu.driver->check(calls.map(address, made.size_, 0, made.memory_, 0), "cuMemMap"));
  made.address_ = address;
  const Access access{properties.location};
  FLASHJIT_TRY(gpu.driver->check(calls.set_access(address, made.size_, &access, 1), "cuMemSetAccess"));
  return made;
}

FencedDeviceMemory::~FencedDeviceMemory() {
  if (!reserved_) return;
  const CurrentContext current(gpu_);
  const VirtualMemory& calls = virtual_memory();
  if (address_) calls.unmap(address_, size_);
  if (memory_) calls.release(memory_);
  calls.give_back(reserved_, size_ + 2 * fence_);
}

FencedDeviceMemory& FencedDeviceMemory::operator=(FencedDeviceMemory&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(reserved_, other.reserved_);
  std::swap(address_, other.address_);
  std::swap(memory_, other.memory_);
  std::swap(size_, other.size_);
  std::swap(fence_, other.fence_);
  return *this;
}

Result<void> FencedDeviceMemory::upload(void* to, const void* from, std::size_t bytes) const {
  const DriverApi& api = gpu_.driver->api;
  const CurrentContext current(gpu_);
  FLASHJIT_TRY(gpu_.driver->check(api.copy_to_device(reinterpret_cast<CuPointer>(to), from, bytes, nullptr),
                                  "cuMemcpyHtoDAsync"));
  return gpu_.driver->check(api.stream_synchronize(nullptr), "cuStreamSynchronize");
}

Result<void> FencedDeviceMemory::download(void* to, const void* from, std::size_t bytes) const {
  const DriverApi& api = gpu_.driver->api;
  const CurrentContext current(gpu_);
  FLASHJIT_TRY(
      gpu_.driver->check(api.copy_to_host(to, reinterpret_cast<CuPointer>(from), bytes, nullptr), "cuMemcpyDtoHAsync"));
  return gpu_.driver->check(api.stream_synchronize(nullptr), "cuStreamSynchronize");
}

Result<FencedDeviceMemory> FencedPool::take(const GpuContext& gpu, std::size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (auto found = spare_.lower_bound(bytes + 15); found != spare_.end())
      return std::move(spare_.extract(found).mapped());
  }
  return FencedDeviceMemory::allocate(gpu, bytes);
}

void FencedPool::give_back(FencedDeviceMemory memory) {
  const std::lock_guard lock(mutex_);
  const std::size_t size = memory.size();
  spare_.emplace(size, std::move(memory));
}

}  // namespace flashjit

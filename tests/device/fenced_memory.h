// A GPU's memory before and behind which there is none: what reads or writes beyond it is a fault, as it is seldom otherwise.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

#include "runtime/driver/device_memory.h"

namespace flashjit {

class FencedDeviceMemory {
 public:
  // Room for so many bytes, in pages of 2 MiB or so.
  static Result<FencedDeviceMemory> allocate(const GpuContext& gpu, std::size_t bytes);
  ~FencedDeviceMemory();
  FencedDeviceMemory(FencedDeviceMemory&& other) noexcept { *this = std::move(other); }
  FencedDeviceMemory& operator=(FencedDeviceMemory&& other) noexcept;

  char* begin() const { return reinterpret_cast<char*>(address_); }
  char* end() const { return begin() + size_; }
  std::size_t size() const { return size_; }
  // The last place for so many bytes, up to 15 of which are behind them: tensors begin at multiples of 16.
  char* last(std::size_t bytes) const { return begin() + (size_ - bytes) / 16 * 16; }

  // Synchronous.
  Result<void> upload(void* to, const void* from, std::size_t bytes) const;
  Result<void> download(void* to, const void* from, std::size_t bytes) const;

 private:
  FencedDeviceMemory() = default;
  GpuContext gpu_;
  CuPointer reserved_ = 0, address_ = 0;
  unsigned long long memory_ = 0;
  std::size_t size_ = 0, fence_ = 0;
};

// Keeps memory for the next who asks: to map it takes long, and tenths of seconds where several processes do.
class FencedPool {
 public:
  Result<FencedDeviceMemory> take(const GpuContext& gpu, std::size_t bytes);
  void give_back(FencedDeviceMemory memory);

 private:
  std::mutex mutex_;
  std::multimap<std::size_t, FencedDeviceMemory> spare_;  // by size
};

}  // namespace flashjit

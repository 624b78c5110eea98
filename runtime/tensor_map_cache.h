// The maps of Q, K, V and O of a kernel's launches, for later launches on the same tensors: making a map is a call of the driver.
// Maps are plain numbers that follow from addresses, strides and sizes alone, so what was made once stays right, whatever becomes
// of the memory. (Tensors of the score are few kernels' business, and their maps are made for every launch.)
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "templates/kernel_config.h"
#include "templates/kernel_params.h"

namespace flashjit {

// Any number of threads; none ever waits. Who comes while another writes the same place does without.
class TensorMapCache {
 public:
  // Fills q, k, v and o. False: they are not here. `params` and `config` as for tensor_map_layouts.
  bool find(const KernelConfig& config, const KernelParams& params, TensorMaps& maps) const;
  void keep(const KernelConfig& config, const KernelParams& params, const TensorMaps& maps);

 private:
  static constexpr int kPlaces = 64;  // more than layers that a model has
  static constexpr int kKeyWords = 18, kMapWords = offsetof(TensorMaps, inputs) / sizeof(std::uint64_t);
  using Key = std::array<std::uint64_t, kKeyWords>;
  struct Place {
    std::atomic<std::uint32_t> version = 0;  // odd: somebody writes
    std::array<std::atomic<std::uint64_t>, kKeyWords> key = {};
    std::array<std::atomic<std::uint64_t>, kMapWords> maps = {};
  };

  static Key key_of(const KernelConfig& config, const KernelParams& params);
  static std::size_t place_of(const Key& key);

  std::array<Place, kPlaces> places_;
};

}  // namespace flashjit

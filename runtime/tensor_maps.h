// Tensor maps: what TMA knows of Q, K, V and O. The layout of each is plain numbers; encoding them is one call of the driver.
#pragma once

#include <cstdint>
#include <string_view>

#include "compiler/result.h"
#include "runtime/driver.h"
#include "templates/kernel_config.h"
#include "templates/kernel_params.h"

namespace flashjit {

// How far the maps of packed tensors reach. What lies behind would be read as zeros, so ArgumentChecker refuses it.
constexpr std::int64_t kMostPackedTokens = 0x7fff0000;

// The arguments of cuTensorMapEncodeTiled that differ from map to map. Dimensions count 16-bit elements, innermost first.
struct TensorMapLayout {
  const void* address = nullptr;
  int rank = 0;
  std::uint64_t size[5] = {};
  std::uint64_t stride[4] = {};  // bytes between neighbours in dimension 1, 2, ...; dimension 0 is contiguous
  std::uint32_t box[5] = {};     // what one copy takes
};

struct TensorMapLayouts {
  TensorMapLayout q, k, v;
  TensorMapLayout o;  // rank 0: the kernel does not store by TMA
};

// Error Invalid names the tensor and what TMA cannot address. `params` as ArgumentChecker fills it.
Result<TensorMapLayouts> tensor_map_layouts(const KernelConfig& config, const KernelParams& params);

Result<void> encode(const Driver& driver, Element element, const TensorMapLayout& layout, TensorMap& map);
Result<void> encode(const Driver& driver, Element element, const TensorMapLayouts& layouts, TensorMaps& maps);

}  // namespace flashjit

// Tensor maps tell TMA about the tensors that it copies. Plans say which tensors these are (compiler/tensor_maps.h). A
// layout is plain numbers, and encoding it is one call of the driver.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/launch.h"
#include "compiler/result.h"
#include "compiler/tensor_maps.h"
#include "runtime/launch/arguments.h"
#include "runtime/driver/driver.h"
#include "templates/kernel_params.h"

namespace flashjit {

// Maps of tensors whose sequences end reach this many steps, which are tokens if sequences are packed. Memory behind
// that would be read as zeros, so ArgumentChecker refuses such a call.
constexpr std::int64_t kMostSteps = 0x7fff0000;

// These are the arguments of cuTensorMapEncodeTiled that differ from map to map. Dimensions are counted from the
// innermost.
struct TensorMapLayout {
  const void* address = nullptr;
  int rank = 0;
  Dtype dtype = Dtype::BF16;
  std::uint64_t size[5] = {};
  std::uint64_t stride[4] = {};  // bytes between neighbours in dimension 1, 2, ...; dimension 0 is contiguous
  std::uint32_t box[5] = {};     // size of one copy
};

// Error Invalid names the tensor and what TMA cannot address. ArgumentChecker fills `params` and `sizes`.
Result<TensorMapLayout> operand_layout(const OperandMap& mapped, const KernelParams& params, const CallSizes& sizes);

// Returns the end steps of an operand whose map has them.
EndSteps end_steps(const OperandMap& mapped, const KernelParams& params, const CallSizes& sizes);

// The rank is 0 if TMA cannot address the tensor. `param` comes from ArgumentChecker.
TensorMapLayout input_layout(const InputMap& input, const TensorView& tensor, const ExtraParam& param);

Result<void> encode_operands(const Driver& driver, const std::vector<OperandMap>& operands, const KernelParams& params,
                             const CallSizes& sizes, TensorMaps& maps);

// Encodes all of `inputs` if TMA can address each of them. Otherwise has_inputs is 0.
Result<void> encode_inputs(const Driver& driver, const std::vector<InputMap>& inputs, const CallArguments& call,
                           const KernelParams& params, TensorMaps& maps);

Result<void> encode(const Driver& driver, const TensorMapLayout& layout, TensorMap& map);

}  // namespace flashjit

// Tensor maps: what TMA knows of the tensors that it copies. The layout of each is plain numbers; encoding them is one
// call of the driver.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan.h"
#include "compiler/result.h"
#include "compiler/spec/operands.h"
#include "runtime/launch/arguments.h"
#include "runtime/driver/driver.h"
#include "templates/kernel_config.h"
#include "templates/kernel_params.h"

namespace flashjit {

// How far the maps of tensors whose sequences end reach, in tokens of packed ones. What lies behind would be read as
// zeros, so ArgumentChecker refuses it.
constexpr std::int64_t kMostSteps = 0x7fff0000;

// The arguments of cuTensorMapEncodeTiled that differ from map to map. Dimensions are counted from the innermost.
struct TensorMapLayout {
  const void* address = nullptr;
  int rank = 0;
  Dtype dtype = Dtype::BF16;
  std::uint64_t size[5] = {};
  std::uint64_t stride[4] = {};  // bytes between neighbours in dimension 1, 2, ...; dimension 0 is contiguous
  std::uint32_t box[5] = {};     // what one copy takes
};

// An operand that TMA copies, with all of its map that is known before a call.
struct MappedOperand {
  const Operand* operand = nullptr;
  TensorMap TensorMaps::* map = nullptr;
  std::uint32_t rows = 0;  // one copy takes
  Dtype dtype = Dtype::BF16;
  std::uint64_t heads = 0;
  std::uint64_t columns = 0;               // what pads them to whole panels is out of bounds, and read as zeros
  EndSteps TensorMaps::* steps = nullptr;  // of its map, where it has them
};
std::vector<MappedOperand> mapped_operands(const Plan& plan);

// A tensor of the score whose tiles the producer copies (compiler/analysis/score_inputs.h).
struct InputPlace {
  std::string name;
  int param = 0;   // its number
  int query = -1;  // the dimension of the query, if there is one; the last is that of the key
  Dtype dtype = Dtype::BF16;
};
std::vector<InputPlace> input_places(const Plan& plan);

// Error Invalid names the tensor and what TMA cannot address. ArgumentChecker fills `params` and `sizes`.
Result<TensorMapLayout> operand_layout(const KernelConfig& config, const MappedOperand& operand,
                                       const KernelParams& params, const CallSizes& sizes);

// Of an operand that has steps.
EndSteps end_steps(const KernelConfig& config, const MappedOperand& operand, const KernelParams& params,
                   const CallSizes& sizes);

// Rank 0: TMA cannot address it. `param` as ArgumentChecker fills it.
TensorMapLayout input_layout(const KernelConfig& config, const InputPlace& place, const TensorView& tensor,
                             const ExtraParam& param);

Result<void> encode_operands(const Driver& driver, const KernelConfig& config,
                             const std::vector<MappedOperand>& operands, const KernelParams& params,
                             const CallSizes& sizes, TensorMaps& maps);

// Those of `places`, if TMA can address all of them; else has_inputs is 0.
Result<void> encode_inputs(const Driver& driver, const KernelConfig& config, const std::vector<InputPlace>& places,
                           const CallArguments& call, const KernelParams& params, TensorMaps& maps);

Result<void> encode(const Driver& driver, const TensorMapLayout& layout, TensorMap& map);

}  // namespace flashjit

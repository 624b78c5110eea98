// This file says which tensors TMA copies for a plan, as data: what is known of their tensor maps before a call. With the
// addresses, strides and lengths of a call runtime/launch/tensor_maps.h makes layouts of them. Families say in `finish` what
// they need.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/spec/operands.h"
#include "compiler/spec/spec.h"
#include "templates/kernel_params.h"

namespace flashjit {

// Says how the rows of an operand lie (templates/kernel_params.h has the dimensions of each).
enum class RowsForm : unsigned char {
  Dense,        // by batch index
  Packed,       // of sequences one after the other
  Ended,        // in pages, or by batch index where a sequence may fill a part
  Groups,       // queries whose heads of a group lie in one tile
  PackedGroups  // these, of sequences one after the other
};
// Does a kernel need EndSteps to say where a sequence ends?
constexpr bool has_steps(RowsForm form) { return form == RowsForm::Ended || form == RowsForm::PackedGroups; }

// An operand that TMA copies.
struct OperandMap {
  const Operand* operand = nullptr;
  TensorMap TensorMaps::* map = nullptr;
  EndSteps TensorMaps::* steps = nullptr;  // where its form has them
  RowsForm form = RowsForm::Dense;
  std::uint32_t rows = 0;  // that one copy takes
  Dtype dtype = Dtype::BF16;
  std::uint32_t heads = 0, columns = 0;  // what pads columns to whole panels is out of bounds, and read as zeros
  std::uint32_t group = 1;               // heads of one KV head
  int page_size = 0;                     // not 0: it lies in pages of so many tokens

  bool is_of_queries() const { return operand->dims[1] == Dim::Queries; }
};

// A tensor of the score whose tiles a producer copies (analysis/score_inputs.h).
struct InputMap {
  std::string name;
  int param = 0;           // its number among the spec's
  int number = 0;          // its map among TensorMaps::inputs
  int query = -1;          // the dimension of the query; negative: it has none. The last dimension is that of the key
  std::uint32_t rows = 0;  // that one copy takes
  Dtype dtype = Dtype::BF16;
};

RowsForm form_of_queries(const AttentionSpec& spec, bool grouped);
// The form of keys whose maps end where the tensor ends, or a packed sequence does.
RowsForm form_of_keys(const AttentionSpec& spec);

OperandMap operand_map(const AttentionSpec& spec, std::size_t operand, TensorMap TensorMaps::* map, RowsForm form,
                       int rows);
// The maps of tensors of the score that the producer of a loop of warpgroups copies for this kernel.
std::vector<InputMap> input_maps(const AttentionSpec& spec, const KernelConfig& config);

}  // namespace flashjit

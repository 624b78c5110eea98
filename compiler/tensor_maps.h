// The tensors that TMA copies for a plan, as data: what is known of their tensor maps before a call.
// runtime/launch/tensor_maps.h makes layouts from them with the addresses, strides and lengths of a call. Families fill
// them in `finish`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/spec/operands.h"
#include "compiler/spec/spec.h"
#include "templates/kernel_params.h"

namespace flashjit {

// The way in which the rows of an operand lie (templates/kernel_params.h has the dimensions of each).
enum class RowsForm : unsigned char {
  Dense,        // Rows are found by batch index.
  Packed,       // Sequences lie one after the other.
  Ended,        // Rows lie in pages, or are found by batch index where a sequence may fill a part.
  Groups,       // The query heads of a group lie in one tile.
  PackedGroups  // The query heads of a group lie in one tile, and sequences one after the other.
};
// Returns true if a kernel needs EndSteps to find where a sequence ends.
constexpr bool has_steps(RowsForm form) { return form == RowsForm::Ended || form == RowsForm::PackedGroups; }

// An operand that TMA copies.
struct OperandMap {
  const Operand* operand = nullptr;
  TensorMap TensorMaps::* map = nullptr;
  EndSteps TensorMaps::* steps = nullptr;  // It is set where the form has them.
  RowsForm form = RowsForm::Dense;
  std::uint32_t rows = 0;  // The rows that one copy takes.
  Dtype dtype = Dtype::BF16;
  // Columns that pad to whole panels are out of bounds, and are read as zeros.
  std::uint32_t heads = 0, columns = 0;
  std::uint32_t group = 1;  // The query heads of one KV head.
  int page_size = 0;        // If not 0, the operand lies in pages of so many tokens.

  bool is_of_queries() const { return operand->dims[1] == Dim::Queries; }
};

// A tensor of the score whose tiles a producer copies (analysis/score_inputs.h).
struct InputMap {
  std::string name;
  int param = 0;           // Its number among the parameters of the spec.
  int number = 0;          // The number of its map in TensorMaps::inputs.
  int query = -1;          // The dimension of the query; negative: it has none. The last dimension is that of the key.
  std::uint32_t rows = 0;  // The rows that one copy takes.
  Dtype dtype = Dtype::BF16;
};

RowsForm form_of_queries(const AttentionSpec& spec, bool grouped);
// Returns the form of keys whose maps end where the tensor, or a packed sequence, ends.
RowsForm form_of_keys(const AttentionSpec& spec);

OperandMap operand_map(const AttentionSpec& spec, std::size_t operand, TensorMap TensorMaps::* map, RowsForm form,
                       int rows);
// Returns the maps of those tensors of the score that the producer of this kernel copies.
std::vector<InputMap> input_maps(const AttentionSpec& spec, const KernelConfig& config);

}  // namespace flashjit

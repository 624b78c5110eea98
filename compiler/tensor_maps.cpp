#include "compiler/tensor_maps.h"

#include <algorithm>
#include <utility>

#include "compiler/analysis/score_inputs.h"
#include "templates/tile_layouts.h"

namespace flashjit {
namespace {

constexpr std::pair<TensorMap TensorMaps::*, EndSteps TensorMaps::*> kStepsOfMaps[] = {
    {&TensorMaps::q, &TensorMaps::q_steps},
    {&TensorMaps::k, &TensorMaps::k_steps},
    {&TensorMaps::v, &TensorMaps::v_steps},
    {&TensorMaps::o, &TensorMaps::o_steps},
};

}  // namespace

RowsForm form_of_queries(const AttentionSpec& spec, bool grouped) {
  if (is_packed(spec)) return grouped ? RowsForm::PackedGroups : RowsForm::Packed;
  return grouped ? RowsForm::Groups : RowsForm::Dense;
}

RowsForm form_of_keys(const AttentionSpec& spec) { return has_packed_keys(spec) ? RowsForm::Packed : RowsForm::Dense; }

OperandMap operand_map(const AttentionSpec& spec, std::size_t operand, TensorMap TensorMaps::* map, RowsForm form,
                       int rows) {
  OperandMap mapped = {.operand = &kOperands[operand],
                       .map = map,
                       .form = form,
                       .rows = static_cast<std::uint32_t>(rows),
                       .dtype = kOperands[operand].dtype_of(spec),
                       .heads = static_cast<std::uint32_t>(extent_of(kOperands[operand].dims[2], spec)),
                       .columns = static_cast<std::uint32_t>(extent_of(kOperands[operand].dims[3], spec))};
  if (mapped.is_of_queries()) mapped.group = static_cast<std::uint32_t>(spec.heads_q / spec.heads_kv);
  else mapped.page_size = spec.page_size;
  if (has_steps(form))
    mapped.steps = std::ranges::find(kStepsOfMaps, map, [](const auto& row) { return row.first; })->second;
  return mapped;
}

std::vector<InputMap> input_maps(const AttentionSpec& spec, const KernelConfig& config) {
  std::vector<InputMap> maps;
  for (const Expr& input : copied_inputs(spec, config)) {
    const auto param = std::ranges::find(spec.params, input->param);
    const int at = static_cast<int>(param - spec.params.begin());
    maps.push_back({param->name, at, input_number(config, at), query_index(input),
                    static_cast<std::uint32_t>(input_rows(config, at)), param->dtype});
  }
  return maps;
}

}  // namespace flashjit

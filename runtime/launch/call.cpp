#include "runtime/launch/call.h"

#include <fmt/format.h>

#include "flashjit/flashjit.hpp"

namespace flashjit {
namespace {

// The operands of the first version have fields. All others are given by name alone.
constexpr struct {
  std::size_t operand;
  Tensor Arguments::* field;
} kFields[] = {{operand("q"), &Arguments::q},
               {operand("k"), &Arguments::k},
               {operand("v"), &Arguments::v},
               {operand("o"), &Arguments::o},
               {operand("lse"), &Arguments::lse},
               {operand("max_logit"), &Arguments::max_logit},
               {operand("sink"), &Arguments::sink},
               {operand("offsets_q"), &Arguments::offsets_q},
               {operand("offsets_k"), &Arguments::offsets_k}};

}  // namespace

Result<void> view(const Tensor& tensor, std::string_view name, TensorView& result) {
  if (!tensor.strides.empty() && tensor.strides.size() != tensor.shape.size()) {
    return invalid(fmt::format("{}.strides: {} of them for {} dimensions; leave them empty for a contiguous tensor",
                               name, tensor.strides.size(), tensor.shape.size()));
  }
  if (tensor.shape.size() > kMaxTensorRank) {
    return invalid(
        fmt::format("{}.shape: {} dimensions, at most {} are possible", name, tensor.shape.size(), kMaxTensorRank));
  }
  result.data = tensor.data;
  result.dtype = tensor.dtype;
  result.rank = static_cast<int>(tensor.shape.size());
  result.shape = tensor.shape.data();
  result.strides = tensor.strides.empty() ? nullptr : tensor.strides.data();
  return {};
}

Result<void> view(const Arguments& arguments, CallArguments& call) {
  for (const auto& [operand, field] : kFields) {
    FLASHJIT_TRY(view(arguments.*field, kOperands[operand].name, call.operands[operand]));
  }
  call.max_q_len = arguments.max_q_len;
  call.max_k_len = arguments.max_k_len;
  call.workspace = arguments.workspace;
  call.workspace_bytes = arguments.workspace_bytes;
  call.sms = arguments.sms;
  for (const auto& [name, from] : arguments.params) {
    ParamView param{.name = name};
    FLASHJIT_TRY(view(from, name, param.tensor));
    call.add(param);
  }
  for (const auto& [name, value] : arguments.scalars) call.add({.name = name, .is_scalar = true, .scalar = value});
  return {};
}

Tensor& operand_of(Arguments& arguments, std::string_view name) {
  for (const auto& [operand, field] : kFields) {
    if (kOperands[operand].name == name) return arguments.*field;
  }
  return arguments.params[std::string(name)];
}

}  // namespace flashjit

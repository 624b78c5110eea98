#include "tools/support/mask_values.h"

#include <algorithm>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "runtime/launch/arguments.h"
#include "runtime/launch/index_check.h"
#include "tools/support/mask_map.h"

namespace flashjit {
namespace {

Result<void> check_names(const AttentionSpec& spec, const InputFiles& inputs) {
  const auto has = [&](const std::string& name) {
    return std::ranges::find(spec.params, name, &Param::name) != spec.params.end();
  };
  const auto unknown = [](const std::string& name) {
    return invalid(fmt::format("--param: {} is nothing that mask or score of this spec reads; leave it out", name));
  };
  for (const auto& [name, file] : inputs.files)
    if (!has(name)) return unknown(name);
  for (const auto& [name, number] : inputs.scalars)
    if (!has(name)) return unknown(name);
  return {};
}

Result<std::vector<std::uint8_t>> bytes_of_scalar(const Param& param, double number) {
  std::vector<std::uint8_t> bytes(sizeof(std::int64_t));
  if (is_float(param.dtype)) {
    const float value = static_cast<float>(number);
    std::memcpy(bytes.data(), &value, sizeof value);
  } else {
    FLASHJIT_ASSIGN(bits, scalar_bits(param, number));
    std::memcpy(bytes.data(), &bits, sizeof bits);  // The first bytes of it are a narrower int.
  }
  return bytes;
}

Result<NamedTensor> read_param(const Param& param, const AttentionSpec& spec, const InputFiles& inputs) {
  NamedTensor tensor{.name = param.name, .role = NamedTensor::Role::Param, .dtype = param.dtype};
  tensor.shape.assign(static_cast<std::size_t>(param.rank), 1);
  const auto file = inputs.files.find(param.name);
  const auto number = inputs.scalars.find(param.name);
  if (param.rank > 0 ? file == inputs.files.end() : number == inputs.scalars.end()) {
    return invalid(fmt::format("--param: the map needs all that the mask reads, {}, and {} is not given; write {}={}",
                               names_read(spec.mask), param.name, param.name, param.rank > 0 ? "FILE.npy" : "NUMBER"));
  }
  if (param.rank > 0) {
    FLASHJIT_TRY(inputs.read(file->second, false, tensor));
  } else {
    FLASHJIT_ASSIGN(bytes, bytes_of_scalar(param, number->second));
    tensor.bytes = std::move(bytes);
  }
  return tensor;
}

ParamValue value_of(const NamedTensor& tensor) {
  ParamValue value{.data = tensor.bytes.data()};
  std::int64_t stride = 1;
  for (std::size_t i = tensor.shape.size(); i-- > 0; stride *= tensor.shape[i])
    value.shape[i] = tensor.shape[i], value.stride[i] = stride;
  return value;
}

// Checks the tensors and scalars that the mask reads, as a call would.
Result<void> check_indices(AttentionSpec spec, const std::vector<NamedTensor>& tensors, const CallSizes& sizes) {
  spec.score = Expr();
  std::vector<ParamView> views(spec.params.size());
  std::vector<const ParamView*> params;
  std::vector<std::int64_t> scalars(spec.params.size());
  for (std::size_t i = 0; i < views.size(); ++i) {
    params.push_back(&views[i]);
    const auto found = std::ranges::find(tensors, spec.params[i].name, &NamedTensor::name);
    if (found == tensors.end()) continue;
    views[i].tensor = {.data = const_cast<std::uint8_t*>(found->bytes.data()),
                       .rank = static_cast<int>(found->shape.size()),
                       .shape = found->shape.data()};
    if (found->shape.empty() && !is_float(found->dtype))
      std::memcpy(&scalars[i], found->bytes.data(), sizeof scalars[i]);
  }
  return IndexChecker(spec).check(spec, sizes, params.data(), scalars.data(), true);
}

}  // namespace

Result<MaskValues> MaskValues::read(const AttentionSpec& spec, const InputFiles& inputs, const CallSizes& sizes) {
  MaskValues all;
  if (inputs.files.empty() && inputs.scalars.empty()) return all;
  FLASHJIT_TRY(check_names(spec, inputs));
  if (!spec.mask || has_blocks(spec)) return all;
  all.params_ = params_of(spec.mask);
  std::vector<NamedTensor> tensors;
  for (const Param& param : all.params_) {
    FLASHJIT_ASSIGN(tensor, read_param(param, spec, inputs));
    tensors.push_back(std::move(tensor));
  }
  FLASHJIT_TRY(check_indices(spec, tensors, sizes));
  for (NamedTensor& tensor : tensors) {
    all.values_.push_back(value_of(tensor));
    all.bytes_.push_back(std::move(tensor.bytes));
  }
  return all;
}

Environment MaskValues::environment(std::int64_t q_len, std::int64_t k_len) const {
  Environment environment;
  environment.variables[static_cast<int>(Variable::QLen)] = q_len;
  environment.variables[static_cast<int>(Variable::KLen)] = k_len;
  environment.params = &params_;
  environment.values = values_.data();
  return environment;
}

}  // namespace flashjit

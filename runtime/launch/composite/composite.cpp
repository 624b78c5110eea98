#include "runtime/launch/composite/composite.h"

#include <algorithm>

#include <fmt/format.h>

namespace flashjit {

TensorView shaped(void* data, Dtype dtype, Shaped& kept, std::initializer_list<std::int64_t> shape,
                  std::initializer_list<std::int64_t> strides) {
  std::ranges::copy(shape, kept.shape.begin());
  std::ranges::copy(strides, kept.strides.begin());
  return {.data = data,
          .dtype = name(dtype),
          .rank = static_cast<int>(shape.size()),
          .shape = kept.shape.data(),
          .strides = strides.size() == 0 ? nullptr : kept.strides.data()};
}

TensorView given(const CallArguments& call, std::string_view name) {
  if (const TensorView& field = call.operands[find_operand(name)]; field.given()) return field;
  for (int i = 0; i < call.param_count; ++i) {
    if (const ParamView& param = call.params[static_cast<std::size_t>(i)]; param.name == name) return param.tensor;
  }
  return {};
}

void put(CallArguments& call, std::string_view name, const TensorView& tensor) {
  call.operands[find_operand(name)] = tensor;
}

namespace {

// A result is only as exact as the component that rounds its weights most.
bool has_fewer_bits(std::string_view weights, std::string_view others) {
  const auto a = parse_dtype(weights), b = parse_dtype(others);
  return a && b && size_of(*a) < size_of(*b);
}

}  // namespace

Facts composite_facts(const AttentionSpec& spec, const RunnableKernel& most,
                      std::initializer_list<NamedKernel> others) {
  Facts facts = most.facts();
  facts.spec = print(spec);
  for (const auto& [what, kernel] : others) {
    const Facts& component = kernel->facts();
    facts.compile_ms += component.compile_ms;
    facts.cubin_bytes += component.cubin_bytes;
    facts.spill_bytes += component.spill_bytes;
    facts.registers = std::max(facts.registers, component.registers);
    facts.smem_bytes = std::max(facts.smem_bytes, component.smem_bytes);
    facts.threads = std::max(facts.threads, component.threads);
    if (has_fewer_bits(component.weights, facts.weights)) facts.weights = component.weights;
    facts.notes.push_back(fmt::format("a launch of its own for {}: {}", what, component.schedule));
    facts.notes.insert(facts.notes.end(), component.notes.begin(), component.notes.end());
  }
  return facts;
}

}  // namespace flashjit

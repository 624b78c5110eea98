// Kernels that are made of others share this code: it makes the calls of their components, and the facts of them all.
#pragma once

#include <array>
#include <initializer_list>
#include <memory>
#include <utility>

#include "runtime/launch/kernels.h"

namespace flashjit {

// Keeps the shape and the strides of a component's tensor.
struct Shaped {
  std::array<std::int64_t, kMaxTensorRank> shape, strides;
};
TensorView shaped(void* data, Dtype dtype, Shaped& kept, std::initializer_list<std::int64_t> shape,
                  std::initializer_list<std::int64_t> strides = {});

// Finds a tensor by its field or by its name. It is empty if it was not given.
TensorView given(const CallArguments& call, std::string_view name);
void put(CallArguments& call, std::string_view name, const TensorView& tensor);

// Rounds up, because the buffers of a workspace follow each other in this way.
constexpr std::int64_t aligned_bytes(std::int64_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

// Returns the facts of the kernel that does most, with what the others add. `others` also says what each of them is for.
using NamedKernel = std::pair<std::string_view, const RunnableKernel*>;
Facts composite_facts(const AttentionSpec& spec, const RunnableKernel& most, std::initializer_list<NamedKernel> others);

}  // namespace flashjit

// Where items of work add up gradients of parameters, so that sums have one order however many threads there are.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "codegen/host/backend.h"
#include "codegen/host/workspace.h"
#include "compiler/analysis/gradient_reads.h"
#include "templates/kernel_params.h"

namespace flashjit::host {

// Says which items never meet in an element: those of different sequences, KV heads, keys.
struct ItemsApart {
  bool by_b = true, by_hk = true, by_k = true;
};
ItemsApart items_apart(const std::vector<GradientRead>& reads);

// This class holds the gradients of parameters of one run. Where the tensors are small each item has a copy of its own, and
// copies are added up in the order of items; otherwise items that may meet are one chain, whose items follow each other.
class ParameterGradients {
 public:
  // None: there are no such gradients.
  ParameterGradients(const KernelParams& params, int count, const ItemsApart& apart, std::int64_t items);

  std::int64_t copy_bytes() const { return copies_ * elements_ * static_cast<std::int64_t>(sizeof(float)); }
  // `memory`: of that size.
  void begin(char* memory, const ParallelFor& parallel);
  void finish(const ParallelFor& parallel) const;

  // Items with the same number are one chain.
  std::int64_t chain(std::int64_t b, std::int64_t hk, std::int64_t chunk, std::int64_t item) const;
  using Targets = std::array<ParamGradient, kMaxGradients>;
  Targets targets(std::int64_t item) const;

 private:
  void each_row(
      const ParallelFor& parallel,
      const std::function<void(int gradient, std::int64_t first_element, float* row, std::int64_t stride)>& body) const;

  Targets outputs_{};
  int count_;
  ItemsApart apart_;
  std::int64_t elements_ = 0, copies_ = 0;  // of all tensors together
  std::array<std::int64_t, kMaxGradients> first_{};
  float* memory_ = nullptr;
};

}  // namespace flashjit::host

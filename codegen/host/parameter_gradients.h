// Items of work add up gradients of parameters in this memory, so that sums have one order however many threads there
// are.
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

// Items of different sequences, KV heads or keys may never meet in an element.
struct ItemsApart {
  bool by_b = true, by_hk = true, by_k = true;
};
ItemsApart items_apart(const std::vector<GradientRead>& reads);

// Holds the gradients of parameters of one run. If the tensors are small, each item has a copy of its own, and copies
// are added up in the order of items. Otherwise items that may meet form one chain, whose items follow each other.
class ParameterGradients {
 public:
  // It stays empty if there are no such gradients.
  ParameterGradients(const KernelParams& params, int count, const ItemsApart& apart, std::int64_t items);

  std::int64_t copy_bytes() const { return copies_ * elements_ * static_cast<std::int64_t>(sizeof(float)); }
  // `memory` has that size.
  void begin(char* memory, const ParallelFor& parallel);
  void finish(const ParallelFor& parallel) const;

  // Items with the same number form one chain.
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
  std::int64_t elements_ = 0, copies_ = 0;  // They count all tensors together.
  std::array<std::int64_t, kMaxGradients> first_{};
  float* memory_ = nullptr;
};

}  // namespace flashjit::host

#include "codegen/host/parameter_gradients.h"

#include <algorithm>
#include <cstring>

namespace flashjit::host {
namespace {

constexpr std::int64_t kMostCopiedBytes = std::int64_t{64} << 20;
constexpr std::int64_t kMostHeads = 1 << 16, kMostParts = 1 << 8;

std::int64_t rows_of(const ParamGradient& gradient) { return gradient.size[0] * gradient.size[1] * gradient.size[2]; }

}  // namespace

ItemsApart items_apart(const std::vector<GradientRead>& reads) {
  ItemsApart apart;
  for (const GradientRead& read : reads) {
    apart.by_b = apart.by_b && read.alone && read.index.own_b;
    apart.by_hk = apart.by_hk && read.alone && read.index.own_hk;
    apart.by_k = apart.by_k && read.alone && read.index.by_k && read.index.apart;
  }
  return apart;
}

ParameterGradients::ParameterGradients(const KernelParams& params, int count, const ItemsApart& apart,
                                       std::int64_t items)
    : count_(count), apart_(apart) {
  std::copy_n(params.d_extra, kMaxGradients, outputs_.begin());
  for (int i = 0; i < count; ++i) {
    first_[static_cast<std::size_t>(i)] = elements_;
    elements_ += rows_of(params.d_extra[i]) * params.d_extra[i].size[3];
  }
  const bool all_apart = apart.by_b && apart.by_hk && apart.by_k;
  const std::int64_t most = kMostCopiedBytes / std::max<std::int64_t>(items, 1) / sizeof(float);
  if (count > 0 && !all_apart && elements_ <= most) copies_ = items;
}

void ParameterGradients::each_row(const ParallelFor& parallel,
                                  const std::function<void(int, std::int64_t, float*, std::int64_t)>& body) const {
  for (int i = 0; i < count_; ++i) {
    const ParamGradient& out = outputs_[static_cast<std::size_t>(i)];
    parallel.each(rows_of(out), [&](std::int64_t row, int) {
      const std::int64_t third = row % out.size[2], second = row / out.size[2] % out.size[1],
                         first = row / out.size[2] / out.size[1];
      body(i, first_[static_cast<std::size_t>(i)] + row * out.size[3],
           out.data + first * out.stride[0] + second * out.stride[1] + third * out.stride[2], out.stride[3]);
    });
  }
}

void ParameterGradients::begin(char* memory, const ParallelFor& parallel) {
  memory_ = reinterpret_cast<float*>(memory);
  if (copies_ > 0) {
    parallel.each(copies_, [&](std::int64_t copy, int) { std::fill_n(memory_ + copy * elements_, elements_, 0.0f); });
    return;
  }
  each_row(parallel, [&](int i, std::int64_t, float* row, std::int64_t stride) {
    for (std::int64_t j = 0; j < outputs_[static_cast<std::size_t>(i)].size[3]; ++j) row[j * stride] = 0;
  });
}

void ParameterGradients::finish(const ParallelFor& parallel) const {
  if (copies_ == 0) return;
  each_row(parallel, [&](int i, std::int64_t first_element, float* row, std::int64_t stride) {
    for (std::int64_t j = 0; j < outputs_[static_cast<std::size_t>(i)].size[3]; ++j) {
      double sum = 0;
      for (std::int64_t copy = 0; copy < copies_; ++copy) sum += memory_[copy * elements_ + first_element + j];
      row[j * stride] = static_cast<float>(sum);
    }
  });
}

std::int64_t ParameterGradients::chain(std::int64_t b, std::int64_t hk, std::int64_t chunk, std::int64_t item) const {
  if (count_ == 0 || copies_ > 0) return item;
  return ((apart_.by_b ? b : 0) * kMostHeads + (apart_.by_hk ? hk : 0)) * kMostParts + (apart_.by_k ? chunk : 0);
}

ParameterGradients::Targets ParameterGradients::targets(std::int64_t item) const {
  Targets targets = outputs_;
  if (copies_ == 0) return targets;
  for (int i = 0; i < count_; ++i) {
    ParamGradient& target = targets[static_cast<std::size_t>(i)];
    target.data = memory_ + item * elements_ + first_[static_cast<std::size_t>(i)];
    target.stride[3] = 1;
    for (int j = 2; j >= 0; --j) target.stride[j] = target.stride[j + 1] * target.size[j + 1];
  }
  return targets;
}

}  // namespace flashjit::host

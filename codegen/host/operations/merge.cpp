#include "codegen/host/operations/merge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "compiler/spec/half.h"

namespace flashjit::host {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int64_t kMergedRowsOfItem = 64;

class MergeKernel final : public HostKernel {
 public:
  explicit MergeKernel(const AttentionSpec& spec) : spec_(spec) {}

  Result<void> run(const KernelParams& params, const ParallelFor& parallel) const override {
    const std::int64_t rows = std::int64_t{params.batch} * spec_.heads_q * params.q_len;
    parallel.each((rows + kMergedRowsOfItem - 1) / kMergedRowsOfItem, [&](std::int64_t item, int) {
      std::array<float, kMaxLatentDimV> sums;
      const std::int64_t end = std::min(rows, (item + 1) * kMergedRowsOfItem);
      for (std::int64_t row = item * kMergedRowsOfItem; row < end; ++row) {
        const std::int64_t head = row / params.q_len;
        merge(params, head / spec_.heads_q, head % spec_.heads_q, row % params.q_len, sums.data());
      }
    });
    return {};
  }

 private:
  static std::int64_t at(const PartStrides& strides, std::int64_t b, std::int64_t h, std::int64_t q) {
    return b * strides.batch + h * strides.head + q * strides.token;
  }
  // Returns the number whose logarithm, in the units of the spec, is x.
  float power(float x) const { return spec_.lse == Lse::log2 ? std::exp2(x) : std::exp(x); }

  // Returns the first part of a sequence. With a shared prefix all parts but the last hold keys that sequences share. A
  // sequence that has fewer keys before its queries shares none.
  std::int64_t first_part(const KernelParams& p, std::int64_t b) const {
    const bool shares = !spec_.shared_prefix || std::int64_t{p.k_lens[b]} - p.q_len >= *p.shared_prefix;
    return shares ? 0 : std::max<std::int64_t>(p.k_len - 1, 0);
  }

  // Merges parts, except those with an LSE of -infinity, which have seen no key.
  void merge(const KernelParams& p, std::int64_t b, std::int64_t h, std::int64_t q, float* sums) const {
    const float* lse = p.lse_parts + at(p.lse_parts_stride, b, h, q);
    const std::int64_t begin = first_part(p, b);
    float reference = -kInfinity, sum = 0;
    for (std::int64_t part = begin; part < p.k_len; ++part)
      reference = std::fmax(reference, lse[part * p.lse_parts_stride.part]);
    std::fill_n(sums, spec_.d_v, 0.0f);
    for (std::int64_t part = begin; part < p.k_len; ++part) {
      const float own = lse[part * p.lse_parts_stride.part];
      const float weight = power(own - (reference == -kInfinity ? 0.0f : reference));
      if (weight == 0) continue;
      sum += weight;
      const std::int64_t first = at(p.o_parts_stride, b, h, q) + part * p.o_parts_stride.part;
      for (int i = 0; i < spec_.d_v; ++i) sums[i] += weight * load_float(spec_.dtype, p.o_parts, first + i);
    }
    const std::int64_t to = b * p.o_stride.batch + h * p.o_stride.head + q * p.o_stride.token;
    for (int i = 0; i < spec_.d_v; ++i) store_float(spec_.out_dtype, p.o, to + i, sum == 0 ? 0.0f : sums[i] / sum);
    const std::int64_t row = b * p.row_stride_batch + h * p.row_stride_head + q;
    if (spec_.max_logit) {
      const float* maxima = p.max_parts + at(p.max_parts_stride, b, h, q);
      p.max_logit[row] = -kInfinity;
      for (std::int64_t part = begin; part < p.k_len; ++part)
        p.max_logit[row] = std::fmax(p.max_logit[row], maxima[part * p.max_parts_stride.part]);
    }
    if (spec_.lse == Lse::none) return;
    const float logarithm = spec_.lse == Lse::log2 ? std::log2(sum) : std::log(sum);
    p.lse[row] = sum == 0 ? -kInfinity : reference + logarithm;
  }

  AttentionSpec spec_;
};

}  // namespace

std::unique_ptr<HostKernel> merge_kernel(const AttentionSpec& spec) { return std::make_unique<MergeKernel>(spec); }

}  // namespace flashjit::host

#include "codegen/host/before/latents.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "codegen/host/workspace.h"
#include "compiler/spec/half.h"

namespace flashjit::host {
namespace {

constexpr float kLargestE4m3 = 448;

float scale_at(const LatentRows& rows, const unsigned char* scales, int number) {
  if (rows.scale == LatentScale::exponent) return std::bit_cast<float>(latent_scale_bits(scales[number]));
  float scale = 0;
  std::memcpy(&scale, scales + number * sizeof scale, sizeof scale);
  return scale;
}

// Stores the scale of columns up to `largest` in size, and returns it. An infinity among them becomes NaN, and so do
// all of them.
float store_scale(const LatentRows& rows, float largest, unsigned char* scales, int number) {
  const float least = std::max(largest / kLargestE4m3, std::numeric_limits<float>::min());
  if (rows.scale == LatentScale::number) {
    std::memcpy(scales + number * sizeof least, &least, sizeof least);
    return least;
  }
  constexpr std::uint32_t kMantissa = 0x7fffff;
  const auto exponent = static_cast<unsigned char>((std::bit_cast<std::uint32_t>(least) + kMantissa) >> 23);
  scales[number] = exponent;
  return std::bit_cast<float>(latent_scale_bits(exponent));
}

class KernelOfLatents final : public HostKernel {
 public:
  KernelOfLatents(const AttentionSpec& spec, std::unique_ptr<HostKernel> attention)
      : spec_(spec), attention_(std::move(attention)) {}

  Result<void> run(const KernelParams& params, const ParallelFor& parallel) const override {
    const LatentCache cache(spec_, params);
    const Int64 row = spec_.d_qk;
    const std::int64_t bytes = cache.row_count() * row * size_of(spec_.kv_dtype);
    std::unique_ptr<Workspace> workspace = workspaces_.take(bytes);
    if (!workspace) return out_of_memory(bytes, "give a k with fewer rows");
    auto* const wide = reinterpret_cast<std::uint16_t*>(workspace->data());
    parallel.each((cache.row_count() + kChunk - 1) / kChunk, [&](std::int64_t item, int) {
      const std::int64_t end = std::min((item + 1) * kChunk, cache.row_count());
      for (std::int64_t number = item * kChunk; number < end; ++number)
        cache.widen(cache.address_of(number), wide + number * row);
    });
    KernelParams widened = params;
    widened.k = widened.v = wide;
    widened.k_stride = widened.v_stride = {.batch = cache.rows_of_block() * row, .head = 0, .token = row};
    auto done = attention_->run(widened, parallel);
    workspaces_.give_back(std::move(workspace));
    return done;
  }

 private:
  static constexpr std::int64_t kChunk = 64;  // The rows of a work item.
  const AttentionSpec spec_;
  const std::unique_ptr<HostKernel> attention_;
  mutable WorkspacePool workspaces_;
};

}  // namespace

LatentCache::LatentCache(const AttentionSpec& spec, const KernelParams& params)
    : params_(params),
      rows_(latent_rows(spec.cache_format)),
      page_size_(spec.page_size),
      packed_(has_packed_keys(spec)) {
  rows_of_block_ = page_size_ > 0 ? page_size_ : selects(spec) ? params.key_rows : params.k_len;
  if (packed_) row_count_ = params.offsets_k[params.batch];
  else
    row_count_ = rows_of_block_ * (page_size_ > 0  ? params.pages
                                   : selects(spec) ? params.batch / params.queries_of_sequence
                                                   : params.batch);
}

unsigned char* LatentCache::block(KeyAddress at) const {
  return static_cast<unsigned char*>(const_cast<void*>(params_.k)) + at.block * params_.k_stride.batch;
}

void LatentCache::widen(KeyAddress at, std::uint16_t* row) const {
  const Int64 stride = params_.k_stride.token;
  const auto token = static_cast<int>(at.token);
  const unsigned char* data = block(at) + latent_data_at(rows_, stride, token);
  const unsigned char* scales = block(at) + latent_scales_at(rows_, stride, token, page_size_);
  for (int c = 0; c < rows_.narrow_columns; ++c) {
    const float scale = scale_at(rows_, scales, c / rows_.columns_of_scale);
    row[c] = float_to_bf16(e4m3_to_float(data[c]) * scale);
  }
  std::memcpy(row + rows_.narrow_columns, data + rows_.wide_at,
              sizeof *row * static_cast<std::size_t>(rows_.wide_columns));
}

void store_latent(const LatentRows& rows, const float* row, unsigned char* data, unsigned char* scales) {
  for (int first = 0; first < rows.narrow_columns; first += rows.columns_of_scale) {
    float largest = 0;
    for (int c = first; c < first + rows.columns_of_scale; ++c) largest = std::fmax(largest, std::fabs(row[c]));
    const float scale = store_scale(rows, largest, scales, first / rows.columns_of_scale);
    for (int c = first; c < first + rows.columns_of_scale; ++c) data[c] = float_to_e4m3(row[c] / scale);
  }
  for (int c = 0; c < rows.wide_columns; ++c) {
    const std::uint16_t wide = float_to_bf16(row[rows.narrow_columns + c]);
    std::memcpy(data + rows.wide_at + c * sizeof wide, &wide, sizeof wide);
  }
}

void LatentCache::store(KeyAddress at, const float* row) const {
  const Int64 stride = params_.k_stride.token;
  const auto token = static_cast<int>(at.token);
  store_latent(rows_, row, block(at) + latent_data_at(rows_, stride, token),
               block(at) + latent_scales_at(rows_, stride, token, page_size_));
}

std::unique_ptr<HostKernel> kernel_of_latents(const AttentionSpec& spec, std::unique_ptr<HostKernel> attention) {
  return std::make_unique<KernelOfLatents>(spec, std::move(attention));
}

}  // namespace flashjit::host

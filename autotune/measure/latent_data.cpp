#include "autotune/measure/latent_data.h"

#include <algorithm>
#include <cstring>

#include "autotune/measure/random_data.h"
#include "autotune/reference/caches/latents.h"
#include "compiler/spec/half.h"
#include "templates/latents/rows.h"

namespace flashjit {
namespace {

reference::LatentRow row_of(NamedTensor& k, const AttentionSpec& spec, std::int64_t row) {
  const std::int64_t bytes = latent_rows(spec.cache_format).row_bytes;
  if (!is_paged(spec)) return reference::latent_row(spec, k.bytes.data() + row * bytes, 0, bytes);
  const std::int64_t page = row / spec.page_size;
  return reference::latent_row(spec, k.bytes.data() + page * spec.page_size * bytes, row % spec.page_size, bytes);
}

}  // namespace

void set_latents(NamedTensor& k, const AttentionSpec& spec, std::uint64_t seed) {
  constexpr std::int64_t kAtOnce = 1024;  // number of rows; a cache may be as large as memory
  const std::int64_t rows = static_cast<std::int64_t>(k.bytes.size()) / latent_rows(spec.cache_format).row_bytes;
  NamedTensor numbers{k.name, k.role, Dtype::F32, {kAtOnce, spec.d_qk}, {}};
  numbers.bytes.resize(static_cast<std::size_t>(kAtOnce * spec.d_qk) * sizeof(float));
  for (std::int64_t first = 0; first < rows; first += kAtOnce) {
    fill_random(numbers, seed + static_cast<std::uint64_t>(first));
    const auto* values = reinterpret_cast<const float*>(numbers.bytes.data());
    for (std::int64_t i = 0; i < std::min(kAtOnce, rows - first); ++i)
      reference::store_latents(spec, row_of(k, spec, first + i), values + i * spec.d_qk);
  }
}

void poison_latent(NamedTensor& k, const AttentionSpec& spec, std::int64_t row) {
  const LatentRows rows = latent_rows(spec.cache_format);
  const reference::LatentRow stored = row_of(k, spec, row);
  std::memset(stored.data, 0xff, static_cast<std::size_t>(rows.data_bytes));
  std::memset(stored.scales, 0xff, static_cast<std::size_t>(rows.scale_bytes));
}

}  // namespace flashjit

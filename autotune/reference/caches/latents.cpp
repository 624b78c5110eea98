#include "autotune/reference/caches/latents.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "autotune/reference/quantize.h"
#include "autotune/reference/reference.h"
#include "autotune/reference/rope.h"
#include "compiler/spec/half.h"
#include "fmt/format.h"

namespace flashjit::reference {
namespace {

// This format is written independently of the table that kernels read.
struct Format {
  int narrow, of_scale, data_bytes;
  bool exponents;  // Scales are bytes behind the data of a page.
};
Format format_of(const AttentionSpec& spec) {
  return spec.cache_format == CacheFormat::latent584 ? Format{448, 64, 448 + 128, true} : Format{512, 128, 512, false};
}

// Returns the bf16 columns.
std::uint8_t* wide(const Format& format, const LatentRow& row) {
  return format.exponents ? row.data + format.narrow : row.scales + format.narrow / format.of_scale * sizeof(float);
}

float load_scale(const Format& format, const LatentRow& row, int number) {
  if (format.exponents)
    return row.scales[number] == 255 ? NAN : static_cast<float>(std::ldexp(1.0, row.scales[number] - 127));
  float scale = 0;
  std::memcpy(&scale, row.scales + number * sizeof scale, sizeof scale);
  return scale;
}

void store_scale(const Format& format, const LatentRow& row, int number, float largest) {
  const float scale = std::max(largest / 448.0f, std::numeric_limits<float>::min());
  if (!format.exponents) {
    std::memcpy(row.scales + number * sizeof scale, &scale, sizeof scale);
    return;
  }
  int exponent = 0;  // This becomes the least power of two that is not below.
  const float fraction = std::frexp(scale, &exponent);
  row.scales[number] = std::isinf(scale) ? 255 : static_cast<std::uint8_t>(exponent - (fraction == 0.5f ? 1 : 0) + 127);
}

}  // namespace

LatentRow latent_row(const AttentionSpec& spec, std::uint8_t* begin, std::int64_t token, std::int64_t stride) {
  const Format format = format_of(spec);
  if (!format.exponents) return {begin + token * stride, begin + token * stride + format.narrow};
  return {begin + token * format.data_bytes, begin + spec.page_size * std::int64_t{format.data_bytes} + token * 8};
}

float load_latent(const AttentionSpec& spec, const LatentRow& row, int column) {
  const Format format = format_of(spec);
  if (column >= format.narrow) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, wide(format, row) + (column - format.narrow) * sizeof bits, sizeof bits);
    return bf16_to_float(bits);
  }
  return round_to(Dtype::BF16, e4m3_to_float(row.data[column]) * load_scale(format, row, column / format.of_scale));
}

void store_latents(const AttentionSpec& spec, const LatentRow& row, const float* numbers) {
  const Format format = format_of(spec);
  for (int first = 0; first < format.narrow; first += format.of_scale) {
    float largest = 0;
    for (int c = first; c < first + format.of_scale; ++c) largest = std::fmax(largest, std::fabs(numbers[c]));
    store_scale(format, row, first / format.of_scale, largest);
    const float scale = load_scale(format, row, first / format.of_scale);
    for (int c = first; c < first + format.of_scale; ++c) row.data[c] = float_to_e4m3(numbers[c] / scale);
  }
  for (int c = format.narrow; c < spec.d_qk; ++c) {
    const std::uint16_t bits = float_to_bf16(numbers[c]);
    std::memcpy(wide(format, row) + (c - format.narrow) * sizeof bits, &bits, sizeof bits);
  }
}

LatentRow Problem::latent_row_of(std::int64_t b, std::int64_t k) const {
  const Tensor& tensor = arguments_->k;
  const std::vector<std::int64_t> strides = strides_of(tensor);
  const std::int64_t offset = key_offset(tensor, b, 0, k);
  if (!is_paged(*spec_)) return latent_row(*spec_, static_cast<std::uint8_t*>(tensor.data) + offset, 0, 0);
  const std::int64_t token = k % spec_->page_size;
  return latent_row(*spec_, static_cast<std::uint8_t*>(tensor.data) + offset - token * strides[1], token, strides[1]);
}

Problem::KeysValues Problem::latents(std::int64_t b) const {
  KeysValues kv;
  for (std::int64_t k = 0; k < k_len(b); ++k) {
    const LatentRow row = latent_row_of(b, k);
    for (int c = 0; c < spec_->d_qk; ++c) kv.k.push_back(load_latent(*spec_, row, c));
    kv.v.insert(kv.v.end(), kv.k.end() - spec_->d_qk, kv.k.end() - spec_->d_qk + spec_->d_v);
    kv.scale_k.push_back(1);
    kv.scale_v.push_back(1);
  }
  return kv;
}

namespace {

// Returns where a row holds something else than what these numbers become, or an empty text if nowhere. `size` is that
// of what was added up to turn the columns without a scale, or 0 if nothing was turned.
std::string difference(const AttentionSpec& spec, const LatentRow& held, const std::vector<double>& given,
                       double size) {
  const std::vector<float> numbers(given.begin(), given.end());
  std::array<std::uint8_t, 1024> memory = {};  // It has room for a page of one token, or more.
  AttentionSpec alone = spec;
  alone.page_size = 1;
  const LatentRow wanted = latent_row(alone, memory.data(), 0, 0);
  store_latents(spec, wanted, numbers.data());
  for (int c = 0; c < spec.d_qk; ++c) {
    const float a = load_latent(spec, held, c), b = load_latent(spec, wanted, c);
    const bool turned = size > 0 && c >= format_of(spec).narrow;
    const bool right = turned ? is_right(a, given[static_cast<std::size_t>(c)], size, Dtype::BF16)
                              : a == b || (std::isnan(a) && std::isnan(b));
    if (!right) return fmt::format("{} instead of {} for {}", a, b, numbers[c]);
  }
  return {};
}

}  // namespace

std::string Problem::wrong_latent(const RowId& token, const std::vector<double>& wanted, double size) const {
  const LatentRow held = latent_row_of(token.b, token_position(token.b, token.q));
  const std::string wrong = difference(*spec_, held, wanted, size);
  if (wrong.empty()) return {};
  return fmt::format("k holds {} of new token {} of batch {}", wrong, token.q, token.b);
}

Comparison compare_latents(const Problem& problem) {
  const AttentionSpec& spec = problem.spec();
  const Tensor &x = problem.arguments().params.at("x"), &y = problem.arguments().params.at("y");
  const bool packed = spec.layout == Layout::Packed;
  const std::size_t at = packed ? 0 : spec.layout == Layout::Bhsd ? 2 : 1;  // dimension of tokens
  const std::int64_t batch = packed ? 1 : x.shape[0], tokens = x.shape[at];
  const std::vector<std::int64_t> of_x = strides_of(x), of_y = strides_of(y);
  AttentionSpec paged = spec;
  paged.page_size = static_cast<int>(tokens);  // Scales lie behind a page, which is a batch of x here.
  Comparison result;
  double squares = 0, norm = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    auto* const begin = static_cast<std::uint8_t*>(y.data) + (packed ? 0 : b * of_y[0]);
    for (std::int64_t token = 0; token < tokens; ++token) {
      const std::int64_t from = (packed ? 0 : b * of_x[0]) + token * of_x[at];
      std::vector<double> row;
      for (int c = 0; c < spec.d_qk; ++c) row.push_back(load_float(spec.dtype, x.data, from + c));
      const LatentRow held = latent_row(paged, begin, token, of_y[at]);
      if (const std::string wrong = difference(spec, held, row, 0); !wrong.empty() && result.problem.empty())
        result.problem = fmt::format("y holds {} (batch {}, token {})", wrong, b, token);
      for (int c = 0; c < spec.d_qk; ++c) {
        const double error = load_latent(spec, held, c) - row[static_cast<std::size_t>(c)];
        if (!std::isfinite(error)) continue;
        result.max_abs_err = std::max(result.max_abs_err, std::fabs(error));
        squares += error * error;
        norm += row[static_cast<std::size_t>(c)] * row[static_cast<std::size_t>(c)];
      }
    }
  }
  result.rows = result.rows_checked = batch * tokens;
  result.rel_err = std::sqrt(squares / (norm > 0 ? norm : 1));
  // Rows are either exactly right or wrong.
  result.recipe_max_abs_err = result.max_abs_limit = result.max_abs_err;
  result.recipe_rel_err = result.rel_limit = result.rel_err;
  result.ok = result.problem.empty();
  return result;
}

}  // namespace flashjit::reference

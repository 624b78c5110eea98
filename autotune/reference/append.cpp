// The reference for `append` decides where new tokens stand, and checks what the cache holds after the call.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "autotune/reference/reference.h"
#include "autotune/reference/rope.h"
#include "compiler/spec/half.h"
#include "fmt/format.h"

namespace flashjit::reference {

// New tokens are the last of their sequence.
std::int64_t Problem::token_position(std::int64_t b, std::int64_t q) const { return k_len(b) - q_len(b) + q; }

namespace {

// Returns `x` as an element of 8 bits holds it, in units of its scale.
double narrowed(double x, float scale, Dtype dtype) {
  std::array<float, 1> element;  // It has room for an element of any type.
  store_float(dtype, element.data(), 0, static_cast<float>(x) / scale);
  return load_float(dtype, element.data(), 0);
}

// Returns whether a cache holds the right element. If `size` is 0, it must be exactly the rounded number. Otherwise
// fp32 has rounded before, by a share of `size`, and then the cache's type has.
bool is_right_narrowed(double held, double wanted, double size, float scale, Dtype dtype) {
  const double off = std::isfinite(wanted) ? size * 0x1p-19 : 0;
  const double one = narrowed(wanted - off, scale, dtype), other = narrowed(wanted + off, scale, dtype);
  if (std::isnan(one) || std::isnan(other)) return std::isnan(held);
  return held >= std::min(one, other) && held <= std::max(one, other);
}

}  // namespace

bool is_right(double held, double wanted, double size, Dtype dtype) {
  const double largest = dtype == Dtype::F16 ? 65504 : 3.38e38;
  if (size == 0) return held == wanted || (std::isnan(held) && std::isnan(wanted));
  if (!std::isfinite(wanted)) return !std::isfinite(held);
  if (std::fabs(wanted) > 0.999 * largest) return !std::isfinite(held) || std::fabs(held) > 0.99 * largest;
  return std::fabs(held - wanted) <=
         unit_roundoff(dtype) * std::fabs(wanted) + size * (dtype == Dtype::F32 ? 0x1p-22 : 0x1p-19) + 0x1p-24;
}

std::string Problem::wrong_row(const char* name, const Tensor& cache, const RowId& token,
                               const std::vector<double>& wanted, double size, float scale) const {
  const std::int64_t at = key_offset(cache, token.b, token.h, token_position(token.b, token.q));
  const std::vector<double> held = elements(cache, at, static_cast<int>(wanted.size()));
  for (std::size_t c = 0; c < wanted.size(); ++c) {
    const bool right = has_scaled_keys(*spec_) ? is_right_narrowed(held[c], wanted[c], size, scale, spec_->kv_dtype)
                                               : is_right(held[c], wanted[c], size, spec_->kv_dtype);
    if (right) continue;
    return fmt::format("{} holds {} times {} instead of {:.9g} for new token {} of batch {}, KV head {}, column {}",
                       name, held[c], scale, wanted[c], token.q, token.b, token.h, c);
  }
  return {};
}

std::string Problem::wrong_append(const RowId& token) const {
  const Tensor& k_new = arguments_->params.at("k_new");
  std::vector<double> k = elements(k_new, query_offset(k_new, token), spec_->d_qk);
  double size = 0;
  if (spec_->rope != Rope::none) {
    for (const double x : k) size = std::isfinite(x) ? std::max(size, std::fabs(x)) : size;
    k = turned(*spec_, *arguments_, std::move(k), token_position(token.b, token.q));
  }
  if (has_latent_rows(*spec_)) return wrong_latent(token, k, size);
  const auto scale = [&](const char* name) {
    return element_scale(name, token.b, token.h, token_position(token.b, token.q));
  };
  std::string wrong = wrong_row("k", arguments_->k, token, k, size, scale("scale_k"));
  if (!wrong.empty() || spec_->v_in_k) return wrong;
  const Tensor& v_new = arguments_->params.at("v_new");
  return wrong_row("v", arguments_->v, token, elements(v_new, query_offset(v_new, token), spec_->d_v), 0,
                   scale("scale_v"));
}

std::string Problem::wrong_append() const {
  for (std::int64_t b = 0; spec_->append && b < batch_; ++b) {
    for (std::int64_t q = 0; q < q_len(b); ++q) {
      for (std::int64_t hk = 0; token_position(b, q) >= 0 && hk < spec_->heads_kv; ++hk) {
        if (std::string wrong = wrong_append({b, hk, q}); !wrong.empty()) return wrong;
      }
    }
  }
  return {};
}

}  // namespace flashjit::reference

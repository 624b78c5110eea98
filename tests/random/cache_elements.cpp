#include "tests/random/cache_elements.h"

#include <cmath>

#include "compiler/spec/half.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace flashjit::testing_random {

namespace {

// In units. Keys with scales of their own may cancel each other, to what fp16 can hold in exact numbers alone.
double largest_scale(Dtype of_q, bool of_keys) {
  return of_keys && (of_q == Dtype::F16 || size_of(of_q) == 1) ? 1e2 : 1e20;
}

}  // namespace

void CacheElements::draw(Dtype& of_q, Dtype& of_o) {
  dtype = of_q;
  scaled = random_.chance(0.25);
  if (!scaled) return;
  dtype = random_.pick({Dtype::E4M3, Dtype::E5M2, Dtype::I8});
  all_codes_ = random_.chance(0.3);
  extreme_ = random_.chance(0.15);
  unit_ = dtype == Dtype::I8 ? 0x1p-5 : all_codes_ ? 0x1p-8 : random_.pick({1.0, 0.25, 0.01});
  of_tokens_ = random_.chance(0.3);
  scaled_queries_ = dtype != Dtype::I8 && narrow_.chance(0.5);
  if (scaled_queries_) {
    const bool as_q = of_o == of_q;
    of_q = narrow_.pick({dtype, dtype, Dtype::E4M3, Dtype::E5M2});
    if (as_q) of_o = usual_out(of_q);
  }
  if (!of_tokens_ && narrow_.chance(0.4)) scale_block_ = 64 * narrow_.pick({1, 1, 2, 3, 16});
  largest_ = largest_scale(of_q, of_tokens_ || scale_block_ > 0);
}

void CacheElements::take(const AttentionSpec& spec, bool all_codes, bool extreme_scales) {
  dtype = spec.kv_dtype;
  scaled = has_scaled_keys(spec);
  all_codes_ = all_codes;
  extreme_ = extreme_scales;
  of_tokens_ = spec.token_scales;
  scale_block_ = spec.scale_block;
  scaled_queries_ = has_scaled_queries(spec);
  largest_ = largest_scale(spec.dtype, has_key_scales(spec));
  unit_ = dtype == Dtype::I8 ? 0x1p-5 : all_codes ? 0x1p-8 : 0.25;
}

void CacheElements::store(CaseTensor& tensor, std::int64_t at, double value) {
  if (!scaled || !all_codes_) return put(tensor, at, value);
  do {
    tensor.data()[at] = static_cast<std::uint8_t>(random_.bits());
  } while (!std::isfinite(load_float(dtype, tensor.data(), at)));
}

void CacheElements::put(CaseTensor& tensor, std::int64_t at, double value) const {
  store_float(dtype, tensor.data(), at, static_cast<float>(scaled ? value / unit_ : value));
}

// Those of Q are about 1, and never so large that a product of two scales is no number of fp32.
double CacheElements::scale(bool of_queries) {
  const double unit = of_queries ? 1 : unit_, usual = unit * (0.5 + random_.uniform());
  if (!extreme_) return usual;
  const bool of_keys = of_tokens_ || scale_block_ > 0;
  return random_.pick({usual, usual, of_keys ? usual : 0.0, -usual, of_queries ? 1e-6 : unit_ * 1e-30,
                       of_queries ? 1e2 : unit_ * largest_});
}

std::string CacheElements::words() const {
  return fmt::format(" kv={}{}{}", flashjit::name(dtype), of_tokens_ ? " token_scales" : "",
                     scale_block_ > 0 ? fmt::format(" scales=block({})", scale_block_) : "");
}

// As K without its columns, heads last.
void CacheElements::shape_as_keys(CaseTensor& tensor, const std::vector<std::int64_t>& keys, bool heads_first) {
  tensor.shape.assign(keys.begin(), keys.end() - 1);
  if (heads_first) std::swap(tensor.shape[1], tensor.shape[2]);
  const std::int64_t heads = tensor.shape.back(), tokens = tensor.shape[tensor.shape.size() - 2];
  const std::int64_t gap = random_.pick<std::int64_t>({1, 1, 3});
  const bool by_head = random_.chance(0.5);  // a head's numbers lie together
  tensor.strides.assign(tensor.shape.size(), tokens * heads * gap);
  tensor.strides[tensor.shape.size() - 2] = by_head ? gap : heads * gap;
  tensor.strides.back() = by_head ? tokens * gap : gap;
}

// [batch, heads], in any order and with room between; or what counts for all of them.
void CacheElements::shape_as_heads(CaseTensor& tensor, std::int64_t batch, std::int64_t heads) {
  const std::int64_t gap = random_.pick<std::int64_t>({1, 1, 3});
  switch (random_.integer(0, 4)) {
    case 0: tensor.shape = {1}, tensor.strides = {1}; break;
    case 1: tensor.shape = {heads}, tensor.strides = {gap}; break;
    case 2: tensor.shape = {batch, 1}, tensor.strides = {gap, 1}; break;
    case 3: tensor.shape = {batch, heads}, tensor.strides = {gap, gap * batch}; break;
    default: tensor.shape = {batch, heads}, tensor.strides = {heads * gap, gap};
  }
}

// [batch, blocks, heads], or without what counts for all.
void CacheElements::shape_as_blocks(CaseTensor& tensor, std::int64_t batch, std::int64_t heads, std::int64_t tokens) {
  const std::int64_t blocks = (tokens + scale_block_ - 1) / scale_block_, gap = random_.pick<std::int64_t>({1, 1, 3});
  switch (random_.integer(0, 4)) {
    case 0: tensor.shape = {1}, tensor.strides = {1}; break;
    case 1: tensor.shape = {blocks, heads}, tensor.strides = {heads * gap, gap}; break;
    case 2: tensor.shape = {batch, blocks, 1}, tensor.strides = {blocks * gap, gap, 1}; break;
    case 3: tensor.shape = {batch, blocks, heads}, tensor.strides = {blocks * heads * gap, gap, blocks * gap}; break;
    default: tensor.shape = {batch, blocks, heads}, tensor.strides = {blocks * heads * gap, heads * gap, gap};
  }
}

void CacheElements::lay_out_scales(std::map<std::string, CaseTensor>& params, const Rows& rows,
                                   const std::vector<std::int64_t>& key_shape, Layout layout) {
  if (!scaled) return;
  const std::int64_t least = layout == Layout::Packed ? 1 : 0;  // that a call says is the longest
  for (const std::string name : {"scale_k", "scale_v", "scale_q"}) {
    const bool of_queries = name == "scale_q";
    if (of_queries && !scaled_queries_) continue;
    if (random_.chance(0.1)) continue;  // 1
    CaseTensor& tensor = params[name];
    const std::int64_t heads = of_queries ? rows.heads_q : rows.heads_kv;
    const std::int64_t tokens = std::max(of_queries ? rows.queries : rows.keys, least);
    if (scale_block_ > 0 && rows.page_size > 0 && !of_queries)
      shape_as_blocks(tensor, rows.pages, heads, rows.page_size);
    else if (scale_block_ > 0) shape_as_blocks(tensor, rows.batch, heads, tokens);
    else if (of_tokens_ && !of_queries) shape_as_keys(tensor, key_shape, layout == Layout::Bhsd);
    else shape_as_heads(tensor, rows.batch, heads);
    tensor.dtype = "fp32";
    allocate(tensor, 4, false);
    const auto count = static_cast<std::int64_t>((tensor.image.size() - tensor.begin) / sizeof(float));
    for (std::int64_t i = 0; i < count; ++i)
      store_float(Dtype::F32, tensor.data(), i, static_cast<float>(scale(of_queries)));
    shapes_ += fmt::format(" {}[{}]", name, fmt::join(tensor.shape, ","));
  }
}

std::string CacheElements::text() const {
  if (!scaled) return {};
  return fmt::format(", {}{}{}", all_codes_ ? "all codes" : "rounded", extreme_ ? ", scales far apart" : "", shapes_);
}

}  // namespace flashjit::testing_random

// Where the tensors of a call on a processor have what, and how long its sequences are.
#pragma once

#include <algorithm>
#include <cstdint>

#include "compiler/spec/spec.h"
#include "templates/kernel_params.h"

namespace flashjit::host {

struct Sequence {
  std::int64_t q_first = 0, k_first = 0;  // packed: first token
  std::int64_t q_len = 0, k_len = 0;
};

// A key among those of K: in pages the page, else the sequence, or nothing where all are packed; and which token of it.
struct KeyPlace {
  std::int64_t block = 0, token = 0;
};

// This class holds what all kinds of kernel know about a call's tensors.
class Problem {
 public:
  Problem(const AttentionSpec& spec, const KernelParams& params)
      : params_(params),
        packed_(is_packed(spec)),
        packed_keys_(has_packed_keys(spec)),
        has_key_scales_(flashjit::has_key_scales(spec)),
        v_transposed_(spec.v_transposed),
        scale_block_(spec.scale_block),
        page_size_(spec.page_size),
        element_(size_of(spec.dtype)),
        key_element_(size_of(spec.kv_dtype)),
        out_element_(size_of(spec.out_dtype)) {}

  Sequence sequence(std::int64_t b) const {
    Sequence s{0, 0, std::max(params_.q_len, 0), std::max(params_.k_len, 0)};
    if (packed_) take_offsets(params_.offsets_q + b, s.q_first, s.q_len);
    if (packed_keys_) take_offsets(params_.offsets_k + b, s.k_first, s.k_len);
    if (params_.k_lens) s.k_len = std::clamp<std::int64_t>(params_.k_lens[b], 0, s.k_len);
    return s;
  }
  const char* q(std::int64_t b, std::int64_t h, std::int64_t token) const {
    return like_q(params_.q, params_.q_stride, b, h, token);
  }
  // Where the rows of keys first..first + count - 1 lie.
  void k_rows(std::int64_t b, std::int64_t hk, std::int64_t first, std::int64_t count, const void** rows) const {
    find_rows(params_.k, params_.k_stride, b, hk, first, count, key_element_, rows);
  }
  KeyPlace place(std::int64_t b, std::int64_t key) const {
    if (page_size_ > 0) return {page_of(b, key), key % page_size_};
    return {packed_keys_ ? 0 : b, sequence(b).k_first + key};
  }
  // The columns of V lie v_step() elements apart.
  void v_rows(std::int64_t b, std::int64_t hk, std::int64_t first, std::int64_t count, const void** rows) const {
    Strides stride = params_.v_stride;
    if (v_transposed_) stride.token = 1;
    find_rows(params_.v, stride, b, hk, first, count, key_element_, rows);
  }
  std::int64_t v_step() const { return v_transposed_ ? params_.v_stride.token : 1; }
  char* o(std::int64_t b, std::int64_t h, std::int64_t token) const {
    return const_cast<char*>(at(params_.o, params_.o_stride, packed_ ? 0 : b, h, token, out_element_));
  }
  // These functions find rows of tensors of gradients: rows of queries that are read, and rows that are written.
  const char* like_q(const void* base, const Strides& stride, std::int64_t b, std::int64_t h,
                     std::int64_t token) const {
    return at(base, stride, packed_ ? 0 : b, h, token, element_);
  }
  char* query_result(void* base, const Strides& stride, Dtype dtype, std::int64_t b, std::int64_t h,
                     std::int64_t token) const {
    return const_cast<char*>(at(base, stride, packed_ ? 0 : b, h, token, size_of(dtype)));
  }
  char* key_result(void* base, const Strides& stride, Dtype dtype, std::int64_t b, std::int64_t hk,
                   std::int64_t key) const {
    const std::int64_t token = sequence(b).k_first + key;
    return const_cast<char*>(at(base, stride, packed_keys_ ? 0 : b, hk, token, size_of(dtype)));
  }
  // Finds the number of a row in lse, max_logit or dlse.
  template <class Float>
  Float* row_value(Float* base, std::int64_t b, std::int64_t h, std::int64_t token) const {
    if (!base) return nullptr;
    return base + (packed_ ? 0 : b * params_.row_stride_batch) + h * params_.row_stride_head + token;
  }
  float sink(std::int64_t h) const { return params_.sink ? params_.sink[h] : 0.0f; }
  // Returns the scale of a query. Where all queries of a head share a scale, `query` may be any of them.
  float scale_q(std::int64_t b, std::int64_t h, std::int64_t query) const {
    const Strides& s = params_.scale_q_stride;
    const std::int64_t block = scale_block_ > 0 ? query / scale_block_ : 0;
    return params_.scale_q ? params_.scale_q[b * s.batch + h * s.head + block * s.token] : 1;
  }
  // Returns the scale of a key. Where all keys of a head share a scale, `key` may be any of them.
  float scale_k(std::int64_t b, std::int64_t hk, std::int64_t key) const {
    return scale(params_.scale_k, params_.scale_k_stride, b, hk, key);
  }
  float scale_v(std::int64_t b, std::int64_t hk, std::int64_t key) const {
    return scale(params_.scale_v, params_.scale_v_stride, b, hk, key);
  }

 private:
  void find_rows(const void* base, const Strides& stride, std::int64_t b, std::int64_t hk, std::int64_t first,
                 std::int64_t count, int element, const void** rows) const {
    const std::int64_t token = sequence(b).k_first + first;
    for (std::int64_t i = 0; i < count; ++i) {
      rows[i] = page_size_ > 0 ? at(base, stride, page_of(b, first + i), hk, (first + i) % page_size_, element)
                               : at(base, stride, packed_keys_ ? 0 : b, hk, token + i, element);
    }
  }
  int page_of(std::int64_t b, std::int64_t key) const {
    const int* line = params_.block_table + b * params_.table_stride_batch;
    return std::clamp(line[key / page_size_ * params_.table_stride_page], 0, params_.pages - 1);
  }
  float scale(const float* scales, const Strides& stride, std::int64_t b, std::int64_t hk, std::int64_t key) const {
    if (!scales) return 1;
    if (!has_key_scales_) return scales[b * stride.batch + hk * stride.head];
    const void* of_key = nullptr;
    if (scale_block_ == 0) find_rows(scales, stride, b, hk, key, 1, sizeof *scales, &of_key);
    else if (page_size_ == 0) of_key = at(scales, stride, b, hk, key / scale_block_, sizeof *scales);
    else of_key = at(scales, stride, page_of(b, key), hk, key % page_size_ / scale_block_, sizeof *scales);
    return *static_cast<const float*>(of_key);
  }
  static void take_offsets(const int* offsets, std::int64_t& first, std::int64_t& length) {
    first = offsets[0];
    length = std::max(offsets[1] - offsets[0], 0);
  }
  static const char* at(const void* base, const Strides& stride, std::int64_t b, std::int64_t h, std::int64_t token,
                        int element) {
    return static_cast<const char*>(base) + (b * stride.batch + h * stride.head + token * stride.token) * element;
  }
  const KernelParams& params_;
  bool packed_, packed_keys_, has_key_scales_, v_transposed_;
  int scale_block_;
  int page_size_;
  int element_, key_element_, out_element_;
};

// The pair that owns work item `item`, by the member that counts the items before a pair. Pairs without items share that
// number with the next one: the last such is found.
template <class Pairs, class Member>
const auto& owner(const Pairs& pairs, std::int64_t item, Member member) {
  const auto after = std::upper_bound(pairs.begin(), pairs.end(), item,
                                      [&](std::int64_t value, const auto& pair) { return value < pair.*member; });
  return *(after - 1);
}

}  // namespace flashjit::host

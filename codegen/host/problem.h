// Finds rows and scales in the tensors of a call on a processor, and the lengths of its sequences.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "compiler/spec/spec.h"
#include "templates/kernel_params.h"

namespace flashjit::host {

inline constexpr std::int64_t kPackKeys = 128;  // The keys of one packing item.
inline constexpr std::size_t kMostBytesOfRow = std::size_t{kMaxLatentDimQk} * 4;

struct Sequence {
  std::int64_t q_first = 0, k_first = 0;  // packed: the first token.
  std::int64_t q_len = 0, k_len = 0;
};

// This is the address of a key in K: `block` is the page, else the sequence, or 0 if all are packed; `token` counts in
// it.
struct KeyAddress {
  std::int64_t block = 0, token = 0;
};

// Holds what all kinds of kernel know about a call's tensors.
class Problem {
 public:
  Problem(const AttentionSpec& spec, const KernelParams& params)
      : params_(params),
        packed_(is_packed(spec)),
        packed_keys_(has_packed_keys(spec)),
        chooses_(selects(spec)),
        keys_of_entry_(reads_pages(spec) ? spec.page_size : 1),
        has_key_scales_(flashjit::has_key_scales(spec)),
        v_transposed_(spec.v_transposed),
        scale_block_(spec.scale_block),
        page_size_(spec.page_size),
        element_(size_of(spec.dtype)),
        key_element_(size_of(spec.kv_dtype)),
        out_element_(size_of(spec.out_dtype)) {}

  // Returns a sequence. Queries that choose their keys are sequences of their own, with as many keys as a list has room
  // for, because lists differ by KV head.
  Sequence sequence(std::int64_t b) const {
    Sequence s{0, 0, std::max(params_.q_len, 0), std::max(params_.k_len, 0)};
    if (chooses_) s.q_first = b % params_.queries_of_sequence;
    if (packed_) take_offsets(params_.offsets_q + b, s.q_first, s.q_len);
    if (packed_keys_) take_offsets(params_.offsets_k + b, s.k_first, s.k_len);
    if (params_.k_lens) s.k_len = std::clamp<std::int64_t>(params_.k_lens[b], 0, s.k_len);
    return s;
  }
  // Returns a sequence whose keys are the entries of a list that have a row: others are passed over.
  Sequence sequence(std::int64_t b, std::int64_t hk) const {
    Sequence s = sequence(b);
    if (!chooses_) return s;
    s.k_len = 0;
    visit_listed(b, hk, [&](std::int64_t, std::int64_t) { return ++s.k_len, true; });
    return s;
  }
  const char* q(std::int64_t b, std::int64_t h, std::int64_t token) const {
    return like_q(params_.q, params_.q_stride, b, h, token);
  }
  // Finds where the rows of keys first..first + count - 1 lie.
  void k_rows(std::int64_t b, std::int64_t hk, std::int64_t first, std::int64_t count, const void** rows) const {
    find_rows(params_.k, params_.k_stride, b, hk, first, count, key_element_, rows);
  }
  // The call must have one KV head.
  KeyAddress key_address(std::int64_t b, std::int64_t key) const {
    if (page_size_ > 0) return {page_of(b, 0, key), key % page_size_};
    return {packed_keys_ ? 0 : b, sequence(b).k_first + key};
  }
  // Finds rows of V. Their columns lie v_step() elements apart.
  void v_rows(std::int64_t b, std::int64_t hk, std::int64_t first, std::int64_t count, const void** rows) const {
    Strides stride = params_.v_stride;
    if (v_transposed_) stride.token = 1;
    find_rows(params_.v, stride, b, hk, first, count, key_element_, rows);
  }
  std::int64_t v_step() const { return v_transposed_ ? params_.v_stride.token : 1; }
  char* o(std::int64_t b, std::int64_t h, std::int64_t token) const {
    return const_cast<char*>(at(params_.o, params_.o_stride, batch_of(b), h, token, out_element_));
  }
  // These functions find rows of tensors of gradients: rows of queries that are read, and rows that are written.
  const char* like_q(const void* base, const Strides& stride, std::int64_t b, std::int64_t h,
                     std::int64_t token) const {
    return at(base, stride, batch_of(b), h, token, element_);
  }
  char* query_result(void* base, const Strides& stride, Dtype dtype, std::int64_t b, std::int64_t h,
                     std::int64_t token) const {
    return const_cast<char*>(at(base, stride, batch_of(b), h, token, size_of(dtype)));
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
    return base + batch_of(b) * params_.row_stride_batch + h * params_.row_stride_head + token;
  }
  float sink(std::int64_t h) const { return params_.sink ? params_.sink[h] : 0.0f; }
  // Returns the scale of a query. Where all queries of a head share a scale, `query` may be any of them.
  float scale_q(std::int64_t b, std::int64_t h, std::int64_t query) const {
    const Strides& s = params_.scale_q_stride;
    if (chooses_) query += b % params_.queries_of_sequence;
    const std::int64_t block = scale_block_ > 0 ? query / scale_block_ : 0;
    return params_.scale_q ? params_.scale_q[own_batch_of(b) * s.batch + h * s.head + block * s.token] : 1;
  }
  // Finds the scales of keys first..first + count - 1. Where all keys of a head share a scale, `first` may be any of them.
  void scales_k(std::int64_t b, std::int64_t hk, std::int64_t first, std::int64_t count, float* scales) const {
    find_scales(params_.scale_k, params_.scale_k_stride, b, hk, first, count, scales);
  }
  void scales_v(std::int64_t b, std::int64_t hk, std::int64_t first, std::int64_t count, float* scales) const {
    find_scales(params_.scale_v, params_.scale_v_stride, b, hk, first, count, scales);
  }
  float scale_k(std::int64_t b, std::int64_t hk, std::int64_t key) const {
    float scale = 1;
    scales_k(b, hk, key, 1, &scale);
    return scale;
  }
  float scale_v(std::int64_t b, std::int64_t hk, std::int64_t key) const {
    float scale = 1;
    scales_v(b, hk, key, 1, &scale);
    return scale;
  }

  // Calls visit(batch index or page, row there) for the keys of a list that have a row, until it returns false.
  template <class Visit>
  void visit_listed(std::int64_t b, std::int64_t hk, const Visit& visit) const {
    const auto begin = [&](const Strides& s) {
      return own_batch_of(b) * s.batch + hk * s.head + b % params_.queries_of_sequence * s.token;
    };
    const int count = params_.key_count ? params_.key_count[begin(params_.key_count_stride)] : params_.k_len;
    const int* list = params_.key_index + begin(params_.key_index_stride);
    const std::int64_t rows = page_size_ > 0 ? std::int64_t{params_.pages} * page_size_ : params_.key_rows;
    for (int key = 0; key < std::clamp(count, 0, params_.k_len); ++key) {
      const std::int64_t number = list[key / keys_of_entry_], row = number * keys_of_entry_ + key % keys_of_entry_;
      if (number < 0 || row >= rows) continue;
      const bool goes_on = page_size_ > 0 ? visit(row / page_size_, row % page_size_) : visit(own_batch_of(b), row);
      if (!goes_on) return;
    }
  }

 private:
  // Returns the batch index of a sequence number: queries that choose their keys have numbers of their own.
  std::int64_t own_batch_of(std::int64_t b) const { return chooses_ ? b / params_.queries_of_sequence : b; }
  // Returns the index by which strides step in a tensor which has the rows of Q.
  std::int64_t batch_of(std::int64_t b) const { return packed_ ? 0 : own_batch_of(b); }
  // Calls visit(i, batch index or page, row there) for the keys first + i.
  template <class Visit>
  void visit_keys(std::int64_t b, std::int64_t hk, std::int64_t first, std::int64_t count, const Visit& visit) const {
    if (chooses_) {
      std::int64_t key = 0;
      visit_listed(b, hk, [&](std::int64_t outer, std::int64_t row) {
        if (key == first + count) return false;
        if (key++ >= first) visit(key - 1 - first, outer, row);
        return true;
      });
      return;
    }
    const std::int64_t token = sequence(b).k_first + first;
    for (std::int64_t i = 0; i < count; ++i) {
      if (page_size_ > 0) visit(i, page_of(b, hk, first + i), (first + i) % page_size_);
      else visit(i, packed_keys_ ? 0 : b, token + i);
    }
  }
  void find_rows(const void* base, const Strides& stride, std::int64_t b, std::int64_t hk, std::int64_t first,
                 std::int64_t count, int element, const void** rows) const {
    visit_keys(b, hk, first, count, [&](std::int64_t i, std::int64_t outer, std::int64_t row) {
      rows[i] = at(base, stride, outer, hk, row, element);
    });
  }
  int page_of(std::int64_t b, std::int64_t hk, std::int64_t key) const {
    const int* line = params_.block_table + b * params_.table_stride_batch + hk * params_.table_stride_head;
    return std::clamp(line[key / page_size_ * params_.table_stride_page], 0, params_.pages - 1);
  }
  void find_scales(const float* scales, const Strides& stride, std::int64_t b, std::int64_t hk, std::int64_t first,
                   std::int64_t count, float* found) const {
    if (!scales || !has_key_scales_) {
      std::fill_n(found, count, scales ? scales[own_batch_of(b) * stride.batch + hk * stride.head] : 1);
      return;
    }
    // Blocks of scales belong to the sequence here, not to all tokens.
    const bool of_sequence = scale_block_ > 0 && packed_keys_;
    visit_keys(b, hk, first, count, [&](std::int64_t i, std::int64_t outer, std::int64_t row) {
      if (of_sequence) outer = b, row = first + i;
      found[i] = scales[outer * stride.batch + hk * stride.head + row / std::max(scale_block_, 1) * stride.token];
    });
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
  bool packed_, packed_keys_, chooses_;
  int keys_of_entry_;  // The keys of an entry of a list.
  bool has_key_scales_, v_transposed_;
  int scale_block_;
  int page_size_;
  int element_, key_element_, out_element_;
};

// Returns the pair that owns work item `item`, by the member that counts the items before a pair. Pairs without items
// share that number with the next pair: the last of these is found.
template <class Pairs, class Member>
const auto& owner(const Pairs& pairs, std::int64_t item, Member member) {
  const auto after = std::upper_bound(pairs.begin(), pairs.end(), item,
                                      [&](std::int64_t value, const auto& pair) { return value < pair.*member; });
  return *(after - 1);
}

}  // namespace flashjit::host

// The rows of K and V of one sequence and KV head, by key, wherever they lie: copies walk down them (tile_copy.cuh),
// and other code reads a single one. Loops call key_rows(), and need not know how rows are found.
#pragma once

#include "templates/paged_rows.cuh"
#include "templates/scales.cuh"
#include "templates/tile_copy.cuh"

namespace flashjit {

template <class T, Rows rows, int page_size>
struct KeyRowsOf {
  using type = StridedRows<T>;
};
template <class T, int page_size>
struct KeyRowsOf<T, Rows::paged, page_size> {
  using type = PagedRows<T, page_size>;
};
template <class T, int page_size>
struct KeyRowsOf<T, Rows::chosen, page_size> {
  using type = ChosenRows<T, page_size>;
};
template <class T, int page_size>
struct KeyRowsOf<T, Rows::chosen_pages, page_size> {
  using type = ChosenPages<T, page_size>;
};
template <class T, int page_size = config.page_size>
using KeyRows = typename KeyRowsOf<T, kKeyRows, page_size>::type;

// `first` is K or V, and key_begin() of its strides beyond.
template <int page_size = config.page_size, class T>
__device__ inline KeyRows<T, page_size> key_rows(const KernelParams& p, const Strides& s, const T* first,
                                                 const Sequence& seq) {
  if constexpr (kKeyRows == Rows::paged) {
    return {first, s.token, s.batch, table_line(p, seq), p.table_stride_page, p.pages};
  } else if constexpr (kKeyRows == Rows::chosen) {
    return {first, s.token, s.batch, chosen_list(p, seq), static_cast<u32>(p.key_rows)};
  } else if constexpr (kKeyRows == Rows::chosen_pages) {
    return {{first, s.token, s.batch, chosen_list(p, seq), 1, p.pages}};
  } else {
    return {first, s.token};
  }
}

// Returns the scale of a key of the sequence, in K or V, where each key has its own scale or shares the scale of a
// block. Scales of blocks lie in pages where keys do. Otherwise the sequence numbers them, even if it is packed.
constexpr int kKeysOfScale = has_key_scales(config) ? keys_of_scale(config) : 1;
__device__ inline float key_scale(const KernelParams& p, const float* scales, const Strides& s, const Sequence& seq,
                                  int key) {
  if (config.scale_block > 0 && kKeyRows != Rows::paged && !kChosen) return scale_of(scales, s, seq.b, seq.hk, key);
  constexpr int kScalesOfPage = config.page_size / kKeysOfScale;
  if (kChosen && !is_chosen(p, seq, key)) return 1.0f;
  return scales ? *key_rows<kScalesOfPage>(p, s, scales + key_begin(s, seq), seq).template row_of<kKeysOfScale>(key)
                : 1.0f;
}

}  // namespace flashjit

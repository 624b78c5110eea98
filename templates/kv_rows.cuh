// The rows of K and V of one sequence and KV head, by key, wherever they lie: what copies walk down (tile_copy.cuh), and
// what reads a single row of. Loops ask for key_rows() and not how.
#pragma once

#include "templates/sequence.cuh"
#include "templates/tile_copy.cuh"

namespace flashjit {

// Rows in pages of config.page_size, anywhere in a pool: the sequence's line of the block table has their numbers.
template <class T>
struct PagedRows {
  using Element = T;
  static constexpr u32 kPage = config.page_size;
  const T* first;      // row 0 of page 0
  Int64 stride, page;  // from one row of a page to the next, from page to page
  const int* table;    // the sequence's line
  Int64 table_stride;
  int pages;  // of the pool

  // `is_there`: some row of the page is. Others are not looked up: behind the length the table may hold anything. A
  // number outside the pool is taken for that of its last page, so that nothing outside is read.
  __device__ const T* page_begin(u32 number, bool is_there) const {
    const int id = is_there ? __ldg(table + number * table_stride) : 0;
    return first + static_cast<Int64>(min(static_cast<u32>(id), static_cast<u32>(pages - 1))) * page;
  }
  __device__ const T* row(int key) const {
    const u32 k = key;
    return page_begin(k / kPage, true) + static_cast<int>(k % kPage) * stride;
  }

  // As StridedRows::Walk. Where pages and tiles fit each other, all threads look up a page once; else each its rows.
  template <int step, int tile_rows>
  struct Walk {
    const PagedRows& rows;
    u32 tile, of_tile, column;
    int count;
    __device__ Walk(const PagedRows& rows, int tile, u32 row, u32 column, int count)
        : rows(rows), tile(tile), of_tile(row), column(column), count(count) {}
    __device__ bool is_there(u32 key) const { return static_cast<int>(key) < count; }
    __device__ const T* row(int i) const {
      if constexpr (kPage % tile_rows == 0) {
        const T* page = rows.page_begin(tile / kPage, is_there(tile));
        return page + column + static_cast<int>(tile % kPage + of_tile + i) * rows.stride;
      } else if constexpr (tile_rows % kPage == 0 && kPage % step == 0) {
        const u32 page_of_tile = i / kPage;  // a constant, as i is
        const T* page = rows.page_begin(tile / kPage + page_of_tile, is_there(tile + page_of_tile * kPage));
        return page + column + static_cast<int>(i % kPage + of_tile) * rows.stride;
      } else {
        const u32 key = tile + of_tile + i;
        const T* page = rows.page_begin(key / kPage, is_there(key));
        return page + column + static_cast<int>(key % kPage) * rows.stride;
      }
    }
    __device__ void advance() {}
  };
};

template <class T, Rows rows>
struct KeyRowsOf {
  using type = StridedRows<T>;
};
template <class T>
struct KeyRowsOf<T, Rows::paged> {
  using type = PagedRows<T>;
};
template <class T>
using KeyRows = typename KeyRowsOf<T, kKeyRows>::type;

// `first`: K or V and key_begin() of its strides.
template <class T>
__device__ inline KeyRows<T> key_rows(const KernelParams& p, const Strides& s, const T* first, const Sequence& seq) {
  if constexpr (kKeyRows == Rows::paged) {
    return {first, s.token, s.batch, p.block_table + seq.b * p.table_stride_batch, p.table_stride_page, p.pages};
  } else {
    return {first, s.token};
  }
}

}  // namespace flashjit

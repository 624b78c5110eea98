// Rows of K or V of one sequence and KV head whose addresses are looked up. Either they lie in pages, anywhere in a
// pool, and the sequence's line of the block table has the numbers of the pages. Or they lie anywhere in K, and a
// query's list has their numbers. This file includes nothing: a test compiles it for the host.
#pragma once

namespace flashjit {

template <class T, int page_size>
struct PagedRows {
  using Element = T;
  static constexpr bool kHasAll = true;
  static constexpr unsigned kPage = page_size;
  const T* first;          // Row 0 of page 0.
  long long stride, page;  // The strides from one row of a page to the next, and from page to page.
  const int* table;        // The sequence's line of the block table.
  long long table_stride;
  int pages;  // The number of pages of the pool.

  // `is_there` tells whether some row of the page exists. Other pages are not looked up, because behind the length the
  // table may hold any number. A number outside the pool is replaced by that of the last page, so that nothing outside
  // is read.
  __device__ unsigned page_id(unsigned number, bool is_there) const {
    const unsigned id = is_there ? __ldg(table + number * table_stride) : 0, last = pages - 1;
    return id < last ? id : last;
  }
  // Callers that read a page's number some time before the row use this.
  __device__ unsigned number_of(int key) const {
    return __ldg(table + static_cast<unsigned>(key) / kPage * table_stride);
  }
  __device__ bool has_number(unsigned) const { return true; }
  __device__ const T* numbered_row(unsigned number, int key) const {
    const unsigned last = pages - 1;
    return begin_of(number < last ? number : last) + static_cast<int>(static_cast<unsigned>(key) % kPage) * stride;
  }
  __device__ const T* begin_of(unsigned id) const { return first + static_cast<long long>(id) * page; }
  __device__ const T* page_begin(unsigned number, bool is_there) const { return begin_of(page_id(number, is_there)); }
  // Returns whether the page of this key belongs to the pool.
  __device__ bool has_row(int key) const {
    return static_cast<unsigned>(__ldg(table + key / page_size * table_stride)) < static_cast<unsigned>(pages);
  }
  __device__ const T* row(int key) const {
    const unsigned k = key;
    return page_begin(k / kPage, true) + static_cast<int>(k % kPage) * stride;
  }

  template <int keys>
  __device__ const T* row_of(int key) const {
    return row(key / keys);
  }

  // This walks as StridedRows::Walk does. Where pages and tiles fit each other, all threads look up a page once;
  // otherwise each thread looks up its rows.
  template <int step, int tile_rows>
  struct Walk {
    const PagedRows& rows;
    unsigned tile, of_tile, column;
    int count;
    __device__ Walk(const PagedRows& rows, int tile, unsigned row, unsigned column, int count)
        : rows(rows), tile(tile), of_tile(row), column(column), count(count) {}
    __device__ bool has_row(int) const { return true; }
    __device__ bool is_there(unsigned key) const { return static_cast<int>(key) < count; }
    __device__ const T* row(int i) const {
      if constexpr (kPage % tile_rows == 0) {
        const T* page = rows.page_begin(tile / kPage, is_there(tile));
        return page + column + static_cast<int>(tile % kPage + of_tile + i) * rows.stride;
      } else if constexpr (tile_rows % kPage == 0 && kPage % step == 0) {
        // This is a constant, because i is one.
        const unsigned page_of_tile = i / kPage;
        const T* page = rows.page_begin(tile / kPage + page_of_tile, is_there(tile + page_of_tile * kPage));
        return page + column + static_cast<int>(i % kPage + of_tile) * rows.stride;
      } else {
        const unsigned key = tile + of_tile + i;
        const T* page = rows.page_begin(key / kPage, is_there(key));
        return page + column + static_cast<int>(key % kPage) * rows.stride;
      }
    }
    __device__ void advance() {}
  };
};

// The pages of a list: a query has the keys in its line. No row is read for a number of no page of the pool.
template <class T, int page_size>
struct ChosenPages : PagedRows<T, page_size> {
  using Pages = PagedRows<T, page_size>;
  static constexpr bool kHasAll = false;
  __device__ bool has_number(unsigned number) const { return number < static_cast<unsigned>(this->pages); }

  template <int step, int tile_rows>
  struct Walk : Pages::template Walk<step, tile_rows> {
    using WalkOfPages = typename Pages::template Walk<step, tile_rows>;
    __device__ Walk(const ChosenPages& rows, int tile, unsigned row, unsigned column, int count)
        : WalkOfPages(rows, tile, row, column, count) {}
    __device__ bool has_row(int i) const {
      const unsigned key = this->tile + this->of_tile + i;
      // If true, all threads look up a page once.
      const bool in_one = Pages::kPage % tile_rows == 0;
      return this->is_there(key) && this->rows.has_row(static_cast<int>(in_one ? this->tile : key));
    }
  };
};

// Indices into the list are the keys of the query. No row is read for a number of no row of K.
template <class T, int page_size>
struct ChosenRows {
  using Element = T;
  static constexpr bool kHasAll = false;
  const T* first;          // Row 0, in page 0 if there are pages.
  long long stride, page;  // The strides from one row (of a page) to the next, and from page to page.
  const int* list;
  unsigned rows;  // The number of rows of K.

  // Returns the row of this number, which must exist.
  __device__ const T* numbered(unsigned number) const {
    if constexpr (page_size > 0) {
      constexpr unsigned kPage = page_size;
      return first + static_cast<long long>(number / kPage) * page + static_cast<int>(number % kPage) * stride;
    } else {
      return first + number * stride;
    }
  }
  __device__ unsigned number_of(int index) const { return static_cast<unsigned>(__ldg(list + index)); }
  __device__ bool has_row(int index) const { return number_of(index) < rows; }
  // Callers that read a number some time before its row use these.
  __device__ bool has_number(unsigned number) const { return number < rows; }
  __device__ const T* numbered_row(unsigned number, int) const { return numbered(number); }
  // Returns row 0 where the number belongs to no row: an address that nobody reads.
  __device__ const T* row(int index) const {
    const unsigned number = number_of(index);
    return numbered(number < rows ? number : 0);
  }

  // Blocks of keys are those of K, or of a page, and not of the list.
  template <int keys>
  __device__ const T* row_of(int index) const {
    return numbered(number_of(index) / keys);
  }

  // This walks as StridedRows::Walk does. A list may end behind the count.
  template <int step, int tile_rows>
  struct Walk {
    const ChosenRows& rows;
    int index, column, count;
    __device__ Walk(const ChosenRows& rows, int tile, unsigned row, unsigned column, int count)
        : rows(rows), index(tile + static_cast<int>(row)), column(static_cast<int>(column)), count(count) {}
    __device__ bool has_row(int i) const { return index + i < count && rows.has_row(index + i); }
    __device__ const T* row(int i) const { return (index + i < count ? rows.row(index + i) : rows.first) + column; }
    __device__ void advance() {}
  };
};

}  // namespace flashjit

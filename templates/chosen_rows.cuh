// Rows of K or V by their numbers, which a query has in a list; places of the list are its keys. No row is read for a number
// that is none of K's. No includes: a test compiles this for the host.
#pragma once

namespace flashjit {

template <class T, int page_size>
struct ChosenRows {
  using Element = T;
  const T* first;          // row 0, of page 0 if there are pages
  long long stride, page;  // from one row (of a page) to the next, from page to page
  const int* list;
  unsigned rows;  // that there are

  // The row of this number, which is one.
  __device__ const T* numbered(unsigned number) const {
    if constexpr (page_size > 0) {
      constexpr unsigned kPage = page_size;
      return first + static_cast<long long>(number / kPage) * page + static_cast<int>(number % kPage) * stride;
    } else {
      return first + number * stride;
    }
  }
  __device__ unsigned number_at(int place) const { return static_cast<unsigned>(__ldg(list + place)); }
  __device__ bool has_row(int place) const { return number_at(place) < rows; }
  // Where there is none, row 0: an address that nobody reads.
  __device__ const T* row(int place) const {
    const unsigned number = number_at(place);
    return numbered(number < rows ? number : 0);
  }

  // Blocks of keys are those of K, or of a page, and not of the list.
  template <int keys>
  __device__ const T* row_of(int place) const {
    return numbered(number_at(place) / keys);
  }

  // As StridedRows::Walk. Behind the count a list may end.
  template <int step, int tile_rows>
  struct Walk {
    const ChosenRows& rows;
    int place, column, count;
    __device__ Walk(const ChosenRows& rows, int tile, unsigned row, unsigned column, int count)
        : rows(rows), place(tile + static_cast<int>(row)), column(static_cast<int>(column)), count(count) {}
    __device__ bool has_row(int i) const { return place + i < count && rows.has_row(place + i); }
    __device__ const T* row(int i) const { return (place + i < count ? rows.row(place + i) : rows.first) + column; }
    __device__ void advance() {}
  };
};

}  // namespace flashjit

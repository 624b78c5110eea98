// Copies of K and V walk down pages and lists: for every fit of pages and tiles the rows that the definition
// says, and no number of the table or list behind the last key.
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#define __device__
namespace device {
namespace {
const int* first_of_table = nullptr;
int looked_up = 0;  // the last index
int __ldg(const int* at) {
  looked_up = std::max(looked_up, static_cast<int>(at - first_of_table));
  return *at;
}
}  // namespace
#include "templates/paged_rows.cuh"
}  // namespace device
#undef __device__

namespace flashjit {
namespace {

// Far from 0 and from the end of all addresses; nothing is read there.
template <class T>
const T* somewhere() {
  return reinterpret_cast<const T*>(std::uintptr_t{1} << 44);
}

constexpr int kKeys = 203, kColumns = 8, kHeads = 2, kPoolPages = 300;

template <int page, int tile_rows, int step>
void expect_rows() {
  SCOPED_TRACE(::testing::Message() << "pages of " << page << ", tiles of " << tile_rows << ", steps of " << step);
  constexpr int kPlaces = (kKeys + page - 1) / page, kGap = 3;
  std::mt19937 random(page * 1000 + tile_rows);
  std::vector<int> table((kPlaces + 1) * kGap, -77);  // what lies between and behind is no page
  for (int i = 0; i < kPlaces; ++i) table[i * kGap] = static_cast<int>(random() % kPoolPages);
  device::first_of_table = table.data();  // of this function alone
  device::looked_up = 0;
  const short* const pool = somewhere<short>();
  using Rows = device::flashjit::PagedRows<short, page>;
  const Rows rows = {pool, kHeads * kColumns, page * kHeads * kColumns, table.data(), kGap, kPoolPages};
  const auto wanted = [&](int key) {
    const long long token = static_cast<long long>(table[key / page * kGap]) * page + key % page;
    return token * kHeads * kColumns;
  };
  for (int tile = 0; tile < kKeys; tile += tile_rows) {
    for (int row = 0; row < step; ++row) {
      typename Rows::template Walk<step, tile_rows> walk(rows, tile, row, 5, kKeys);
      for (int i = 0; i + row < tile_rows; i += step, walk.advance()) {
        const short* const at = walk.row(i);
        const int key = tile + i + row;
        if (key < kKeys) {
          ASSERT_EQ(at - pool, wanted(key) + 5) << key;
        }
      }
    }
  }
  EXPECT_EQ(device::looked_up, (kPlaces - 1) * kGap);
  for (int key = 0; key < kKeys; ++key) ASSERT_EQ(rows.row(key) - pool, wanted(key)) << key;
}

template <int page>
void expect_rows_of_tiles() {
  expect_rows<page, 64, 8>();
  expect_rows<page, 64, 16>();
  expect_rows<page, 128, 32>();
  expect_rows<page, 16, 16>();
  expect_rows<page, 48, 10>();
  expect_rows<page, 112, 8>();
}

TEST(PagedRows, OfEveryFit) {
  expect_rows_of_tiles<1>();
  expect_rows_of_tiles<2>();
  expect_rows_of_tiles<7>();
  expect_rows_of_tiles<8>();
  expect_rows_of_tiles<16>();
  expect_rows_of_tiles<24>();
  expect_rows_of_tiles<48>();
  expect_rows_of_tiles<64>();
  expect_rows_of_tiles<100>();
  expect_rows_of_tiles<128>();
  expect_rows_of_tiles<256>();
}

TEST(PagedRows, NumbersOutsideThePoolStayInIt) {
  static const int table[] = {-1, 5, 1 << 30, 4};
  device::first_of_table = table;
  const short* const pool = somewhere<short>();
  const device::flashjit::PagedRows<short, 16> rows = {pool, 8, 16 * 8, table, 1, 5};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(rows.row(i * 16) - pool, 4 * 16 * 8) << i;
}

// 2^31 elements are not far for a pool.
TEST(PagedRows, FarPages) {
  static const int table[] = {70000};
  device::first_of_table = table;
  const char* const pool = somewhere<char>();
  const device::flashjit::PagedRows<char, 256> rows = {pool, 4096, 256 * 4096, table, 1, 80000};
  EXPECT_EQ(rows.row(255) - pool, 70000ll * 256 * 4096 + 255 * 4096);
}

// Places of a list: numbers of no row have none, and behind the count nothing is looked up.
template <int page>
void expect_chosen_rows() {
  SCOPED_TRACE(::testing::Message() << "pages of " << page);
  constexpr int kRows = 1000, kPageStride = 12345, kCount = 70, kStep = 8, kTile = 32;
  std::mt19937 random(page);
  std::vector<int> list(kCount + 30);
  for (int& number : list) number = static_cast<int>(random() % (kRows + 200)) - 100;
  list[0] = -1, list[1] = kRows, list[2] = kRows - 1, list[3] = 0x7fffffff, list[4] = -0x7fffffff - 1;
  device::first_of_table = list.data();
  device::looked_up = 0;
  const short* const pool = somewhere<short>();
  const device::flashjit::ChosenRows<short, page> rows = {pool, 16, kPageStride, list.data(), kRows};
  using Rows = device::flashjit::ChosenRows<short, page>;
  const auto wanted = [&](int number) {
    return page > 0 ? number / page * kPageStride + number % page * 16 : number * 16;
  };
  for (int tile = 0; tile < kCount; tile += kTile) {
    for (int row = 0; row < kStep; ++row) {
      typename Rows::template Walk<kStep, kTile> walk(rows, tile, row, 5, kCount);
      for (int i = 0; i < kTile; i += kStep, walk.advance()) {
        const int index = tile + i + row, number = index < kCount ? list[index] : -1;
        const bool is_there = number >= 0 && number < kRows;
        ASSERT_EQ(walk.has_row(i), is_there) << index;
        ASSERT_EQ(walk.row(i) - pool, is_there ? wanted(number) + 5 : 5) << index;
      }
    }
  }
  EXPECT_EQ(device::looked_up, kCount - 1);
  EXPECT_EQ(rows.template row_of<4>(2) - pool, wanted((kRows - 1) / 4));
}

// Pages of a list: those that are none of the pool have no rows, and behind the count nothing is looked up.
template <int page, int tile>
void expect_chosen_pages() {
  SCOPED_TRACE(::testing::Message() << "pages of " << page << ", tiles of " << tile);
  constexpr int kPages = 50, kPageStride = 12345, kCount = 6 * page + page / 2, kStep = 8;
  const std::vector<int> list = {7, -1, kPages - 1, kPages, 0, 0x7fffffff, 3, -0x7fffffff - 1};
  device::first_of_table = list.data();
  device::looked_up = 0;
  const short* const pool = somewhere<short>();
  using Rows = device::flashjit::ChosenPages<short, page>;
  const Rows rows = {{pool, 16, kPageStride, list.data(), 1, kPages}};
  for (int first = 0; first < kCount; first += tile) {
    for (int row = 0; row < kStep; ++row) {
      typename Rows::template Walk<kStep, tile> walk(rows, first, row, 5, kCount);
      for (int i = 0; i < tile; i += kStep, walk.advance()) {
        const int key = first + i + row, number = key < kCount ? list[static_cast<std::size_t>(key / page)] : -1;
        const bool is_there = number >= 0 && number < kPages;
        ASSERT_EQ(walk.has_row(i), is_there) << key;
        if (!is_there) continue;
        ASSERT_EQ(walk.row(i) - pool, number * kPageStride + key % page * 16 + 5) << key;
      }
    }
  }
  EXPECT_EQ(device::looked_up, (kCount - 1) / page);
  EXPECT_TRUE(rows.has_number(kPages - 1));
  EXPECT_FALSE(rows.has_number(kPages));
  EXPECT_FALSE(rows.has_number(static_cast<unsigned>(-1)));
}

TEST(PagedRows, OfListsOfPages) {
  expect_chosen_pages<16, 32>();
  expect_chosen_pages<24, 32>();
  expect_chosen_pages<32, 16>();
  expect_chosen_pages<1, 8>();
}

TEST(PagedRows, OfLists) {
  expect_chosen_rows<0>();
  expect_chosen_rows<1>();
  expect_chosen_rows<16>();
  expect_chosen_rows<24>();
}

}  // namespace
}  // namespace flashjit

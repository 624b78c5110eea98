// What copies of K and V in pages walk down: for every fit of pages and tiles the rows that the definition says, and no
// number of the table behind the last key.
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#define __device__
namespace device {
namespace {
const int* first_of_table = nullptr;
int looked_up = 0;  // the last place
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
  SCOPED_TRACE(testing::Message() << "pages of " << page << ", tiles of " << tile_rows << ", steps of " << step);
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

}  // namespace
}  // namespace flashjit

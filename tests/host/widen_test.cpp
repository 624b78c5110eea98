// Every code of every type of 8 bits as the host widens it, against the definition of the formats.
#include "codegen/host/widen.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "compiler/spec/half.h"

namespace flashjit::host {
namespace {

TEST(Widen, EveryCode) {
  std::vector<std::uint8_t> codes(256);
  std::iota(codes.begin(), codes.end(), std::uint8_t{0});
  for (const Dtype from : {Dtype::E4M3, Dtype::E5M2, Dtype::I8}) {
    for (const Dtype to : {Dtype::F16, Dtype::BF16, Dtype::F32}) {
      const void* rows[] = {codes.data(), codes.data() + 128};
      std::vector<char> wide(static_cast<std::size_t>(256 * size_of(to)));
      Widener(from, to).widen(rows, 2, 128, wide.data());
      EXPECT_EQ(rows[1], wide.data() + 128 * size_of(to));
      for (int code = 0; code < 256; ++code) {
        const float wanted = load_float(from, codes.data(), code), found = load_float(to, wide.data(), code);
        SCOPED_TRACE(testing::Message() << name(from) << " to " << name(to) << ", code " << code);
        if (std::isnan(wanted)) EXPECT_TRUE(std::isnan(found));
        else EXPECT_EQ(std::bit_cast<std::uint32_t>(found), std::bit_cast<std::uint32_t>(wanted));
      }
    }
  }
}

}  // namespace
}  // namespace flashjit::host

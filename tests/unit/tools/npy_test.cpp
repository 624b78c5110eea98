// The parts of the command that can be tested without running it. Hostile files are in tests/cli.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "autotune/measure/measure.h"
#include "tools/support/npy.h"
#include "autotune/measure/shape.h"

namespace flashjit {
namespace {

TEST(Npy, RoundTripOfEveryType) {
  const std::string path = ::testing::TempDir() + "/flashjit_npy_test.npy";
  for (const NpyType type : {NpyType::F16, NpyType::BF16, NpyType::F32, NpyType::F64, NpyType::I32, NpyType::I64,
                             NpyType::U32, NpyType::U16, NpyType::U8, NpyType::I8}) {
    for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{}, {5}, {2, 3}, {2, 0, 4}, {1, 2, 3, 4}}) {
      NpyArray array{type, shape, {}};
      array.bytes.resize(static_cast<std::size_t>(array.elements() * size_of(type)));
      for (std::size_t i = 0; i < array.bytes.size(); ++i) array.bytes[i] = static_cast<std::uint8_t>(i * 37);
      ASSERT_TRUE(write_npy(path, array));
      const auto back = read_npy(path);
      ASSERT_TRUE(back) << back.error().message;
      EXPECT_EQ(back->type, type);
      EXPECT_EQ(back->shape, shape);
      EXPECT_EQ(back->bytes, array.bytes);
    }
  }
  std::remove(path.c_str());
}

TEST(Npy, EveryTruncationAndEveryFlippedHeaderByteIsSafe) {
  const std::string path = ::testing::TempDir() + "/flashjit_npy_cut.npy";
  ASSERT_TRUE(write_npy(path, {NpyType::F32, {2, 3}, std::vector<std::uint8_t>(24)}));
  std::vector<std::uint8_t> file;
  std::FILE* stream = std::fopen(path.c_str(), "rb");
  ASSERT_NE(stream, nullptr);
  for (int c; (c = std::fgetc(stream)) != EOF;) file.push_back(static_cast<std::uint8_t>(c));
  std::fclose(stream);
  std::remove(path.c_str());
  for (std::size_t length = 0; length < file.size(); ++length) {
    EXPECT_FALSE(parse_npy("cut", {file.begin(), file.begin() + static_cast<std::ptrdiff_t>(length)})) << length;
  }
  for (std::size_t i = 0; i < 128; ++i) {
    for (int value = 0; value < 256; ++value) {
      auto changed = file;
      changed[i] = static_cast<std::uint8_t>(value);
      const auto array = parse_npy("changed", changed);
      if (array) {
        EXPECT_EQ(array->bytes.size(), static_cast<std::size_t>(array->elements() * size_of(array->type)));
      }
    }
  }
}

TEST(Npy, OnlyTheRightTypeIsTaken) {
  EXPECT_TRUE(take_as("x", {NpyType::U16, {1}, {0, 0}}, Dtype::BF16));
  EXPECT_FALSE(take_as("x", {NpyType::U16, {1}, {0, 0}}, Dtype::F16));
  EXPECT_FALSE(take_as("x", {NpyType::F64, {1}, std::vector<std::uint8_t>(8)}, Dtype::F32));
}

TEST(ProblemShape, Texts) {
  AttentionSpec dense, packed;
  packed.layout = Layout::Packed;
  const struct {
    const AttentionSpec& spec;
    const char* text;
    const char* printed;  // null: refused
  } rows[] = {{dense, "b=2,q=4096,k=100", "b=2,q=4096,k=100"},
              {dense, "q=7", "b=1,q=7,k=7"},
              {dense, "k=7", nullptr},
              {dense, "q=1+2", nullptr},
              {dense, "q=7,", "b=1,q=7,k=7"},
              {dense, "q=", nullptr},
              {dense, "", nullptr},
              {dense, "q=-7", nullptr},
              {dense, "q=7,q=8", nullptr},
              {dense, "z=7", nullptr},
              {dense, "q=0x10", nullptr},
              {packed, "q=100+37+0,k=5+6+7", "b=3,q=100+37+0,k=5+6+7"},
              {packed, "b=2,q=5", "b=2,q=5,k=5"},
              {packed, "q=1+2,k=3", "b=2,q=1+2,k=3"},
              {packed, "q=1+2,k=3+4+5", nullptr},
              {packed, "b=3,q=1+2", nullptr}};
  for (const auto& row : rows) {
    const auto shape = parse_shape(row.text, row.spec);
    ASSERT_EQ(static_cast<bool>(shape), row.printed != nullptr) << row.text;
    if (shape) {
      EXPECT_EQ(print(*shape), row.printed) << row.text;
    }
  }
}

TEST(Measure, Percentiles) {
  EXPECT_DOUBLE_EQ(percentile({3}, 0.5), 3);
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(percentile({5, 1, 3}, 0.0), 1);
  EXPECT_DOUBLE_EQ(percentile({10, 20, 30}, 0.9), 28);
}

}  // namespace
}  // namespace flashjit

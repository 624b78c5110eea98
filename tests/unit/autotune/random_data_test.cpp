// What is drawn for the tensors that nobody gave.
#include "autotune/measure/random_data.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "compiler/language/named.h"

namespace flashjit {
namespace {

template <class T>
std::vector<T> values(const NamedTensor& tensor) {
  std::vector<T> out(tensor.bytes.size() / sizeof(T));
  std::memcpy(out.data(), tensor.bytes.data(), tensor.bytes.size());
  return out;
}

// The parameter `name` of a problem without files.
NamedTensor drawn(const std::string& spec_text, const std::string& shape_text, const std::string& name,
                  std::uint64_t seed = 1, const InputFiles& inputs = {}) {
  const auto spec = parse_spec(spec_text);
  EXPECT_TRUE(spec) << spec.error().message;
  const auto shape = parse_shape(shape_text, *spec);
  EXPECT_TRUE(shape) << shape.error().message;
  auto data = ProblemData::create(*spec, *shape, inputs, seed);
  EXPECT_TRUE(data) << data.error().message;
  for (const NamedTensor& tensor : data->tensors()) {
    if (tensor.role == NamedTensor::Role::Param && tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no parameter " << name;
  return {};
}

NamedTensor plain(Dtype dtype, std::vector<std::int64_t> shape) {
  NamedTensor tensor{"t", NamedTensor::Role::Param, dtype, std::move(shape), {}};
  std::int64_t elements = 1;
  for (const std::int64_t extent : tensor.shape) elements *= extent;
  tensor.bytes.resize(static_cast<std::size_t>(elements * size_of(dtype)));
  fill_random(tensor, 5);
  return tensor;
}

TEST(RandomData, SlopesOfAlibiAreThoseThatModelsHave) {
  const std::vector<float> eight = {0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f, 0.0078125f, 0.00390625f};
  EXPECT_EQ(values<float>(drawn("fwd bf16 d=64 heads=8/2 mask=\"causal\" score=\"alibi\"", "b=3,q=40", "slope")),
            eight);
  const auto twelve = values<float>(drawn("fwd bf16 d=64 heads=12 score=\"alibi\"", "q=40", "slope", 9));
  ASSERT_EQ(twelve.size(), 12u);
  EXPECT_NEAR(twelve[0], 0.6299605, 1e-6);  // 2^(-2/3)
  EXPECT_EQ(twelve[2], 0.25f);
  EXPECT_EQ(twelve[11], 0.00390625f);
}

TEST(RandomData, ATensorThatAlibiReadsHoldsSlopesWhoeverDeclaresIt) {
  const char* both = "fwd bf16 d=64 heads=4 params=\"slope: fp32[1]\" score=\"alibi; s + slope[0]\"";
  EXPECT_EQ(values<float>(drawn(both, "q=40", "slope")), (std::vector<float>{0.25f, 0.0625f, 0.015625f, 0.00390625f}));
  // By itself the name says nothing.
  const auto own = values<float>(
      drawn("fwd bf16 d=64 heads=64 params=\"slope: fp32[1]\" score=\"s + slope[h] * (k - qpos)\"", "q=40", "slope"));
  int negative = 0;
  for (const float value : own) negative += value < 0;
  EXPECT_GT(negative, 10);
  EXPECT_LT(negative, 54);
}

// As large as the launch wants it with the scalars of the call, each of which is 1 where nothing was said.
TEST(RandomData, ATensorSufficesForIndicesMadeOfScalars) {
  const char* spec = "fwd fp32 d=8 params=\"t: fp32[1], n: i32\" score=\"s + t[k + n]\"";
  EXPECT_EQ(drawn(spec, "q=7,k=9", "t").shape, (std::vector<std::int64_t>{10}));
  InputFiles inputs;
  inputs.scalars["n"] = 100;
  EXPECT_EQ(drawn(spec, "q=7,k=9", "t", 1, inputs).shape, (std::vector<std::int64_t>{109}));
  EXPECT_EQ(
      drawn("fwd fp32 d=8 params=\"t: fp32[1], n: u8\" score=\"s + t[min(n, 7)]\"", "q=7,k=9", "t", 1, inputs).shape,
      (std::vector<std::int64_t>{8}));
  for (const auto& [n, why] : {std::pair{2e9, "params.t: index 0 (`k + n`) runs to 2000000008 with n=2000000000"},
                               std::pair{0.5, "scalars.n: 0.5 is no value of i32"}}) {
    inputs.scalars["n"] = n;
    const auto parsed = parse_spec(spec);
    ASSERT_TRUE(parsed);
    const auto data = ProblemData::create(*parsed, *parse_shape("q=7,k=9", *parsed), inputs, 1);
    ASSERT_FALSE(data);
    EXPECT_NE(data.error().message.find(why), std::string::npos) << data.error().message;
  }
}

TEST(RandomData, DocumentsAreRuns) {
  const NamedTensor ids = drawn("fwd bf16 d=64 heads=2 mask=\"document(doc)\"", "b=2,q=8", "doc");
  ASSERT_EQ(ids.shape, (std::vector<std::int64_t>{2, 8}));
  EXPECT_EQ(values<std::int32_t>(ids), (std::vector<std::int32_t>{0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3}));
}

// The path from the root that each node must see, written down for a tree of ten.
TEST(RandomData, NodesOfATreeSeeThemselvesAndTheirAncestors) {
  const NamedTensor tree = drawn("fwd bf16 d=64 heads=2 q_len=10 mask=\"tree(nodes)\"", "q=10,k=100", "nodes");
  ASSERT_EQ(tree.shape, (std::vector<std::int64_t>{1, 10, 1}));
  const std::vector<std::vector<int>> paths = {{0},       {0, 1},    {0, 2},       {0, 1, 3},    {0, 1, 4},
                                               {0, 2, 5}, {0, 2, 6}, {0, 1, 3, 7}, {0, 1, 3, 8}, {0, 1, 4, 9}};
  const auto words = values<std::int64_t>(tree);
  for (std::size_t node = 0; node < paths.size(); ++node) {
    std::int64_t expected = 0;
    for (const int ancestor : paths[node]) expected |= std::int64_t{1} << ancestor;
    EXPECT_EQ(words[node], expected) << node;
  }
}

// Enough elements for several threads, and several words for a node.
TEST(RandomData, ALargeTreeIsTheSameInEveryBatch) {
  constexpr std::int64_t kNodes = 1000, kWords = 16, kBatch = 6;
  const NamedTensor tree = drawn("fwd bf16 d=64 heads=2 q_len=1000 mask=\"tree(nodes)\"", "b=6,q=1000,k=1000", "nodes");
  ASSERT_EQ(tree.shape, (std::vector<std::int64_t>{kBatch, kNodes, kWords}));
  const auto words = values<std::int64_t>(tree);
  const auto sees = [&](std::int64_t b, std::int64_t node, std::int64_t other) {
    return (words[static_cast<std::size_t>((b * kNodes + node) * kWords + other / 64)] >> other % 64 & 1) != 0;
  };
  for (std::int64_t b = 0; b < kBatch; ++b) {
    for (std::int64_t node = 1; node < kNodes; ++node) {
      const std::int64_t parent = node % 2 == 1 ? node / 2 : node / 2 - 1;
      for (std::int64_t other = 0; other < kNodes; ++other) {
        ASSERT_EQ(sees(b, node, other), other == node || sees(b, parent, other)) << b << " " << node << " " << other;
      }
    }
  }
}

// Of named rows, only biases hold nothing in particular; a row that is added has to say.
TEST(RandomData, EveryNamedRowSaysWhatItsTensorHolds) {
  for (const NamedRow& row : named_rows()) {
    if (row.tensor.rank == 0 || row.name.starts_with("bias")) continue;
    EXPECT_NE(row.tensor.contents, Contents::Plain) << row.name;
  }
  const auto bias = values<float>(drawn("fwd fp32 d=64 heads=2 score=\"bias(t)\"", "q=100", "t"));
  double sum = 0, squares = 0;
  for (const float value : bias) sum += value, squares += static_cast<double>(value) * value;
  const double count = static_cast<double>(bias.size());
  EXPECT_NEAR(sum / count, 0, 0.05);
  EXPECT_NEAR(squares / count, 1, 0.05);
}

// One thread fills the small tensor, several the large one.
TEST(RandomData, ThreadsDoNotChangeValues) {
  constexpr std::int64_t kSmall = 1 << 16;
  for (const Dtype dtype : {Dtype::F32, Dtype::U32}) {
    const auto small = values<std::uint32_t>(plain(dtype, {kSmall})),
               large = values<std::uint32_t>(plain(dtype, {4 * kSmall + 3}));
    EXPECT_TRUE(std::equal(small.begin(), small.end(), large.begin()));
    EXPECT_FALSE(std::equal(small.begin(), small.end(), large.begin() + kSmall)) << "parts repeat";
  }
}

}  // namespace
}  // namespace flashjit

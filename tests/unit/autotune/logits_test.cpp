// Data with structure: what the logits of the drawn Q and K are, for every layout.
#include "autotune/measure/logits.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autotune/measure/problem.h"
#include "compiler/spec/half.h"

namespace flashjit {
namespace {

struct Drawn {
  AttentionSpec spec;
  ProblemShape shape;
  ProblemData data;

  // Of one sequence and query head: [q][k], natural units.
  std::vector<std::vector<double>> logits(std::int64_t b, std::int64_t h) {
    std::vector<std::vector<double>> all;
    const std::int64_t hk = h / (spec.heads_q / spec.heads_kv);
    for (std::int64_t i = 0; i < shape.q[static_cast<std::size_t>(b)]; ++i) {
      all.emplace_back();
      for (std::int64_t j = 0; j < shape.k[static_cast<std::size_t>(b)]; ++j) {
        double sum = 0;
        for (std::int64_t d = 0; d < spec.d_qk; ++d)
          sum += element("q", shape.q, spec.heads_q, b, h, i, d) * element("k", shape.k, spec.heads_kv, b, hk, j, d);
        all.back().push_back(sum * spec.effective_scale());
      }
    }
    return all;
  }

 private:
  double element(const char* name, const std::vector<std::int64_t>& lengths, int heads, std::int64_t b, std::int64_t h,
                 std::int64_t t, std::int64_t d) {
    const NamedTensor& tensor = *data.find(name);
    std::int64_t before = 0;
    for (std::int64_t i = 0; i < b; ++i) before += lengths[static_cast<std::size_t>(i)];
    const std::int64_t tokens = lengths[static_cast<std::size_t>(b)];
    const std::int64_t row = spec.layout == Layout::Bhsd ? (b * heads + h) * tokens + t : (before + t) * heads + h;
    return load_float(tensor.dtype, tensor.bytes.data(), row * spec.d_qk + d);
  }
};

Drawn draw(const std::string& layout, const std::string& kind) {
  const auto spec = parse_spec("fwd bf16 d=64 heads=4/2 layout=" + layout);
  EXPECT_TRUE(spec);
  const auto shape = parse_shape(layout == "packed" ? "q=9+5+7,k=130+0+200" : "b=2,q=9,k=200", *spec);
  EXPECT_TRUE(shape) << shape.error().message;
  const auto logits = parse_logit_kind(kind);
  EXPECT_TRUE(logits) << logits.error().message;
  InputFiles inputs;
  inputs.logits = *logits;
  auto data = ProblemData::create(*spec, *shape, inputs, 7);
  EXPECT_TRUE(data) << data.error().message;
  return {*spec, *shape, std::move(*data)};
}

// The mean over queries of each key's logit, without what is drawn: by how much it is above the mean of all keys.
std::vector<double> heights(const std::vector<std::vector<double>>& logits) {
  std::vector<double> mean(logits.front().size());
  for (const auto& row : logits) {
    for (std::size_t k = 0; k < row.size(); ++k) mean[k] += row[k] / static_cast<double>(logits.size());
  }
  return mean;
}

constexpr double kNoise = 2.5;  // seven deviations of a mean over nine queries

class Logits : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Layouts, Logits, testing::Values("bshd", "bhsd", "packed"));

TEST_P(Logits, ASinkIsTheFirstKeyOfEachSequence) {
  Drawn drawn = draw(GetParam(), "sink(40)");
  for (const std::int64_t b : {0, static_cast<int>(drawn.shape.q.size()) - 1}) {
    for (std::int64_t h = 0; h < 4; ++h) {
      const auto mean = heights(drawn.logits(b, h));
      EXPECT_NEAR(mean[0], 40, kNoise);
      for (std::size_t k = 1; k < mean.size(); ++k) ASSERT_NEAR(mean[k], 0, kNoise) << k;
    }
  }
}

TEST_P(Logits, OneKeyByChanceAndAnotherOneInEachHead) {
  Drawn drawn = draw(GetParam(), "key(40)");
  std::vector<std::size_t> found;
  for (std::int64_t h = 0; h < 4; ++h) {
    const auto mean = heights(drawn.logits(0, h));
    const auto most = std::max_element(mean.begin(), mean.end());
    EXPECT_NEAR(*most, 40, kNoise);
    EXPECT_EQ(std::count_if(mean.begin(), mean.end(), [](double m) { return m > kNoise; }), 1);
    found.push_back(static_cast<std::size_t>(most - mean.begin()));
  }
  EXPECT_EQ(found[0], found[1]) << "the heads of one KV head see the same keys";
  EXPECT_NE(found[1], found[2]);
}

TEST_P(Logits, RisingFallingAndEvery64th) {
  const auto rising = heights(draw(GetParam(), "rising(100)").logits(0, 1));
  const auto falling = heights(draw(GetParam(), "falling(100)").logits(0, 1));
  const auto combs = heights(draw(GetParam(), "combs(30)").logits(0, 1));
  const double keys = static_cast<double>(rising.size());
  for (std::size_t k = 0; k < rising.size(); ++k) {
    ASSERT_NEAR(rising[k], 100 * static_cast<double>(k) / keys, kNoise) << k;
    ASSERT_NEAR(falling[k], 100 - 100 * static_cast<double>(k) / keys, kNoise) << k;
    ASSERT_NEAR(combs[k], k % 64 == 0 ? 30 : 0, kNoise) << k;
  }
}

TEST_P(Logits, WideAndEqual) {
  double squares = 0;
  int count = 0;
  for (const auto& row : draw(GetParam(), "wide(5)").logits(0, 2)) {
    for (const double logit : row) squares += logit * logit, ++count;
  }
  EXPECT_NEAR(std::sqrt(squares / count), 5, 0.7);
  for (const auto& row : draw(GetParam(), "equal").logits(0, 2)) {
    for (const double logit : row) ASSERT_EQ(logit, row[0]);
  }
}

TEST(LogitKinds, WhatThereIsNot) {
  for (const char* text : {"", "sink", "sink(", "sink()", "sink(x)", "sink(-1)", "sink(1e9)", "sink(nan)", "normal(1)",
                           "Sink(1)", "sink(1) ", "sink(1"})
    EXPECT_FALSE(parse_logit_kind(text)) << text;
  EXPECT_NE(parse_logit_kind("snik(1)").error().message.find("sink(N)"), std::string::npos);
}

}  // namespace
}  // namespace flashjit

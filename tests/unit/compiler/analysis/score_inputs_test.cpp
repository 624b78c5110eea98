#include "compiler/analysis/score_inputs.h"

#include <gtest/gtest.h>

namespace flashjit {
namespace {

struct RowOfInputs {
  const char* score;
  const char* inputs;  // their loads, one after the other
  bool others;         // anything else that depends on the key
};

TEST(ScoreInputs, WhatComesInTiles) {
  constexpr RowOfInputs kRows[] = {
      {"s", "", false},
      {"s + slope[h] * (k - q)", "", false},
      {"s + table[h, q, k]", "table[h, q, k] ", false},
      {"s * gate[k] + table[h, q, k]", "gate[k] table[h, q, k] ", false},
      {"s + table[h % 2, q, k] * table[h % 2, q, k]", "table[h % 2, q, k] ", false},
      {"s + table[q, h, k]", "table[q, h, k] ", false},
      {"s + table[b, h, k]", "table[b, h, k] ", false},
      {"s + wide[b, q, h, k]", "wide[b, q, h, k] ", false},
      {"s + wide[b, h, hk, k]", "", true},  // three indices beside query and key
      // Rows that are not those of the tile, one below the other.
      {"s + table[h, q % 7, k]", "", true},
      {"s + table[q / 2, q, k]", "", true},
      {"s + table[h, q + 1, k]", "", true},
      // Another row, or another key, of the same tensor.
      {"s + table[h, q, k] - table[h, 0, k]", "", true},
      {"s + table[h, q, k] - table[h, q, 0]", "", true},
      {"s + gate[k] * gate[q]", "", true},
      {"s + table[h, q, max(k, 1)]", "", true},
      {"s + table[h, k, k]", "", true},
      {"s + table[h, k, q]", "", true},
      // What may not be evaluated may not be there.
      {"s + where(k < 64, gate[k], 0.0)", "", true},
      {"s + where(k < 64, 1.0, 0.5) * gate[k]", "gate[k] ", false},
      {"where(gate[k] > 0.5, s, 0.0)", "gate[k] ", false},
      {"where(k < 64 & gate[k] > 0.5, s, 0.0)", "", true},
      {"where(k < 64, gate[k], 1.0) + gate[k]", "gate[k] ", false},
      // Neither 16 nor 32 bits.
      {"s + bytes[k] + longs[k]", "", true},
      {"where(words[b, k] == words[b, q], s, 0.0)", "", true},
      {"where(words[b, k] == 3, s, 0.0)", "words[b, k] ", false},
      // Places that are known only when another tensor has been read; that one may be copied.
      {"s + gate[words[b, k]]", "words[b, k] ", true},
      {"s + table[words[b, h], q, k]", "", true},
      // Evaluated twice.
      {"tanh(s) + gate[k]", "", true},
      {"tanh(s)", "", false},
  };
  for (const RowOfInputs& row : kRows) {
    std::vector<Param> params = {{"slope", Dtype::F32, 1}, {"table", Dtype::BF16, 3}, {"gate", Dtype::F32, 1},
                                 {"bytes", Dtype::U8, 1},  {"longs", Dtype::I64, 1},  {"words", Dtype::I32, 2},
                                 {"wide", Dtype::F16, 4}};
    const Result<Expr> score = parse_expr(row.score, {&params, true, true});
    ASSERT_TRUE(score) << row.score << ": " << score.error().message;
    std::string inputs;
    for (const Expr& load : score_inputs(*score)) inputs += print(load) + " ";
    EXPECT_EQ(inputs, row.inputs) << row.score;
    EXPECT_EQ(reads_beside_inputs(*score), row.others) << row.score;
  }
}

// Scores that kernels of gradients may add to products which are relative to the LSE, and what those read elsewhere.
TEST(ScoreInputs, SumsAndOtherPlaces) {
  struct Sum {
    const char* score;
    bool only_adds, elsewhere;
  };
  constexpr Sum kSums[] = {
      {"s", true, false},
      {"s + table[h, q, k]", true, false},
      {"table[h, q, k] - gate[0] + s - 1.0", true, false},
      {"s + gate[0] * (k - q) + table[h, q, k]", true, false},
      {"s + gate[q] + table[h, q, k]", true, true},
      {"s + gate[h] * gate[k]", true, true},
      {"2.0 * s + table[h, q, k]", false, false},
      {"table[h, q, k] - s", false, false},
      {"s + s", false, false},
      {"s + where(s > 0.0, 1.0, 2.0)", false, false},  // its derivative is 1 all the same
      {"where(table[h, q, k] > 0.0, s, s + 1.0)", false, false},
  };
  for (const Sum& row : kSums) {
    std::vector<Param> params = {{"table", Dtype::BF16, 3}, {"gate", Dtype::F32, 1}};
    const Result<Expr> score = parse_expr(row.score, {&params, true, true});
    ASSERT_TRUE(score) << row.score << ": " << score.error().message;
    EXPECT_EQ(only_adds(*score), row.only_adds) << row.score;
    EXPECT_EQ(loads_by_position(*score, score_inputs(*score)), row.elsewhere) << row.score;
  }
}

TEST(ScoreInputs, WhatAProducerCopies) {
  AttentionSpec spec;
  spec.params = {{"gate", Dtype::F32, 1}, {"table", Dtype::BF16, 3}};
  const Result<Expr> score = parse_expr("s + table[h, q, k] * gate[k]", {&spec.params, true, true});
  ASSERT_TRUE(score);
  spec.score = *score;
  KernelConfig config;
  EXPECT_TRUE(copied_inputs(spec, config).empty());
  set_inputs(spec, {score_inputs(*score)[0]}, config);
  EXPECT_EQ(config.inputs_16, 2);
  EXPECT_EQ(config.inputs_32, 0);
  EXPECT_EQ(config.inputs_q, 2);
  EXPECT_TRUE(config.inputs_of_batches);
  ASSERT_EQ(copied_inputs(spec, config).size(), 1u);
  EXPECT_EQ(print(copied_inputs(spec, config)[0]), "table[h, q, k]");
}

TEST(ScoreInputs, OneCopyTakesSoMany) {
  std::vector<Param> params;
  std::string score = "s";
  for (int i = 0; i < kMaxInputs + 1; ++i) {
    params.push_back({"t" + std::to_string(i), Dtype::BF16, 2});
    score += " + t" + std::to_string(i) + "[q, k]";
  }
  const Result<Expr> parsed = parse_expr(score, {&params, true, true});
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(score_inputs(*parsed).size(), static_cast<std::size_t>(kMaxInputs));
  EXPECT_TRUE(reads_beside_inputs(*parsed));
}

TEST(ScoreInputs, IndicesBesideTheKey) {
  std::vector<Param> params = {{"t", Dtype::BF16, 4}};
  const Result<Expr> score = parse_expr("s + t[b, q, h, k]", {&params, true, true});
  ASSERT_TRUE(score) << score.error().message;
  const std::vector<Expr> inputs = score_inputs(*score);
  ASSERT_EQ(inputs.size(), 1u);
  EXPECT_EQ(query_index(inputs[0]), 1);
  const std::vector<Expr> outer = outer_indices(inputs[0]);
  ASSERT_EQ(outer.size(), 2u);
  EXPECT_EQ(print(outer[0]) + " " + print(outer[1]), "b h");
}

}  // namespace
}  // namespace flashjit

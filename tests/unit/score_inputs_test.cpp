#include "compiler/score_inputs.h"

#include <gtest/gtest.h>

namespace flashjit {
namespace {

struct Row {
  const char* score;
  const char* inputs;  // their loads, one after the other
  bool others;         // anything else that depends on the key
};

TEST(ScoreInputs, WhatMayBeFetchedAhead) {
  constexpr Row kRows[] = {
      {"s", "", false},
      {"s + slope[h] * (k - q)", "", false},
      {"s + table[h, q, k]", "table[h, q, k] ", false},
      {"s * gate[k] + table[h, q, k]", "gate[k] table[h, q, k] ", false},
      {"s + table[h, q % 7, k] * table[h, q % 7, k]", "table[h, q % 7, k] ", false},
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
      // Evaluated twice.
      {"tanh(s) + gate[k]", "", true},
      {"tanh(s)", "", false},
  };
  for (const Row& row : kRows) {
    std::vector<Param> params = {{"slope", Dtype::F32, 1}, {"table", Dtype::BF16, 3}, {"gate", Dtype::F32, 1},
                                 {"bytes", Dtype::U8, 1},  {"longs", Dtype::I64, 1}, {"words", Dtype::I32, 2}};
    const Result<Expr> score = parse_expr(row.score, {&params, true, true});
    ASSERT_TRUE(score) << row.score << ": " << score.error().message;
    std::string inputs;
    for (const Expr& load : score_inputs(*score)) inputs += print(load) + " ";
    EXPECT_EQ(inputs, row.inputs) << row.score;
    EXPECT_EQ(reads_beside_inputs(*score), row.others) << row.score;
  }
}

}  // namespace
}  // namespace flashjit

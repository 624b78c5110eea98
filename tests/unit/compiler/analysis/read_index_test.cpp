#include "compiler/analysis/read_index.h"

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "compiler/language/gradient.h"

namespace flashjit {
namespace {

// The one read of a parameter x.
Expr read_of(const std::string& text, int rank) {
  std::vector<Param> params = {{"x", Dtype::F32, rank}, {"n", Dtype::I32, 0}, {"a", Dtype::I32, 1}};
  const Result<Expr> score = parse_expr("s + " + text, {&params, true, true});
  EXPECT_TRUE(score) << text << ": " << (score ? "" : score.error().message);
  const std::string wanted[] = {"x"};
  const auto gradients = gradients_of(*score, {}, wanted);
  EXPECT_TRUE(gradients) << text;
  return gradients->by_params.at(0).read;
}

struct Row {
  const char* text;
  int rank;
  const char* expected;  // q, k: changes with; !: apart; b, h, g: own of sequence, head, KV head
};

const Row kRows[] = {
    {"x", 0, "!"},
    {"x[h]", 1, "!hg"},
    {"x[hk]", 1, "!g"},
    {"x[b]", 1, "!b"},
    {"x[q]", 1, "q!"},
    {"x[k + 3]", 1, "k!"},
    {"x[qpos]", 1, "q!"},  // of sequences of other lengths it is another query
    {"x[h, q, k]", 3, "qk!hg"},
    {"x[b, h, q, k]", 4, "qk!bhg"},
    {"x[b, hk, k, q]", 4, "qk!bg"},
    {"x[h, min(abs(q - k), 127)]", 2, "qkhg"},
    {"x[q + k]", 1, "qk"},
    {"x[q, q + k]", 2, "qk!"},
    {"x[q - k, q + 2 * k]", 2, "qk"},  // not seen through
    {"x[q / 2]", 1, "q"},
    {"x[q % 2, q / 2]", 2, "q"},  // not seen through
    {"x[k * n + q, k]", 2, "qk!"},
    {"x[b * 4 + h]", 1, "!"},
    {"x[b, h + b]", 2, "!b"},
    {"x[max(k, 5), q]", 2, "qk"},
    {"x[3]", 1, "!"},
    // What is looked up may be cut to one element for all.
    {"x[a[k]]", 1, "k"},
    {"x[h, k + a[b]]", 2, "khg"},
    {"x[a[h], q, k]", 3, "qk!"},
};

std::string shown(const ReadIndex& index) {
  std::string text;
  const std::pair<bool, char> letters[] = {{index.by_q, 'q'},  {index.by_k, 'k'},  {index.apart, '!'},
                                           {index.own_b, 'b'}, {index.own_h, 'h'}, {index.own_hk, 'g'}};
  for (const auto& [set, letter] : letters) {
    if (set) text += letter;
  }
  return text;
}

TEST(ReadIndex, Table) {
  for (const Row& row : kRows) EXPECT_EQ(shown(read_index(read_of(row.text, row.rank))), row.expected) << row.text;
}

struct PlaceOfRead {
  std::int64_t b, h, q, k;
};

// What is promised, by going over all scores of a few sequences.
TEST(ReadIndex, HoldsForEveryScore) {
  const std::int64_t n = 5;
  const std::int32_t a[] = {2, 0, 2, 1, 2, 0, 1, 2, 0};
  std::vector<Param> params = {{"n", Dtype::I32, 0}, {"a", Dtype::I32, 1}};
  const ParamValue given[] = {{&n, {}, {}}, {a, {9}, {1}}};
  constexpr std::int64_t kQueries[] = {4, 6, 6}, kKeys[] = {9, 7, 8};
  for (const Row& row : kRows) {
    const Expr read = read_of(row.text, row.rank);
    const ReadIndex index = read_index(read);
    std::map<std::vector<std::int64_t>, std::vector<PlaceOfRead>> readers;
    for (PlaceOfRead p{}; p.b < 3; ++p.b) {
      for (p.h = 0; p.h < 4; ++p.h) {
        for (p.q = 0; p.q < kQueries[p.b]; ++p.q) {
          for (p.k = 0; p.k < kKeys[p.b]; ++p.k) {
            Environment environment;
            const std::int64_t values[] = {p.q, p.k, p.b, p.h, p.h / 2, kQueries[p.b], kKeys[p.b]};
            std::copy(std::begin(values), std::end(values), environment.variables);
            environment.params = &params;
            environment.values = given;
            std::vector<std::int64_t> at;
            for (const Expr& arg : read->args) at.push_back(evaluate(arg, environment).integer);
            readers[at].push_back(p);
          }
        }
      }
    }
    for (const auto& [at, places] : readers) {
      for (const PlaceOfRead& x : places) {
        for (const PlaceOfRead& y : places) {
          EXPECT_FALSE(index.own_b && x.b != y.b) << row.text;
          EXPECT_FALSE(index.own_h && x.h != y.h) << row.text;
          EXPECT_FALSE(index.own_hk && x.h / 2 != y.h / 2) << row.text;
          if (!index.apart || x.b != y.b || x.h != y.h) continue;
          EXPECT_FALSE((index.by_q && x.q != y.q) || (index.by_k && x.k != y.k)) << row.text;
        }
      }
    }
  }
}

}  // namespace
}  // namespace flashjit

#include <cmath>

#include "tests/host/host_case.h"

namespace flashjit {
namespace {

using reference::Dual;
using reference::Position;
using reference::Semantics;

bool causal(const Position& at) { return at.k <= at.q + at.k_len - at.q_len; }

Dual score_of(Dual s, double (*function)(double)) {
  return Dual(static_cast<float>(function(static_cast<double>(s.f))), function(s.d));
}

void add_masks(std::vector<Row>& all) {
  all.push_back({"fwd {} d=64 heads=4/2 lse=ln max_logit", 2, 70, 131, {}});
  all.push_back({"fwd {} d=40/72 heads=3 layout=bhsd lse=log2 mask=\"causal\"", 1, 45, 100, {causal, {}}});
  all.push_back({"fwd {} d=128 heads=4/1 out=fp32 mask=\"causal\" align=top_left lse=ln",
                 1,
                 90,
                 33,
                 {[](const Position& at) { return at.k <= at.q; }, {}}});
  all.push_back({"fwd {} d=256 heads=2 mask=\"causal & window(30, 0)\" max_logit",
                 1,
                 130,
                 130,
                 {[](const Position& at) { return causal(at) && at.k >= at.q - 30; }, {}}});
  all.push_back({"fwd {} d=16/24 heads=2 mask=\"k % 5 != q % 3 & k / 7 <= q / 2\" lse=ln",
                 1,
                 61,
                 97,
                 {[](const Position& at) { return at.k % 5 != at.q % 3 && at.k / 7 <= at.q / 2; }, {}}});
}

// Rows that see nothing, with and without a sink.
void add_rows_that_see_nothing(std::vector<Row>& all) {
  all.push_back({"fwd {} d=32 heads=2 mask=\"k < q - 20\" lse=ln max_logit",
                 1,
                 64,
                 64,
                 {[](const Position& at) { return at.k < at.q - 20; }, {}}});
  all.push_back({"fwd {} d=32 heads=3 mask=\"k < q - 20\" sink lse=log2",
                 1,
                 64,
                 64,
                 {[](const Position& at) { return at.k < at.q - 20; }, {}}});
  all.push_back({"fwd {} d=64 heads=2 lse=ln sink", 2, 5, 0, {}});
  all.push_back({"fwd {} d=64 heads=2 scale=-0.3", 1, 17, 29, {}});
}

void add_functions_of_the_score(std::vector<Row>& all) {
  all.push_back({"fwd {} d=64 heads=2 score=\"5 * tanh(s / 5)\" lse=ln", 1, 33, 80, {{}, [](const Position&, Dual s) {
                                                                                       return score_of(s, [](double x) {
                                                                                         return 5 * std::tanh(x / 5);
                                                                                       });
                                                                                     }}});
  all.push_back({"fwd {} d=64 heads=2 score=\"log(1 + exp(s)) - 2 * sigmoid(3 * s)\" lse=ln",
                 1,
                 33,
                 80,
                 {{}, [](const Position&, Dual s) {
                    return score_of(s, [](double x) { return std::log1p(std::exp(x)) - 2 / (1 + std::exp(-3 * x)); });
                  }}});
  all.push_back({"fwd {} d=64 heads=2 score=\"where(s < 0, -sqrt(abs(s)), min(s, 0.75)) + max(q - k, 3) * 0.01\"",
                 1,
                 33,
                 80,
                 {{}, [](const Position& at, Dual s) {
                    const Dual bent = score_of(s, [](double x) { return x < 0 ? -std::sqrt(-x) : std::min(x, 0.75); });
                    const double more = static_cast<double>(std::max<std::int64_t>(at.q - at.k, 3)) * 0.01;
                    return Dual(bent.f + static_cast<float>(more), bent.d + more);
                  }}});
}

// finfo.min and the like, which frameworks add to hide keys: of all keys of a row, of some; and as large above zero.
// Half of the largest number is further from it than exp can tell.
double large_bias(std::int64_t q, std::int64_t k, double most) {
  switch (q % 4) {
    case 0: return -most;
    case 1: return k % 3 == 0 ? -most : -most / 2;
    case 2: return k % 2 == 0 ? -most : 0.5;
    default: return k % 5 == 0 ? most : k % 5 == 1 ? most / 2 : -most;
  }
}

void add_scores_as_large_as_floats(std::vector<Row>& all) {
  const auto add = [&](const std::string& spec, Dtype dtype, double most, decltype(Semantics::visible) visible) {
    const auto score = [most](const Position& at, Dual s) {
      const double bias = large_bias(at.q, at.k, most);
      return Dual(s.f + static_cast<float>(bias), s.d + bias);
    };
    const auto value = [most](std::int64_t i) { return large_bias(i / 150, i % 150, most); };
    all.push_back(
        {spec, 1, 70, 150, {std::move(visible), score}, {}, {}, Row().pins, {{"t", dtype, {70, 150}, value}}});
  };
  add("fwd {} d=64 heads=1 params=\"t: bf16[2]\" score=\"s + t[q, k]\" lse=ln max_logit", Dtype::BF16, 0x1.fep127, {});
  add("fwd {} d=64 heads=1 params=\"t: fp32[2]\" score=\"s + t[q, k]\" sink mask=\"causal\"", Dtype::F32,
      0x1.fffffep127, causal);
}

// Tiles that begin amid a block of 16 queries, one of them alone, fewer keys than a block.
void add_dropout(std::vector<Row>& all) {
  all.push_back({"fwd {} d=40/72 heads=4/2 mask=\"causal\" lse=ln max_logit dropout=0.3", 2, 100, 150, {causal, {}}});
  all.push_back({"fwd {} d=64 heads=2 layout=packed sink dropout=0.05", 3, 90, 100, {}, {90, 1, 33}, {100, 0, 11}});
  all.push_back({"fwd {} d=16 heads=1 dropout=0.5", 1, 1, 300, {}, {}, {}, ""});
}

// Elements that are found through another tensor.
void add_look_ups(std::vector<Row>& all) {
  const auto document = [](std::int64_t position) { return position / 17 % 5; };
  const auto start = [](std::int64_t number) { return (number * 37 + 11) % 60; };
  all.push_back({"fwd {} d=64 heads=2 params=\"start: i32[1], doc: i64[2]\" mask=\"k >= start[doc[b, q]]\" lse=ln",
                 2,
                 50,
                 90,
                 {[=](const Position& at) { return at.k >= start(document(at.b * 50 + at.q)); }, {}},
                 {},
                 {},
                 "tile_q=24,tile_kv=64",
                 {{"start", Dtype::I32, {5}, [=](std::int64_t i) { return start(i); }},
                  {"doc", Dtype::I64, {2, 50}, [=](std::int64_t i) { return document(i); }}}});
  const auto bonus = [](std::int64_t i) { return 0.125 * static_cast<double>(i * i % 11); };
  all.push_back(
      {"fwd {} d=64 heads=2 params=\"bonus: fp32[2], kind: u8[1], of: i32[1]\" "
       "score=\"s + bonus[h, kind[of[k]] + q % 3]\" mask=\"causal\"",
       1,
       50,
       90,
       {causal,
        [=](const Position& at, Dual s) {
          const double more = bonus(at.h * 10 + (89 - at.k) % 8 + at.q % 3);
          return Dual(s.f + static_cast<float>(more), s.d + more);
        }},
       {},
       {},
       "tile_q=24,tile_kv=64",
       {{"bonus", Dtype::F32, {2, 10}, bonus},
        {"kind", Dtype::U8, {90}, [](std::int64_t i) { return static_cast<double>(i % 8); }},
        {"of", Dtype::I32, {90}, [](std::int64_t i) { return static_cast<double>(89 - i); }}}});
}

// Parameters that scores read: contiguous, gathered.
void add_parameters_of_scores(std::vector<Row>& all) {
  auto bias = [](std::int64_t i) { return std::cos(static_cast<double>(i)); };
  all.push_back({"fwd {} d=64 heads=2 params=\"table: fp32[3]\" score=\"s + table[h, q, k]\" mask=\"causal\"",
                 1,
                 50,
                 90,
                 {causal,
                  [bias](const Position& at, Dual s) {
                    const double more = static_cast<float>(bias((at.h * 50 + at.q) * 90 + at.k));
                    return Dual(s.f + static_cast<float>(more), s.d + more);
                  }},
                 {},
                 {},
                 "tile_q=24,tile_kv=64",
                 {{"table", Dtype::F32, {2, 50, 90}, bias}}});
  all.push_back({"fwd {} d=64 heads=2 params=\"table: fp16[1]\" score=\"s + table[abs(q - k)]\"",
                 1,
                 50,
                 90,
                 {{},
                  [](const Position& at, Dual s) {
                    const double more = 0.25 * static_cast<double>(std::abs(at.q - at.k) % 9);
                    return Dual(s.f + static_cast<float>(more), s.d + more);
                  }},
                 {},
                 {},
                 "tile_q=24,tile_kv=64",
                 {{"table", Dtype::F16, {90}, [](std::int64_t i) { return 0.25 * static_cast<double>(i % 9); }}}});
}

// Parameters that masks read: numbers, bits, flags.
void add_parameters_of_masks(std::vector<Row>& all) {
  all.push_back({"fwd {} d=64 heads=2 params=\"doc: i32[2]\" mask=\"doc[b, q] == doc[b, k]\"",
                 2,
                 80,
                 80,
                 {[](const Position& at) { return (at.b * 80 + at.q) / 30 == (at.b * 80 + at.k) / 30; }, {}},
                 {},
                 {},
                 "tile_q=24,tile_kv=64",
                 {{"doc", Dtype::I32, {2, 80}, [](std::int64_t i) { return static_cast<double>(i / 30); }}}});
  auto words = [](std::int64_t i) { return static_cast<double>((i * 2654435761) & 0xffffffff); };
  for (const Dtype dtype : {Dtype::U32, Dtype::I64}) {
    all.push_back({"fwd {} d=64 heads=2 params=\"bits: " + std::string(name(dtype)) +
                       "[2]\" mask=\"bit(bits[q, k / 32], k % 32)\" lse=ln",
                   1,
                   40,
                   100,
                   {[words](const Position& at) {
                      return (static_cast<std::int64_t>(words(at.q * 4 + at.k / 32)) >> (at.k % 32) & 1) != 0;
                    },
                    {}},
                   {},
                   {},
                   "tile_q=24,tile_kv=64",
                   {{"bits", dtype, {40, 4}, words}}});
  }
  all.push_back({"fwd {} d=32 heads=1 params=\"keep: u8[1]\" mask=\"keep[k] != 0\"",
                 1,
                 9,
                 200,
                 {[](const Position& at) { return at.k % 3 != 0; }, {}},
                 {},
                 {},
                 "tile_q=24,tile_kv=64",
                 {{"keep", Dtype::U8, {200}, [](std::int64_t i) { return i % 3 != 0 ? 200.0 : 0.0; }}}});
}

void add_wide_ints_and_packed(std::vector<Row>& all) {
  // Ints beyond 32 bits.
  all.push_back({"fwd {} d=32 heads=1 mask=\"(q * 1000000007 + k * 998244353) % 3 < 2\"",
                 1,
                 40,
                 40,
                 {[](const Position& at) { return (at.q * 1000000007 + at.k * 998244353) % 3 < 2; }, {}}});
  all.push_back({"fwd {} d=64 heads=4/2 layout=packed mask=\"causal\" lse=ln max_logit",
                 5,
                 70,
                 90,
                 {causal, {}},
                 {70, 0, 1, 33, 9},
                 {70, 20, 90, 0, 8}});
}

void add_caches(std::vector<Row>& all) {
  const auto row = [&](const char* spec, std::int64_t q, std::vector<int> q_lengths, std::vector<int> k_lens) {
    all.push_back({.spec = spec,
                   .batch = 3,
                   .q = q,
                   .k = 150,
                   .semantics = {causal, {}},
                   .q_lengths = std::move(q_lengths),
                   .k_lens = std::move(k_lens)});
  };
  row("fwd {} d=64 heads=4/2 k_lens mask=\"causal\" lse=ln max_logit", 40, {}, {0, 150, 33});
  row("fwd {} d=32 heads=2 layout=paged(16) mask=\"causal\" lse=ln", 1, {}, {16, 17, 1000});
  row("fwd {} d=72/40 heads=4/2 v_in_k layout=paged(8) mask=\"causal\" lse=ln", 3, {}, {150, 1, 33});
  row("fwd {} d=40/72 heads=4/2 layout=packed/paged(7) mask=\"causal\"", 50, {50, 1, 30}, {150, 60, -4});
}

}  // namespace

std::vector<Row> rows() {
  std::vector<Row> all;
  add_masks(all);
  add_rows_that_see_nothing(all);
  add_functions_of_the_score(all);
  add_scores_as_large_as_floats(all);
  add_dropout(all);
  add_look_ups(all);
  add_parameters_of_scores(all);
  add_parameters_of_masks(all);
  add_wide_ints_and_packed(all);
  add_caches(all);
  return all;
}

}  // namespace flashjit

// Masks and scores: what is accepted prints as a text that means the same, simplifying keeps the value, and no tile is
// skipped that holds a visible pair.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "compiler/language/expr.h"
#include "compiler/analysis/interval.h"
#include "tests/fuzz/fuzz.h"

using namespace flashjit;
using fuzz::require;

namespace {

constexpr std::int64_t kBatch = 2, kHeads = 4, kKvHeads = 2, kTokens = 4096;

const std::vector<Param> kParams = {{"n", Dtype::I32, 0},
                                    {"x", Dtype::F32, 0},
                                    {"lens", Dtype::I32, 1},
                                    {"words", Dtype::I64, 1},
                                    {"bias2", Dtype::F32, 2}};

// The points where values are compared, and what parameters hold there.
struct Point {
  std::int64_t q, k, b, h, q_len, k_len;
  float s;
};
constexpr Point kPoints[] = {{0, 0, 0, 0, 1, 1, 0.5f},
                             {2, 5, 1, 3, 3, 7, -3.25f},
                             {63, 64, 0, 1, 100, 4000, INFINITY},
                             {4095, 4095, 1, 2, 4096, 4096, NAN},
                             {9, 0, 0, 0, 10, 1, -0.0f}};

struct World {
  std::int32_t n = 3;
  float x = -1.5f;
  std::array<std::int32_t, 8> lens = {0, 1, -1, 5, 64, 1 << 30, -(1 << 30), 7};
  std::array<std::int64_t, 4> words = {0, -1, 0x123456789abcdef, std::int64_t{1} << 62};
  std::array<float, 64> bias = {0.0f, -0.0f, 1.0f, INFINITY, -INFINITY, NAN, 1e38f, 1e-45f, 2.5f};
  std::array<ParamValue, 5> values = {
      {{&n, {}, {}}, {&x, {}, {}}, {lens.data(), {8}, {1}}, {words.data(), {4}, {1}}, {bias.data(), {8, 8}, {8, 1}}}};
};

// Parameters beyond those of the world, which named rows declare, read as zero.
Environment at(const Point& p, const World& world) {
  Environment environment;
  const auto set = [&](Variable variable, std::int64_t value) {
    environment.variables[static_cast<int>(variable)] = value;
  };
  set(Variable::Q, p.q);
  set(Variable::K, p.k);
  set(Variable::B, p.b);
  set(Variable::H, p.h);
  set(Variable::Hk, p.h / (kHeads / kKvHeads));
  set(Variable::QLen, p.q_len);
  set(Variable::KLen, p.k_len);
  environment.s = p.s;
  environment.params = &kParams;
  environment.values = world.values.data();
  return environment;
}

bool same_value(const Value& a, const Value& b) {
  if (a.type != b.type) return false;
  if (a.type != Type::Float) return a.integer == b.integer;
  return std::bit_cast<std::uint32_t>(a.real) == std::bit_cast<std::uint32_t>(b.real) ||
         (std::isnan(a.real) && std::isnan(b.real));
}

void check_print(const Expr& expr, const std::vector<Param>& params, bool bottom_right, bool score) {
  const std::string text = print(expr);
  if (text.size() > kMaxExprText) return;  // named rows are written out
  std::vector<Param> known = params;
  const auto again = parse_expr(text, {&known, bottom_right, score});
  if (!again) {
    // Stages of a score nest when they are written as one, and what they share is written out.
    const std::string& why = again.error().message;
    require(why.starts_with("nested more than") || why.starts_with("the expression has"),
            "a printed expression is read again", text, why);
    return;
  }
  require(same(expr, *again), "a printed expression stays the same", text, print(*again));
  require(known == params, "a printed expression declares nothing", text);
}

void check_value(const Expr& expr) {
  // What could overflow is refused before a kernel is made; its value is anything.
  const auto ranges = default_ranges(kBatch, kHeads, kKvHeads, kTokens, kTokens);
  const Expr simple = simplify(expr);
  require(simple->type == expr->type, "simplify keeps the type", print(expr), print(simple));
  if (!check_ranges(expr, ranges)) return;
  const auto checked = check_ranges(simple, ranges);
  require(static_cast<bool>(checked), "simplify keeps ranges", print(expr), print(simple));
  static const World world;
  for (const Point& point : kPoints) {
    const Environment environment = at(point, world);
    const Value before = evaluate(expr, environment), after = evaluate(simple, environment);
    if (same_value(before, after)) continue;
    require(false, "simplify keeps the value", print(expr),
            fmt::format("{} at q={} k={}: {} {}, not {} {}", print(simple), point.q, point.k, after.integer, after.real,
                        before.integer, before.real));
  }
}

void check_tiles(const Expr& mask) {
  if (!check_ranges(mask, default_ranges(kBatch, kHeads, kKvHeads, kTokens, kTokens))) return;
  static const World world;
  for (const Axis along : {Axis::Keys, Axis::Queries}) {
    const TileAnalysis tiles = analyse_tiles(mask, along);
    for (const Point& point : kPoints) {
      const Environment environment = at(point, world);
      const std::int64_t q_lo = point.q / 4 * 4, k_lo = point.k / 4 * 4;
      std::int64_t q_hi = q_lo + 3, k_hi = k_lo + 3;
      // The tile across is cut at the length; those that a loop visits may reach beyond it.
      if (along == Axis::Keys) q_hi = std::min(q_hi, point.q_len - 1);
      else k_hi = std::min(k_hi, point.k_len - 1);
      const TileClass kind = classify(tiles, environment, q_lo, q_hi, k_lo, k_hi);
      const bool visible = evaluate(mask, environment).integer != 0;
      require(kind != (visible ? TileClass::Empty : TileClass::Full), "a tile is what its pairs are", print(mask),
              fmt::format("along {}, at q={} k={} of q_len={} k_len={}", along == Axis::Keys ? "keys" : "queries",
                          point.q, point.k, point.q_len, point.k_len));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const bool score : {false, true}) {
    for (const bool bottom_right : {false, true}) {
      std::vector<Param> params = kParams;
      const auto expr = parse_expr(fuzz::text_of(data, size), {&params, bottom_right, score});
      if (!expr) {
        require(expr.error().kind == ErrorKind::Invalid, "a text is refused as invalid", expr.error().message);
        break;  // how positions line up does not decide what is sound
      }
      check_print(*expr, params, bottom_right, score);
      check_value(*expr);
      if (!score) check_tiles(simplify(*expr));
    }
  }
  return 0;
}

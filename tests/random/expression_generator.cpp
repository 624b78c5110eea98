#include "tests/random/expression_generator.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

#include "fmt/format.h"
#include "compiler/spec/half.h"

namespace flashjit::testing_random {
namespace {

using reference::Dual;
using reference::Position;
using Ints = std::function<std::int64_t(const Position&)>;
using Bools = std::function<bool(const Position&)>;
using Floats = std::function<Dual(const Position&, Dual)>;

template <class F>
struct Term {
  std::string text;
  F value;
};
using IntTerm = Term<Ints>;
using BoolTerm = Term<Bools>;
using FloatTerm = Term<Floats>;

std::int64_t floor_divide(std::int64_t a, std::int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

template <class F>
Floats map(Floats a, F f) {
  return [=](const Position& at, Dual s) {
    const Dual x = a(at, s);
    return Dual(f(x.f), f(x.d));
  };
}
template <class F>
Floats zip(Floats a, Floats b, F f) {
  return [=](const Position& at, Dual s) {
    const Dual x = a(at, s), y = b(at, s);
    return Dual(f(x.f, y.f), f(x.d, y.d));
  };
}

class Drawer {
 public:
  Drawer(Random& random, const ExpressionContext& context, std::vector<DrawnParam>& params)
      : random_(random), context_(context), params_(params) {}

  BoolTerm mask(int depth) {
    if (depth <= 0 || random_.chance(0.35)) return random_.chance(0.65) ? named_mask() : comparison(2);
    const double kind = random_.uniform();
    if (kind < 0.15) {
      const BoolTerm a = mask(depth - 1);
      return {"!(" + a.text + ")", [a = a.value](const Position& at) { return !a(at); }};
    }
    const BoolTerm a = mask(depth - 1), b = mask(depth - 1);
    if (kind < 0.7) {
      return {fmt::format("({}) & ({})", a.text, b.text),
              [a = a.value, b = b.value](const Position& at) { return a(at) && b(at); }};
    }
    return {fmt::format("({}) | ({})", a.text, b.text),
            [a = a.value, b = b.value](const Position& at) { return a(at) || b(at); }};
  }

  // Stages separated by `;`: each sees the value of the one before as s.
  FloatTerm stages() {
    const FloatTerm first = score(static_cast<int>(random_.integer(1, 3)));
    if (random_.chance(0.7)) return first;
    const FloatTerm second = score(static_cast<int>(random_.integer(1, 2)));
    return {first.text + "; " + second.text,
            [a = first.value, b = second.value](const Position& at, Dual s) { return b(at, a(at, s)); }};
  }

 private:
  FloatTerm score(int depth) {
    if (depth <= 0) return {"s", [](const Position&, Dual s) { return s; }};
    const FloatTerm inner = score(depth - 1);
    switch (random_.integer(0, 9)) {
      case 0: return scaled_by_scalar(inner);
      case 1: return chosen(inner);
      case 2: {
        const double low = -random_.integer(1, 40) / 4.0, high = random_.integer(1, 40) / 4.0;
        return {fmt::format("max(min({}, {:.2f}), {:.2f})", inner.text, high, low),
                map(inner.value, [=](auto x) { return std::fmax(std::fmin(x, decltype(x)(high)), decltype(x)(low)); })};
      }
      case 3: return {fmt::format("abs({})", inner.text), map(inner.value, [](auto x) { return std::fabs(x); })};
      case 4:
        return {fmt::format("sqrt(abs({}) + 1.0)", inner.text),
                map(inner.value, [](auto x) { return std::sqrt(std::fabs(x) + 1); })};
      case 5:
        return {fmt::format("log(1.0 + abs({}))", inner.text),
                map(inner.value, [](auto x) { return std::log(1 + std::fabs(x)); })};
      case 6:
        return {fmt::format("4.0 * sigmoid({})", inner.text),
                map(inner.value, [](auto x) { return 4 / (1 + std::exp(-x)); })};
      case 7: {
        const IntTerm distance = integer(2);
        return {fmt::format("{} - 0.03125 * ({})", inner.text, distance.text),
                [a = inner.value, b = distance.value](const Position& at, Dual s) {
                  const Dual x = a(at, s);
                  const auto i = b(at);
                  return Dual(x.f - 0.03125f * static_cast<float>(i), x.d - 0.03125 * static_cast<double>(i));
                }};
      }
      case 8:
        return {fmt::format("-({}) * 0.5", inner.text), map(inner.value, [](auto x) { return -x * decltype(x)(0.5); })};
      default: return named_score(inner);
    }
  }

  // Fills a parameter once; the same name again means the same tensor.
  template <class F>
  const DrawnParam& param(const std::string& name, Dtype dtype, std::vector<std::int64_t> shape, bool declared,
                          F fill) {
    for (const DrawnParam& known : params_) {
      if (known.name != name) continue;
      // A second use of the name would read numbers by the wrong shape, and the spec would seem to be wrong.
      if (known.shape != shape)
        throw std::logic_error("parameter " + name + " is drawn elsewhere with another shape; name it otherwise");
      return known;
    }
    std::int64_t count = 1;
    for (std::int64_t size : shape) count *= size;
    auto values = std::make_shared<std::vector<double>>(count);
    for (std::int64_t i = 0; i < count; ++i) {
      (*values)[i] = is_float(dtype) ? round_to(dtype, static_cast<float>(fill(i))) : fill(i);
    }
    params_.push_back({name, dtype, std::move(shape), std::move(values), declared});
    return params_.back();
  }

  IntTerm integer(int depth) {
    if (depth <= 0 || random_.chance(0.25)) return integer_leaf();
    const IntTerm a = integer(depth - 1);
    const std::int64_t constant = random_.integer(1, 40);
    switch (random_.integer(0, 9)) {
      case 0:
      case 1: {
        const IntTerm b = integer(depth - 1);
        return {fmt::format("{} + ({})", a.text, b.text),
                [a = a.value, b = b.value](const Position& at) { return a(at) + b(at); }};
      }
      case 2:
      case 3: {
        const IntTerm b = integer(depth - 1);
        return {fmt::format("{} - ({})", a.text, b.text),
                [a = a.value, b = b.value](const Position& at) { return a(at) - b(at); }};
      }
      case 4:
        return {fmt::format("({}) * {}", a.text, constant),
                [a = a.value, constant](const Position& at) { return a(at) * constant; }};
      case 5:
        return {fmt::format("({}) / {}", a.text, constant),
                [a = a.value, constant](const Position& at) { return floor_divide(a(at), constant); }};
      case 6:
      case 7:
        return {fmt::format("({}) % {}", a.text, constant), [a = a.value, constant](const Position& at) {
                  const std::int64_t x = a(at);
                  return x - floor_divide(x, constant) * constant;
                }};
      case 8: {
        const IntTerm b = integer(depth - 1);
        const bool least = random_.chance(0.5);
        return {fmt::format("{}({}, {})", least ? "min" : "max", a.text, b.text),
                [a = a.value, b = b.value, least](const Position& at) {
                  return least ? std::min(a(at), b(at)) : std::max(a(at), b(at));
                }};
      }
      default: return {fmt::format("abs({})", a.text), [a = a.value](const Position& at) { return std::abs(a(at)); }};
    }
  }

  IntTerm integer_leaf() {
    switch (random_.integer(0, 11)) {
      case 0:
      case 1: return {"q", [](const Position& at) { return at.q; }};
      case 2:
      case 3:
      case 4: return {"k", [](const Position& at) { return at.k; }};
      case 5:
        return {"qpos", [bottom_right = context_.bottom_right](const Position& at) {
                  return bottom_right ? at.q + at.k_len - at.q_len : at.q;
                }};
      case 6: return {"h", [](const Position& at) { return at.h; }};
      case 7:
        return random_.chance(0.5) ? IntTerm{"b", [](const Position& at) { return at.b; }}
                                   : IntTerm{"hk", [](const Position& at) { return at.hk; }};
      case 8:
        return random_.chance(0.5) ? IntTerm{"q_len", [](const Position& at) { return at.q_len; }}
                                   : IntTerm{"k_len", [](const Position& at) { return at.k_len; }};
      case 9: return int_scalar();
      case 10: return int_table();
      default: {
        const std::int64_t value = random_.integer(0, 100);
        return {std::to_string(value), [value](const Position&) { return value; }};
      }
    }
  }

  IntTerm int_scalar() {
    const DrawnParam& p = param("limit", random_.chance(0.5) ? Dtype::I32 : Dtype::I64, {}, true,
                                [&](std::int64_t) { return random_.integer(-10, 200); });
    const auto value = static_cast<std::int64_t>((*p.values)[0]);
    return {bounded("limit", p.dtype), [value](const Position&) { return value; }};
  }

  // What 64-bit data holds is unknown, and sums of it are refused unless it is clamped first.
  static std::string bounded(const std::string& text, Dtype dtype) {
    return dtype == Dtype::I64 ? fmt::format("min(max({}, -1000), 1000)", text) : text;
  }

  // A small table, indexed by something that provably stays inside.
  IntTerm int_table() {
    const Dtype dtype = random_.pick({Dtype::I32, Dtype::I64, Dtype::U8, Dtype::U32});
    const DrawnParam& p =
        param("lookup", dtype, {context_.heads_q, 8}, true, [&](std::int64_t) { return random_.integer(0, 100); });
    return {bounded("lookup[h, k % 8]", p.dtype), [values = p.values](const Position& at) {
              return static_cast<std::int64_t>((*values)[at.h * 8 + at.k % 8]);
            }};
  }

  BoolTerm comparison(int depth) {
    const IntTerm a = integer(depth);
    const auto make = [&](const char* op, auto compare) {
      const IntTerm b = integer(depth - 1);
      return BoolTerm{fmt::format("{} {} {}", a.text, op, b.text),
                      [a = a.value, b = b.value, compare](const Position& at) { return compare(a(at), b(at)); }};
    };
    using I = std::int64_t;
    switch (random_.integer(0, 6)) {
      case 0: return make("<", [](I x, I y) { return x < y; });
      case 1: return make("<=", [](I x, I y) { return x <= y; });
      case 2: return make(">", [](I x, I y) { return x > y; });
      case 3: return make(">=", [](I x, I y) { return x >= y; });
      case 4: return make("!=", [](I x, I y) { return x != y; });
      case 5: {  // equality of large ranges hides nearly everything; a residue class is what users write
        const std::int64_t n = random_.integer(2, 5);
        return {fmt::format("({}) % {} == {}", a.text, n, n - 1), [a = a.value, n](const Position& at) {
                  const I x = a(at);
                  return x - floor_divide(x, n) * n == n - 1;
                }};
      }
      default: return make("==", [](I x, I y) { return x == y; });
    }
  }

  BoolTerm named_mask() {
    const bool bottom_right = context_.bottom_right;
    const auto position = [bottom_right](const Position& at) {
      return bottom_right ? at.q + at.k_len - at.q_len : at.q;
    };
    switch (random_.integer(0, 9)) {
      case 0:
      case 1: return {"causal", [=](const Position& at) { return at.k <= position(at); }};
      case 2: return {"causal_top_left", [](const Position& at) { return at.k <= at.q; }};
      case 3: return {"causal_bottom_right", [](const Position& at) { return at.k_len - at.k >= at.q_len - at.q; }};
      case 4:
      case 5: {
        const std::int64_t l = random_.integer(-1, 90), r = random_.integer(-1, 40);
        return {fmt::format("window({}, {})", l, r), [=](const Position& at) {
                  const std::int64_t distance = position(at) - at.k;  // > 0: the key is older
                  return (l == -1 || distance <= l) && (r == -1 || -distance <= r);
                }};
      }
      case 6: {
        const std::int64_t n = random_.integer(1, 100);
        return {fmt::format("chunk({})", n),
                [=](const Position& at) { return floor_divide(position(at), n) == floor_divide(at.k, n); }};
      }
      case 7: {
        const std::int64_t n = random_.integer(0, 100);
        return {fmt::format("prefix({})", n), [=](const Position& at) { return at.k < n || at.k <= position(at); }};
      }
      case 8: return document();
      default: return tree();
    }
  }

  BoolTerm document() {
    const bool bottom_right = context_.bottom_right;
    const std::int64_t width = std::max<std::int64_t>(1, context_.max_q_len + context_.max_k_len);
    std::int64_t current = 0;
    const DrawnParam& p = param("doc", Dtype::I32, {context_.batch, width}, false, [&](std::int64_t) {
      if (random_.chance(0.05)) current = random_.integer(0, 5);
      return current;
    });
    return {"document(doc)", [=, values = p.values](const Position& at) {
              std::int64_t position = bottom_right ? at.q + at.k_len - at.q_len : at.q;
              if (position < 0) position = 0;
              return (*values)[at.b * width + position] == (*values)[at.b * width + at.k];
            }};
  }

  BoolTerm tree() {
    const std::int64_t queries = std::max<std::int64_t>(1, context_.max_q_len);
    const std::int64_t words = (context_.max_q_len + context_.max_k_len + 63) / 64 + 1;
    // Values are kept as doubles, which are exact up to 53 bits.
    const DrawnParam& p = param("branches", Dtype::I64, {context_.batch, queries, words}, false,
                                [&](std::int64_t) { return static_cast<double>(random_.bits() >> 14); });
    return {"tree(branches)", [=, values = p.values](const Position& at) {
              const std::int64_t newest = at.k - (at.k_len - at.q_len);
              if (newest < 0) return true;
              const auto word = static_cast<std::int64_t>((*values)[(at.b * queries + at.q) * words + newest / 64]);
              return (word >> newest % 64 & 1) != 0;
            }};
  }

  FloatTerm scaled_by_scalar(const FloatTerm& inner) {
    const DrawnParam& p = param("gain", Dtype::F32, {}, true, [&](std::int64_t) { return 0.25 + random_.uniform(); });
    const double gain = (*p.values)[0];
    return {fmt::format("({}) * gain", inner.text), map(inner.value, [gain](auto x) { return x * decltype(x)(gain); })};
  }

  FloatTerm chosen(const FloatTerm& inner) {
    const BoolTerm condition = random_.chance(0.5) ? comparison(2) : named_mask();
    const double other = random_.integer(-8, 8) / 4.0;
    return {fmt::format("where({}, {}, {} + {:.2f})", condition.text, inner.text, inner.text, other),
            [=, a = inner.value, c = condition.value](const Position& at, Dual s) {
              const Dual x = a(at, s);
              return c(at) ? x : Dual(x.f + static_cast<float>(other), x.d + other);
            }};
  }

  // Named scores read s, so they come innermost only: their text is used when nothing has been done to s yet.
  FloatTerm named_score(const FloatTerm& inner) {
    if (inner.text != "s") {
      const DrawnParam& p = param("offset", random_.pick({Dtype::F32, Dtype::BF16, Dtype::F16}),
                                  {context_.heads_kv, 16}, true, [&](std::int64_t) { return random_.normal(); });
      return {fmt::format("{} + offset[hk, (q + k) % 16]", inner.text),
              [a = inner.value, values = p.values](const Position& at, Dual s) {
                const Dual x = a(at, s);
                const double bias = (*values)[at.hk * 16 + (at.q + at.k) % 16];
                return Dual(x.f + static_cast<float>(bias), x.d + bias);
              }};
    }
    switch (random_.integer(0, 3)) {
      case 0: {
        const double cap = random_.pick({0.5, 1.0, 5.0, 20.0, 50.0});
        return {fmt::format("softcap({:.1f})", cap), [cap](const Position&, Dual s) {
                  return Dual(static_cast<float>(cap) * std::tanh(s.f / static_cast<float>(cap)),
                              cap * std::tanh(s.d / cap));
                }};
      }
      case 1: {
        // Every third head grows with distance, which no model wants and a running maximum must survive.
        const DrawnParam& p = param("slope", Dtype::F32, {context_.heads_q}, false, [&](std::int64_t i) {
          return std::exp2(-static_cast<double>(i + 1)) * (i % 3 == 1 ? -1 : 1);
        });
        return {"alibi", [values = p.values, bottom_right = context_.bottom_right](const Position& at, Dual s) {
                  const std::int64_t position = bottom_right ? at.q + at.k_len - at.q_len : at.q;
                  const double bias = (*values)[at.h] * static_cast<double>(at.k - position);
                  return Dual(s.f + static_cast<float>(bias), s.d + bias);
                }};
      }
      case 2: return bias(false);
      default: return bias(true);
    }
  }

  FloatTerm bias(bool per_batch) {
    const std::int64_t queries = std::max<std::int64_t>(1, context_.max_q_len);
    const std::int64_t keys = std::max<std::int64_t>(1, context_.max_k_len);
    const Dtype dtype = random_.pick({Dtype::F32, Dtype::BF16, Dtype::F16});
    std::vector<std::int64_t> shape = {context_.heads_q, queries, keys};
    if (per_batch) shape.insert(shape.begin(), context_.batch);
    const bool holes = random_.chance(0.3);
    const std::string name = per_batch ? "batch_bias" : "bias_of";
    const DrawnParam& p = param(name, dtype, shape, false, [&](std::int64_t) {
      return holes && random_.chance(0.2) ? -INFINITY : random_.normal();
    });
    const std::int64_t per_sequence = per_batch ? context_.heads_q * queries * keys : 0;
    return {fmt::format("{}({}, {})", per_batch ? "bias_b" : "bias", name, flashjit::name(p.dtype)),
            [=, values = p.values](const Position& at, Dual s) {
              const double bias = (*values)[at.b * per_sequence + (at.h * queries + at.q) * keys + at.k];
              return Dual(s.f + static_cast<float>(bias), s.d + bias);
            }};
  }

  Random& random_;
  const ExpressionContext& context_;
  std::vector<DrawnParam>& params_;
};

}  // namespace

DrawnExpression draw_mask(Random& random, const ExpressionContext& context, std::vector<DrawnParam>& params) {
  DrawnExpression result;
  if (random.chance(0.2)) return result;
  Drawer drawer(random, context, params);
  const BoolTerm mask = drawer.mask(random.chance(0.5) ? 0 : static_cast<int>(random.integer(1, 2)));
  result.text = mask.text;
  result.semantics.visible = mask.value;
  return result;
}

DrawnExpression draw_score(Random& random, const ExpressionContext& context, std::vector<DrawnParam>& params) {
  DrawnExpression result;
  if (random.chance(0.45)) return result;
  Drawer drawer(random, context, params);
  const FloatTerm score = drawer.stages();
  result.text = score.text;
  result.semantics.score = score.value;
  return result;
}

DrawnParam draw_values(Random& random, const ExpressionContext& c, const Param& param) {
  const std::int64_t positions = c.max_q_len + c.max_k_len + 1;
  std::vector<std::int64_t> shape;
  if (param.rank == 1) shape = {c.heads_q};
  if (param.rank == 2) shape = {c.batch, positions};
  if (param.rank == 2 && is_float(param.dtype)) shape[0] = std::max({c.batch, c.heads_q, c.max_q_len});
  if (param.rank == 3 && !is_float(param.dtype)) shape = {c.batch, c.max_q_len, positions / 64 + 1};
  if (param.rank == 3 && is_float(param.dtype)) shape = {c.heads_q, c.max_q_len, c.max_k_len};
  if (param.rank == 4) shape = {c.batch, c.heads_q, c.max_q_len, c.max_k_len};
  std::int64_t count = 1;
  for (std::int64_t size : shape) count *= size;
  auto values = std::make_shared<std::vector<double>>(count);
  std::int64_t document = 0;
  for (double& value : *values) {
    if (is_float(param.dtype)) value = round_to(param.dtype, static_cast<float>(random.normal()));
    else if (param.rank == 3) value = static_cast<double>(random.bits() >> 14);
    else if (param.rank == 2) value = static_cast<double>(document += random.chance(0.03));
    else value = static_cast<double>(random.integer(1, 64));
  }
  return {param.name, param.dtype, std::move(shape), std::move(values), true};
}

std::string declarations(const std::vector<DrawnParam>& params) {
  std::string text;
  for (const DrawnParam& param : params) {
    if (!param.declared) continue;
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", param.name, flashjit::name(param.dtype));
    if (!param.shape.empty()) text += fmt::format("[{}]", param.shape.size());
  }
  return text;
}

}  // namespace flashjit::testing_random

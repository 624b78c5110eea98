// Derivatives against differences of the score itself, in an evaluator of long doubles that shares no code with the
// compiler's.
#include "compiler/language/gradient.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include <gtest/gtest.h>

#include "compiler/language/named.h"
#include "tests/unit/compiler/expr_random.h"

namespace flashjit {
namespace {

using Real = long double;

// An element of a parameter.
struct PlaceOfScore {
  std::string name;
  std::vector<std::int64_t> index;
  bool operator==(const PlaceOfScore&) const = default;
};

// Elements are made of their places, so that tensors have no end.
struct World {
  unsigned seed = 0;
  std::int64_t variables[12] = {};
  Real s = 0;
  PlaceOfScore moved;  // by `by`
  Real by = 0;

  std::uint64_t bits(const PlaceOfScore& place) const {
    std::size_t hash = std::hash<std::string>{}(place.name) + seed;
    for (const std::int64_t i : place.index) hash = (hash ^ static_cast<std::size_t>(i)) * 0x9e3779b97f4a7c15u;
    return (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9u;
  }
  Real real(const PlaceOfScore& place) const {
    const Real value = static_cast<Real>(static_cast<std::int64_t>(bits(place) >> 20 & 4095) - 2048) / 800;
    return place == moved ? value + by : value;
  }
};

// Ints wrap, as they may where a random expression leaves 64 bits.
class LongEvaluator {
 public:
  explicit LongEvaluator(const World& world) : world_(world) {}
  Real largest = 1;  // of all floats on the way: what the error is relative to

  Real real(const Expr& e) {
    if (const auto known = reals_.find(e.get()); known != reals_.end()) return known->second;
    const Real value = real_of(e);
    largest = std::fmax(largest, std::fabs(value));
    return reals_[e.get()] = value;
  }

  PlaceOfScore place(const Expr& e) {
    PlaceOfScore place{e->param.name, {}};
    for (const Expr& arg : e->args) place.index.push_back(integer(arg));
    return place;
  }

 private:
  Real real_of(const Expr& e) {
    const auto arg = [&](std::size_t i) { return real(e->args[i]); };
    switch (e->op) {
      case Op::FloatConst: return e->real;
      case Op::Variable: return world_.s;
      case Op::Scalar:
      case Op::Load: return world_.real(place(e));
      case Op::ToFloat: return static_cast<Real>(integer(e->args[0]));
      case Op::Add: return arg(0) + arg(1);
      case Op::Sub: return arg(0) - arg(1);
      case Op::Mul: return arg(0) * arg(1);
      case Op::Div: return arg(0) / arg(1);
      case Op::Neg: return -arg(0);
      case Op::Min: return std::fmin(arg(0), arg(1));
      case Op::Max: return std::fmax(arg(0), arg(1));
      case Op::Abs: return std::fabs(arg(0));
      case Op::Where: return condition(e->args[0]) ? arg(1) : arg(2);
      case Op::Exp: return std::exp(arg(0));
      case Op::Log: return std::log(arg(0));
      case Op::Sqrt: return std::sqrt(arg(0));
      case Op::Tanh: return std::tanh(arg(0));
      case Op::Sigmoid: return 1 / (1 + std::exp(-arg(0)));
      default: ADD_FAILURE() << "no such float: " << print(e); return 0;
    }
  }

  std::int64_t integer(const Expr& e) {
    const auto arg = [&](std::size_t i) { return static_cast<__int128>(integer(e->args[i])); };
    const auto floored = [&] {
      const __int128 a = arg(0), b = std::max<__int128>(arg(1), 1);
      return a / b - (a % b < 0);
    };
    switch (e->op) {
      case Op::IntConst: return e->integer;
      case Op::Variable: return world_.variables[static_cast<int>(e->variable)];
      case Op::Scalar:
      case Op::Load: return static_cast<std::int64_t>(world_.bits(place(e)) >> 30 & 31);
      case Op::Add: return static_cast<std::int64_t>(arg(0) + arg(1));
      case Op::Sub: return static_cast<std::int64_t>(arg(0) - arg(1));
      case Op::Mul: return static_cast<std::int64_t>(arg(0) * arg(1));
      case Op::Div: return static_cast<std::int64_t>(floored());
      case Op::Mod: return static_cast<std::int64_t>(arg(0) - floored() * std::max<__int128>(arg(1), 1));
      case Op::Neg: return static_cast<std::int64_t>(-arg(0));
      case Op::Min: return static_cast<std::int64_t>(std::min(arg(0), arg(1)));
      case Op::Max: return static_cast<std::int64_t>(std::max(arg(0), arg(1)));
      case Op::Abs: return static_cast<std::int64_t>(arg(0) < 0 ? -arg(0) : arg(0));
      case Op::Where: return condition(e->args[0]) ? integer(e->args[1]) : integer(e->args[2]);
      default: ADD_FAILURE() << "no such int: " << print(e); return 0;
    }
  }

  bool condition(const Expr& e) {
    const auto compared = [&](auto a, auto b) {
      return e->op == Op::Lt ? a < b : e->op == Op::Le ? a <= b : e->op == Op::Eq ? a == b : a != b;
    };
    switch (e->op) {
      case Op::BoolConst: return e->integer != 0;
      case Op::Not: return !condition(e->args[0]);
      case Op::And: return condition(e->args[0]) && condition(e->args[1]);
      case Op::Or: return condition(e->args[0]) || condition(e->args[1]);
      case Op::Where: return condition(e->args[0]) ? condition(e->args[1]) : condition(e->args[2]);
      case Op::Bit: return (integer(e->args[0]) >> (integer(e->args[1]) & 63) & 1) != 0;
      default: break;
    }
    const Expr &a = e->args[0], &b = e->args[1];
    return a->type == Type::Int ? compared(integer(a), integer(b)) : compared(real(a), real(b));
  }

  const World& world_;
  std::unordered_map<const Node*, Real> reals_;
};

struct Slope {
  Real value, error;
};

// Central differences of two widths, where both sides and both widths agree: not at a bend, nor where rounding shows.
// `move` is what changes the world by so much.
std::optional<Slope> difference(const Expr& score, World world, const std::function<void(World&, Real)>& move) {
  constexpr Real kWidth = 1e-5L;
  Real largest = 1;
  const auto at = [&](Real x) {
    World there = world;
    move(there, x);
    LongEvaluator evaluator(there);
    const Real value = evaluator.real(score);
    largest = std::fmax(largest, evaluator.largest);
    return value;
  };
  const Real here = at(0), right = at(kWidth), left = at(-kWidth);
  const Real wide = (right - left) / (2 * kWidth), narrow = (at(kWidth / 2) - at(-kWidth / 2)) / kWidth;
  const Real value = (4 * narrow - wide) / 3;
  const Real rounding = 1e-17L * largest / kWidth;
  if (!std::isfinite(value) || !std::isfinite(largest) || rounding > 1e-4L) return std::nullopt;
  const Real sides = (right - here) / kWidth - (here - left) / kWidth;
  if (std::fabs(sides) > 1e-2L * (1 + std::fabs(value))) return std::nullopt;
  if (std::fabs(wide - narrow) > 1e-4L * (std::fabs(value) + 1e-3L)) return std::nullopt;
  return Slope{value, rounding + std::fabs(wide - narrow)};
}

// Compares, and says whether there was something to compare.
bool agrees(const std::vector<Expr>& derivatives, const Expr& score, const World& world,
            const std::function<void(World&, Real)>& move) {
  const std::optional<Slope> expected = difference(score, world, move);
  if (!expected) return false;
  LongEvaluator evaluator(world);
  Real found = 0;
  for (const Expr& derivative : derivatives) found += evaluator.real(derivative);
  // Constants of a derivative are rounded to fp32.
  const Real allowed = 4 * expected->error + 1e-5L * std::fabs(expected->value) + 1e-6L * evaluator.largest;
  if (allowed > 1e-2L * (1 + std::fabs(expected->value))) return false;
  EXPECT_NEAR(found, expected->value, allowed) << print(score) << "\nderivative " << print(derivatives.front())
                                               << "\nat s " << world.s << ", seed " << world.seed;
  return true;
}

void move_s(World& world, Real by) { world.s += by; }

// Numbers of which differences in long doubles say something.
Expr tamed(const Expr& expr, testing::RandomExprs& random) {
  if (expr->op == Op::FloatConst && !(std::abs(expr->real) > 0.01 && std::abs(expr->real) < 40))
    return Expr::real((random.pick(80) - 40) / 8.0);
  if (expr->op == Op::IntConst && std::abs(expr->integer / 2) > 50) return Expr::integer(expr->integer % 50);
  if (expr->args.empty()) return expr;
  std::vector<Expr> args;
  for (const Expr& arg : expr->args) args.push_back(tamed(arg, random));
  if (expr->op == Op::Load) return Expr::load(expr->param, args);
  const Result<Expr> made = Expr::make(expr->op, args);
  return made ? *made : expr;
}

World drawn_world(testing::RandomExprs& random, unsigned seed) {
  World world;
  world.seed = seed;
  for (auto& x : world.variables) x = random.pick(40) - 5;
  world.s = std::normal_distribution<double>(0, 3)(random.engine());
  return world;
}

// The derivatives that make up that of one element, which may be read at several places of the score.
std::vector<Expr> of_element(const ScoreGradients& gradients, const PlaceOfScore& element, const World& world) {
  std::vector<Expr> derivatives;
  for (const ReadGradient& term : gradients.by_params) {
    if (LongEvaluator(world).place(term.read) == element) derivatives.push_back(term.derivative);
  }
  return derivatives;
}

int check_elements(const ScoreGradients& gradients, const Expr& score, const World& world) {
  int compared = 0;
  for (const ReadGradient& term : gradients.by_params) {
    const PlaceOfScore element = LongEvaluator(world).place(term.read);
    World moved = world;
    moved.moved = element;
    const auto move = [](World& w, Real by) { w.by += by; };
    compared += agrees(of_element(gradients, element, world), score, moved, move);
  }
  return compared;
}

TEST(GradientDifference, RandomExpressions) {
  int of_s = 0, of_elements = 0, drawn = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    testing::RandomExprs random(seed);
    const Expr score = tamed(random.make(Type::Float, 2 + random.pick(5)), random);
    std::vector<std::string> wanted;
    for (const Param& param : params_of(simplify(score))) {
      if (is_float(param.dtype)) wanted.push_back(param.name);
    }
    Result<ScoreGradients> gradients = gradients_of(score, {}, wanted);
    if (!gradients) gradients = gradients_of(score, {}, {});  // a parameter on which nothing depends
    ASSERT_TRUE(gradients) << "seed " << seed << ": " << gradients.error().message;
    EXPECT_LE(node_count(gradients->by_s), 8 * node_count(score) + 8) << print(score);
    EXPECT_LE(function_count(gradients->by_s), function_count(score)) << print(score);
    const bool constant = gradients->by_s->args.empty();
    for (int i = 0; i < 4; ++i) {
      const World world = drawn_world(random, seed * 4 + static_cast<unsigned>(i));
      const bool compared = agrees({gradients->by_s}, score, world, move_s);
      of_s += compared && !constant;
      drawn += !constant;
      of_elements += check_elements(*gradients, score, world);
      if (HasFailure()) FAIL() << "seed " << seed;
    }
  }
  EXPECT_GT(of_s, drawn / 2) << drawn;
  EXPECT_GT(of_elements, 10000);
}

// Every operation by itself, and under others, for sure.
TEST(GradientDifference, EveryOperation) {
  static const char* const kScores[] = {
      "s + c * s",
      "s - t[k]",
      "s * t[h] * s",
      "t[h] / (s * s + 1)",
      "s / t[h]",
      "-s * s",
      "min(s, c)",
      "max(s, t[k])",
      "max(min(s * s, c), t[k])",
      "abs(s - c)",
      "where(s < c, s * s, c * s)",
      "s * float(k - q)",
      "exp(s / 4)",
      "log(s * s + 1)",
      "sqrt(s * s + c * c)",
      "tanh(s * c)",
      "sigmoid(s - t[k])",
      "s * sigmoid(c * s)",
      "where(k < q | s > 1, tanh(s), sqrt(exp(s)))",
      "log(1 + exp(-abs(s)))",
      "s * s / (c * c + exp(t[k]))",
  };
  for (const char* text : kScores) {
    std::vector<Param> params = {{"c", Dtype::F32, 0}, {"t", Dtype::F32, 1}};
    const Result<Expr> score = parse_expr(text, {&params, true, true});
    ASSERT_TRUE(score) << text;
    std::vector<std::string> wanted;
    for (const Param& param : params_of(*score)) wanted.push_back(param.name);
    const Result<ScoreGradients> gradients = gradients_of(*score, {}, wanted);
    ASSERT_TRUE(gradients) << text << ": " << gradients.error().message;
    int compared = 0;
    for (unsigned seed = 0; seed < 40; ++seed) {
      testing::RandomExprs random(seed);
      const World world = drawn_world(random, seed);
      compared += agrees({gradients->by_s}, *score, world, move_s);
      compared += check_elements(*gradients, *score, world);
    }
    EXPECT_GT(compared, 35 * (1 + static_cast<int>(gradients->by_params.size()))) << text;
  }
}

TEST(GradientDifference, NamedRows) {
  int rows = 0;
  for (const NamedRow& row : named_rows()) {
    if (!row.score) continue;
    ++rows;
    std::string text(row.name);
    const auto argument = [](const RowArgument& a) {
      return a.kind == RowArgument::Kind::Tensor ? "x" : a.kind == RowArgument::Kind::Dtype ? "bf16" : "30";
    };
    const bool two = row.arguments[1].kind != RowArgument::Kind::None;
    if (row.arguments[0].kind != RowArgument::Kind::None)
      text += std::string("(") + argument(row.arguments[0]) +
              (two ? std::string(", ") + argument(row.arguments[1]) : "") + ")";
    std::vector<Param> params;
    const Result<Expr> score = parse_expr(text, {&params, true, true});
    ASSERT_TRUE(score) << text << ": " << score.error().message;
    std::vector<std::string> wanted;
    for (const Param& param : params) wanted.push_back(param.name);
    const Result<ScoreGradients> gradients = gradients_of(*score, {}, wanted);
    ASSERT_TRUE(gradients) << text << ": " << gradients.error().message;
    EXPECT_EQ(gradients->by_params.size(), params.size()) << text;
    for (unsigned seed = 0; seed < 10; ++seed) {
      testing::RandomExprs random(seed);
      const World world = drawn_world(random, seed);
      EXPECT_TRUE(agrees({gradients->by_s}, *score, world, move_s)) << text;
      EXPECT_EQ(check_elements(*gradients, *score, world), static_cast<int>(params.size())) << text;
    }
  }
  EXPECT_GE(rows, 4);
}

}  // namespace
}  // namespace flashjit

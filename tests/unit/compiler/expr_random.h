// Random expressions and environments for property tests.
#pragma once

#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "compiler/language/expr.h"

namespace flashjit::testing {

inline const Param kScalarInt{"si", Dtype::I32, 0}, kScalarFloat{"sf", Dtype::F32, 0}, kTable{"table", Dtype::I32, 1},
    kBias{"bias2", Dtype::F32, 2}, kWords{"words", Dtype::I64, 1};

class RandomExprs {
 public:
  explicit RandomExprs(unsigned seed) : random_(seed) {}

  int pick(int count) { return std::uniform_int_distribution<int>(0, count - 1)(random_); }
  std::mt19937& engine() { return random_; }

  Expr make(Type type, int depth) {
    switch (type) {
      case Type::Bool: return boolean(depth);
      case Type::Int: return integer(depth);
      case Type::Float: return real(depth);
    }
    return {};
  }

  // Masks whose comparisons are mostly of the kind that the tile analysis takes apart.
  Expr mask(int depth) {
    if (depth > 0) {
      switch (pick(6)) {
        case 0:
        case 1: return mask(depth - 1) & mask(depth - 1);
        case 2:
        case 3: return mask(depth - 1) | mask(depth - 1);
        case 4: return ~mask(depth - 1);
        default: return where(mask(depth - 1), mask(depth - 1), mask(depth - 1));
      }
    }
    const Expr keys = key_side(2), queries = query_side(2);
    switch (pick(10)) {
      case 0:
      case 1: return keys <= queries;
      case 2:
      case 3: return keys < queries;
      case 4:
      case 5: return keys >= queries;
      case 6: return keys > queries;
      case 7: return keys == queries;
      case 8: return pick(2) ? keys != queries : queries <= query_side(1);
      default: return boolean(2);
    }
  }

  struct World {
    std::array<std::int32_t, 16> table;
    std::array<float, 64> bias;
    std::array<std::int64_t, 4> words;
    std::int32_t si;
    float sf;
    std::vector<Param> params{kScalarInt, kScalarFloat, kTable, kBias, kWords};
    std::array<ParamValue, 5> values;
    Environment environment;
  };

  // Fills in place: the environment points into the world.
  void fill(World& world) {
    for (auto& x : world.table) x = pick(24) - 4;
    for (auto& x : world.bias) x = some_float();
    for (auto& x : world.words) x = static_cast<std::int64_t>(std::uniform_int_distribution<std::uint64_t>()(random_));
    world.si = pick(40) - 8;
    world.sf = some_float();
    world.values[0] = {&world.si, {}, {}};
    world.values[1] = {&world.sf, {}, {}};
    world.values[2] = {world.table.data(), {16}, {1}};
    world.values[3] = {world.bias.data(), {8, 8}, {8, 1}};
    world.values[4] = {world.words.data(), {4}, {1}};
    for (auto& x : world.environment.variables) x = pick(30) == 0 ? pick(1 << 30) : pick(40) - 5;
    world.environment.s = some_float();
    world.environment.params = &world.params;
    world.environment.values = world.values.data();
  }

  float some_float() {
    static const float kOdd[] = {0.0f, -0.0f, 1.0f, -1.0f, INFINITY, -INFINITY, NAN, 1e38f, -1e38f, 1e-45f, 0.5f, 3.0f};
    return pick(3) ? std::normal_distribution<float>(0, 10)(random_) : kOdd[pick(12)];
  }

 private:
  Expr variable() {
    static const Variable kAll[] = {Variable::Q, Variable::K,  Variable::K,    Variable::B,
                                    Variable::H, Variable::Hk, Variable::QLen, Variable::KLen};
    return Expr::variable(kAll[pick(8)]);
  }
  Expr constant() { return Expr::integer(pick(20) == 0 ? (std::int64_t{1} << pick(63)) - pick(3) : pick(13) - 4); }

  Expr integer(int depth) {
    if (depth <= 0 || pick(6) == 0) {
      switch (pick(6)) {
        case 0:
        case 1: return constant();
        case 2: return pick(2) ? Expr::scalar(kScalarInt) : Expr::load(kTable, {max(variable(), Expr::integer(0))});
        default: return variable();
      }
    }
    const auto sub = [&] { return integer(depth - 1); };
    switch (pick(11)) {
      case 0:
      case 1: return sub() + sub();
      case 2:
      case 3: return sub() - sub();
      case 4: return sub() * (pick(2) ? constant() : sub());
      case 5: return sub() / Expr::integer(1 + pick(9));
      case 6: return sub() % (pick(3) ? Expr::integer(1 + pick(9)) : max(sub(), Expr::integer(1)));
      case 7: return min(sub(), sub());
      case 8: return max(sub(), sub());
      case 9: return pick(2) ? -sub() : call(Op::Abs, sub());
      default: return where(boolean(depth - 1), sub(), sub());
    }
  }

  Expr real(int depth) {
    if (depth <= 0 || pick(6) == 0) {
      switch (pick(5)) {
        case 0:
        case 1: return Expr::real(some_float());
        case 2: return Expr::scalar(kScalarFloat);
        case 3: return Expr::load(kBias, {variable(), variable()});
        default: return Expr::variable(Variable::S);
      }
    }
    const auto sub = [&] { return real(depth - 1); };
    static const Op kUnary[] = {Op::Abs, Op::Exp, Op::Log, Op::Sqrt, Op::Tanh, Op::Sigmoid};
    switch (pick(11)) {
      case 0:
      case 1: return sub() + (pick(3) ? sub() : integer(depth - 1));
      case 2:
      case 3: return sub() - sub();
      case 4:
      case 5: return sub() * sub();
      case 6: return sub() / sub();
      case 7: return pick(2) ? min(sub(), sub()) : max(sub(), sub());
      case 8: return pick(2) ? -sub() : call(Op::ToFloat, integer(depth - 1));
      case 9: return call(kUnary[pick(6)], sub());
      default: return where(boolean(depth - 1), sub(), sub());
    }
  }

  Expr boolean(int depth) {
    if (depth <= 0 || pick(12) == 0) return Expr::boolean(pick(2));
    const auto sub = [&] { return boolean(depth - 1); };
    const auto compare = [&](const Expr& a, const Expr& b) {
      switch (pick(4)) {
        case 0: return a < b;
        case 1: return a <= b;
        case 2: return a == b;
        default: return a != b;
      }
    };
    switch (pick(9)) {
      case 0: return sub() & sub();
      case 1: return sub() | sub();
      case 2: return ~sub();
      case 3: return where(sub(), sub(), sub());
      case 4: return compare(real(depth - 1), real(depth - 1));
      case 5: {
        const Result<Expr> bit = Expr::make(
            Op::Bit, {Expr::load(kWords, {Expr::variable(Variable::B)}), integer(depth - 1) % Expr::integer(64)});
        return bit ? *bit : Expr::boolean(true);
      }
      default: return compare(integer(depth - 1), integer(depth - 1));
    }
  }

  Expr small() { return Expr::integer(pick(9) - 3); }
  Expr key_side(int depth) {
    const Expr k = Expr::variable(Variable::K);
    if (depth == 0) return k;
    const auto sub = [&] { return key_side(depth - 1); };
    switch (pick(12)) {
      case 0: return sub() + small();
      case 1: return small() - sub();
      case 2: return sub() * Expr::integer(1 + pick(3));
      case 3: return sub() * Expr::integer(-1 - pick(3));
      case 4: return sub() / Expr::integer(1 + pick(4));
      case 5: return sub() / Expr::integer(1 + pick(4)) * Expr::integer(1 + pick(4));
      case 6: return call(Op::Abs, sub() - query_side(1));
      case 7: return pick(2) ? min(sub(), query_side(1)) : max(sub(), query_side(1));
      case 8: return sub() % Expr::integer(1 + pick(4));
      case 9: return where(query_side(1) <= small(), sub(), sub());
      default: return k;
    }
  }
  Expr query_side(int depth) {
    const Expr q = Expr::variable(Variable::Q);
    if (depth == 0) {
      switch (pick(6)) {
        case 0: return small();
        case 1: return Expr::scalar(kScalarInt);
        case 2: return Expr::load(kTable, {Expr::variable(pick(3) ? Variable::B : Variable::Q)});
        case 3: return q + Expr::variable(Variable::KLen) - Expr::variable(Variable::QLen);
        default: return q;
      }
    }
    const auto sub = [&] { return query_side(depth - 1); };
    switch (pick(11)) {
      case 0: return sub() + sub();
      case 1: return sub() - small();
      case 2: return sub() * small();
      case 3: return sub() / Expr::integer(1 + pick(4));
      case 4: return sub() % Expr::integer(1 + pick(4));
      case 5: return min(sub(), sub());
      case 6: return max(sub(), sub());
      case 7: return call(Op::Abs, sub());
      case 8: return where(sub() < small(), sub(), sub());
      default: return sub();
    }
  }

  std::mt19937 random_;
};

}  // namespace flashjit::testing

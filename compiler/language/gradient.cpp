// Derivatives are carried from the leaves to the root, one for each node and leaf. So they grow with the nodes of the
// score, not with the paths through it.
#include "compiler/language/gradient.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "compiler/language/expr_rules.h"

namespace flashjit {
namespace {

bool is_real(const Expr& expr) { return expr->op == Op::FloatConst; }

// A derivative is constant * factors where `nonzero` is true (empty: everywhere), and 0 elsewhere. A derivative of 0
// stays 0 when it is multiplied by infinity or NaN, because the condition is kept, not the product. The last factors
// belong to the innermost functions, so derivatives by different leaves begin alike, and the common beginning is
// computed once. An Expr in it is empty if it would be too large, and then all that is made of it is empty.
struct Derivative {
  double constant = 0;
  std::vector<Expr> factors;
  std::optional<Expr> nonzero;

  bool is_zero() const { return constant == 0; }
};

bool same_factors(const Derivative& a, const Derivative& b) { return std::ranges::equal(a.factors, b.factors, same); }

void scale(Derivative& d, double by) {
  d.constant *= by;
  // c * (1 / c) is rounded, and counts as 1.
  if (std::abs(std::abs(d.constant) - 1) <= 0x1p-24) d.constant = d.constant < 0 ? -1 : 1;
}

void multiply(Derivative& d, const Expr& factor) {
  if (!factor) {
    d.factors.insert(d.factors.begin(), factor);
    return;
  }
  if (is_real(factor)) return scale(d, factor->real);
  if (factor->op == Op::Neg) {
    scale(d, -1);
    return multiply(d, factor->args[0]);
  }
  // c * (x / c) counts as x.
  for (auto old = d.factors.begin(); old != d.factors.end(); ++old) {
    if (!*old) continue;
    const bool divides = (*old)->op == Op::Div && same((*old)->args[1], factor);
    if (!divides && !(factor->op == Op::Div && same(factor->args[1], *old))) continue;
    const Expr left = divides ? (*old)->args[0] : factor->args[0];
    d.factors.erase(old);
    return multiply(d, left);
  }
  d.factors.insert(d.factors.begin(), factor);
}

// Returns the derivative without its condition.
Expr product(const Derivative& d) {
  if (d.factors.empty() || d.is_zero()) return Expr::real(d.constant);
  std::size_t next = 0;
  Expr result = d.constant == 1 || d.constant == -1 ? d.factors[next++] : Expr::real(d.constant);
  while (next < d.factors.size()) result = result * d.factors[next++];
  return d.constant == -1 ? -result : result;
}

Expr whole(const Derivative& d) { return d.nonzero ? where(*d.nonzero, product(d), Expr::real(0)) : product(d); }

Derivative of_expr(const Expr& expr, std::optional<Expr> nonzero) {
  Derivative d{1, {}, std::move(nonzero)};
  multiply(d, expr);
  return d;
}

bool same_condition(const Derivative& a, const Derivative& b) {
  return a.nonzero && b.nonzero ? same(*a.nonzero, *b.nonzero) : !a.nonzero && !b.nonzero;
}

bool same_derivative(const Derivative& a, const Derivative& b) {
  return a.constant == b.constant && same_factors(a, b) && same_condition(a, b);
}

Derivative sum(const Derivative& a, const Derivative& b) {
  if (a.is_zero()) return b;
  if (b.is_zero()) return a;
  const bool together = same_condition(a, b);
  if (together && same_factors(a, b)) {
    Derivative d = a;
    d.constant += b.constant;
    return d;
  }
  const auto side = [&](const Derivative& d) { return together ? product(d) : whole(d); };
  std::optional<Expr> nonzero;
  if (a.nonzero && b.nonzero) nonzero = together ? *a.nonzero : *a.nonzero | *b.nonzero;
  if (b.constant > 0) return of_expr(side(a) + side(b), std::move(nonzero));
  Derivative minus = b;
  minus.constant = -minus.constant;
  return of_expr(side(a) - side(minus), std::move(nonzero));
}

// Returns `a` where the condition holds, otherwise `b`. Neither is multiplied by a factor that is finite only for the
// other.
Derivative choose(const Expr& condition, const Derivative& a, const Derivative& b) {
  if (a.is_zero() && b.is_zero()) return a;
  if (a.is_zero() || b.is_zero()) {
    Derivative d = a.is_zero() ? b : a;
    const Expr visible = a.is_zero() ? ~condition : condition;
    d.nonzero = d.nonzero ? visible & *d.nonzero : visible;
    return d;
  }
  std::optional<Expr> nonzero;
  const Expr yes = Expr::boolean(true);
  if (a.nonzero || b.nonzero) nonzero = where(condition, a.nonzero.value_or(yes), b.nonzero.value_or(yes));
  if (!same_factors(a, b)) return of_expr(where(condition, product(a), product(b)), std::move(nonzero));
  Derivative d{1, a.factors, std::move(nonzero)};
  multiply(d, a.constant == b.constant ? Expr::real(a.constant)
                                       : where(condition, Expr::real(a.constant), Expr::real(b.constant)));
  return d;
}

// Finds the derivatives of the nodes of a simplified expression by one of its leaves.
class Differentiator {
 public:
  explicit Differentiator(Expr leaf) : leaf_(std::move(leaf)) {}

  const Derivative& of(const Expr& expr) {
    if (const auto known = known_.find(expr.get()); known != known_.end()) return known->second;
    Derivative d = expr->type == Type::Float ? make(expr) : Derivative();
    return known_[expr.get()] = std::move(d);
  }

 private:
  // Returns the derivative of the argument, times that of the function.
  Derivative chain(const Expr& argument, const Expr& function) { return times(of(argument), function); }
  static Derivative times(Derivative d, const Expr& factor) {
    if (!d.is_zero()) multiply(d, factor);
    return d;
  }

  Derivative make(const Expr& expr) {
    if (same(expr, leaf_)) return {1, {}, {}};
    const auto& args = expr->args;
    const Expr one = Expr::real(1);
    switch (expr->op) {
      case Op::Add: return sum(of(args[0]), of(args[1]));
      case Op::Sub: return sum(of(args[0]), chain(args[1], Expr::real(-1)));
      case Op::Mul: return sum(chain(args[0], args[1]), chain(args[1], args[0]));
      // (a / b)' = (a' - (a / b) b') / b uses the quotient that a kernel has, and no b * b that could leave the range.
      case Op::Div: {
        const Expr& b = args[1];
        return times(sum(of(args[0]), chain(b, -expr)), is_real(b) ? Expr::real(1 / b->real) : one / b);
      }
      case Op::Neg: return chain(args[0], Expr::real(-1));
      case Op::Min:
      case Op::Max: return extreme(expr);
      case Op::Abs: return absolute(args[0]);
      case Op::Where: return choose(args[0], of(args[1]), of(args[2]));
      case Op::Exp: return chain(args[0], expr);
      case Op::Log: return chain(args[0], one / args[0]);
      case Op::Sqrt: return chain(args[0], Expr::real(0.5) / expr);
      case Op::Tanh: return chain(args[0], one - expr * expr);
      case Op::Sigmoid: return chain(args[0], expr * (one - expr));
      default: return {};  // Other leaves and floats made of ints have the derivative 0.
    }
  }

  // Asks which argument equals the result, because one of them may be NaN. If both do, each has half of the derivative.
  Derivative extreme(const Expr& expr) {
    Expr a = expr->args[0], b = expr->args[1];
    if (of(a).is_zero()) std::swap(a, b);
    const Derivative first = of(a), second = of(b);
    if (first.is_zero() || same_derivative(first, second)) return first;
    const bool number = is_real(b) && !std::isnan(b->real);
    const Expr is_a = !number ? expr == a : expr->op == Op::Min ? a <= b : a >= b;
    const Expr is_b = number ? a == b : expr == b;
    const Derivative half = times(sum(first, second), Expr::real(0.5));
    return choose(is_a, choose(is_b, half, first), second);
  }

  Derivative absolute(const Expr& x) {
    const Expr zero = Expr::real(0);
    Derivative d = chain(x, where(x > zero, Expr::real(1), Expr::real(-1)));
    return choose(x != zero, d, {});
  }

  Expr leaf_;
  std::unordered_map<const Node*, Derivative> known_;
};

// ---- what is wanted ----

Error too_large(std::string_view by) {
  return unsupported(
      fmt::format("the derivative of the score by {} has more than {} operations, or {} written out; reuse fewer "
                  "intermediate values, or put what does not depend on the score into a tensor parameter",
                  by, kMaxExprNodes, kMaxTreeNodes));
}

Result<Expr> derive(Simplifier& simplifier, const Expr& score, const Expr& leaf, std::string_view by) {
  const Expr derivative = whole(Differentiator(leaf).of(score));
  if (!derivative) return too_large(by);
  const Expr simplified = simplifier.simplify(derivative);
  if (node_count(simplified) > kMaxExprNodes) return too_large(by);
  return simplified;
}

// Finds the expressions that read the parameter of this name, each once, in order of first use.
class Reads {
 public:
  Reads(const Expr& expr, std::string_view name) : name_(name) { find(expr); }
  std::vector<Expr> found;

 private:
  void find(const Expr& expr) {
    if (!seen_.insert(expr.get()).second) return;
    const bool reads = expr->op == Op::Scalar || expr->op == Op::Load;
    if (reads && expr->param.name == name_ && std::ranges::none_of(found, [&](const Expr& p) { return same(p, expr); }))
      found.push_back(expr);
    for (const Expr& arg : expr->args) find(arg);
  }

  std::string_view name_;
  std::unordered_set<const Node*> seen_;
};

const Param* find_param(const std::vector<Param>& params, std::string_view name) {
  const auto found = std::ranges::find(params, name, &Param::name);
  return found == params.end() ? nullptr : &*found;
}

Result<void> check_wanted(const std::string& name, const std::vector<Param>& of_score, const Expr& mask) {
  const Param* param = find_param(of_score, name);
  const std::vector<Param> of_mask = params_of(mask);
  if (!param) param = find_param(of_mask, name);
  if (!param) {
    std::vector<std::string_view> floats;
    for (const Param& p : of_score) {
      if (is_float(p.dtype)) floats.push_back(p.name);
    }
    return invalid(
        floats.empty()
            ? fmt::format("grads: the score reads no parameter `{}`, nor any other float; leave it out", name)
            : fmt::format("grads: the score reads no parameter `{}`; the float parameters that it reads are {}", name,
                          fmt::join(floats, ", ")));
  }
  if (!is_float(param->dtype)) {
    return invalid(
        fmt::format("grads: `{0}` holds ints ({1}), which have no gradient; leave `{0}` out, or declare it as "
                    "fp32",
                    name, flashjit::name(param->dtype)));
  }
  if (!find_param(of_score, name)) {
    return invalid(fmt::format(
        "grads: `{0}` is read by the mask alone, and what only decides has no gradient; leave `{0}` out", name));
  }
  return {};
}

Result<void> add_reads(Simplifier& simplifier, const std::string& name, ScoreGradients& gradients) {
  bool any = false;
  for (const Expr& read : Reads(gradients.score, name).found) {
    FLASHJIT_ASSIGN(derivative, derive(simplifier, gradients.score, read, fmt::format("`{}`", print(read))));
    if (is_real(derivative) && derivative->real == 0) continue;
    any = true;
    gradients.by_params.push_back({read, derivative});
  }
  if (!any) {
    return invalid(
        fmt::format("grads: the score does not change with `{0}` but where it decides between values, so its "
                    "gradient is 0 everywhere; leave `{0}` out",
                    name));
  }
  if (gradients.by_params.size() > kMaxReadGradients) {
    return unsupported(
        fmt::format("grads: with `{}` the score reads parameters whose gradients are wanted {} times, "
                    "above {}; ask for fewer gradients, or read a tensor at one computed index",
                    name, gradients.by_params.size(), kMaxReadGradients));
  }
  return {};
}

}  // namespace

Result<ScoreGradients> gradients_of(const Expr& score, const Expr& mask, std::span<const std::string> wanted) {
  Simplifier simplifier;
  const Expr s = Expr::variable(Variable::S);
  ScoreGradients gradients;
  gradients.score = simplifier.simplify(score ? score : s);
  FLASHJIT_ASSIGN(by_s, derive(simplifier, gradients.score, s, "s"));
  gradients.by_s = by_s;
  const std::vector<Param> params = params_of(gradients.score);
  for (auto name = wanted.begin(); name != wanted.end(); ++name) {
    if (std::find(wanted.begin(), name, *name) != name) {
      return invalid(fmt::format("grads: `{}` stands there twice; once is enough", *name));
    }
    FLASHJIT_TRY(check_wanted(*name, params, mask));
    FLASHJIT_TRY(add_reads(simplifier, *name, gradients));
  }
  return gradients;
}

}  // namespace flashjit

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "compiler/language/expr_rules.h"

namespace flashjit {
namespace {

// The most pairs of ints that one Simplifier compares. Every further pair counts as not comparable, which is always
// right.
constexpr int kMostOrderSteps = 1 << 15;

bool is_const(const Expr& expr) {
  return expr->op == Op::BoolConst || expr->op == Op::IntConst || expr->op == Op::FloatConst;
}
bool is_int(const Expr& expr, std::int64_t value) { return expr->op == Op::IntConst && expr->integer == value; }
bool is_bool(const Expr& expr, bool value) { return expr->op == Op::BoolConst && (expr->integer != 0) == value; }
bool is_real(const Expr& expr, double value) {
  return expr->op == Op::FloatConst && expr->real == value && std::signbit(expr->real) == std::signbit(value);
}

// Returns the value of an operation on constants, as the host computes it.
Expr fold(const Expr& expr) {
  const Value value = evaluate(expr, Environment{});
  switch (value.type) {
    case Type::Bool: return Expr::boolean(value.integer != 0);
    case Type::Int: return Expr::integer(value.integer);
    case Type::Float: return Expr::real(value.real);
  }
  return expr;
}

// Returns a hash over operation and arguments, which make() has. Leaves and loads have more than these.
std::size_t hash_of(Op op, const std::vector<Expr>& args) {
  std::size_t hash = static_cast<std::size_t>(op);
  for (const Expr& arg : args) hash = hash * 1099511628211u + std::hash<const Node*>{}(arg.get());
  return hash;
}

std::size_t shallow_hash(const Node& node) {
  std::size_t hash = hash_of(node.op, node.args);
  if (!node.args.empty() && node.op != Op::Load) return hash;
  const auto mix = [&](std::size_t value) { hash = hash * 1099511628211u + value; };
  mix(static_cast<std::size_t>(node.variable));
  mix(std::hash<std::int64_t>{}(node.integer));
  mix(std::hash<double>{}(node.real));
  mix(std::hash<std::string>{}(node.param.name));
  return hash;
}

bool same_args(const std::vector<Expr>& a, const std::vector<Expr>& b) {
  return std::ranges::equal(a, b, [](const Expr& x, const Expr& y) { return x.get() == y.get(); });
}

}  // namespace

// Equal expressions share one node. The arguments are interned already, so comparing addresses is enough.
Expr Simplifier::intern(const Expr& expr) {
  const std::size_t hash = shallow_hash(*expr);
  const auto [begin, end] = interned_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (it->second->op == expr->op && same_args(it->second->args, expr->args) && same(it->second, expr))
      return it->second;
  }
  interned_.emplace(hash, expr);
  return expr;
}

Expr Simplifier::make(Op op, std::vector<Expr> args) {
  for (Expr& arg : args) {
    if (arg && arg->args.empty()) arg = intern(arg);
  }
  // Most nodes have been made before.
  const auto [begin, end] = interned_.equal_range(hash_of(op, args));
  for (auto it = begin; it != end; ++it) {
    if (it->second->op == op && same_args(it->second->args, args)) return it->second;
  }
  Result<Expr> made = Expr::make(op, std::move(args));
  return made ? intern(*made) : Expr();
}

Expr Simplifier::from(const Linear& linear) {
  const Expr sum = to_expr(linear, [this](Op op, std::vector<Expr> args) { return make(op, std::move(args)); });
  return sum && sum->args.empty() ? intern(sum) : sum;
}

// Terms gathered from a node may pass 64 bits on the way to a sum that does not: 2^50 * (k - q) as 2^50 * k - 2^50 * q.
// Then the node stays.
Expr Simplifier::from(const Linear& linear, const Expr& otherwise) {
  const Expr sum = from(linear);
  return sum && exact(sum) ? sum : otherwise;
}

bool Simplifier::exact(const Expr& a) { return a->tree_nodes <= 256 && exact_operands(a); }

bool Simplifier::exact_operands(const Expr& a) {
  if (const auto known = exact_.find(a.get()); known != exact_.end()) return known->second;
  const auto exact = [&](const Expr& arg) { return exact_operands(arg); };
  const bool result =
      (a->op == Op::Load || std::ranges::all_of(a->args, exact)) && (a->type != Type::Int || facts_.clean(a));
  alive_.push_back(a);
  return exact_[a.get()] = result;
}

bool Simplifier::at_most(const Expr& a, const Expr& b, int depth) {
  if (a.get() == b.get()) return true;
  if (depth > 8) return false;
  const std::pair pair{a.get(), b.get()};
  if (const auto known = orders_.find(pair); known != orders_.end()) {
    if (known->second.holds || known->second.depth <= depth) return known->second.holds;
  }
  if (++order_steps_ > kMostOrderSteps) return false;
  const bool holds = derive_at_most(a, b, depth);
  alive_.insert(alive_.end(), {a, b});
  orders_.insert_or_assign(pair, Order{holds, depth});
  return holds;
}

bool Simplifier::derive_at_most(const Expr& a, const Expr& b, int depth) {
  const auto either = [&](const Expr& x, const Expr& y) { return at_most(x, y, depth + 1); };
  if (b->op == Op::Min || b->op == Op::Where) {
    const std::size_t first = b->op == Op::Where;
    if (either(a, b->args[first]) && either(a, b->args[first + 1])) return true;
  }
  if (a->op == Op::Max || a->op == Op::Where) {
    const std::size_t first = a->op == Op::Where;
    if (either(a->args[first], b) && either(a->args[first + 1], b)) return true;
  }
  if (a->op == Op::Min && (either(a->args[0], b) || either(a->args[1], b))) return true;
  if (b->op == Op::Max && (either(a, b->args[0]) || either(a, b->args[1]))) return true;
  const auto x = linear_of(a), y = linear_of(b);
  const auto difference = x && y ? add(*x, *y, -1) : std::nullopt;
  if (!difference) return false;
  if (!exact(a) || !exact(b)) return false;
  if (difference->constant_only()) return difference->constant <= 0;
  return in_range_ && facts_.of(*difference).hi <= 0;
}

Expr Simplifier::rewrite_div_mod(Op op, const Expr& a, const Expr& b) {
  const Expr same_node = make(op, {a, b});
  if (b->op != Op::IntConst || b->integer <= 0) return same_node;
  const std::int64_t n = b->integer;
  if (a->op == Op::IntConst) return fold(same_node);
  if (n == 1) return op == Op::Div ? a : Expr::integer(0);
  if (!exact(a)) return same_node;
  if (in_range_) {
    const IntInterval range = facts_.of(a);
    if (range.lo >= 0 && range.hi < n) return op == Op::Div ? Expr::integer(0) : a;
  }
  if (a->op == Op::Mod && op == Op::Mod && is_int(a->args[1], n)) return a;
  if (a->op == Op::Div && op == Op::Div && a->args[1]->op == Op::IntConst && a->args[1]->integer > 0) {
    std::int64_t product = 0;
    if (!__builtin_mul_overflow(a->args[1]->integer, n, &product)) {
      return make(Op::Div, {a->args[0], intern(Expr::integer(product))});
    }
  }
  const auto linear = linear_of(a);
  if (!linear) return same_node;
  const bool divisible = std::all_of(linear->terms.begin(), linear->terms.end(),
                                     [&](const LinearTerm& term) { return term.factor % n == 0; });
  if (!divisible) return same_node;
  const std::int64_t below = linear->constant % n < 0;
  if (op == Op::Mod) return Expr::integer(linear->constant % n + (below ? n : 0));
  Linear quotient = *linear;
  for (LinearTerm& term : quotient.terms) term.factor /= n;
  quotient.constant = linear->constant / n - below;
  return from(quotient, same_node);
}

// min and max of ints lose the arguments that another argument makes superfluous.
Expr Simplifier::rewrite_extreme(Op op, const Expr& a, const Expr& b) {
  std::vector<Expr> all, kept;
  flatten(op, a, all);
  flatten(op, b, all);
  if (all.size() > 16) return a.get() == b.get() ? a : make(op, {a, b});
  const auto superfluous = [&](const Expr& x, const Expr& because) {
    return op == Op::Min ? at_most(because, x) : at_most(x, because);
  };
  for (const Expr& next : all) {
    const auto covers = [&](const Expr& old) { return superfluous(next, old); };
    if (std::any_of(kept.begin(), kept.end(), covers)) continue;
    std::erase_if(kept, [&](const Expr& old) { return superfluous(old, next); });
    kept.push_back(next);
  }
  std::stable_partition(kept.begin(), kept.end(), [](const Expr& x) { return x->op != Op::IntConst; });
  Expr result = kept[0];
  for (std::size_t i = 1; i < kept.size(); ++i) result = make(op, {result, kept[i]});
  return result;
}

Expr Simplifier::rewrite_int(Op op, std::vector<Expr> args) {
  switch (op) {
    case Op::Div:
    case Op::Mod: return rewrite_div_mod(op, args[0], args[1]);
    case Op::Min:
    case Op::Max: return rewrite_extreme(op, args[0], args[1]);
    case Op::Abs: {
      const Expr& a = args[0];
      if (a->op == Op::Abs) return a;
      if (in_range_ && exact(a) && facts_.of(a).lo >= 0) return a;
      const Expr node = make(op, args);
      return a->op == Op::IntConst ? fold(node) : node;
    }
    default: {
      const Expr node = make(op, args);
      if (!node) return node;
      const auto linear = linear_of(node);
      return linear ? from(*linear, node) : node;
    }
  }
}

Expr Simplifier::rewrite_float(Op op, std::vector<Expr> args) {
  const Expr node = make(op, args);
  if (!node) return node;
  const Expr& a = args[0];
  const bool folds = std::all_of(args.begin(), args.end(), is_const);
  if (op == Op::Min || op == Op::Max) {
    const Expr& b = args[1];
    if (a.get() == b.get()) return a;
    // Host and device may differ on NaN and on zeros of different sign.
    return folds && a->real != b->real && !std::isnan(a->real) && !std::isnan(b->real) ? fold(node) : node;
  }
  if (folds) return fold(node);
  if (op == Op::Add && is_real(args[1], -0.0)) return a;
  if (op == Op::Add && is_real(a, -0.0)) return args[1];
  if (op == Op::Sub && is_real(args[1], 0.0)) return a;
  if ((op == Op::Mul || op == Op::Div) && is_real(args[1], 1.0)) return a;
  if (op == Op::Mul && is_real(a, 1.0)) return args[1];
  if (op == Op::Neg && a->op == Op::Neg) return a->args[0];
  if (op == Op::Abs && (a->op == Op::Abs || a->op == Op::Neg)) {
    return a->op == Op::Abs ? a : rewrite_float(Op::Abs, {a->args[0]});
  }
  return node;
}

Expr Simplifier::rewrite_int_comparison(Op op, const Expr& a, const Expr& b) {
  const Expr node = make(op, {a, b});
  const auto x = linear_of(a), y = linear_of(b);
  const auto difference = x && y ? add(*x, *y, -1) : std::nullopt;
  if (!difference || !exact(a) || !exact(b)) return node;
  if (difference->constant_only()) {
    return fold(make(op, {Expr::integer(difference->constant), Expr::integer(0)}));
  }
  if (in_range_) {
    const IntInterval range = facts_.of(*difference);
    if (op == Op::Lt && (range.hi < 0 || range.lo >= 0)) return Expr::boolean(range.hi < 0);
    if (op == Op::Le && (range.hi <= 0 || range.lo > 0)) return Expr::boolean(range.hi <= 0);
  }
  // For integers, a < b + 1 is a <= b, and a + 1 <= b is a < b.
  std::int64_t constant = difference->constant;  // The comparison is left - right + constant with 0.
  if (op == Op::Lt && constant == -1) {
    op = Op::Le;
    constant = 0;
  } else if (op == Op::Le && constant == 1) {
    op = Op::Lt;
    constant = 0;
  }
  Linear left, right;
  const bool cancelled = difference->terms.size() < x->terms.size() + y->terms.size();
  // A side counts as zero as it stands, and as the lines above made it. So a simplified comparison is not simplified
  // further.
  const auto zero_side = [&](const Linear& side) {
    return side.terms.empty() && (side.constant == 0 || constant == 0);
  };
  const bool against_zero = zero_side(*x) || zero_side(*y);
  if (cancelled || (against_zero && difference->terms.size() > 1)) {
    for (const LinearTerm& term : difference->terms) {
      if (term.factor == std::numeric_limits<std::int64_t>::min()) return node;
      (term.factor > 0 ? left : right).terms.push_back({term.atom, std::abs(term.factor)});
    }
  } else {
    left.terms = x->terms;
    right.terms = y->terms;
  }
  const bool keeps_sides =
      !cancelled && constant == difference->constant && (x->constant == 0 || y->constant == 0) && !against_zero;
  if (keeps_sides) return node;
  if (constant == std::numeric_limits<std::int64_t>::min()) return node;
  const bool to_left = left.terms.empty() || (!right.terms.empty() && constant > 0);
  (to_left ? left : right).constant = to_left ? constant : -constant;
  const Expr l = from(left), r = from(right);
  if (!l || !r || !exact(l) || !exact(r)) return node;
  return make(op, {l, r});
}

Expr Simplifier::rewrite_comparison(Op op, const Expr& a, const Expr& b) {
  if (is_const(a) && is_const(b)) return fold(make(op, {a, b}));
  return a->type == Type::Int ? rewrite_int_comparison(op, a, b) : make(op, {a, b});
}

void Simplifier::flatten(Op op, const Expr& expr, std::vector<Expr>& out) const {
  if (expr->op != op) {
    out.push_back(expr);
    return;
  }
  for (const Expr& arg : expr->args) flatten(op, arg, out);
}

// Returns true if `a` being true makes `b` true: they are the same, or comparisons of ints that differ by a constant.
bool Simplifier::implies(const Expr& a, const Expr& b) {
  if (a.get() == b.get()) return true;
  const auto is_order = [](const Expr& e) {
    return (e->op == Op::Lt || e->op == Op::Le) && e->args[0]->type == Type::Int;
  };
  if (!is_order(a) || !is_order(b)) return false;
  for (const Expr& e : {a, b}) {
    if (!exact(e->args[0]) || !exact(e->args[1])) return false;
  }
  // The forms are x + constant <= 0 for a, and y + constant <= 0 for b.
  const auto form = [](const Expr& e) -> std::optional<Linear> {
    const auto l = linear_of(e->args[0]), r = linear_of(e->args[1]);
    auto d = l && r ? add(*l, *r, -1) : std::nullopt;
    if (d && e->op == Op::Lt && __builtin_add_overflow(d->constant, 1, &d->constant)) d.reset();
    return d;
  };
  const auto x = form(a), y = form(b);
  const auto difference = x && y ? add(*y, *x, -1) : std::nullopt;
  return difference && difference->constant_only() && difference->constant <= 0;
}

bool Simplifier::contradict(const Expr& a, const Expr& b) const {
  return (a->op == Op::Not && a->args[0].get() == b.get()) || (b->op == Op::Not && b->args[0].get() == a.get());
}

Expr Simplifier::rewrite_logic(Op op, const Expr& a, const Expr& b) {
  if (!a || !b) return {};
  std::vector<Expr> all, kept;
  flatten(op, a, all);
  flatten(op, b, all);
  const bool absorbing = op == Op::Or;  // x | true is true, and x & false is false.
  for (const Expr& next : all) {
    if (is_bool(next, absorbing)) return next;
    if (is_bool(next, !absorbing)) continue;
    if (all.size() > 16) {  // The search below is quadratic.
      kept.push_back(next);
      continue;
    }
    const auto superfluous = [&](const Expr& x, const Expr& because) {
      return op == Op::And ? implies(because, x) : implies(x, because);
    };
    if (std::any_of(kept.begin(), kept.end(), [&](const Expr& old) { return contradict(old, next); })) {
      return Expr::boolean(absorbing);
    }
    if (std::any_of(kept.begin(), kept.end(), [&](const Expr& old) { return superfluous(next, old); })) continue;
    std::erase_if(kept, [&](const Expr& old) { return superfluous(old, next); });
    kept.push_back(next);
  }
  if (kept.empty()) return Expr::boolean(!absorbing);
  Expr result = kept[0];
  for (std::size_t i = 1; i < kept.size() && result; ++i) result = make(op, {result, kept[i]});
  return result;
}

Expr Simplifier::rewrite_not(const Expr& a) {
  if (a->op == Op::BoolConst) return Expr::boolean(a->integer == 0);
  if (a->op == Op::Not) return a->args[0];
  if (a->op == Op::Eq) return make(Op::Ne, a->args);
  if (a->op == Op::Ne) return make(Op::Eq, a->args);
  // Floats are excluded, because with a NaN both a < b and b <= a are false.
  if ((a->op == Op::Lt || a->op == Op::Le) && a->args[0]->type == Type::Int) {
    return make(a->op == Op::Lt ? Op::Le : Op::Lt, {a->args[1], a->args[0]});
  }
  return make(Op::Not, {a});
}

Expr Simplifier::rewrite_where(const Expr& c, const Expr& a, const Expr& b) {
  if (c->op == Op::BoolConst) return c->integer ? a : b;
  if (a.get() == b.get()) return a;
  if (c->op == Op::Not) return rewrite_where(c->args[0], b, a);
  if (a->type == Type::Bool) {
    if (is_bool(a, true)) return rewrite_logic(Op::Or, c, b);
    if (is_bool(b, false)) return rewrite_logic(Op::And, c, a);
    if (is_bool(a, false)) return rewrite_logic(Op::And, rewrite_not(c), b);
    if (is_bool(b, true)) return rewrite_logic(Op::Or, rewrite_not(c), a);
  }
  return make(Op::Where, {c, a, b});
}

Expr Simplifier::rewrite(const Node& node, std::vector<Expr> args) {
  switch (node.op) {
    case Op::Load: return intern(Expr::load(node.param, std::move(args)));
    case Op::And:
    case Op::Or: return rewrite_logic(node.op, args[0], args[1]);
    case Op::Not: return rewrite_not(args[0]);
    case Op::Where: return rewrite_where(args[0], args[1], args[2]);
    case Op::Lt:
    case Op::Le:
    case Op::Eq:
    case Op::Ne: return rewrite_comparison(node.op, args[0], args[1]);
    case Op::Bit: {
      const Expr made = make(node.op, args);
      return is_const(args[0]) && is_const(args[1]) && args[1]->integer >= 0 && args[1]->integer < 64 ? fold(made)
                                                                                                      : made;
    }
    case Op::ToFloat: return make(node.op, std::move(args));
    default:
      return node.type == Type::Int ? rewrite_int(node.op, std::move(args)) : rewrite_float(node.op, std::move(args));
  }
}

Expr Simplifier::simplify(const Expr& expr) {
  if (const auto known = done_.find(expr.get()); known != done_.end()) return known->second;
  Expr result;
  if (expr->args.empty()) {
    result = intern(expr);
  } else {
    std::vector<Expr> args;
    for (const Expr& arg : expr->args) args.push_back(simplify(arg));
    result = rewrite(*expr, std::move(args));
    // If a rule runs into the limits of size, the expression stays as it was.
    result = result ? intern(result) : expr;
  }
  alive_.push_back(expr);
  done_.emplace(expr.get(), result);
  return result;
}

Expr simplify(const Expr& expr) {
  if (!expr) return expr;
  return Simplifier().simplify(expr);
}

}  // namespace flashjit

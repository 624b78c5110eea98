#include "compiler/language/expr.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "compiler/language/expr_lex.h"

namespace flashjit {
namespace {

std::string_view type_name(Type type) {
  switch (type) {
    case Type::Bool: return "a bool";
    case Type::Int: return "an int";
    case Type::Float: return "a float";
  }
  return "nothing";
}

// The names are in the order of Variable.
constexpr std::string_view kVariableNames[] = {"q",     "k", "b",    "h",    "hk",   "q_len",
                                               "k_len", "s", "q_lo", "q_hi", "k_lo", "k_hi"};
static_assert(std::size(kVariableNames) == static_cast<std::size_t>(Variable::KHi) + 1);

// Returns the name of an operation in messages.
std::string_view spelling(Op op) {
  if (const Function* function = find_function(op)) return function->name;
  switch (op) {
    case Op::Add: return "+";
    case Op::Sub: return "-";
    case Op::Mul: return "*";
    case Op::Div: return "/";
    case Op::Mod: return "%";
    case Op::Neg: return "unary -";
    case Op::Lt: return "<";
    case Op::Le: return "<=";
    case Op::Eq: return "==";
    case Op::Ne: return "!=";
    case Op::And: return "&";
    case Op::Or: return "|";
    case Op::Not: return "!";
    default: return "leaf";
  }
}

std::size_t arity(Op op) {
  if (const Function* function = find_function(op)) return static_cast<std::size_t>(function->arguments);
  switch (op) {
    case Op::BoolConst:
    case Op::IntConst:
    case Op::FloatConst:
    case Op::Variable:
    case Op::Scalar:
    case Op::Load: return 0;
    case Op::Neg:
    case Op::Not: return 1;
    default: return 2;
  }
}

template <class Enum>
constexpr std::uint32_t bit(Enum value) {
  return std::uint32_t{1} << static_cast<int>(value);
}
static_assert(static_cast<int>(Op::Bit) < 32 && static_cast<int>(Variable::KHi) < 32);

std::size_t hash_of(const Node& node) {
  std::size_t hash = static_cast<std::size_t>(node.op);
  const auto mix = [&](std::size_t value) { hash = (hash ^ (hash >> 29)) * 1099511628211u + value; };
  for (const Expr& arg : node.args) mix(arg->hash);
  if (!node.args.empty() && node.op != Op::Load) return hash;
  mix(static_cast<std::size_t>(node.variable));
  mix(std::hash<std::int64_t>{}(node.integer));
  mix(std::isnan(node.real) ? 1 : std::hash<double>{}(node.real));
  mix(std::hash<std::string>{}(node.param.name));
  return hash;
}

Expr leaf(Node node) {
  node.hash = hash_of(node);
  node.ops = bit(node.op);
  node.variables = node.op == Op::Variable ? bit(node.variable) : 0;
  for (const Expr& arg : node.args) {
    node.ops |= arg->ops;
    node.variables |= arg->variables;
  }
  return Expr(std::make_shared<const Node>(std::move(node)));
}

Result<Expr> finish(Node node) {
  int depth = 0;
  std::int64_t nodes = 1;
  for (const Expr& arg : node.args) {
    depth = std::max(depth, arg->depth);
    nodes += arg->tree_nodes;
  }
  if (depth >= kMaxTreeDepth) {
    return invalid(fmt::format("expression is more than {} operations deep; split it into fewer terms", kMaxTreeDepth));
  }
  if (nodes > kMaxTreeNodes) {
    return invalid(fmt::format("expression written out has more than {} operations; reuse fewer intermediate values",
                               kMaxTreeNodes));
  }
  node.depth = depth + 1;
  node.tree_nodes = static_cast<int>(nodes);
  return leaf(std::move(node));
}

Expr as_float(const Expr& expr) {
  if (expr->type == Type::Float) return expr;
  if (expr->op == Op::IntConst) return Expr::real(static_cast<double>(static_cast<float>(expr->integer)));
  Node node;
  node.op = Op::ToFloat;
  node.type = Type::Float;
  node.args = {expr};
  Result<Expr> made = finish(std::move(node));
  return made ? *made : Expr();
}

Error wrong_type(Op op, std::size_t position, Type got, std::string_view wanted) {
  const bool binary = arity(op) == 2 && op != Op::Min && op != Op::Max && op != Op::Bit;
  const std::string where = binary ? fmt::format("the {} side of `{}`", position == 0 ? "left" : "right", spelling(op))
                            : arity(op) == 1 ? fmt::format("the argument of `{}`", spelling(op))
                                             : fmt::format("argument {} of `{}`", position + 1, spelling(op));
  std::string message = fmt::format("{} is {}, but must be {}", where, type_name(got), wanted);
  if (got == Type::Bool) message += "; where(condition, 1, 0) makes a number of a condition";
  else if (wanted == "a bool") message += "; compare it with something to get a condition";
  return invalid(std::move(message));
}

// Gives both numbers the same type.
Result<void> unify(Op op, Expr& a, Expr& b, std::size_t first) {
  if (a->type == Type::Bool) return wrong_type(op, first, a->type, "a number");
  if (b->type == Type::Bool) return wrong_type(op, first + 1, b->type, "a number");
  if (a->type != b->type) {
    a = as_float(a);
    b = as_float(b);
    if (!a || !b) return invalid(fmt::format("expression is more than {} operations deep", kMaxTreeDepth));
  }
  return {};
}

Result<Type> check_arithmetic(Op op, std::vector<Expr>& args) {
  if (args.size() == 1) {
    if (args[0]->type == Type::Bool) return wrong_type(op, 0, Type::Bool, "a number");
  } else {
    FLASHJIT_TRY(unify(op, args[0], args[1], 0));
  }
  if (op == Op::Mod && args[0]->type == Type::Float) {
    return invalid("`%` takes two ints, and one side is a float");
  }
  return args[0]->type;
}

// Checks and converts the arguments, and returns the type of the result.
Result<Type> check_types(Op op, std::vector<Expr>& args) {
  switch (op) {
    case Op::Add:
    case Op::Sub:
    case Op::Mul:
    case Op::Div:
    case Op::Mod:
    case Op::Neg:
    case Op::Min:
    case Op::Max:
    case Op::Abs: return check_arithmetic(op, args);
    case Op::Lt:
    case Op::Le:
    case Op::Eq:
    case Op::Ne: {
      FLASHJIT_TRY(unify(op, args[0], args[1], 0));
      return Type::Bool;
    }
    case Op::And:
    case Op::Or:
    case Op::Not: {
      for (std::size_t i = 0; i < args.size(); ++i) {
        if (args[i]->type != Type::Bool) return wrong_type(op, i, args[i]->type, "a bool");
      }
      return Type::Bool;
    }
    case Op::Where: {
      if (args[0]->type != Type::Bool) return wrong_type(op, 0, args[0]->type, "a bool");
      if (args[1]->type == Type::Bool && args[2]->type == Type::Bool) return Type::Bool;
      FLASHJIT_TRY(unify(op, args[1], args[2], 1));
      return args[1]->type;
    }
    case Op::ToFloat:
    case Op::Exp:
    case Op::Log:
    case Op::Sqrt:
    case Op::Tanh:
    case Op::Sigmoid: {
      if (args[0]->type == Type::Bool) return wrong_type(op, 0, Type::Bool, "a number");
      if (op != Op::ToFloat) args[0] = as_float(args[0]);
      return Type::Float;
    }
    case Op::Bit: {
      for (std::size_t i = 0; i < 2; ++i) {
        if (args[i]->type != Type::Int) return wrong_type(op, i, args[i]->type, "an int");
      }
      return Type::Bool;
    }
    default: return internal("Expr::make builds no leaves");
  }
}

Expr build(Op op, std::vector<Expr> args) {
  Result<Expr> made = Expr::make(op, std::move(args));
  return made ? *made : Expr();
}

// The nodes of an expression, in order of first use, each once.
class Nodes {
 public:
  explicit Nodes(const Expr& expr) { collect(expr); }
  std::vector<const Node*> order;

 private:
  void collect(const Expr& expr) {
    if (!expr || !is_new(expr.get())) return;
    order.push_back(expr.get());
    for (const Expr& arg : expr->args) collect(arg);
  }
  // Most expressions have few nodes, and a search through these takes less time than a set.
  bool is_new(const Node* node) {
    constexpr std::size_t kFew = 32;
    if (order.size() < kFew) return std::ranges::find(order, node) == order.end();
    if (found_.empty()) found_.insert(order.begin(), order.end());
    return found_.insert(node).second;
  }

  std::unordered_set<const Node*> found_;
};

std::vector<const Node*> all_nodes(const Expr& expr) { return std::move(Nodes(expr).order); }

bool same_number(double a, double b) {
  return (a == b && std::signbit(a) == std::signbit(b)) || (std::isnan(a) && std::isnan(b));
}

using SamePairs = std::map<std::pair<const Node*, const Node*>, bool>;

bool same_nodes(const Node* a, const Node* b, SamePairs& known) {
  if (a == b) return true;
  if (a->hash != b->hash || a->op != b->op || a->type != b->type || a->integer != b->integer ||
      !same_number(a->real, b->real) || a->variable != b->variable || a->param != b->param ||
      a->args.size() != b->args.size() || a->tree_nodes != b->tree_nodes) {
    return false;
  }
  if (a->args.empty()) return true;
  const auto [found, fresh] = known.try_emplace({a, b}, true);
  if (!fresh) return found->second;
  for (std::size_t i = 0; i < a->args.size(); ++i) {
    if (!same_nodes(a->args[i].get(), b->args[i].get(), known)) return found->second = false;
  }
  return true;
}

}  // namespace

std::string_view name(Variable variable) {
  const auto at = static_cast<std::size_t>(variable);
  return at < std::size(kVariableNames) ? kVariableNames[at] : "unknown";
}

Expr Expr::boolean(bool value) {
  Node node;
  node.integer = value;
  return leaf(std::move(node));
}

Expr Expr::integer(std::int64_t value) {
  Node node;
  node.op = Op::IntConst;
  node.type = Type::Int;
  node.integer = value;
  return leaf(std::move(node));
}

Expr Expr::real(double value) {
  Node node;
  node.op = Op::FloatConst;
  node.type = Type::Float;
  // Floats are 32-bit everywhere, because the host must see the constant that the device sees.
  node.real = std::abs(value) > std::numeric_limits<float>::max() && std::isfinite(value)
                  ? std::copysign(std::numeric_limits<double>::infinity(), value)
                  : static_cast<double>(static_cast<float>(value));
  return leaf(std::move(node));
}

Expr Expr::variable(Variable variable) {
  Node node;
  node.op = Op::Variable;
  node.type = variable == Variable::S ? Type::Float : Type::Int;
  node.variable = variable;
  return leaf(std::move(node));
}

Expr Expr::scalar(const Param& param) {
  if (param.rank != 0) return {};
  Node node;
  node.op = Op::Scalar;
  node.type = is_float(param.dtype) ? Type::Float : Type::Int;
  node.param = param;
  return leaf(std::move(node));
}

Expr Expr::load(const Param& param, std::vector<Expr> index) {
  if (param.rank < 1 || param.rank > kMaxParamRank || index.size() != static_cast<std::size_t>(param.rank)) return {};
  for (const Expr& i : index) {
    if (!i || i->type != Type::Int) return {};
  }
  Node node;
  node.op = Op::Load;
  node.type = is_float(param.dtype) ? Type::Float : Type::Int;
  node.param = param;
  node.args = std::move(index);
  Result<Expr> made = finish(std::move(node));
  return made ? *made : Expr();
}

Result<Expr> Expr::make(Op op, std::vector<Expr> args) {
  if (args.size() != arity(op) || args.empty()) {
    return invalid(fmt::format("`{}` takes {} arguments, got {}", spelling(op), arity(op), args.size()));
  }
  for (const Expr& arg : args) {
    if (!arg) return invalid(fmt::format("an argument of `{}` is empty: building it failed", spelling(op)));
  }
  FLASHJIT_ASSIGN(type, check_types(op, args));
  if (op == Op::ToFloat && (args[0]->type == Type::Float || args[0]->op == Op::IntConst)) return as_float(args[0]);
  Node node;
  node.op = op;
  node.type = type;
  node.args = std::move(args);
  return finish(std::move(node));
}

Expr operator+(const Expr& a, const Expr& b) { return build(Op::Add, {a, b}); }
Expr operator-(const Expr& a, const Expr& b) { return build(Op::Sub, {a, b}); }
Expr operator*(const Expr& a, const Expr& b) { return build(Op::Mul, {a, b}); }
Expr operator/(const Expr& a, const Expr& b) { return build(Op::Div, {a, b}); }
Expr operator%(const Expr& a, const Expr& b) { return build(Op::Mod, {a, b}); }
Expr operator-(const Expr& a) { return build(Op::Neg, {a}); }
Expr operator<(const Expr& a, const Expr& b) { return build(Op::Lt, {a, b}); }
Expr operator<=(const Expr& a, const Expr& b) { return build(Op::Le, {a, b}); }
Expr operator>(const Expr& a, const Expr& b) { return build(Op::Lt, {b, a}); }
Expr operator>=(const Expr& a, const Expr& b) { return build(Op::Le, {b, a}); }
Expr operator==(const Expr& a, const Expr& b) { return build(Op::Eq, {a, b}); }
Expr operator!=(const Expr& a, const Expr& b) { return build(Op::Ne, {a, b}); }
Expr operator&(const Expr& a, const Expr& b) { return build(Op::And, {a, b}); }
Expr operator|(const Expr& a, const Expr& b) { return build(Op::Or, {a, b}); }
Expr operator~(const Expr& a) { return build(Op::Not, {a}); }
Expr where(const Expr& condition, const Expr& yes, const Expr& no) { return build(Op::Where, {condition, yes, no}); }
Expr min(const Expr& a, const Expr& b) { return build(Op::Min, {a, b}); }
Expr max(const Expr& a, const Expr& b) { return build(Op::Max, {a, b}); }
Expr call(Op op, const Expr& argument) { return build(op, {argument}); }

bool same(const Expr& a, const Expr& b) {
  if (!a || !b) return !a && !b;
  SamePairs known;
  return same_nodes(a.get(), b.get(), known);
}

std::size_t node_count(const Expr& expr) { return all_nodes(expr).size(); }

bool is_number_at_zero(const Expr& score) {
  return std::ranges::none_of(all_nodes(score), [](const Node* node) {
    if (node->op == Op::Div) return uses(node->args[1], Variable::S);
    return (node->op == Op::Log || node->op == Op::Sqrt) && uses(node->args[0], Variable::S);
  });
}

std::size_t function_count(const Expr& expr) {
  return static_cast<std::size_t>(std::ranges::count_if(all_nodes(expr), [](const Node* node) {
    return node->op == Op::Exp || node->op == Op::Log || node->op == Op::Tanh || node->op == Op::Sigmoid;
  }));
}

bool uses(const Expr& expr, Variable variable) { return expr && (expr->variables & bit(variable)) != 0; }

bool uses(const Expr& expr, Op op) { return expr && (expr->ops & bit(op)) != 0; }

bool is_looked_up(const Expr& index) { return uses(index, Op::Load); }

std::vector<Param> params_of(const Expr& expr) {
  std::vector<Param> params;
  for (const Node* node : all_nodes(expr)) {
    if (node->op != Op::Scalar && node->op != Op::Load) continue;
    if (std::find(params.begin(), params.end(), node->param) == params.end()) params.push_back(node->param);
  }
  return params;
}

}  // namespace flashjit

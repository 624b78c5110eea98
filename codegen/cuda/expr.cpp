// The printed functions call these device helpers in templates/scalar_math.cuh and templates/extra_params.cuh:
//
//   floor_div(a, b) floor_mod(a, b)                       ints, b positive; printed only where a may be negative
//   min_i max_i (a, b), abs_i(x)                          ints of either width
//   min_f max_f (a, b), abs_f(x)                          floats
//   exp_ log_ sqrt_ tanh_ sigmoid_ (x)                    floats; math.tanh_ in score functions
//   bit_(x, i)                                            bit i of a 64-bit int, as bool
//   to_float(x)                                           int or Int64 -> float
//   scalar_i32 scalar_i64 scalar_f32 (params, index)
//   load_f16 load_bf16 load_f32 load_i32 load_i64 load_u32 load_u8 (params, index, i, ...)
//   inside(params, index, dimension, i)                   an index cut to its tensor, as Int64
//   Int64, kInfinity
#include "codegen/cuda/expr.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>

#include <fmt/format.h>

#include "compiler/analysis/interval_ranges.h"
#include "compiler/analysis/score_inputs.h"

namespace flashjit {
namespace {

constexpr std::size_t kLine = 96;  // A line has room for this much after its indent and `return`.

// Levels are those of C++, except that && inside || gets parentheses, which readers like and compilers warn about.
enum Level { kTernary, kOr, kAnd, kComparison, kSum, kProduct, kUnary, kPrimary };

bool is_constant(const Expr& expr) { return expr->op == Op::IntConst || expr->op == Op::FloatConst; }

std::string float_text(double value) {
  if (std::isnan(value)) return "__uint_as_float(0x7fc00000u)";
  if (std::isinf(value)) return value < 0 ? "-kInfinity" : "kInfinity";
  std::string text = fmt::format("{}", static_cast<float>(value));
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text + "f";
}

// Scalars travel as one of three types.
std::string_view scalar_name(Dtype dtype) {
  return code_name(is_float(dtype) ? Dtype::F32 : dtype == Dtype::I32 ? Dtype::I32 : Dtype::I64);
}

class CudaPrinter {
 public:
  explicit CudaPrinter(const CudaExprContext& context) : context_(context) {}

  std::string body(const Expr& expr) {
    count_uses(expr);
    name_shared(expr, true);
    shorten(expr);
    return statements_ + "  return " + wrapped(expr) + ";\n";
  }

  std::string body(const std::vector<Expr>& values) {
    several_values_ = true;
    for (const Expr& value : values) count_uses(value);
    std::string result;
    for (const Expr& value : values) {
      name_shared(value, false);
      shorten(value);
      const std::string text = render(value, kTernary);
      if (!result.empty()) result += result.size() + text.size() > kLine ? ",\n          " : ", ";
      result += text;
    }
    return statements_ + "  return {" + result + "};\n";
  }

  std::string visit_inputs(const std::vector<Expr>& inputs) {
    std::string visits;
    for (const Expr& input : inputs) {
      std::string indices;
      int given = 0;
      for (const Expr& index : outer_indices(input)) {
        shorten(index);
        const std::string value = render(index, kTernary);
        indices += context_.wide_ints ? fmt::format(", static_cast<int>({})", value) : ", " + value;
        ++given;
      }
      for (; given < kMostOuterIndices; ++given) indices += ", 0";
      visits += fmt::format("  visit(Parameter<{}>(){});\n", index_of(input->param), indices);
    }
    return statements_ + visits;
  }

  std::string prefetches(const std::vector<Expr>& loads) {
    std::string text;
    for (const Expr& load : loads) {
      for (const Expr& index : load->args) shorten(index);
      std::string indices;
      for (const Expr& index : load->args) indices += ", " + render(index, kTernary);
      constexpr std::string_view kTypes[] = {"", "unsigned char", "u16", "", "float", "", "", "", "Int64"};
      text += fmt::format("  prefetch_element<{}>(params, {}{});\n",
                          kTypes[static_cast<std::size_t>(size_of(load->param.dtype))], index_of(load->param), indices);
    }
    return statements_ + text;
  }

  // `tensor` names what has the strides, and its first dimension has the number `dimension`.
  std::string element(const Expr& read, const std::string& tensor, int dimension) {
    std::string sum;
    for (std::size_t d = 0; d < read->args.size(); ++d) {
      shorten(read->args[d]);
      sum += fmt::format("{}static_cast<Int64>({}) * params.{}.stride[{}]", sum.empty() ? "" : " +\n         ",
                         index_text(*read, d), tensor, dimension++);
    }
    return statements_ + "  return " + (sum.empty() ? "0" : sum) + ";\n";
  }

 private:
  // ---- temporaries ----

  void count_uses(const Expr& expr) {
    if (++uses_[expr.get()] > 1) return;
    for (const Expr& arg : expr->args) count_uses(arg);
  }

  // Returns false for what is small enough to be written again: a temporary would make the reader look up a name for
  // less than the name's length.
  bool worth_a_name(const Expr& expr) {
    if (expr->op == Op::Load || expr->op == Op::Scalar) return true;
    if (several_values_ && function_count(expr) > 0) return true;  // The compiler need not find them then.
    return !expr->args.empty() && (expr->tree_nodes > 3 || render(expr, kTernary).size() > 16);
  }

  // Names shared sub-expressions, innermost first.
  void name_shared(const Expr& expr, bool root) {
    if (!visited_.insert(expr.get()).second) return;
    for (const Expr& arg : expr->args) name_shared(arg, false);
    if (!root && uses_[expr.get()] > 1 && worth_a_name(expr)) introduce(expr);
  }

  void introduce(const Expr& expr) {
    shorten(expr);
    const std::string value = render(expr, kTernary);
    const std::string name = fresh(meaning(*expr));
    statements_ += fmt::format("  const {} {} = {};\n", type_name(expr), name, value);
    names_[expr.get()] = name;
  }

  // Names the largest subexpressions that fit a line, until the whole does. A condition made of && or || is broken into
  // lines instead.
  void shorten(const Expr& root) {
    while (true) {
      bool has_long_clause = false;
      for (const Expr& line : lines(root)) {
        if (render(line, kTernary).size() <= kLine) continue;
        Expr best;
        std::size_t best_size = 0;
        find_subexpression(line, line, best, best_size);
        if (!best) continue;
        introduce(best);
        has_long_clause = true;
        break;
      }
      if (!has_long_clause) return;
    }
  }

  void find_subexpression(const Expr& expr, const Expr& line, Expr& best, std::size_t& best_size) {
    if (expr->args.empty() || names_.count(expr.get())) return;
    if (expr.get() != line.get() && expr->tree_nodes > 2) {
      const std::size_t size = render(expr, kTernary).size();
      if (size <= kLine * 3 / 4) {
        if (size > best_size && size > 16) {
          best = expr;
          best_size = size;
        }
        return;
      }
    }
    for (const Expr& arg : expr->args) find_subexpression(arg, line, best, best_size);
  }

  // Returns the clauses of a top-level chain of && or ||.
  std::vector<Expr> lines(const Expr& root) const {
    std::vector<Expr> clauses;
    if (root->op == Op::And || root->op == Op::Or) flatten(root->op, root, clauses);
    else clauses.push_back(root);
    return clauses;
  }

  void flatten(Op op, const Expr& expr, std::vector<Expr>& out) const {
    if (expr->op != op || names_.count(expr.get())) {
      out.push_back(expr);
      return;
    }
    for (const Expr& arg : expr->args) flatten(op, arg, out);
  }

  std::string wrapped(const Expr& root) {
    std::string text = render(root, kTernary);
    const std::vector<Expr> clauses = lines(root);
    if (text.size() <= kLine || clauses.size() < 2) return text;
    text.clear();
    for (std::size_t i = 0; i < clauses.size(); ++i) {
      if (i > 0) text += root->op == Op::And ? "\n      && " : "\n      || ";
      text += render(clauses[i], kComparison);
    }
    return text;
  }

  std::string fresh(const std::string& wanted) {
    const int count = ++taken_[wanted];
    return count == 1 ? wanted : fmt::format("{}_{}", wanted, count);
  }

  static bool uses_any(const Expr& expr, std::initializer_list<Variable> variables) {
    return std::any_of(variables.begin(), variables.end(), [&](Variable v) { return uses(expr, v); });
  }

  // Returns the name that a reader would give to the value of the node.
  std::string meaning(const Node& node) const {
    const auto is_variable = [](const Expr& e, Variable v) { return e->op == Op::Variable && e->variable == v; };
    if (node.type == Type::Bool) return node.op == Op::And || node.op == Op::Or ? "allowed" : "condition";
    if (node.op == Op::Load) return "element";
    if (node.op == Op::Scalar) return "scalar";
    if (node.type == Type::Float) {
      switch (node.op) {
        case Op::Tanh:
        case Op::Sigmoid: return "squashed";
        case Op::Exp: return "power";
        case Op::ToFloat: return "distance";
        default: return "x";
      }
    }
    const Expr whole(std::make_shared<const Node>(node));
    if (const auto linear = linear_of(whole)) {
      const auto factor = [&](Variable v) -> std::int64_t {
        for (const LinearTerm& term : linear->terms) {
          if (is_variable(term.atom, v)) return term.factor;
        }
        return 0;
      };
      if (linear->constant == 0 && factor(Variable::KLen) == 1 && factor(Variable::QLen) == -1) {
        if (linear->terms.size() == 2) return "offset";
        if (linear->terms.size() == 3) {
          if (factor(Variable::Q) == 1) return "qpos";
          if (factor(Variable::QLo) == 1) return "first_qpos";
          if (factor(Variable::QHi) == 1) return "last_qpos";
        }
      }
      const bool q = uses_any(whole, {Variable::Q, Variable::QLo, Variable::QHi});
      const bool k = uses_any(whole, {Variable::K, Variable::KLo, Variable::KHi});
      if (linear->terms.size() > 1 && q && k) return "distance";
      if (linear->terms.size() > 1 && (q || k)) return "position";
    }
    switch (node.op) {
      case Op::Div: return "block";
      case Op::Mod: return "within";
      case Op::Min: return "limit";
      case Op::Max: return "clamped";
      case Op::Abs: return "distance";
      case Op::Mul: return node.args[0]->op == Op::Div || node.args[1]->op == Op::Div ? "block_begin" : "product";
      case Op::Where: return "choice";
      default: return "value";
    }
  }

  std::string type_name(const Expr& expr) const {
    if (expr->type == Type::Bool) return "bool";
    if (context_.symbolic && expr->op != Op::Load && uses_any(expr, {Variable::S, Variable::K})) return "auto";
    if (expr->type == Type::Float) return "float";
    const bool wide = context_.wide_ints || (expr->op == Op::Load && expr->param.dtype == Dtype::I64);
    return wide ? "Int64" : "int";
  }

  // ---- expressions ----

  std::string render(const Expr& expr, Level wanted) {
    const auto named = names_.find(expr.get());
    if (named != names_.end()) return named->second;
    const Level level = level_of(*expr);
    std::string text = plain(expr);
    return level < wanted ? "(" + text + ")" : text;
  }

  Level level_of(const Node& node) {
    switch (node.op) {
      case Op::Where: return kTernary;
      case Op::Or: return kOr;
      case Op::And: return kAnd;
      case Op::Lt:
      case Op::Le:
      case Op::Eq:
      case Op::Ne: return kComparison;
      case Op::Add:
      case Op::Sub: return kSum;
      case Op::Mul: return kProduct;
      case Op::Div:
      case Op::Mod: return needs_floor(node) ? kPrimary : kProduct;
      case Op::Neg:
      case Op::Not: return kUnary;
      case Op::IntConst: return node.integer < 0 && node.integer != kLeast ? kUnary : kPrimary;
      case Op::FloatConst: return std::signbit(node.real) && !std::isnan(node.real) ? kUnary : kPrimary;
      default: return kPrimary;
    }
  }

  // C++ rounds towards zero, which is the floor where the numerator cannot be negative.
  bool needs_floor(const Node& node) { return node.type == Type::Int && facts_.of(node.args[0]).lo < 0; }

  std::string infix(const Expr& expr, const char* symbol, Level left, Level right) {
    return render(expr->args[0], left) + symbol + render(expr->args[1], right);
  }

  // The subject of a comparison reads better in front.
  std::string order(const Expr& expr, const char* symbol, const char* swapped) {
    const Expr &a = expr->args[0], &b = expr->args[1];
    const bool swap = (b->op == Op::Variable && a->op != Op::Variable) || (is_constant(a) && !is_constant(b));
    if (!swap) return infix(expr, symbol, kSum, kSum);
    return render(b, kSum) + swapped + render(a, kSum);
  }

  std::string call(std::string_view name, const std::vector<Expr>& args) {
    std::string text(name);
    text += '(';
    for (std::size_t i = 0; i < args.size(); ++i) {
      if (i > 0) text += ", ";
      text += render(args[i], kTernary);
    }
    return text + ")";
  }

  std::string chain(const Expr& expr, const char* symbol) {
    // The operator is associative, so an argument with the same operator needs no parentheses.
    const auto side = [&](const Expr& arg) { return render(arg, arg->op == expr->op ? kOr : kComparison); };
    return side(expr->args[0]) + symbol + side(expr->args[1]);
  }

  std::string plain(const Expr& expr) {
    const bool is_float = expr->type == Type::Float;
    const auto& args = expr->args;
    switch (expr->op) {
      case Op::BoolConst: return expr->integer ? "true" : "false";
      case Op::IntConst: return int_text(expr->integer);
      case Op::FloatConst: return float_text(expr->real);
      case Op::Variable: return std::string(name(expr->variable));
      case Op::Scalar:
      case Op::Load: return parameter(*expr);
      case Op::Add: return infix(expr, " + ", kSum, kProduct);
      case Op::Sub: return infix(expr, " - ", kSum, kProduct);
      case Op::Mul: return infix(expr, " * ", kProduct, kUnary);
      case Op::Div: return needs_floor(*expr) ? call("floor_div", args) : infix(expr, " / ", kProduct, kUnary);
      case Op::Mod: return needs_floor(*expr) ? call("floor_mod", args) : infix(expr, " % ", kProduct, kUnary);
      case Op::Neg: return "-" + render(args[0], kPrimary);
      case Op::Min: return call(is_float ? "min_f" : "min_i", args);
      case Op::Max: return call(is_float ? "max_f" : "max_i", args);
      case Op::Abs: return call(is_float ? "abs_f" : "abs_i", args);
      case Op::Lt: return order(expr, " < ", " > ");
      case Op::Le: return order(expr, " <= ", " >= ");
      case Op::Eq: return infix(expr, " == ", kSum, kSum);
      case Op::Ne: return infix(expr, " != ", kSum, kSum);
      case Op::And: return chain(expr, " && ");
      case Op::Or: return chain(expr, " || ");
      case Op::Not: return "!" + render(args[0], kUnary);
      case Op::Where: return render(args[0], kOr) + " ? " + render(args[1], kOr) + " : " + render(args[2], kOr);
      case Op::ToFloat: return call("to_float", args);
      case Op::Exp: return call("exp_", args);
      case Op::Log: return call("log_", args);
      case Op::Sqrt: return call("sqrt_", args);
      case Op::Tanh: return call(context_.symbolic ? "math.tanh_" : "tanh_", args);
      case Op::Sigmoid: return call("sigmoid_", args);
      case Op::Bit: return call("bit_", args);
    }
    return "0";
  }

  // In 64-bit functions no operation may have 32-bit operands alone.
  std::string int_text(std::int64_t value) const {
    if (value == kLeast) return "(-9223372036854775807LL - 1)";
    const bool small = value >= std::numeric_limits<int>::min() && value <= std::numeric_limits<int>::max();
    if (!context_.wide_ints && value == std::numeric_limits<int>::min()) return "(-2147483647 - 1)";
    return fmt::format("{}{}", value, context_.wide_ints || !small ? "LL" : "");
  }

  std::ptrdiff_t index_of(const Param& param) const {
    return std::find(context_.params->begin(), context_.params->end(), param) - context_.params->begin();
  }

  // Prints one index of a Load.
  std::string index_text(const Node& load, std::size_t dimension) {
    const std::string text = render(load.args[dimension], kTernary);
    if (!is_looked_up(load.args[dimension])) return text;
    return fmt::format("inside(params, {}, {}, {})", index_of(load.param), dimension, text);
  }

  std::string parameter(const Node& node) {
    if (context_.scalars && node.args.empty()) {
      const auto named = std::ranges::find(*context_.scalars, node.param, &NamedScalar::param);
      if (named != context_.scalars->end()) return named->text;
    }
    const Dtype dtype = node.param.dtype;
    const std::string_view how = node.args.empty() ? scalar_name(dtype) : code_name(dtype);
    std::string text =
        fmt::format("{}{}(params, {}", node.args.empty() ? "scalar_" : "load_", how, index_of(node.param));
    for (std::size_t d = 0; d < node.args.size(); ++d) text += ", " + index_text(node, d);
    text += ')';
    const bool narrow = node.type == Type::Int && (dtype == Dtype::I32 || size_of(dtype) < 4);
    return narrow && context_.wide_ints ? "Int64{" + text + "}" : text;
  }

  static constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();

  const CudaExprContext& context_;
  RangeAnalysis facts_{widest_ranges()};
  std::unordered_map<const Node*, int> uses_;
  std::set<const Node*> visited_;
  std::unordered_map<const Node*, std::string> names_;
  std::map<std::string, int> taken_;
  std::string statements_;
  bool several_values_ = false;
};

}  // namespace

std::string cuda_function_body(const Expr& expr, const CudaExprContext& context) {
  // Simplifying shares equal subexpressions, by which temporaries are found.
  return CudaPrinter(context).body(simplify(expr));
}

std::string cuda_function_body(const std::vector<Expr>& values, const CudaExprContext& context) {
  return CudaPrinter(context).body(values);
}

std::string cuda_gradient_element_body(const Expr& read, int gradient, const CudaExprContext& context) {
  const auto rank = static_cast<int>(read->args.size());
  return CudaPrinter(context).element(read, fmt::format("d_extra[{}]", gradient), kMaxParamRank - rank);
}

std::string cuda_input_element_body(const Expr& read, const CudaExprContext& context) {
  const auto number = std::ranges::find(*context.params, read->param) - context.params->begin();
  return CudaPrinter(context).element(read, fmt::format("extra[{}]", number), 0);
}

std::string cuda_prefetch_body(const std::vector<Expr>& loads, const CudaExprContext& context) {
  return CudaPrinter(context).prefetches(loads);
}

std::string cuda_visit_inputs(const std::vector<Expr>& inputs, const CudaExprContext& context) {
  return CudaPrinter(context).visit_inputs(inputs);
}

}  // namespace flashjit

#include <cmath>

#include <fmt/format.h>

#include "compiler/language/expr_lex.h"

namespace flashjit {
namespace {

// The level tells how tightly the parser binds. An argument that binds less tightly than its side demands gets
// parentheses.
enum Level { kOr = 1, kAnd, kNot, kComparison, kSum, kProduct, kUnary, kPrimary };

struct Infix {
  const char* symbol;
  Level level, left, right;
};

const Infix* infix(Op op) {
  static constexpr Infix kAdd{" + ", kSum, kSum, kProduct}, kSub{" - ", kSum, kSum, kProduct},
      kMul{" * ", kProduct, kProduct, kUnary}, kDiv{" / ", kProduct, kProduct, kUnary},
      kMod{" % ", kProduct, kProduct, kUnary}, kLt{" < ", kComparison, kSum, kSum},
      kLe{" <= ", kComparison, kSum, kSum}, kEq{" == ", kComparison, kSum, kSum}, kNe{" != ", kComparison, kSum, kSum},
      kBoth{" & ", kAnd, kAnd, kNot}, kEither{" | ", kOr, kOr, kAnd};
  switch (op) {
    case Op::Add: return &kAdd;
    case Op::Sub: return &kSub;
    case Op::Mul: return &kMul;
    case Op::Div: return &kDiv;
    case Op::Mod: return &kMod;
    case Op::Lt: return &kLt;
    case Op::Le: return &kLe;
    case Op::Eq: return &kEq;
    case Op::Ne: return &kNe;
    case Op::And: return &kBoth;
    case Op::Or: return &kEither;
    default: return nullptr;
  }
}

std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", static_cast<float>(value));
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

// If one of two numbers is a float, the parser converts the other one, so its conversion need not be written.
bool converted_by(const Expr& other) { return other->type == Type::Float && other->op != Op::ToFloat; }

bool is_constant(const Expr& expr) { return expr->op == Op::IntConst || expr->op == Op::FloatConst; }

// Returns true if `b > a` reads better than `a < b`.
bool reads_better_first(const Expr& a, const Expr& b) {
  return (b->op == Op::Variable && a->op != Op::Variable) || (is_constant(a) && !is_constant(b));
}

class Printer {
 public:
  std::string take() { return std::move(out_); }

  void print(const Expr& expr, Level wanted) {
    const Node& node = *expr;
    const Level level = level_of(node);
    if (level < wanted) out_ += '(';
    if (const Infix* row = infix(node.op)) {
      const Expr &a = node.args[0], &b = node.args[1];
      // The subject of a comparison reads better in front, and > parses to a swapped <.
      if ((node.op == Op::Lt || node.op == Op::Le) && reads_better_first(a, b)) {
        print(b, kSum);
        out_ += node.op == Op::Lt ? " > " : " >= ";
        print(b->type == Type::Float ? unconverted(a) : a, kSum);
        if (level < wanted) out_ += ')';
        return;
      }
      print(converted_by(b) ? unconverted(a) : a, row->left);
      out_ += row->symbol;
      print(a->type == Type::Float ? unconverted(b) : b, row->right);
    } else {
      other(node);
    }
    if (level < wanted) out_ += ')';
  }

 private:
  static const Expr& unconverted(const Expr& expr) { return expr->op == Op::ToFloat ? expr->args[0] : expr; }

  static Level level_of(const Node& node) {
    if (const Infix* row = infix(node.op)) return row->level;
    if (node.op == Op::Not) return kNot;
    if (node.op == Op::Neg) return kUnary;
    const bool negative = (node.op == Op::IntConst && node.integer < 0) ||
                          (node.op == Op::FloatConst && std::signbit(node.real) && !std::isnan(node.real));
    return negative ? kUnary : kPrimary;
  }

  void arguments(const std::vector<Expr>& args) {
    for (std::size_t i = 0; i < args.size(); ++i) {
      if (i > 0) out_ += ", ";
      print(args[i], kOr);
    }
  }

  void other(const Node& node) {
    switch (node.op) {
      case Op::BoolConst: out_ += node.integer ? "true" : "false"; return;
      case Op::IntConst: out_ += fmt::format("{}", node.integer); return;
      case Op::FloatConst: out_ += real_text(node.real); return;
      case Op::Variable: out_ += name(node.variable); return;
      case Op::Scalar: out_ += node.param.name; return;
      case Op::Load:
        out_ += node.param.name + "[";
        arguments(node.args);
        out_ += ']';
        return;
      case Op::Not:
        out_ += '!';
        print(node.args[0], kNot);
        return;
      case Op::Neg: {
        // The minus of a literal belongs to the literal, so a negated literal keeps its parentheses.
        const Op inner = node.args[0]->op;
        const bool literal = inner == Op::IntConst || inner == Op::FloatConst;
        out_ += literal ? "-(" : "-";
        print(node.args[0], literal ? kOr : kUnary);
        if (literal) out_ += ')';
        return;
      }
      default: break;
    }
    out_ += find_function(node.op)->name;
    out_ += '(';
    arguments(written_arguments(node));
    out_ += ')';
  }

  static std::vector<Expr> written_arguments(const Node& node) {
    std::vector<Expr> args = node.args;
    const bool converts = node.op == Op::Exp || node.op == Op::Log || node.op == Op::Sqrt || node.op == Op::Tanh ||
                          node.op == Op::Sigmoid;
    if (converts) args[0] = unconverted(args[0]);
    if (node.type == Type::Float && (node.op == Op::Min || node.op == Op::Max || node.op == Op::Where)) {
      Expr &a = args[args.size() - 2], &b = args[args.size() - 1];
      if (converted_by(b)) a = unconverted(a);
      else b = unconverted(b);
    }
    return args;
  }

  std::string out_;
};

}  // namespace

std::string print(const Expr& expr) {
  if (!expr) return {};
  Printer printer;
  printer.print(expr, kOr);
  return printer.take();
}

}  // namespace flashjit

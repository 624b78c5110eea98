#include <charconv>

#include <fmt/format.h>

#include "compiler/language/expr_parser.h"

namespace flashjit {
namespace {

constexpr int kMaxWrittenNodes = 4096;  // Nodes of the tree. The limit bounds the size of a printed expression.

}  // namespace

Error ExprParser::unexpected() const {
  if (lexer_.kind() == Token::End) return error("the text ends where a value must follow");
  if (const std::string advice = slip(); !advice.empty()) return error(advice);
  if (lexer_.is("!"))
    return error("`!` applies to a whole comparison; write !(...) or put the comparison in parentheses");
  return error(fmt::format("unexpected `{}`", lexer_.text().substr(0, 40)));
}

// Returns the advice about a token that no text may hold, wherever it stands; empty: the token is another one.
std::string ExprParser::slip() const {
  if (lexer_.kind() == Token::Unknown) {
    const unsigned char byte = static_cast<unsigned char>(lexer_.text()[0]);
    if (byte < ' ' || byte > '~') return fmt::format("unexpected byte 0x{:02x}; the language is plain ASCII", byte);
    if (byte == '?') return "write where(condition, a, b) for `?` and `:`";
    if (byte == '~') return "write `!` for `~`";
    return fmt::format("unexpected `{}`", lexer_.text());
  }
  if (lexer_.is("&&") || lexer_.is("||"))
    return fmt::format("write `{}` for `{}`", lexer_.text().substr(1), lexer_.text());
  if (lexer_.is("**")) return "write x * x for `x ** 2`, and exp(y * log(x)) for `x ** y`";
  if (lexer_.is("//")) return "write `/` for `//`; ints are divided rounding down";
  if (lexer_.is("<<") || lexer_.is(">>"))
    return fmt::format("there is no `{}`; multiply or divide by a power of two, or ask for one bit by bit(x, i)",
                       lexer_.text());
  if (lexer_.kind() == Token::Name && lexer_.text() == "if")
    return "write where(condition, a, b) for `a if condition else b`";
  if (lexer_.kind() == Token::Name && (lexer_.text() == "and" || lexer_.text() == "or"))
    return fmt::format("write `{}` for `{}`", lexer_.text() == "and" ? '&' : '|', lexer_.text());
  return lexer_.is("=") ? "write `==` to compare" : "";
}

Result<void> ExprParser::expect(std::string_view symbol) {
  if (lexer_.is(symbol)) {
    lexer_.advance();
    return {};
  }
  if (lexer_.kind() == Token::End) return error(fmt::format("the text ends where `{}` must follow", symbol));
  const std::string advice = slip();
  return error(advice.empty() ? fmt::format("expected `{}`", symbol) : advice);
}

Result<Expr> ExprParser::make(Op op, std::vector<Expr> args, std::size_t position) const {
  Result<Expr> made = Expr::make(op, std::move(args));
  if (!made) return error(made.error().message, position);
  return made;
}

Error ExprParser::depth_error() const {
  return error(fmt::format("nested more than {} levels deep; use fewer parentheses", kMaxExprDepth));
}

Result<Expr> ExprParser::stages() {
  while (true) {
    const std::size_t start = lexer_.position();
    FLASHJIT_ASSIGN(value, disjunction());
    if (lexer_.kind() != Token::End && !lexer_.is(";")) return unexpected();
    FLASHJIT_ASSIGN(result, as_result(value, start));
    if (lexer_.kind() == Token::End) return result;
    if (!session_.score) return error("`;` chains the stages of a score; combine masks with & and |");
    s_ = result;
    lexer_.advance();
  }
}

Result<Expr> ExprParser::as_result(const Expr& value, std::size_t start) const {
  if (session_.score) {
    if (value->type == Type::Bool) {
      return error("a score must be a number, and this is a condition; write where(condition, s, -inf) to mask with it",
                   start);
    }
    return make(Op::ToFloat, {value}, start);
  }
  if (value->type != Type::Bool) {
    return error("a mask must be a condition, and this is a number; compare it with something", start);
  }
  return value;
}

const ExprParser::Operator* ExprParser::next_of(std::span<const Operator> operators) const {
  for (const Operator& row : operators) {
    if (lexer_.is(row.symbol)) return &row;
  }
  return nullptr;
}

Result<Expr> ExprParser::chain(std::span<const Operator> operators, Result<Expr> (ExprParser::*operand)()) {
  FLASHJIT_ASSIGN(left, (this->*operand)());
  while (const Operator* row = next_of(operators)) {
    const std::size_t start = lexer_.position();
    lexer_.advance();
    FLASHJIT_ASSIGN(right, (this->*operand)());
    FLASHJIT_ASSIGN(both, make(row->op, {left, right}, start));
    left = both;
  }
  return left;
}

Result<Expr> ExprParser::disjunction() {
  static constexpr Operator kRows[] = {{"|", Op::Or}};
  const Nested nested(depth_);
  if (too_deep()) return depth_error();
  return chain(kRows, &ExprParser::conjunction);
}

Result<Expr> ExprParser::conjunction() {
  static constexpr Operator kRows[] = {{"&", Op::And}};
  return chain(kRows, &ExprParser::negation);
}

Result<Expr> ExprParser::negation() {
  if (!lexer_.is("!")) return comparison();
  const Nested nested(depth_);
  if (too_deep()) return depth_error();
  const std::size_t start = lexer_.position();
  lexer_.advance();
  FLASHJIT_ASSIGN(value, negation());
  return make(Op::Not, {value}, start);
}

Result<Expr> ExprParser::comparison() {
  static constexpr Operator kRows[] = {{"<", Op::Lt},        {"<=", Op::Le}, {">", Op::Lt, true},
                                       {">=", Op::Le, true}, {"==", Op::Eq}, {"!=", Op::Ne}};
  FLASHJIT_ASSIGN(left, sum());
  const Operator* row = next_of(kRows);
  if (!row) return left;
  const std::size_t start = lexer_.position();
  lexer_.advance();
  FLASHJIT_ASSIGN(right, sum());
  if (next_of(kRows)) return error("comparisons do not chain; write a < b & b < c");
  return row->swapped ? make(row->op, {right, left}, start) : make(row->op, {left, right}, start);
}

Result<Expr> ExprParser::sum() {
  static constexpr Operator kRows[] = {{"+", Op::Add}, {"-", Op::Sub}};
  return chain(kRows, &ExprParser::product);
}

Result<Expr> ExprParser::product() {
  static constexpr Operator kRows[] = {{"*", Op::Mul}, {"/", Op::Div}, {"%", Op::Mod}};
  return chain(kRows, &ExprParser::unary);
}

Result<Expr> ExprParser::unary() {
  if (!lexer_.is("-")) return primary();
  const Nested nested(depth_);
  if (too_deep()) return depth_error();
  const std::size_t start = lexer_.position();
  lexer_.advance();
  // A minus right before a literal is part of the literal, because the smallest int64 has no positive counterpart.
  if (lexer_.kind() == Token::Integer) return integer(true);
  if (lexer_.kind() == Token::Real || (lexer_.kind() == Token::Name && lexer_.text() == "inf")) {
    FLASHJIT_ASSIGN(value, primary());
    return Expr::real(-value->real);
  }
  FLASHJIT_ASSIGN(value, unary());
  return make(Op::Neg, {value}, start);
}

Result<Expr> ExprParser::integer(bool negative) {
  const std::string_view digits = lexer_.text();
  std::uint64_t value = 0;
  const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const std::uint64_t limit = (std::uint64_t{1} << 63) - (negative ? 0 : 1);
  if (failed != std::errc() || value > limit) {
    return error(fmt::format("integer {}{}{} does not fit 64 bits: the largest is 9223372036854775807",
                             negative ? "-" : "", digits.substr(0, 24), digits.size() > 24 ? "..." : ""));
  }
  lexer_.advance();
  return Expr::integer(static_cast<std::int64_t>(negative ? ~value + 1 : value));
}

Result<Expr> ExprParser::real() {
  const std::string_view digits = lexer_.text();
  float value = 0;
  const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (failed != std::errc() || end != digits.data() + digits.size()) {
    return error(fmt::format("number {}{} is outside the range of fp32, 1.2e-38 to 3.4e38; write inf for infinity",
                             digits.substr(0, 24), digits.size() > 24 ? "..." : ""));
  }
  lexer_.advance();
  return Expr::real(value);
}

Result<Expr> ExprParser::primary() {
  if (lexer_.kind() == Token::Integer) return integer(false);
  if (lexer_.kind() == Token::Real) return real();
  if (lexer_.kind() == Token::Name) return named();
  if (!lexer_.is("(")) return unexpected();
  lexer_.advance();
  FLASHJIT_ASSIGN(value, disjunction());
  FLASHJIT_TRY(expect(")"));
  return value;
}

Result<Expr> parse_expr(std::string_view text, const ParseContext& context) {
  if (text.size() > kMaxExprText) {
    return error_at(
        text, kMaxExprText,
        fmt::format("the text has {} bytes, above {}, the longest expression; put constants that are data into "
                    "a tensor parameter",
                    text.size(), kMaxExprText));
  }
  ExprParser::Session session;
  if (context.params) session.params = *context.params;
  session.bottom_right = context.bottom_right;
  session.score = context.score;
  ExprParser parser(text, session, context.score ? Expr::variable(Variable::S) : Expr());
  FLASHJIT_ASSIGN(expr, parser.stages());
  const std::size_t nodes = node_count(expr);
  if (nodes > kMaxExprNodes || expr->tree_nodes > kMaxWrittenNodes) {
    return error_at(text, text.size(),
                    fmt::format("the expression has {} operations ({} written out), above {} ({})", nodes,
                                expr->tree_nodes, kMaxExprNodes, kMaxWrittenNodes));
  }
  if (const std::size_t functions = function_count(expr); functions > kMaxFunctions) {
    return error_at(
        text, text.size(),
        fmt::format(
            "the expression has {} of exp, log, tanh and sigmoid, above {}, more than compiles in reasonable time; put "
            "what does not depend on the score into a tensor parameter",
            functions, kMaxFunctions));
  }
  if (context.params) *context.params = std::move(session.params);
  return expr;
}

}  // namespace flashjit

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "compiler/expr_lex.h"
#include "compiler/named.h"

namespace flashjit {
namespace {

constexpr int kMaxWrittenNodes = 4096;  // of the tree: bounds the size of a printed expression

// What the names in the body of a named row stand for.
struct Bindings {
  std::map<std::string_view, Expr> values;
  std::map<std::string_view, Param> tensors;
};

// What all stages of one text, and the bodies of the rows it names, share.
struct Session {
  std::vector<Param> params;
  bool bottom_right = true;
  bool score = false;
};

class Parser {
 public:
  Parser(std::string_view text, Session& session, Expr s, const Bindings* bindings = nullptr)
      : text_(text), lexer_(text), session_(session), s_(std::move(s)), bindings_(bindings) {}

  // Stages separated by `;`: each sees the value of the one before as s.
  Result<Expr> stages() {
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

 private:
  Result<Expr> disjunction();
  Result<Expr> conjunction();
  Result<Expr> negation();
  Result<Expr> comparison();
  Result<Expr> sum();
  Result<Expr> product();
  Result<Expr> unary();
  Result<Expr> primary();
  Result<Expr> named();
  Result<Expr> integer(bool negative);
  Result<Expr> real();
  Result<Expr> function_call(const Function& function, std::size_t start);
  Result<Expr> load(const Param& param, std::size_t start);
  Result<Expr> named_row(const NamedRow& row, std::size_t start);
  Result<void> row_argument(const NamedRow& row, const RowArgument& argument, Bindings& bindings,
                            std::map<std::string_view, std::string>& words);
  Result<Param> declare(const NamedRow& row, const std::map<std::string_view, std::string>& words, std::size_t start);
  Result<Expr> unknown_name(std::string_view name, std::size_t start);
  Result<Expr> as_result(const Expr& value, std::size_t start) const;
  Expr query_position() const;

  Error error(std::string message) const { return error_at(text_, lexer_.position(), std::move(message)); }
  Error error(std::string message, std::size_t position) const { return error_at(text_, position, std::move(message)); }
  Error unexpected() const;
  Result<void> expect(std::string_view symbol) {
    if (!lexer_.is(symbol)) return unexpected_instead_of(symbol);
    lexer_.advance();
    return {};
  }
  Error unexpected_instead_of(std::string_view symbol) const {
    return error(lexer_.kind() == Token::End ? fmt::format("the text ends where `{}` must follow", symbol)
                                             : fmt::format("expected `{}`", symbol));
  }
  // Type errors get the place of the operator or function.
  Result<Expr> make(Op op, std::vector<Expr> args, std::size_t position) const {
    Result<Expr> made = Expr::make(op, std::move(args));
    if (!made) return error(made.error().message, position);
    return made;
  }

  // One level of nesting, for as long as it lives.
  class Nested {
   public:
    explicit Nested(int& depth) : depth_(depth) { ++depth_; }
    ~Nested() { --depth_; }
    Nested(const Nested&) = delete;

   private:
    int& depth_;
  };
  bool too_deep() const { return depth_ > kMaxExprDepth; }
  Error depth_error() const {
    return error(fmt::format("nested more than {} levels deep; use fewer parentheses", kMaxExprDepth));
  }

  std::string_view text_;
  Lexer lexer_;
  Session& session_;
  Expr s_;  // the score so far; empty in masks
  const Bindings* bindings_;
  int depth_ = 0;
};

Error Parser::unexpected() const {
  if (lexer_.kind() == Token::End) return error("the text ends where a value must follow");
  if (lexer_.kind() == Token::Unknown) {
    const unsigned char byte = static_cast<unsigned char>(lexer_.text()[0]);
    if (byte < ' ' || byte > '~') return error(fmt::format("unexpected byte 0x{:02x}; the language is plain ASCII", byte));
    return error(fmt::format("unexpected `{}`", lexer_.text()));
  }
  if (lexer_.is("&&") || lexer_.is("||")) {
    return error(fmt::format("write `{}` for `{}`", lexer_.text().substr(1), lexer_.text()));
  }
  if (lexer_.is("=")) return error("write `==` to compare");
  if (lexer_.is("!")) return error("`!` applies to a whole comparison; write !(...) or put the comparison in parentheses");
  return error(fmt::format("unexpected `{}`", lexer_.text().substr(0, 40)));
}

Result<Expr> Parser::as_result(const Expr& value, std::size_t start) const {
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

Result<Expr> Parser::disjunction() {
  const Nested nested(depth_);
  if (too_deep()) return depth_error();
  FLASHJIT_ASSIGN(left, conjunction());
  while (lexer_.is("|")) {
    const std::size_t place = lexer_.position();
    lexer_.advance();
    FLASHJIT_ASSIGN(right, conjunction());
    FLASHJIT_ASSIGN(both, make(Op::Or, {left, right}, place));
    left = both;
  }
  return left;
}

Result<Expr> Parser::conjunction() {
  FLASHJIT_ASSIGN(left, negation());
  while (lexer_.is("&")) {
    const std::size_t place = lexer_.position();
    lexer_.advance();
    FLASHJIT_ASSIGN(right, negation());
    FLASHJIT_ASSIGN(both, make(Op::And, {left, right}, place));
    left = both;
  }
  return left;
}

Result<Expr> Parser::negation() {
  if (!lexer_.is("!")) return comparison();
  const Nested nested(depth_);
  if (too_deep()) return depth_error();
  const std::size_t place = lexer_.position();
  lexer_.advance();
  FLASHJIT_ASSIGN(value, negation());
  return make(Op::Not, {value}, place);
}

Result<Expr> Parser::comparison() {
  struct Row {
    std::string_view symbol;
    Op op;
    bool swapped;
  };
  static constexpr Row kRows[] = {{"<", Op::Lt, false},  {"<=", Op::Le, false}, {">", Op::Lt, true},
                                  {">=", Op::Le, true},  {"==", Op::Eq, false}, {"!=", Op::Ne, false}};
  const auto find = [&]() -> const Row* {
    for (const Row& row : kRows) {
      if (lexer_.is(row.symbol)) return &row;
    }
    return nullptr;
  };
  FLASHJIT_ASSIGN(left, sum());
  const Row* row = find();
  if (!row) return left;
  const std::size_t place = lexer_.position();
  lexer_.advance();
  FLASHJIT_ASSIGN(right, sum());
  if (find()) return error("comparisons do not chain; write a < b & b < c");
  return row->swapped ? make(row->op, {right, left}, place) : make(row->op, {left, right}, place);
}

Result<Expr> Parser::sum() {
  FLASHJIT_ASSIGN(left, product());
  while (lexer_.is("+") || lexer_.is("-")) {
    const Op op = lexer_.is("+") ? Op::Add : Op::Sub;
    const std::size_t place = lexer_.position();
    lexer_.advance();
    FLASHJIT_ASSIGN(right, product());
    FLASHJIT_ASSIGN(both, make(op, {left, right}, place));
    left = both;
  }
  return left;
}

Result<Expr> Parser::product() {
  FLASHJIT_ASSIGN(left, unary());
  while (lexer_.is("*") || lexer_.is("/") || lexer_.is("%")) {
    const Op op = lexer_.is("*") ? Op::Mul : lexer_.is("/") ? Op::Div : Op::Mod;
    const std::size_t place = lexer_.position();
    lexer_.advance();
    FLASHJIT_ASSIGN(right, unary());
    FLASHJIT_ASSIGN(both, make(op, {left, right}, place));
    left = both;
  }
  return left;
}

Result<Expr> Parser::unary() {
  if (!lexer_.is("-")) return primary();
  const Nested nested(depth_);
  if (too_deep()) return depth_error();
  const std::size_t place = lexer_.position();
  lexer_.advance();
  // A minus right before a literal is part of it: the smallest int64 has no positive counterpart.
  if (lexer_.kind() == Token::Integer) return integer(true);
  if (lexer_.kind() == Token::Real || (lexer_.kind() == Token::Name && lexer_.text() == "inf")) {
    FLASHJIT_ASSIGN(value, primary());
    return Expr::real(-value->real);
  }
  FLASHJIT_ASSIGN(value, unary());
  return make(Op::Neg, {value}, place);
}

Result<Expr> Parser::integer(bool negative) {
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

Result<Expr> Parser::real() {
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

Result<Expr> Parser::primary() {
  if (lexer_.kind() == Token::Integer) return integer(false);
  if (lexer_.kind() == Token::Real) return real();
  if (lexer_.kind() == Token::Name) return named();
  if (!lexer_.is("(")) return unexpected();
  lexer_.advance();
  FLASHJIT_ASSIGN(value, disjunction());
  FLASHJIT_TRY(expect(")"));
  return value;
}

Expr Parser::query_position() const {
  const Expr q = Expr::variable(Variable::Q);
  return session_.bottom_right ? q + Expr::variable(Variable::KLen) - Expr::variable(Variable::QLen) : q;
}

Result<Expr> Parser::named() {
  const std::size_t start = lexer_.position();
  const std::string_view word = lexer_.text();
  lexer_.advance();
  if (bindings_) {
    if (const auto value = bindings_->values.find(word); value != bindings_->values.end()) return value->second;
    if (const auto tensor = bindings_->tensors.find(word); tensor != bindings_->tensors.end()) {
      return load(tensor->second, start);
    }
  }
  if (word == "true" || word == "false") return Expr::boolean(word == "true");
  if (word == "inf") return Expr::real(INFINITY);
  if (word == "nan") return Expr::real(NAN);
  if (word == "qpos") return query_position();
  if (const auto variable = find_variable(word)) {
    if (*variable != Variable::S) return Expr::variable(*variable);
    if (!session_.score) return error("`s` is the score, which a mask cannot depend on; use it in score=", start);
    return s_;
  }
  if (const Function* function = find_function(word)) return function_call(*function, start);
  if (const NamedRow* row = find_named_row(word)) return named_row(*row, start);
  for (const Param& param : session_.params) {
    if (param.name == word) return load(param, start);
  }
  return unknown_name(word, start);
}

// The number of single-character changes between two short words.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

Result<Expr> Parser::unknown_name(std::string_view name, std::size_t start) {
  std::vector<std::string_view> known = {"q", "k", "b", "h", "hk", "q_len", "k_len", "qpos", "true", "false", "inf"};
  for (const Function& function : functions()) known.push_back(function.name);
  for (const NamedRow& row : named_rows()) known.push_back(row.name);
  for (const Param& param : session_.params) known.push_back(param.name);
  std::string_view nearest;
  std::size_t distance = name.size() < 3 || name.size() > 32 ? 0 : name.size() < 5 ? 2 : 3;  // less than this is near
  for (std::string_view candidate : known) {
    if (distance == 0) break;
    const std::size_t d = edit_distance(name, candidate);
    if (d < distance && d < candidate.size()) {
      distance = d;
      nearest = candidate;
    }
  }
  const std::string shown(name.substr(0, 40));
  if (!nearest.empty()) return error(fmt::format("unknown name `{}`; did you mean `{}`?", shown, nearest), start);
  return error(fmt::format("unknown name `{}`; declare a run-time parameter with params=\"{}: fp32\", or [1] to [4] after "
                           "the type for a tensor",
                           shown, shown),
               start);
}

Result<Expr> Parser::function_call(const Function& function, std::size_t start) {
  FLASHJIT_TRY(expect("("));
  std::vector<Expr> args;
  while (true) {
    FLASHJIT_ASSIGN(arg, disjunction());
    args.push_back(arg);
    if (!lexer_.is(",")) break;
    lexer_.advance();
  }
  FLASHJIT_TRY(expect(")"));
  const auto wanted = static_cast<std::size_t>(function.arguments);
  if (args.size() < wanted || (args.size() > wanted && !function.more)) {
    return error(fmt::format("`{}` takes {}{} argument{}, got {}", function.name, function.arguments,
                             function.more ? " or more" : "", wanted == 1 ? "" : "s", args.size()),
                 start);
  }
  if (!function.more) return make(function.op, std::move(args), start);
  Expr folded = args[0];
  for (std::size_t i = 1; i < args.size(); ++i) {
    FLASHJIT_ASSIGN(both, make(function.op, {folded, args[i]}, start));
    folded = both;
  }
  return folded;
}

Result<Expr> Parser::load(const Param& param, std::size_t start) {
  if (param.rank == 0) {
    if (lexer_.is("[")) return error(fmt::format("`{}` is a scalar and takes no index", param.name));
    return Expr::scalar(param);
  }
  if (!lexer_.is("[")) {
    return error(fmt::format("`{}` is a tensor of rank {}; read one element of it, as in {}[{}]", param.name, param.rank,
                             param.name, std::string_view("b, h, q, k").substr(12 - 3 * param.rank)),
                 start);
  }
  lexer_.advance();
  std::vector<Expr> index;
  while (true) {
    const std::size_t place = lexer_.position();
    FLASHJIT_ASSIGN(value, disjunction());
    if (value->type != Type::Int) return error("an index must be an int", place);
    for (const Param& used : params_of(value)) {
      if (used.rank > 0) {
        return error("an index may not read a tensor: it could not be checked before the launch", place);
      }
    }
    index.push_back(value);
    if (!lexer_.is(",")) break;
    lexer_.advance();
  }
  FLASHJIT_TRY(expect("]"));
  if (index.size() != static_cast<std::size_t>(param.rank)) {
    return error(fmt::format("`{}` has rank {}, got {} ind{}", param.name, param.rank, index.size(),
                             index.size() == 1 ? "ex" : "ices"),
                 start);
  }
  const Expr loaded = Expr::load(param, std::move(index));
  if (!loaded) return error(fmt::format("the index of `{}` is too large an expression", param.name), start);
  return loaded;
}

Result<void> Parser::row_argument(const NamedRow& row, const RowArgument& argument, Bindings& bindings,
                                  std::map<std::string_view, std::string>& words) {
  const std::size_t place = lexer_.position();
  const bool is_tensor = argument.kind == RowArgument::Kind::Tensor;
  if (is_tensor || argument.kind == RowArgument::Kind::Dtype) {
    const std::string word(lexer_.text());
    if (lexer_.kind() != Token::Name || (is_tensor ? is_reserved_name(word) : !parse_dtype(word))) {
      return error(is_tensor ? fmt::format("the argument `{}` of `{}` must be the name of a tensor: a word with no meaning "
                                           "of its own",
                                           argument.name, row.name)
                             : fmt::format("the argument `{}` of `{}` must be one of fp16 bf16 fp32", argument.name, row.name));
    }
    words[argument.name] = word;
    lexer_.advance();
    return {};
  }
  FLASHJIT_ASSIGN(value, disjunction());
  const bool is_int = argument.kind == RowArgument::Kind::Int;
  if (value->type == Type::Bool || (is_int && value->type != Type::Int)) {
    return error(fmt::format("the argument `{}` of `{}` must be {}", argument.name, row.name, is_int ? "an int" : "a number"),
                 place);
  }
  const Expr folded = simplify(value);
  const bool constant = folded->op == Op::IntConst || folded->op == Op::FloatConst;
  const double number = folded->op == Op::IntConst ? static_cast<double>(folded->integer) : folded->real;
  // A float has no smallest value that makes sense, only a limit: 0 itself is as useless as -1.
  if (constant && !(is_int ? number >= argument.least : number > argument.least)) {
    return error(fmt::format("the argument `{}` of `{}` is {}, but must be {} {}", argument.name, row.name, number,
                             is_int ? "at least" : "above", argument.least),
                 place);
  }
  bindings.values[argument.name] = folded;
  return {};
}

Result<Param> Parser::declare(const NamedRow& row, const std::map<std::string_view, std::string>& words,
                              std::size_t start) {
  const auto spelled = [&](std::string_view name) {
    const auto word = words.find(name);
    return word == words.end() ? std::string(name) : word->second;
  };
  const Param param = {spelled(row.tensor.name), *parse_dtype(spelled(row.tensor.dtype)), row.tensor.rank, row.tensor.contents};
  if (row.score && !(param.dtype == Dtype::F32 || param.dtype == Dtype::F16 || param.dtype == Dtype::BF16)) {
    return error(fmt::format("`{}` adds a tensor of {}, but takes fp16, bf16 or fp32", row.name, name(param.dtype)), start);
  }
  for (Param& known : session_.params) {
    if (known.name != param.name) continue;
    if (known == param) {
      known.contents = param.contents;  // declared by the user, or by this row before
      return param;
    }
    return error(fmt::format("`{}` reads `{}` as {}[{}], but it is declared as {}{}; use another name", row.name, param.name,
                             name(param.dtype), param.rank, name(known.dtype),
                             known.rank ? fmt::format("[{}]", known.rank) : " (a scalar)"),
                 start);
  }
  if (session_.params.size() >= static_cast<std::size_t>(kMaxParams)) {
    return error(fmt::format("`{}` needs one more run-time parameter, but {} is the most a kernel takes", row.name, kMaxParams),
                 start);
  }
  session_.params.push_back(param);
  return param;
}

Result<Expr> Parser::named_row(const NamedRow& row, std::size_t start) {
  if (row.score && !session_.score) {
    return error(fmt::format("`{}` changes the score; write it in score=, not in a mask", row.name), start);
  }
  Bindings bindings;
  std::map<std::string_view, std::string> words;
  const bool parenthesis = lexer_.is("(");
  bool more = false;
  if (parenthesis) {
    lexer_.advance();
    more = !lexer_.is(")");
  }
  for (const RowArgument& argument : row.arguments) {
    if (argument.kind == RowArgument::Kind::None) break;
    if (!more) {
      if (argument.fallback.empty()) {
        return error(fmt::format("`{}` needs its argument `{}`; write {}", row.name, argument.name, signature(row)), start);
      }
      words[argument.name] = argument.fallback;
      continue;
    }
    FLASHJIT_TRY(row_argument(row, argument, bindings, words));
    more = lexer_.is(",");
    if (more) lexer_.advance();
  }
  if (more) return error(fmt::format("`{}` takes no more arguments; write {}", row.name, signature(row)));
  if (parenthesis) FLASHJIT_TRY(expect(")"));
  if (row.tensor.rank > 0) {
    FLASHJIT_ASSIGN(param, declare(row, words, start));
    bindings.tensors[row.tensor.name] = param;
  }
  const bool outer = session_.score;
  session_.score = row.score;  // the body of a mask row is a condition even inside a score
  Result<Expr> body = Parser(row.body, session_, s_, &bindings).stages();
  session_.score = outer;
  if (!body) return error(fmt::format("in `{}`: {}", row.name, body.error().message), start);
  return simplify(*body);
}

}  // namespace

Result<Expr> parse_expr(std::string_view text, const ParseContext& context) {
  if (text.size() > kMaxExprText) {
    return error_at(text, kMaxExprText,
                    fmt::format("the text has {} bytes, above {}, the longest expression; put constants that are data into "
                                "a tensor parameter",
                                text.size(), kMaxExprText));
  }
  Session session;
  if (context.params) session.params = *context.params;
  session.bottom_right = context.bottom_right;
  session.score = context.score;
  Parser parser(text, session, context.score ? Expr::variable(Variable::S) : Expr());
  FLASHJIT_ASSIGN(expr, parser.stages());
  const std::size_t nodes = node_count(expr);
  if (nodes > kMaxExprNodes || expr->tree_nodes > kMaxWrittenNodes) {
    return error_at(text, text.size(),
                    fmt::format("the expression has {} operations ({} written out), above {} ({})", nodes, expr->tree_nodes,
                                kMaxExprNodes, kMaxWrittenNodes));
  }
  if (const std::size_t functions = function_count(expr); functions > kMaxFunctions) {
    return error_at(text, text.size(),
                    fmt::format("the expression has {} of exp, log, tanh and sigmoid, above {}, more than compiles in reasonable time; put "
                                "what does not depend on the score into a tensor parameter",
                                functions, kMaxFunctions));
  }
  if (context.params) *context.params = std::move(session.params);
  return expr;
}

}  // namespace flashjit

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "compiler/language/expr_parser.h"
#include "compiler/spec/text_form.h"

namespace flashjit {

namespace {

// Returns the names that are written with arguments: "where, min, ..., window(l, r), ...".
std::string called_names(bool score) {
  std::string names;
  for (const Function& function : functions()) names.append(names.empty() ? "" : ", ").append(function.name);
  for (const NamedRow& row : named_rows()) {
    if (row.score == score && row.arguments[0].kind != RowArgument::Kind::None)
      names.append(", ").append(signature(row));
  }
  return names;
}

// Returns the word of the language for what has another name elsewhere: in FlexAttention, in Python, or in capital letters.
std::string_view word_of_the_language(std::string_view name) {
  static constexpr std::pair<std::string_view, std::string_view> kWordsElsewhere[] = {
      {"q_idx", "q"}, {"kv_idx", "k"}, {"k_idx", "k"}, {"Q", "q"},   {"K", "k"},
      {"S", "s"},     {"B", "b"},      {"H", "h"},     {"not", "!"},
  };
  for (const auto& [other, word] : kWordsElsewhere) {
    if (name == other) return word;
  }
  return {};
}

}  // namespace

Expr ExprParser::query_position() const {
  const Expr q = Expr::variable(Variable::Q);
  return session_.bottom_right ? q + Expr::variable(Variable::KLen) - Expr::variable(Variable::QLen) : q;
}

Result<Expr> ExprParser::named() {
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

Result<Expr> ExprParser::unknown_name(std::string_view name, std::size_t start) {
  if (const std::string_view word = word_of_the_language(name); !word.empty())
    return error(fmt::format("unknown name `{}`; did you mean `{}`?", name, word), start);
  std::vector<std::string_view> known = {"q", "k", "b", "h", "hk", "q_len", "k_len", "qpos", "true", "false", "inf"};
  for (const Function& function : functions()) known.push_back(function.name);
  for (const NamedRow& row : named_rows()) known.push_back(row.name);
  for (const Param& param : session_.params) known.push_back(param.name);
  std::string_view nearest;
  // A name at less than this distance is near.
  std::size_t distance = name.size() < 3 || name.size() > 32 ? 0 : name.size() < 5 ? 2 : 3;
  for (std::string_view candidate : known) {
    if (distance == 0) break;
    const std::size_t d = edit_distance(name, candidate);
    if (d < distance && d < candidate.size()) {
      distance = d;
      nearest = candidate;
    }
  }
  const std::string shown(name.substr(0, 40));
  if (!nearest.empty()) {
    const std::string others =
        lexer_.is("(") ? fmt::format(" What may be called is {}", called_names(session_.score)) : std::string();
    return error(fmt::format("unknown name `{}`; did you mean `{}`?{}", shown, nearest, others), start);
  }
  // A parameter cannot be called, so it would not help to declare one.
  if (lexer_.is("(")) {
    return error(
        fmt::format("there is no function `{}`; those that may stand here are {}", shown, called_names(session_.score)),
        start);
  }
  const std::string_view order =
      lexer_.is("[") ? "; a tensor that a name like document(...) declares is known behind it" : "";
  return error(
      fmt::format("unknown name `{}`; declare a run-time parameter with params=\"{}: fp32\", or [1] to [4] after "
                  "the type for a tensor{}",
                  shown, shown, order),
      start);
}

Result<Expr> ExprParser::function_call(const Function& function, std::size_t start) {
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

Result<Expr> ExprParser::load(Param param, std::size_t start) {
  if (param.rank == 0) {
    if (lexer_.is("[")) return error(fmt::format("`{}` is a scalar and takes no index", param.name));
    return Expr::scalar(param);
  }
  if (!lexer_.is("[")) {
    return error(fmt::format("`{}` is a tensor of rank {}; read one element of it, as in {}[{}]", param.name,
                             param.rank, param.name, std::string_view("b, h, q, k").substr(12 - 3 * param.rank)),
                 start);
  }
  lexer_.advance();
  std::vector<Expr> index;
  while (true) {
    const std::size_t argument = lexer_.position();
    FLASHJIT_ASSIGN(value, disjunction());
    if (value->type != Type::Int) return error("an index must be an int", argument);
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

Result<void> ExprParser::row_argument(const NamedRow& row, const RowArgument& argument, Bindings& bindings,
                                      std::map<std::string_view, std::string>& words) {
  const std::size_t start = lexer_.position();
  const bool is_tensor = argument.kind == RowArgument::Kind::Tensor;
  if (is_tensor || argument.kind == RowArgument::Kind::Dtype) {
    const std::string word(lexer_.text());
    if (lexer_.kind() != Token::Name ||
        (is_tensor ? is_reserved_name(word) || parse_dtype(word) : !parse_dtype(word))) {
      return error(
          is_tensor ? fmt::format("the argument `{}` of `{}` must be the name of a tensor: a word with no meaning "
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
    return error(
        fmt::format("the argument `{}` of `{}` must be {}", argument.name, row.name, is_int ? "an int" : "a number"),
        start);
  }
  const Expr folded = simplify(value);
  const bool constant = folded->op == Op::IntConst || folded->op == Op::FloatConst;
  const double number = folded->op == Op::IntConst ? static_cast<double>(folded->integer) : folded->real;
  // A float has no smallest value that makes sense, only a limit, because 0 is as useless as -1. Numbers that a kernel
  // may take for 0 are excluded as their reciprocal is infinite, and infinity as its reciprocal is 0: 0 times infinity
  // is NaN.
  const bool in_range =
      is_int ? number >= argument.least : number > argument.least && std::isnormal(static_cast<float>(number));
  if (constant && !in_range) {
    return error(fmt::format("the argument `{}` of `{}` is {}, but must be {}", argument.name, row.name, number,
                             is_int ? fmt::format("at least {}", argument.least)
                                    : fmt::format("above {} and finite, from 1.2e-38 to 3.4e38", argument.least)),
                 start);
  }
  bindings.values[argument.name] = folded;
  return {};
}

Result<Param> ExprParser::declare(const NamedRow& row, const std::map<std::string_view, std::string>& words,
                                  std::size_t start) {
  const auto spelled = [&](std::string_view name) {
    const auto word = words.find(name);
    return word == words.end() ? std::string(name) : word->second;
  };
  const Param param = {spelled(row.tensor.name), *parse_dtype(spelled(row.tensor.dtype)), row.tensor.rank,
                       row.tensor.contents};
  if (row.score && !(param.dtype == Dtype::F32 || param.dtype == Dtype::F16 || param.dtype == Dtype::BF16)) {
    return error(fmt::format("`{}` adds a tensor of {}, but takes fp16, bf16 or fp32", row.name, name(param.dtype)),
                 start);
  }
  for (Param& known : session_.params) {
    if (known.name != param.name) continue;
    if (known == param) {
      known.contents = param.contents;  // The user, or an earlier use of this row, has declared it.
      return param;
    }
    return error(fmt::format("`{}` reads `{}` as {}[{}], but it is declared as {}{}; use another name", row.name,
                             param.name, name(param.dtype), param.rank, name(known.dtype),
                             known.rank ? fmt::format("[{}]", known.rank) : " (a scalar)"),
                 start);
  }
  if (session_.params.size() >= static_cast<std::size_t>(kMaxParams)) {
    return error(
        fmt::format("`{}` needs one more run-time parameter, but {} is the most a kernel takes", row.name, kMaxParams),
        start);
  }
  session_.params.push_back(param);
  return param;
}

Result<Expr> ExprParser::named_row(const NamedRow& row, std::size_t start) {
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
        return error(fmt::format("`{}` needs its argument `{}`; write {}", row.name, argument.name, signature(row)),
                     start);
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
  session_.score = row.score;  // The body of a mask row is a condition even inside a score.
  Result<Expr> body = ExprParser(row.body, session_, s_, &bindings).stages();
  session_.score = outer;
  if (!body) return error(fmt::format("in `{}`: {}", row.name, body.error().message), start);
  return simplify(*body);
}

}  // namespace flashjit

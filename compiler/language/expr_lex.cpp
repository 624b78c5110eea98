#include "compiler/language/expr_lex.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace flashjit {
namespace {

// std::isalpha and its kin depend on the locale, so they are not used.
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

constexpr Variable kVariables[] = {Variable::Q,  Variable::K,    Variable::B,    Variable::H,
                                   Variable::Hk, Variable::QLen, Variable::KLen, Variable::S};

constexpr Function kFunctions[] = {
    {"where", Op::Where, 3},     {"min", Op::Min, 2, true}, {"max", Op::Max, 2, true}, {"abs", Op::Abs, 1},
    {"exp", Op::Exp, 1},         {"log", Op::Log, 1},       {"sqrt", Op::Sqrt, 1},     {"tanh", Op::Tanh, 1},
    {"sigmoid", Op::Sigmoid, 1}, {"bit", Op::Bit, 2},       {"float", Op::ToFloat, 1},
};

constexpr std::string_view kConstants[] = {"true", "false", "inf", "nan", "qpos"};

constexpr std::size_t kShownWidth = 100;  // The width of a line in an error's detail.

}  // namespace

void Lexer::number() {
  kind_ = Token::Integer;
  while (next_ < text_.size() && is_digit(text_[next_])) ++next_;
  if (next_ < text_.size() && text_[next_] == '.') {
    kind_ = Token::Real;
    ++next_;
    while (next_ < text_.size() && is_digit(text_[next_])) ++next_;
  }
  if (next_ < text_.size() && (text_[next_] == 'e' || text_[next_] == 'E')) {
    std::size_t digits = next_ + 1;
    if (digits < text_.size() && (text_[digits] == '+' || text_[digits] == '-')) ++digits;
    if (digits < text_.size() && is_digit(text_[digits])) {
      kind_ = Token::Real;
      next_ = digits;
      while (next_ < text_.size() && is_digit(text_[next_])) ++next_;
    }
  }
}

void Lexer::advance() {
  while (next_ < text_.size() && is_space(text_[next_])) ++next_;
  start_ = next_;
  if (next_ == text_.size()) {
    kind_ = Token::End;
    token_ = {};
    return;
  }
  const char c = text_[next_];
  const bool point = c == '.' && next_ + 1 < text_.size() && is_digit(text_[next_ + 1]);
  if (is_digit(c) || point) {
    number();
  } else if (is_letter(c)) {
    kind_ = Token::Name;
    while (next_ < text_.size() && (is_letter(text_[next_]) || is_digit(text_[next_]))) ++next_;
  } else {
    static constexpr std::string_view kPairs[] = {"<=", ">=", "==", "!=", "&&", "||", "**", "//", "<<", ">>"};
    const std::string_view pair = text_.substr(next_, 2);
    if (std::find(std::begin(kPairs), std::end(kPairs), pair) != std::end(kPairs)) {
      kind_ = Token::Symbol;
      next_ += 2;
    } else {
      kind_ = std::string_view("+-*/%<>!&|()[],;=").find(c) != std::string_view::npos ? Token::Symbol : Token::Unknown;
      ++next_;
    }
  }
  token_ = text_.substr(start_, next_ - start_);
}

Error error_at(std::string_view text, std::size_t position, std::string message) {
  position = std::min(position, text.size());
  const std::size_t before = position == 0 ? std::string_view::npos : text.rfind('\n', position - 1);
  std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
  std::size_t end = std::min(text.find('\n', position), text.size());
  std::string prefix, suffix;
  if (position - begin > kShownWidth / 2) {
    begin = position - kShownWidth / 2;
    prefix = "...";
  }
  if (end - begin > kShownWidth) {
    end = begin + kShownWidth;
    suffix = "...";
  }
  std::string line = prefix + std::string(text.substr(begin, end - begin)) + suffix;
  std::replace_if(line.begin(), line.end(), [](char c) { return c == '\t' || c == '\r'; }, ' ');
  std::replace_if(line.begin(), line.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  const std::string caret(prefix.size() + position - begin, ' ');
  return invalid(std::move(message), fmt::format("  {}\n  {}^", line, caret));
}

std::optional<Variable> find_variable(std::string_view text) {
  for (Variable variable : kVariables) {
    if (name(variable) == text) return variable;
  }
  return std::nullopt;
}

std::span<const Function> functions() { return kFunctions; }

const Function* find_function(std::string_view name) {
  const auto found =
      std::find_if(std::begin(kFunctions), std::end(kFunctions), [&](const Function& f) { return f.name == name; });
  return found == std::end(kFunctions) ? nullptr : found;
}

const Function* find_function(Op op) {
  const auto found = std::ranges::find(kFunctions, op, &Function::op);
  return found == std::end(kFunctions) ? nullptr : found;
}

bool is_language_name(std::string_view name) {
  return find_variable(name) || find_function(name) ||
         std::find(std::begin(kConstants), std::end(kConstants), name) != std::end(kConstants);
}

}  // namespace flashjit

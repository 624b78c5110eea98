// Tokens of the expression language, its fixed names, and errors that point into a text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "compiler/language/expr.h"

namespace flashjit {

enum class Token { End, Integer, Real, Name, Symbol, Unknown };

// Splits a text as it is read, and holds the next token.
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) { advance(); }

  Token kind() const { return kind_; }
  std::string_view text() const { return token_; }
  std::size_t position() const { return start_; }  // The position of the current token.
  bool is(std::string_view symbol) const { return kind_ == Token::Symbol && token_ == symbol; }
  void advance();

 private:
  void number();

  std::string_view text_;
  std::size_t next_ = 0, start_ = 0;
  Token kind_ = Token::End;
  std::string_view token_;
};

// Returns an Invalid error whose detail shows the line of `text` and a caret under `position`. Bytes outside printable
// ASCII are shown as '?', and long lines are cut around the error.
Error error_at(std::string_view text, std::size_t position, std::string message);

// Returns a variable that a text may use. `s` is found also for masks, so that the message can say that they have none.
std::optional<Variable> find_variable(std::string_view name);

struct Function {
  std::string_view name;
  Op op;
  int arguments;
  bool more = false;  // It takes more arguments, which are folded from the left.
};
std::span<const Function> functions();
const Function* find_function(std::string_view name);
const Function* find_function(Op op);  // null: leaves and operators.

// Returns true for variables, functions and constants.
bool is_language_name(std::string_view name);

}  // namespace flashjit

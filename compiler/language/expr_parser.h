// The parser behind parse_expr(). expr_parse.cpp has the grammar of operators, and expr_names.cpp the meaning of names.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/language/expr_lex.h"
#include "compiler/language/named.h"

namespace flashjit {

class ExprParser {
 public:
  // The expressions for which names in the body of a named row stand.
  struct Bindings {
    std::map<std::string_view, Expr> values;
    std::map<std::string_view, Param> tensors;
  };

  // All stages of one text, and the bodies of the rows that it names, share this state.
  struct Session {
    std::vector<Param> params;
    bool bottom_right = true;
    bool score = false;
  };

  ExprParser(std::string_view text, Session& session, Expr s, const Bindings* bindings = nullptr)
      : text_(text), lexer_(text), session_(session), s_(std::move(s)), bindings_(bindings) {}

  // Parses stages separated by `;`. Each sees the value of the one before it as s.
  Result<Expr> stages();

 private:
  struct Operator {
    std::string_view symbol;
    Op op;
    bool swapped = false;
  };
  const Operator* next_of(std::span<const Operator> operators) const;  // null: none of them comes next.
  // Parses operands with any of `operators` between them, from the left.
  Result<Expr> chain(std::span<const Operator> operators, Result<Expr> (ExprParser::*operand)());

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
  // `param` is a copy, because parsing its index may add parameters.
  Result<Expr> load(Param param, std::size_t start);
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
  std::string slip() const;
  Result<void> expect(std::string_view symbol);
  // Type errors get the position of the operator or function.
  Result<Expr> make(Op op, std::vector<Expr> args, std::size_t position) const;

  // A Nested object counts as one level of nesting while it lives.
  class Nested {
   public:
    explicit Nested(int& depth) : depth_(depth) { ++depth_; }
    ~Nested() { --depth_; }
    Nested(const Nested&) = delete;

   private:
    int& depth_;
  };
  bool too_deep() const { return depth_ > kMaxExprDepth; }
  Error depth_error() const;

  std::string_view text_;
  Lexer lexer_;
  Session& session_;
  Expr s_;  // The score so far; empty in masks.
  const Bindings* bindings_;
  int depth_ = 0;
};

}  // namespace flashjit

// Tools of passes that change bodies of statements.
#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "compiler/program/ir.h"

namespace flashjit {

using Body = std::vector<Statement>;
using Names = std::initializer_list<std::string_view>;

// Makes statements of a program, on behalf of a pass.
struct Maker {
  Program& p;
  std::string_view pass;
  Result<void> failed = {};  // The first error of an attribute that could not be set.

  Statement make(Kind kind, Names writes = {}, Names reads = {}, std::string_view form = {}) const;
  Statement let(std::string_view name) const;
  Statement call(std::string_view name) const;
  Statement mark(std::string_view what) const;
  Statement when(std::string_view condition, Body body) const;
  Statement otherwise(Body body) const;
  Statement body(std::string_view name, Body body) const;
  // `structure` is the name of a structure, and `file` the file of the vocabulary that has its state. Both are empty
  // for a role without a structure.
  Statement role(Kind kind, std::string_view structure, std::string_view file) const;
  Statement loop(std::string_view form, Body body) const;
  // The next statements wait until slots are full, or empty, or until at most `pending` groups of products are under
  // way, or they keep registers where they are.
  Statement await_full(Names buffers, std::string_view form = {});
  Statement await_empty(Names buffers, std::string_view form = {});
  Statement wait(std::int64_t pending);
  Statement keep(std::string_view registers, std::string_view form = {}) const;
  // The next statements set up a barrier of a slot, "full" or "empty"; a barrier of no slot; and barriers for `count`
  // slots.
  Statement init(std::string_view buffer, std::string_view barrier, std::int64_t arrivals, std::string_view form = {});
  Statement init_single(std::string_view barrier, std::int64_t arrivals);
  Statement for_slots(std::int64_t count, Body body);
  // A copy by TMA.
  Statement copied(Names to, std::string_view from, std::string_view form);
  // Makes one group of the products.
  static Body batch(Body products);
  template <class Value>
  Statement with(Statement s, std::string_view key, Value value) {
    if (auto done = s.attributes.set(key, std::move(value), pass); !done && failed) failed = done;
    return s;
  }
};

void append(Body& to, Body from);

// The first statement, in a body or nested in it, for which `is_it` returns true. `body` is null if there is none.
struct Site {
  Body* body = nullptr;
  std::size_t at = 0;
  explicit operator bool() const { return body != nullptr; }
  Statement& statement() const { return (*body)[at]; }
  void insert_before(Body statements) const;
  void insert_after(Body statements) const;
  void replace(Body statements) const;
  // Removes `count` statements from this one on, and returns them.
  Body take(std::size_t count) const;
};
template <class IsIt>
Site find_site(Body& body, const IsIt& is_it) {
  for (std::size_t i = 0; i < body.size(); ++i) {
    if (is_it(body[i])) return {&body, i};
    if (const Site inside = find_site(body[i].body, is_it)) return inside;
  }
  return {};
}
// Finds a statement by its kind, and by what it writes first, or its label or form; an empty `what` finds any.
Site find_site(const Program& program, Body& body, Kind kind, std::string_view what = {});

// Returns an attribute that is a number, or `absent` if the statement has none.
std::int64_t integer(const Statement& statement, std::string_view key, std::int64_t absent);

// Returns whether the statement is about the slot of the tile before, which its form tells.
inline bool is_before(const Statement& statement) { return statement.form.ends_with("before"); }
// Returns whether the statement is about the next item, which its form tells.
inline bool is_next(const Statement& statement) { return statement.form.ends_with("next"); }

// Returns a body of a role by its name, or null if there is none.
Statement* find_body(Program& program, std::string_view name);
const Statement* find_body(const Program& program, std::string_view name);
const Statement* find_body(const Statement& role, std::string_view name);

}  // namespace flashjit

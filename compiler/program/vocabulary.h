// The words that programs are printed with: of each kind and form of statement the line of CUDA that it is. A few belong to
// every program, the others to a family's vocabulary, whose functions one folder of templates/ has.
#pragma once

#include <span>
#include <string_view>

#include "compiler/program/ir.h"

namespace flashjit {

// Says which of the threads that come to a statement arrive at the barrier of a slot.
enum class Arrival : unsigned char {
  ByThread,   // all of them
  ByWarp,     // one of each warp
  ByLane,     // all of each warp, where else one thread speaks for a producer
  InCluster,  // one of each warp, at the barriers of both blocks of a cluster
  ByName      // all, at a named barrier, which nobody sets up
};

// `line` is a call of what templates/ have, or opens what `close` closes behind the statement's body. These stand in it for
// parts of a statement: {to} and {from}: what it writes first, and what it reads first beside what it writes; {slot}, {ring}
// and {fill}: the barriers of what it writes, and the rings of who reads and who fills it; {barrier}, {pending}, {piece},
// {on_top}, {count} and {arrivals}: attributes; {if}: the condition. A line has no choice in it: a pass has chosen, by
// another form.
struct TileOperation {
  Kind kind;
  std::string_view form;
  std::string_view line, close = {};
  std::string_view remark = {};  // Body: what it is for
  Arrival arrival = Arrival::ByThread;
};

// A condition of programs, its text in CUDA, and of how many threads it is true for one.
struct Condition {
  std::string_view label, text;
  int one_of = 1;
};

struct Vocabulary {
  std::string_view folder;  // of templates/, with a slash at its end
  std::span<const TileOperation> operations;
  std::span<const Condition> conditions;
};

// The operations that every vocabulary has.
std::span<const TileOperation> shared_operations();

// Null: nothing prints it.
const TileOperation* find_tile_operation(const Program& program, const Statement& statement);
// Null: there is no such condition.
const Condition* find_condition(const Program& program, std::string_view label);
// Its text; empty: there is none.
std::string_view condition(const Program& program, std::string_view label);

}  // namespace flashjit

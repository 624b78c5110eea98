// The words with which programs are printed: the line of CUDA for each kind and form of statement. Some belong to every
// program, the others to a family's vocabulary, whose functions are in one folder of templates/.
#pragma once

#include <span>
#include <string_view>

#include "compiler/program/ir.h"

namespace flashjit {

// The threads at a statement that arrive at the barrier of a slot.
enum class Arrival : unsigned char {
  ByThread,   // All threads arrive.
  ByWarp,     // One thread of each warp arrives.
  ByLane,     // All threads of each warp arrive, where otherwise one thread speaks for a producer.
  InCluster,  // One thread of each warp arrives, at the barriers of both blocks of a cluster.
  ByName      // All threads arrive, at a named barrier, which nobody sets up.
};

// `line` is a call of a function in templates/, or opens what `close` closes behind the statement's body. It contains
// names for parts of a statement: {to} and {from} are the first buffer that it writes, and the first that it reads
// besides; {slot} names the barriers of what it writes, {ring} and {fill} the rings of its reader and of the role that
// fills it; {barrier}, {pending}, {piece}, {on_top}, {count} and {arrivals} are attributes; {if} is the condition. A
// line contains no choice: a pass has chosen, by another form.
struct TileOperation {
  Kind kind;
  std::string_view form;
  std::string_view line, close = {};
  std::string_view remark = {};  // Body: its purpose.
  Arrival arrival = Arrival::ByThread;
};

// A condition of programs, its text in CUDA, and the number of threads of which it is true for one.
struct Condition {
  std::string_view label, text;
  int one_of = 1;
};

struct Vocabulary {
  std::string_view folder;  // A folder of templates/, with a slash at its end.
  std::span<const TileOperation> operations;
  std::span<const Condition> conditions;
};

// The operations that every vocabulary has.
std::span<const TileOperation> shared_operations();

// Returns null if nothing prints the statement.
const TileOperation* find_tile_operation(const Program& program, const Statement& statement);
// Returns null if there is no such condition.
const Condition* find_condition(const Program& program, std::string_view label);
// Returns the condition's text, or an empty text if there is no such condition.
std::string_view condition(const Program& program, std::string_view label);

}  // namespace flashjit

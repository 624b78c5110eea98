// The tile operations that programs are printed with: of each kind and form of statement the line of CUDA that it is.
#pragma once

#include <span>
#include <string_view>

#include "compiler/program/ir.h"

namespace flashjit {

// `line` is a call of what templates/ have, or opens what `close` closes behind the statement's body. Of a statement stand in
// it {to} and {from}: what it writes first, and what it reads first beside what it writes; {slot}, {ring} and {fill}: the
// barriers of what it writes, and the rings of who reads and who fills it; {barrier}, {pending}, {piece} and {on_top}:
// attributes; {if}: the condition. What there is to choose, a pass has chosen: it is another form.
struct TileOperation {
  Kind kind;
  std::string_view form;
  std::string_view line, close = {};
  std::string_view remark = {};  // Body: what it is for
};
const TileOperation* find_tile_operation(const Statement& statement);
std::span<const TileOperation> tile_operations();

// What a condition is in CUDA; empty: there is no such condition.
std::string_view condition(std::string_view label);

}  // namespace flashjit

// Named masks and scores are rows of a table, written in the expression language itself.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "compiler/language/expr.h"

namespace flashjit {

struct RowArgument {
  enum class Kind { None, Int, Float, Tensor, Dtype };
  Kind kind = Kind::None;
  std::string_view name;
  // The smallest constant of Int or Float that makes sense. Scalar parameters have no value yet, and are not checked.
  double least = -std::numeric_limits<double>::infinity();
  std::string_view fallback;  // The text that stands for an argument that is left out; empty: it must be given.
};

// A run-time parameter that a row declares. Its name comes from an argument, or is always the same.
struct RowTensor {
  std::string_view name;   // The name of an argument of kind Tensor, or a fixed name.
  std::string_view dtype;  // A dtype, or the name of an argument of kind Dtype.
  int rank = 0;
  Contents contents = Contents::Plain;
};

struct NamedRow {
  std::string_view name;
  RowArgument arguments[2];
  std::string_view body;
  bool score = false;  // Its body reads s and gives a float.
  RowTensor tensor;    // rank 0: it declares none.
  std::string_view help;
};

std::span<const NamedRow> named_rows();
const NamedRow* find_named_row(std::string_view name);

// Returns the way in which a row is written, as "window(l, r)".
std::string signature(const NamedRow& row);

// Returns true for names that mean something in the language, so that a run-time parameter cannot have them.
bool is_reserved_name(std::string_view name);

}  // namespace flashjit

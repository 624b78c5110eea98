// Named masks and scores: a table whose rows are written in the expression language itself.
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
  // Int, Float: the smallest constant that makes sense. Scalar parameters are not known here and are not checked.
  double least = -std::numeric_limits<double>::infinity();
  std::string_view fallback;  // what stands for an argument that is left out; empty: it must be there
};

// A run-time parameter that a row declares: either called what an argument says, or always the same.
struct RowTensor {
  std::string_view name;   // of an argument of kind Tensor, or fixed
  std::string_view dtype;  // a dtype, or the name of an argument of kind Dtype
  int rank = 0;
  Contents contents = Contents::Plain;
};

struct NamedRow {
  std::string_view name;
  RowArgument arguments[2];
  std::string_view body;
  bool score = false;  // its body reads s, and it gives a float
  RowTensor tensor;    // rank 0: none
  std::string_view help;
};

std::span<const NamedRow> named_rows();
const NamedRow* find_named_row(std::string_view name);

// "window(l, r)": how a row is written.
std::string signature(const NamedRow& row);

// Names that mean something in the language, and that a run-time parameter therefore cannot have.
bool is_reserved_name(std::string_view name);

}  // namespace flashjit

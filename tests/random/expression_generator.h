// Random masks and scores: the text a user would write, and beside it what it means as plain C++ functions. The
// functions are composed while the text is, from hand-written pieces, so nothing of the compiler takes part in them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "compiler/language/expr.h"
#include "compiler/spec/dtype.h"
#include "tests/random/random.h"
#include "autotune/reference/semantics.h"

namespace flashjit::testing_random {

// A run-time parameter with its data.
struct DrawnParam {
  std::string name;
  Dtype dtype = Dtype::F32;
  std::vector<std::int64_t> shape;              // empty: a scalar
  std::shared_ptr<std::vector<double>> values;  // row-major, already rounded to the dtype
  bool declared = true;                         // appears in params="..."; false: a named row brings it
};

struct ExpressionContext {
  std::int64_t batch = 1, heads_q = 1, heads_kv = 1, max_q_len = 1, max_k_len = 1;
  bool bottom_right = true;
};

struct DrawnExpression {
  std::string text;  // empty: none
  reference::Semantics semantics;
};

// Parameters are added to `params`; one name is one tensor in mask and score.
DrawnExpression draw_mask(Random& random, const ExpressionContext& context, std::vector<DrawnParam>& params);
DrawnExpression draw_score(Random& random, const ExpressionContext& context, std::vector<DrawnParam>& params);

// Data for the parameter of a spec that is given: what it means follows from its type and rank.
DrawnParam draw_values(Random& random, const ExpressionContext& context, const Param& param);
// As params="..." has those that are declared.
std::string declarations(const std::vector<DrawnParam>& params);

}  // namespace flashjit::testing_random

// Masks and scores that look elements up through another tensor, and masks of blocks or of bounds for each query, added now and
// then to those that were drawn. They draw from streams of their own, so a seed gives what it gave before there were any.
#pragma once

#include <vector>

#include "tests/random/expression_generator.h"
#include "tests/random/random.h"

namespace flashjit::testing_random {

struct DrawnExpressions {
  DrawnExpression mask, score;
};

DrawnExpressions draw_mask_and_score(Random& random, const ExpressionContext& context, std::vector<DrawnParam>& params);

}  // namespace flashjit::testing_random

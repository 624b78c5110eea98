// Emits logits, the end of a row, and everything else that the blocked and the textbook kernel share.
#pragma once

#include "codegen/host/emit/ir.h"
#include "compiler/language/gradient.h"

namespace flashjit::host {

// These are the coordinates of a row of scores. Ints are i64 scalars.
struct RowContext {
  Value *params, *q, *b, *h, *hk, *q_len, *k_len;
  Value* scale_k;             // It is null if K has none.
  Value* scales_k = nullptr;  // Scales by key, on top of scale_k; null if there are none.
};

// Returns the factor by which logits in natural units are multiplied; emit_power multiplies their differences by the
// rest that exp2 needs. Products are scaled anyway, so log2(e) goes with the scale. The result of a score function may
// be as large as floats are (frameworks add -3.4e38 to hide a key), and log2(e) times that is infinite. In that case
// log2(e) goes to the differences.
double logit_unit(const Plan& plan);
// Returns the factor that turns products into natural units, times `unit`.
Value* emit_product_unit(Ir& ir, const Plan& plan, const RowContext& row, double unit);
Value* emit_power(Ir& ir, const Plan& plan, Value* difference);

// Returns logits of `lanes` neighbouring keys, from their products q.k. Keys from `end_key` on, and keys that the mask
// hides, get -inf; with a null `end_key` every key exists and is visible.
Value* emit_logits(Ir& ir, const Plan& plan, const RowContext& row, Value* products, Value* first_key, Value* end_key);
// These are logits as emit_logits() returns them, with their derivatives, in natural units: by the scaled products
// (null if they are 1), and by the elements that are read of parameters whose gradients are wanted.
struct LogitsAndSlopes {
  struct Read {
    Value* derivative;  // It is a vector.
    // The indices of the element: ints, or vectors of ints where they differ between keys.
    std::vector<Value*> indices;
  };
  Value *logits, *slopes;
  std::vector<Read> reads = {};  // They have the order of ScoreGradients::by_params.
  Value* exists = nullptr;       // It tells which keys exist; null if all do.
};
LogitsAndSlopes emit_logits_and_slopes(Ir& ir, const Plan& plan, const ScoreGradients& gradients, const RowContext& row,
                                       Value* products, Value* first_key, Value* end_key);

// Ends a row with maximum m (a logit) and sum l: writes LSE and maximum if they are asked for, and returns the factor
// that turns the sum of the row's outputs into the result.
struct RowOutputs {
  Value *lse, *max_logit;  // Addresses of the row's elements, or null.
  Value* sink;             // In natural units, or null.
};
Value* emit_row_end(Ir& ir, const Plan& plan, const RowOutputs& outputs, Value* m, Value* l);

// With accumulate, ends a row that continues from an earlier LSE. The earlier O gets the share `before`. A row that has
// seen no key `keeps` O, and its LSE is kept here.
struct ContinuedRow {
  Value *factor, *before, *keeps;
};
ContinuedRow emit_continued_end(Ir& ir, const Plan& plan, Value* lse, Value* m, Value* l);

// Writes one row of `d` results of a dtype: values[i] * factor, where i counts vectors. The old contents times `before`
// are added, except where `before` is 0, as they may then be anything. Null stands for no old contents.
void emit_store_row(Ir& ir, Value* target, Dtype dtype, int d, Value* factor,
                    const std::function<Value*(int first)>& values, Value* before = nullptr);

// Returns the maximum as it is subtracted: 0 for a row that has seen no key, so that exp2(-inf - 0) = 0.
Value* reference_of(Ir& ir, Value* m);

}  // namespace flashjit::host

// Logits, the end of a row, and what else the blocked and the textbook kernel have in common.
#pragma once

#include "codegen/host/emit/ir.h"
#include "compiler/language/gradient.h"

namespace flashjit::host {

// A row of scores belongs to these. Ints are i64 scalars.
struct RowContext {
  Value *params, *q, *b, *h, *hk, *q_len, *k_len;
  Value* scale_k;             // null: K has none
  Value* scales_k = nullptr;  // by key, on top of it; null: there are none
};

// Returns the factor that logits in natural units are multiplied with; emit_power multiplies their differences with the
// rest that exp2 needs. Products are scaled anyway, so log2(e) goes with the scale. The result of a score function may
// be as large as floats are (frameworks add -3.4e38 to hide a key), and log2(e) times that is infinite: then log2(e)
// goes to the differences.
double logit_unit(const Plan& plan);
// Returns the factor that makes natural units of products, times `unit`.
Value* emit_product_unit(Ir& ir, const Plan& plan, const RowContext& row, double unit);
Value* emit_power(Ir& ir, const Plan& plan, Value* difference);

// Logits of `lanes` neighbouring keys, from their products q.k. Keys from `end_key` on, and keys the mask hides, get
// -inf; with a null `end_key` every key exists and is visible.
Value* emit_logits(Ir& ir, const Plan& plan, const RowContext& row, Value* products, Value* first_key, Value* end_key);
// These are logits as of emit_logits, with their derivatives, in natural units, by the scaled products (null: they are
// 1), and by the elements that are read of parameters whose gradients are wanted.
struct LogitsAndSlopes {
  struct Read {
    Value* derivative;            // a vector
    std::vector<Value*> indices;  // of the element: ints, or vectors of ints where they differ between keys
  };
  Value *logits, *slopes;
  std::vector<Read> reads = {};  // as ScoreGradients::by_params
  Value* exists = nullptr;       // which keys there are; null: all
};
LogitsAndSlopes emit_logits_and_slopes(Ir& ir, const Plan& plan, const ScoreGradients& gradients, const RowContext& row,
                                       Value* products, Value* first_key, Value* end_key);

// The end of a row with maximum m (a logit) and sum l: writes LSE and maximum where asked for, returns the factor
// that makes the sum of the row's outputs the result.
struct RowOutputs {
  Value *lse, *max_logit;  // addresses of the row's elements, or null
  Value* sink;             // natural units, or null
};
Value* emit_row_end(Ir& ir, const Plan& plan, const RowOutputs& outputs, Value* m, Value* l);

// With accumulate, this is the same for a row that goes on from the LSE which is there. O that is there gets the share
// `before`; a row that has seen nothing `keeps` O, and its LSE is kept here.
struct ContinuedRow {
  Value *factor, *before, *keeps;
};
ContinuedRow emit_continued_end(Ir& ir, const Plan& plan, Value* lse, Value* m, Value* l);

// Writes one row of `d` results of a dtype: values[i] * factor, i counted in vectors. `before`: what is there times that is
// added, but where it is 0, as then anything may be there; null: nothing is.
void emit_store_row(Ir& ir, Value* target, Dtype dtype, int d, Value* factor,
                    const std::function<Value*(int first)>& values, Value* before = nullptr);

// The maximum as it is subtracted: 0 for a row that has seen nothing, so that exp2(-inf - 0) = 0.
Value* reference_of(Ir& ir, Value* m);

}  // namespace flashjit::host

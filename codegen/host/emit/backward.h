// Emits gradients: the facts of queries that are computed beforehand, the products of a tile of keys, and the stores of
// results.
#pragma once

#include "codegen/host/backward_config.h"
#include "codegen/host/emit/ir.h"
#include "compiler/analysis/gradient_reads.h"
#include "compiler/language/gradient.h"

namespace flashjit::host {

inline constexpr char kPackQueriesName[] = "flashjit_pack_queries";
inline constexpr char kPackKColumnsName[] = "flashjit_pack_k_columns";
inline constexpr char kPackVColumnsName[] = "flashjit_pack_v_columns";
inline constexpr char kPackKRowsName[] = "flashjit_pack_k_rows";
inline constexpr char kBackwardName[] = "flashjit_backward";
inline constexpr char kStoreKeysName[] = "flashjit_store_keys";
inline constexpr char kStoreQueriesName[] = "flashjit_store_queries";

void emit_pack_queries(Ir& ir, const Plan& plan);
// With `mapped`, a map gives the tiles that are visited (codegen/host/tile_map).
void emit_backward(Ir& ir, const Plan& plan, const ScoreGradients& gradients, const std::vector<GradientRead>& reads,
                   bool mapped);
void emit_store_keys(Ir& ir, const Plan& plan);
void emit_store_queries(Ir& ir, const Plan& plan);

// Returns the factor from the given LSE to natural units.
double natural_lse(const Plan& plan);
// Returns the number that is subtracted from the logits of a row, in their units: infinity where the row sees no key.
Value* emit_lse_fact(Ir& ir, const Plan& plan, Value* lse);

}  // namespace flashjit::host

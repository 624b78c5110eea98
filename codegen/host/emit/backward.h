// Gradients: what is made of queries beforehand, the products of a tile of keys, and how results are written.
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
// `mapped`: the tiles that are visited are those of a map (codegen/host/tile_map).
void emit_backward(Ir& ir, const Plan& plan, const ScoreGradients& gradients, const std::vector<GradientRead>& reads,
                   bool mapped);
void emit_store_keys(Ir& ir, const Plan& plan);
void emit_store_queries(Ir& ir, const Plan& plan);

// Returns a unit of the LSE that is given, in natural units.
double natural_lse(const Plan& plan);
// Returns the number that is subtracted from the logits of a row, in their units: infinity where the row sees nothing.
Value* emit_lse_fact(Ir& ir, const Plan& plan, Value* lse);

}  // namespace flashjit::host

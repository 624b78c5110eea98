// The launches and buffers that gradients of parameters and of the sink add to backward.
#pragma once

#include <string>
#include <string_view>

#include "compiler/choice/cost_model.h"
#include "compiler/families/family.h"
#include "compiler/launch.h"

namespace flashjit {

// Why no kernel of a GPU sums them in a fixed order, where the spec asks for that; empty: one does, or need not.
std::string why_not_ordered(const AttentionSpec& spec);

// Is some gradient the sum of the scores of a key? Blocks then may not share it among warps, or its order is theirs.
bool sums_by_key(const AttentionSpec& spec);

// To a plan with a launch that prepares, one of keys with blocks of `tile_kv` keys and `warps` that have scores, and maybe
// more: the buffers, a launch that adds up, and the arguments of the others. `kept`: dS, if a buffer of the plan has it.
void add_gradient_launches(Plan& plan, int tile_kv, int warps, std::string_view kept = {});

// Bytes that launches before and after the loop read and write: O and dO, and with sums dQ is written, read and written.
double gradient_passes(const AttentionSpec& spec, const Shape& shape, bool sums);

// Bytes that the sums of dQ take for a query and head, beside Q and dO, which take what K and V would.
inline std::int64_t dq_row_bytes(const AttentionSpec& spec) { return std::int64_t{spec.d_qk} * size_of(Dtype::F32); }

// Where items of the launch over keys are cut: along tiles of so many queries, of so many heads; and what says so.
inline constexpr std::string_view kSharesQueries =
    "  where there are few tiles of keys, blocks share the queries of each, and add up dK and dV likewise\n";
PartRule part_rule(int tile_q, int heads, bool uneven);
// Adds to such a plan the sums of dK and dV of each tile of keys, of so many heads, in so many warps of so many floats, as
// arguments of the first two launches, from these numbers on.
void add_part_sums(Plan& plan, int tile_kv, int heads, int warps, int floats, int number_in_prepare,
                   int number_in_keys);

}  // namespace flashjit

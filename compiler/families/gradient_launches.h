// The launches and buffers that gradients of parameters and of the sink add to backward.
#pragma once

#include <string>
#include <string_view>

#include "compiler/choice/cost_model.h"
#include "compiler/families/family.h"
#include "compiler/launch.h"

namespace flashjit {

// Returns the reason why no kernel of a GPU sums these gradients in a fixed order although the spec asks for it; empty:
// one does, or none need.
std::string why_not_ordered(const AttentionSpec& spec);

// Returns true if some gradient sums the scores of each key. Warps must then not share the scores of a key, or their
// order would decide the sum.
bool sums_by_key(const AttentionSpec& spec);

// Adds buffers, a launch that adds up, and arguments of the other launches to a plan whose first launch prepares and
// whose second one goes over keys, with blocks of `tile_kv` keys and `warps` warps that have scores. `kept` names the
// buffer of the plan that has dS; empty: none has it.
void add_gradient_launches(Plan& plan, int tile_kv, int warps, std::string_view kept = {});

// Returns the bytes that launches before and after the loop read and write: O and dO, and dQ, which is written, read
// and written again if it is summed.
double gradient_passes(const AttentionSpec& spec, const Shape& shape, bool sums);

// Returns the bytes of the sums of dQ for a query and head. They are beside Q and dO, which take as many as K and V
// would.
inline std::int64_t dq_row_bytes(const AttentionSpec& spec) { return std::int64_t{spec.d_qk} * size_of(Dtype::F32); }

// Items of the launch over keys may be cut along tiles of so many queries, of so many heads. `explain` prints the text.
inline constexpr std::string_view kSharesQueries =
    "  where there are few tiles of keys, blocks share the queries of each, and add up dK and dV likewise\n";
PartRule part_rule(int tile_q, int heads, bool uneven);
// Adds the sums of dK and dV of each tile of keys, for so many heads, and so many warps of so many floats, to such a
// plan. They become arguments of the first two launches, from these numbers on.
void add_part_sums(Plan& plan, int tile_kv, int heads, int warps, int floats, int number_in_prepare,
                   int number_in_keys);

}  // namespace flashjit

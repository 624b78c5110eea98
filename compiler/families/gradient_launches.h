// What gradients of parameters and of the sink add to the launches of backward.
#pragma once

#include <string>
#include <string_view>

#include "compiler/families/family.h"

namespace flashjit {

// Why no kernel of a GPU sums them in a fixed order, where the spec asks for that; empty: one does, or need not.
std::string why_not_ordered(const AttentionSpec& spec);

// Is some gradient the sum of the scores of a key? Blocks then may not share it among warps, or its order is theirs.
bool sums_by_key(const AttentionSpec& spec);

// `call` with one more argument, and those before it that it leaves out.
void add_argument(std::string& call, std::string_view argument, int place);

// To a plan with a launch that prepares, one of keys with blocks of `tile_kv` keys and `warps` that have scores, and maybe
// more: the buffers, a launch that adds up, and the arguments of the others.
void add_gradient_launches(Plan& plan, int tile_kv, int warps);

}  // namespace flashjit

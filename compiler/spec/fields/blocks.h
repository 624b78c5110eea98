// blocks= in a spec: a call says by lists which blocks of keys each block of queries sees. Each pair of blocks has a
// state, which a launch writes down in a tensor of its own (compiler/launches/block_states.h); the mask of the spec reads
// it, as any other tensor. So whatever is done for masks that read tensors is done for lists.
#pragma once

#include <string>
#include <string_view>

#include "compiler/spec/spec.h"

namespace flashjit {

// The tensor of the states, u8 [batch, heads of lists, blocks of queries, blocks of keys]. It is the last parameter.
inline constexpr std::string_view kBlockStates = "block_states";

// The field as the text has it, without "blocks=": 128, 64/128 or 64/128/8.
std::string print_blocks(const AttentionSpec& spec);

Result<void> check_blocks(const AttentionSpec& spec);

// The mask of a spec becomes: where a key is seen, in listed blocks as it was (empty: everywhere), and in full blocks
// everywhere. `params` gets the tensor.
Result<void> put_in_blocks(AttentionSpec& spec, std::vector<Param>& params);
// A mask that reads blocks already is left to its text, from which it is made again.
void take_out_blocks(AttentionSpec& spec);

}  // namespace flashjit

// blocks= in a spec: lists of a call tell which blocks of keys each block of queries sees. Each pair of blocks has a
// state, which a launch writes to a tensor of its own (compiler/launches/block_states.h). The mask of the spec reads
// that tensor as any other, so all that is done for masks that read tensors works for lists as well.
#pragma once

#include <string>
#include <string_view>

#include "compiler/spec/spec.h"

namespace flashjit {

// The name of the tensor of states, u8 [batch, heads of lists, blocks of queries, blocks of keys]. It is the last
// parameter.
inline constexpr std::string_view kBlockStates = "block_states";

// Returns the text of the field behind "blocks=": 128, 64/128 or 64/128/8.
std::string print_blocks(const AttentionSpec& spec);

Result<void> check_blocks(const AttentionSpec& spec);

// Replaces the mask of a spec: in listed blocks it is as it was (empty: everything is seen), and in full blocks
// everything is seen. `params` gets the tensor of states.
Result<void> put_in_blocks(AttentionSpec& spec, std::vector<Param>& params);
// Removes a mask that reads blocks already. It is made again from its text.
void take_out_blocks(AttentionSpec& spec);

}  // namespace flashjit

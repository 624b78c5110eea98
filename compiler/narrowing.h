// A spec with `compute=` is computed by several kernels: three round Q, K and V to 8 bits, with Q and K rotated if the
// spec says so, and one attends to the rounded tensors in the workspace, as it does to tensors of 8 bits that a caller
// brings.
#pragma once

#include "compiler/launch.h"
#include "compiler/spec/spec.h"

namespace flashjit {

struct Narrowing {
  AttentionSpec q, k, v, attention;
};

Result<Narrowing> narrowing_of(const AttentionSpec& spec);
// Returns the spec of the attention to the rounded tensors. It is not validated.
AttentionSpec attention_to_rounded(const AttentionSpec& spec);

// Returns the sizes of a call that rounds Q, or K or V. Packed tokens are all of one sequence there, unless blocks have
// scales.
CallSizes rounding_sizes(const AttentionSpec& spec, const CallSizes& call, bool keys);

// The offsets of Q, K and V of 8 bits in the workspace, in bytes from its beginning. Rows are padded to 16 bytes.
struct NarrowedOffsets {
  std::int64_t rows = 0, scales = 0, row_bytes = 0, blocks = 0;  // `blocks` of a sequence have scales.
};
struct NarrowedRoom {
  NarrowedOffsets q, k, v;
  std::int64_t bytes = 0;  // The memory that launches need one after the other lies behind it.
};
NarrowedRoom narrowed_room(const AttentionSpec& spec, const CallSizes& call);

}  // namespace flashjit

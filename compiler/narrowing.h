// This file says how a spec with `compute=` is computed: kernels of their own round Q, K and V to 8 bits, Q and K rotated if
// it says so, and one attends to what they leave in the workspace, as it does to tensors of 8 bits that a caller brings.
#pragma once

#include "compiler/launch.h"
#include "compiler/spec/spec.h"

namespace flashjit {

struct Narrowing {
  AttentionSpec q, k, v, attention;
};

Result<Narrowing> narrowing_of(const AttentionSpec& spec);
// Returns the spec of the attention to what was rounded, which nothing has validated.
AttentionSpec attention_to_rounded(const AttentionSpec& spec);

// The sizes of a call that rounds Q, or K or V: packed tokens are all of one sequence there, unless blocks have scales.
CallSizes rounding_sizes(const AttentionSpec& spec, const CallSizes& call, bool keys);

// Says where in the workspace Q, K and V of 8 bits lie, in bytes from its beginning. Rows are padded to 16 bytes.
struct NarrowedOffsets {
  std::int64_t rows = 0, scales = 0, row_bytes = 0, blocks = 0;  // blocks: of a sequence, that have scales
};
struct NarrowedRoom {
  NarrowedOffsets q, k, v;
  std::int64_t bytes = 0;  // behind it is what one launch after the other needs
};
NarrowedRoom narrowed_room(const AttentionSpec& spec, const CallSizes& call);

}  // namespace flashjit

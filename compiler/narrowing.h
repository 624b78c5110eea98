// How a spec with `compute=` is computed: kernels of their own round Q, K and V to 8 bits, Q and K rotated if it says so,
// and one attends to what they leave in the workspace, as it does to tensors of 8 bits that a caller brings.
#pragma once

#include "compiler/launch.h"
#include "compiler/spec/spec.h"

namespace flashjit {

struct Narrowing {
  AttentionSpec q, k, v, attention;
};

Result<Narrowing> narrowing_of(const AttentionSpec& spec);

// Measured: how far O is, relative to its size, from attention to Q, K and V that are not rounded. On normal numbers, and
// with outliers, 10 times a normal number added to one of 1000 elements.
struct NarrowingError {
  double normal = 0, outliers = 0;
};
NarrowingError narrowing_error(const AttentionSpec& spec);
inline constexpr std::string_view kNarrowingMeasured = "d=128, 4096 keys, on a processor";

// The sizes of a call that rounds Q, or K or V: packed tokens are all of one sequence there, unless blocks have scales.
CallSizes rounding_sizes(const AttentionSpec& spec, const CallSizes& call, bool keys);

// Where in the workspace Q, K and V of 8 bits lie, in bytes from its beginning. Rows are padded to 16 bytes.
struct NarrowedPlace {
  std::int64_t rows = 0, scales = 0, row_bytes = 0, blocks = 0;  // blocks: of a sequence, that have scales
};
struct NarrowedRoom {
  NarrowedPlace q, k, v;
  std::int64_t bytes = 0;  // behind it is what one launch after the other needs
};
NarrowedRoom narrowed_room(const AttentionSpec& spec, const CallSizes& call);

}  // namespace flashjit

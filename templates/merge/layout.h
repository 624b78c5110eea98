// Sizes that the merge family derives from a KernelConfig. Host and device share them.
#pragma once

#include "templates/kernel_config.h"

namespace flashjit {

// A thread has a piece of a row: 16 bytes of a part.
constexpr int merge_columns(const KernelConfig& c) { return 16 / size_of(c.element); }
constexpr int merge_pieces(const KernelConfig& c) { return c.head_dim_v / merge_columns(c); }
constexpr int kMergeThreads = 256;

}  // namespace flashjit

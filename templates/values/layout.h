// Sizes of the launch that makes rows of V^T. Host and device share them.
#pragma once

#include "templates/kernel_config.h"

namespace flashjit {

constexpr int kValueRowsThreads = 128;
constexpr int kValueRowsKeys = 64;  // The keys of a block.

// A row takes a multiple of the widest copy of any loop.
constexpr int value_row_bytes(const KernelConfig& c) { return round_up(c.head_dim_v, 16); }

}  // namespace flashjit

// Online softmax in the registers of mma. For each 16-row m-tile, a thread holds two rows (lane / 4 and lane / 4 + 8)
// and two adjacent columns of every 8-column n-tile; the four lanes of a quad share the rows.
#pragma once

#include "templates/row_algebra.cuh"
#include "templates/sync/operands.cuh"

namespace flashjit {

// A row's maximum may rise above its reference by this power of two before O and the sum are rescaled. Softmax does not
// depend on the reference; 2^8 keeps P far below the largest fp16 (2^16), and fp32 sums exact to the usual rounding. P
// of e4m3 is raised, and ends sooner.
constexpr float kRescaleThreshold = kNarrow ? 3.0f : 8.0f;

// The running state of the rows of one warp: `reference` is subtracted in the exponent (in units of the scores, before
// they are scaled to powers of two), and `sum` is this thread's share of the row sum.
template <int m_tiles>
struct SoftmaxRows {
  float reference[m_tiles][2];
  float sum[m_tiles][2];
  float unit[m_tiles][2];  // The units of O, if it has them.

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < m_tiles; ++i) {
      reference[i][0] = reference[i][1] = -kInfinity;
      sum[i][0] = sum[i][1] = unit[i][0] = unit[i][1] = 0;
    }
  }
};

}  // namespace flashjit

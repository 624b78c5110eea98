// Chooses which tile of keys comes next.
#pragma once

#include "templates/sequence.cuh"
#include "variant.gen.cuh"

namespace flashjit {

enum class Walk { up, down };

// Returns the first tile from `tile` on, `step` apart, that lies in no hole of the mask for queries q_lo..q_hi. A
// result behind `end` means that none is left.
template <Walk walk, int keys>
__device__ inline int skip_holes(const KernelParams& params, const Sequence& seq, int q_lo, int q_hi, int tile, int end,
                                 int step = 1) {
  if (config.mask_has_holes) {
    while ((walk == Walk::up ? tile <= end : tile >= end) &&
           !Variant::may_see(params, seq, q_lo, q_hi, tile * keys, tile * keys + keys - 1)) {
      tile += walk == Walk::up ? step : -step;
    }
  }
  return tile;
}

}  // namespace flashjit

// The results that are written of a row: by a block that had all of its keys, a team, or the second launch.
#pragma once

#include "templates/decode/work.cuh"
#include "templates/cache_elements.cuh"
#include "templates/row_algebra.cuh"

namespace flashjit {

constexpr int kPartFloats = part_floats(config), kPartRow = config.head_dim_v;

// The weight of a part with the reference `state` in a whole with `reference`. A part that sees no key weighs 0.
__device__ inline float weight_of(float state, float reference) {
  return state == -kInfinity ? 0.0f : exp2_approx((state - reference) * kLog2Scale);
}

// The weights of a sum so far, and of what it takes in. Operations are rounded as written: results are to have the same bits
// wherever parts are added up.
struct PartWeights {
  float own, others;
  __device__ float sum(float x, float y) const { return __fmaf_rn(y, others, __fmul_rn(x, own)); }
  __device__ float4 sum(const float4& x, const float4& y) const {
    return make_float4(sum(x.x, y.x), sum(x.y, y.y), sum(x.z, y.z), sum(x.w, y.w));
  }
};

// The state of a row after the keys so far: the reference of its scores, in units of the scores; the sum of their
// exponentials; the largest score, if that is an output.
struct RowState {
  float reference, sum, top;

  // Takes in the state of another part of the keys.
  __device__ PartWeights take_in(const RowState& other) {
    const float larger = fmaxf(reference, other.reference);
    const PartWeights weights = {weight_of(reference, larger), weight_of(other.reference, larger)};
    *this = {larger, weights.sum(sum, other.sum), fmaxf(top, other.top)};
    return weights;
  }
};
__device__ inline RowState state_without_keys() { return {-kInfinity, 0, -kInfinity}; }

struct Row {
  int q, h;
};
// A row of the tiles of a KV head.
__device__ inline Row row_at(const Sequence& seq, int row) { return {row / kGroup, seq.hk * kGroup + row % kGroup}; }

// The factor that makes O final; who `writes` stores LSE and maximum as well.
__device__ inline float finish_row(const KernelParams& params, Sequence seq, const Row& row, RowState state,
                                   bool writes) {
  seq.h = row.h;
  float reference = state.reference * kNaturalScale, sum = state.sum;
  const float scale = take_in_sink(params, row.h, reference, sum);
  if (writes) {
    const Int64 at = result_row(params, seq, row.q);
    store_row_results(params, at, reference, sum, state.top);
  }
  return sum == 0.0f ? 0.0f : scale / sum * value_scale_if_any(params, seq);
}

// Four neighbouring columns of O.
__device__ inline void store_columns(const KernelParams& params, const Sequence& seq, const Row& row, int column,
                                     const float4& o) {
  const Int64 at = query_row(params.o_stride, seq, row.h, row.q) + column;
  if constexpr (config.output == Element::f32) {
    *reinterpret_cast<float4*>(static_cast<float*>(params.o) + at) = o;
  } else {
    store_global(static_cast<u16*>(params.o) + at,
                 make_uint2(pack<config.output>(o.x, o.y), pack<config.output>(o.z, o.w)));
  }
}

__device__ inline void add_scaled(float4& sum, const float4& x, float factor) {
  sum.x += x.x * factor;
  sum.y += x.y * factor;
  sum.z += x.z * factor;
  sum.w += x.w * factor;
}
__device__ inline float4 scaled(const float4& x, float factor) {
  return make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
}

// Four columns of a row, with its state.
struct Quad {
  float4 o;
  RowState state;

  __device__ void clear() {
    o = make_float4(0, 0, 0, 0);
    state = state_without_keys();
  }
  // Adds another part of the keys.
  __device__ void add(const Quad& other) { o = state.take_in(other.state).sum(o, other.o); }
};

// Four floats in shared memory.
__device__ inline float4 load_floats(u32 address) {
  const uint4 bits = load_shared(address);
  return make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                     __uint_as_float(bits.w));
}
__device__ inline void store_floats(u32 address, const float4& x) {
  store_shared(address,
               make_uint4(__float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z), __float_as_uint(x.w)));
}

// A part of a row tile's result: O row after row, then the states of the rows.
__device__ inline RowState load_state(const float* part, int row) {
  const float4 state = *reinterpret_cast<const float4*>(part + kTileRows * kPartRow + row * kRowState);
  return {state.x, state.y, state.z};
}
__device__ inline float4 load_columns(const float* part, int row, int column) {
  return *reinterpret_cast<const float4*>(part + row * kPartRow + column);
}
__device__ inline Quad load_quad(const float* part, int row, int column) {
  return {load_columns(part, row, column), load_state(part, row)};
}
__device__ inline void save_quad(float* part, int row, int column, const Quad& quad) {
  *reinterpret_cast<float4*>(part + row * kPartRow + column) = quad.o;
  if (column == 0) {
    *reinterpret_cast<float4*>(part + kTileRows * kPartRow + row * kRowState) =
        make_float4(quad.state.reference, quad.state.sum, quad.state.top, 0.0f);
  }
}

__device__ inline void store_quad(const KernelParams& params, const Sequence& seq, int row, int column, Quad quad) {
  const Row at = row_at(seq, row);
  const float factor = finish_row(params, seq, at, quad.state, column == 0);
  store_columns(params, seq, at, column, scaled(quad.o, factor));
}

}  // namespace flashjit

// Writes the results of a row: for a block that had all of its keys, a team, or the second launch.
#pragma once

#include "templates/decode/work.cuh"
#include "templates/cache_elements.cuh"
#include "templates/row_algebra.cuh"

namespace flashjit {

constexpr int kPartFloats = part_floats(config), kPartRow = config.head_dim_v;

// Returns the weight of a part with the reference `state` in a whole with `reference`. A part that sees no key weighs
// 0.
__device__ inline float weight_of(float state, float reference) {
  return state == -kInfinity ? 0.0f : exp2_approx((state - reference) * kLog2Scale);
}

// The weights of a sum so far, and of what is added to it. Operations are rounded as written, so that results have the
// same bits wherever parts are added up.
struct PartWeights {
  float own, others;
  __device__ float sum(float x, float y) const { return __fmaf_rn(y, others, __fmul_rn(x, own)); }
  __device__ float4 sum(const float4& x, const float4& y) const {
    return make_float4(sum(x.x, y.x), sum(x.y, y.y), sum(x.z, y.z), sum(x.w, y.w));
  }
};

// With accumulate: the LSE that earlier calls left of a row, or -infinity where a state does not know it. All parts of
// a row bring it with them: if the threads that share a row read it later, they could read what one of them has stored.
struct NothingEarlier {};
using Earlier = Either<config.accumulate, float, NothingEarlier>::type;
__device__ inline float known_of(float x, float y) { return x == -kInfinity ? y : x; }
__device__ inline NothingEarlier known_of(NothingEarlier x, NothingEarlier) { return x; }
__device__ inline float float_of(float x) { return x; }
__device__ inline float float_of(NothingEarlier) { return 0.0f; }
template <class T>
__device__ inline T earlier_of(float x) {
  if constexpr (config.accumulate) return x;
  else return {};
}

// The state of a row after the keys so far: the reference of its scores, in units of the scores; the sum of their
// exponentials; the largest score, if that is an output.
struct RowState {
  float reference, sum, top;
  Earlier earlier;

  // Takes in the state of another part of the keys.
  __device__ PartWeights add_part(const RowState& other) {
    const float larger = fmaxf(reference, other.reference);
    const PartWeights weights = {weight_of(reference, larger), weight_of(other.reference, larger)};
    *this = {larger, weights.sum(sum, other.sum), fmaxf(top, other.top), known_of(earlier, other.earlier)};
    return weights;
  }
};
__device__ inline RowState state_without_keys() { return {-kInfinity, 0, -kInfinity, earlier_of<Earlier>(-kInfinity)}; }
// In memory a state is four words.
__device__ inline float4 words_of(const RowState& state) {
  return make_float4(state.reference, state.sum, state.top, float_of(state.earlier));
}
__device__ inline RowState state_of(float4 words) { return {words.x, words.y, words.z, earlier_of<Earlier>(words.w)}; }

struct Row {
  int q, h;
};
// Finds the query and the head of a row of the tiles of a KV head.
__device__ inline Row row_at(const Sequence& seq, int row) { return {row / kGroup, seq.hk * kGroup + row % kGroup}; }

// `own` is the factor that makes O final. With accumulate `before` is the share of the O that is there; below 0, the row keeps
// all of that O.
struct RowEnd {
  float own;
  Earlier before;
};
// The thread that `writes` stores LSE and maximum as well.
__device__ inline RowEnd finish_row(const KernelParams& params, Sequence seq, const Row& row, RowState state,
                                    bool writes) {
  seq.h = row.h;
  float reference = state.reference * kNaturalScale, sum = state.sum;
  const float scale = add_sink(params, row.h, reference, sum);
  if constexpr (config.accumulate) {
    const Continued c = continue_from(float_of(state.earlier), reference, sum);
    if (c.keeps) return {0.0f, earlier_of<Earlier>(-1.0f)};
    if (writes) params.lse[result_row(params, seq, row.q)] = c.lse;
    return {c.own * scale / sum * value_scale_if_any(params, seq), earlier_of<Earlier>(c.before)};
  } else {
    if (writes) {
      const Int64 at = result_row(params, seq, row.q);
      store_row_results(params, at, reference, sum, state.top);
    }
    return {sum == 0.0f ? 0.0f : scale / sum * value_scale_if_any(params, seq)};
  }
}

__device__ inline float4 scaled(const float4& x, float factor) {
  return make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
}

// With accumulate: adds four columns to the O that is there. If `before` is 0, that O may be anything.
__device__ inline void continue_four(float4* to, const float4& own, float before) {
  if (before < 0.0f) return;
  const float4 there = before != 0.0f ? *to : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  *to = make_float4(fmaf(there.x, before, own.x), fmaf(there.y, before, own.y), fmaf(there.z, before, own.z),
                    fmaf(there.w, before, own.w));
}

// Stores four neighbouring columns of O.
__device__ inline void store_columns(const KernelParams& params, const Sequence& seq, const Row& row, int column,
                                     const float4& sum, const RowEnd& end) {
  const Int64 at = query_row(params.o_stride, seq, row.h, row.q) + column;
  const float4 o = scaled(sum, end.own);
  if constexpr (config.accumulate) {
    continue_four(reinterpret_cast<float4*>(static_cast<float*>(params.o) + at), o, float_of(end.before));
  } else if constexpr (config.output == Element::f32) {
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

// Four columns of a row, with its state.
struct Quad {
  float4 o;
  RowState state;

  __device__ void clear() {
    o = make_float4(0, 0, 0, 0);
    state = state_without_keys();
  }
  // Adds another part of the keys.
  __device__ void add(const Quad& other) { o = state.add_part(other.state).sum(o, other.o); }
};

// Loads four floats from shared memory.
__device__ inline float4 load_floats(u32 address) {
  const uint4 bits = load_shared(address);
  return make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                     __uint_as_float(bits.w));
}
__device__ inline void store_floats(u32 address, const float4& x) {
  store_shared(address,
               make_uint4(__float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z), __float_as_uint(x.w)));
}

// These read a part of a row tile's result: O row after row, then the states of the rows.
__device__ inline RowState load_state(const float* part, int row) {
  return state_of(*reinterpret_cast<const float4*>(part + kTileRows * kPartRow + row * kRowState));
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
    *reinterpret_cast<float4*>(part + kTileRows * kPartRow + row * kRowState) = words_of(quad.state);
  }
}

__device__ inline void store_quad(const KernelParams& params, const Sequence& seq, int row, int column, Quad quad) {
  const Row at = row_at(seq, row);
  store_columns(params, seq, at, column, quad.o, finish_row(params, seq, at, quad.state, column == 0));
}

}  // namespace flashjit

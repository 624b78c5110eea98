// What a mask and a score are where the spec has none. variant.gen.cuh derives Variant from this and says what is
// different; loops ask Variant alone.
#pragma once

#include "templates/extra_params.cuh"
#include "templates/scalar_math.cuh"
#include "templates/sequence.cuh"

namespace flashjit {

struct Plain {
  // May query q see key k?
  template <class Key>
  __device__ static bool visible(const KernelParams&, const Sequence&, int, Key) {
    return true;
  }

  // The logit of query q and key k; s is scale * q.k. Numbers are plain ones, or those of templates/symbolic.cuh.
  template <class Math, class Params, class Number, class Key>
  __device__ static auto score(Math, const Params&, const Sequence&, Number s, int, Key) {
    return s;
  }

  // The same with its derivative by s, for backward.
  struct ScoreAndSlope {
    float score, slope;
  };
  __device__ static ScoreAndSlope score_and_slope(const KernelParams&, const Sequence&, float s, int, int) {
    return {s, 1.0f};
  }

  // The tensors that score() reads at every key: visit(Parameter<i>(), x, y) with their indices besides query and key.
  template <class Visit>
  __device__ static void visit_inputs(const KernelParams&, const Sequence&, const Visit&) {}

  // Queries q_lo..q_hi see nothing before this key ...
  __device__ static int kv_begin(const KernelParams&, const Sequence&, int, int) { return 0; }
  // ... and nothing from this one on.
  __device__ static int kv_end(const KernelParams&, const Sequence& seq, int, int) { return seq.k_len; }
  // Keys before this one are not visible to all of q_lo..q_hi ...
  __device__ static int full_begin(const KernelParams&, const Sequence&, int, int) { return 0; }
  // ... and neither are those from this one on.
  __device__ static int full_end(const KernelParams&, const Sequence& seq, int, int) { return seq.k_len; }
  // The same for the queries that see keys k_lo..k_hi, for backward.
  __device__ static int q_begin(const KernelParams&, const Sequence&, int, int) { return 0; }
  __device__ static int q_end(const KernelParams&, const Sequence& seq, int, int) { return seq.q_len; }
  __device__ static int full_q_begin(const KernelParams&, const Sequence&, int, int) { return 0; }
  __device__ static int full_q_end(const KernelParams&, const Sequence& seq, int, int) { return seq.q_len; }
  // False only if no query of q_lo..q_hi sees any key of k_lo..k_hi.
  __device__ static bool may_see(const KernelParams&, const Sequence&, int, int, int, int) { return true; }
};

}  // namespace flashjit

// The mask and the score of a call whose rows are a part of a longer sequence (config.places). They are written in
// positions of the whole sequence, which has lengths of its own; loops pass the rows of the call.
#pragma once

#include "templates/places/places.h"
#include "templates/symbolic.cuh"
#include "templates/variant.cuh"

namespace flashjit {

__device__ inline KeyPosition<int> position_of(const Places& places, const KeyPosition<int>& row) {
  return {places.begin + row.base * places.step, row.distance * places.step};
}

// `Whole` is the generated code, in positions.
template <class Whole>
struct Placed : Whole {
  template <class Params>
  __device__ static Sequence whole(const Params& params, const Sequence& seq) {
    Sequence all = seq;
    all.q_len = params.q_places.total, all.k_len = params.k_places.total;
    return all;
  }
  template <class Row>
  __device__ static auto query(const KernelParams& params, Row q) {
    return position_of(params.q_places, q);
  }
  template <class Row>
  __device__ static auto key(const KernelParams& params, Row k) {
    return position_of(params.k_places, k);
  }

  template <class Key>
  __device__ static bool visible(const KernelParams& params, const Sequence& seq, int q, Key k) {
    return Whole::visible(params, whole(params, seq), query(params, q), key(params, k));
  }
  template <class Math, class Number, class Key>
  __device__ static auto score(Math math, const KernelParams& params, const Sequence& seq, Number s, int q, Key k) {
    return Whole::score(math, params, whole(params, seq), s, query(params, q), key(params, k));
  }
  __device__ static auto score_and_slope(const KernelParams& params, const Sequence& seq, float s, int q, int k) {
    return Whole::score_and_slope(params, whole(params, seq), s, query(params, q), key(params, k));
  }

  __device__ static int kv_begin(const KernelParams& params, const Sequence& seq, int q_lo, int q_hi) {
    return first_key(params, seq,
                     Whole::kv_begin(params, whole(params, seq), query(params, q_lo), query(params, q_hi)));
  }
  __device__ static int kv_end(const KernelParams& params, const Sequence& seq, int q_lo, int q_hi) {
    return first_key(params, seq, Whole::kv_end(params, whole(params, seq), query(params, q_lo), query(params, q_hi)));
  }
  __device__ static int full_begin(const KernelParams& params, const Sequence& seq, int q_lo, int q_hi) {
    return first_key(params, seq,
                     Whole::full_begin(params, whole(params, seq), query(params, q_lo), query(params, q_hi)));
  }
  __device__ static int full_end(const KernelParams& params, const Sequence& seq, int q_lo, int q_hi) {
    return first_key(params, seq,
                     Whole::full_end(params, whole(params, seq), query(params, q_lo), query(params, q_hi)));
  }
  __device__ static int q_begin(const KernelParams& params, const Sequence& seq, int k_lo, int k_hi) {
    return first_query(params, seq, Whole::q_begin(params, whole(params, seq), key(params, k_lo), key(params, k_hi)));
  }
  __device__ static int q_end(const KernelParams& params, const Sequence& seq, int k_lo, int k_hi) {
    return first_query(params, seq, Whole::q_end(params, whole(params, seq), key(params, k_lo), key(params, k_hi)));
  }
  __device__ static int full_q_begin(const KernelParams& params, const Sequence& seq, int k_lo, int k_hi) {
    return first_query(params, seq,
                       Whole::full_q_begin(params, whole(params, seq), key(params, k_lo), key(params, k_hi)));
  }
  // Behind the last query S is 0, and a score of it may be no number. Then the last tile is one with mask code.
  __device__ static int full_q_end(const KernelParams& params, const Sequence& seq, int k_lo, int k_hi) {
    const int end =
        first_query(params, seq, Whole::full_q_end(params, whole(params, seq), key(params, k_lo), key(params, k_hi)));
    return config.has_score ? min(end, seq.q_len - 1) : end;
  }
  __device__ static bool may_see(const KernelParams& params, const Sequence& seq, int q_lo, int q_hi, int k_lo,
                                 int k_hi) {
    return Whole::may_see(params, whole(params, seq), query(params, q_lo), query(params, q_hi), key(params, k_lo),
                          key(params, k_hi));
  }

 private:
  __device__ static int first_key(const KernelParams& params, const Sequence& seq, int position) {
    return first_row_from(params.k_places, position, seq.k_len);
  }
  __device__ static int first_query(const KernelParams& params, const Sequence& seq, int position) {
    return first_row_from(params.q_places, position, seq.q_len);
  }
};

}  // namespace flashjit

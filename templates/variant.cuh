// The mask and the score of a spec that has none. variant.gen.cuh derives Variant from this and defines what is
// different. Loops call only Variant.
#pragma once

#include "templates/extra_params.cuh"
#include "templates/scalar_math.cuh"
#include "templates/sequence.cuh"

namespace flashjit {

struct Plain {
  // Returns whether query q may see key k.
  template <class Key>
  __device__ static bool visible(const KernelParams&, const Sequence&, int, Key) {
    return true;
  }

  // visible() for a loop over many queries and keys, which has loaded beforehand what the mask reads at each of them.
  static constexpr int kQueryReads = 0, kKeyReads = 0;
  // True if the mask also reads values at pairs of a query and a key.
  static constexpr bool kReadsAtPairs = false;
  struct QueryReads {
    int of[1];
  };
  struct KeyReads {
    int of[1];
  };
  __device__ static QueryReads read_at_query(const KernelParams&, const Sequence&, int) { return {}; }
  __device__ static KeyReads read_at_key(const KernelParams&, const Sequence&, int) { return {}; }
  template <class OfQuery, class OfKey>
  __device__ static bool visible_with(const KernelParams&, const Sequence&, const OfQuery&, const OfKey&, int, int) {
    return true;
  }
  // True if the mask combines a condition on these reads, wherever query and key are, with a range: the keys that the
  // first and last of these queries see, or the queries that see these keys.
  static constexpr bool kReadsAndRange = false;
  template <class OfQuery, class OfKey>
  __device__ static bool sees_by_reads(const KernelParams&, const Sequence&, const OfQuery&, const OfKey&) {
    return true;
  }
  __device__ static int range_begin(const KernelParams&, const Sequence&, int, int) { return 0; }
  __device__ static int range_end(const KernelParams&, const Sequence&, int, int) { return 0x7fffffff; }

  // Returns the logit of query q and key k; s is scale * q.k. Numbers are plain ones, or those of
  // templates/symbolic.cuh.
  template <class Math, class Params, class Number, class Key>
  __device__ static auto score(Math, const Params&, const Sequence&, Number s, int, Key) {
    return s;
  }

  // Returns the logit with its derivative by s, for backward.
  struct ScoreAndSlope {
    float score, slope;
  };
  template <class Params>
  __device__ static ScoreAndSlope score_and_slope(const Params&, const Sequence&, float s, int, int) {
    return {s, 1.0f};
  }
  // True if the score or a derivative reads tensors that no producer brings, at indices that depend on query or key.
  // Behind the ends of queries and keys these tensors may have no element.
  static constexpr bool kLoadsByPosition = false;

  // kReads is how often the score reads parameters whose gradients are wanted. Each read has the number of the
  // gradient, the way in which it is summed up, and the place of its element. Reads that are summed by head have
  // numbers of their own. has_own_heads() returns whether heads have elements of their own.
  static constexpr int kReads = 0, kHeadReads = 0;
  static constexpr int gradient_of(int) { return 0; }
  static constexpr GradientSum gradient_sum(int) { return GradientSum::own; }
  static constexpr int head_number(int) { return 0; }
  static constexpr bool has_own_heads(int) { return false; }
  template <class Read>
  __device__ static Int64 element(Read, const KernelParams&, const Sequence&, int, int) {
    return 0;
  }
  // True if the element is read where the score is, from a tile that the producer has copied: the gradient goes to
  // memory in tiles as well.
  static constexpr bool in_tiles(int) { return false; }
  // True if each score has an element to itself, whose indices are the plain numbers of query and key.
  static constexpr bool covers_all(int) { return false; }
  // For kept tiles of a gradient: whether sequences have elements of their own, and how many neighbouring heads share
  // theirs.
  static constexpr bool has_own_batches(int) { return false; }
  static constexpr int heads_that_share(int) { return 1; }
  // Prefetches what is loaded for query q and key k.
  __device__ static void prefetch(const KernelParams&, const Sequence&, int, int) {}
  // Returns the logit of query q and key k, and its derivatives by s and by what it reads there.
  struct Derivatives {
    float score, slope, by_read[1];
  };
  __device__ static Derivatives score_and_derivatives(const KernelParams&, const Sequence&, float s, int, int) {
    return {s, 1.0f, {0.0f}};
  }

  // Visits the tensors that score() reads at every key: visit(Parameter<i>(), x, y) gets their indices besides query
  // and key.
  template <class Visit>
  __device__ static void visit_inputs(const KernelParams&, const Sequence&, const Visit&) {}
  // Returns where the element of such a tensor is, for backward.
  template <class Input>
  __device__ static Int64 input_element(Input, const KernelParams&, const Sequence&, int, int) {
    return 0;
  }

  // Queries q_lo..q_hi see no key before this one ...
  __device__ static int kv_begin(const KernelParams&, const Sequence&, int, int) { return 0; }
  // ... and no key from this one on.
  __device__ static int kv_end(const KernelParams&, const Sequence& seq, int, int) { return seq.k_len; }
  // Keys before this one are not visible to all of q_lo..q_hi ...
  __device__ static int full_begin(const KernelParams&, const Sequence&, int, int) { return 0; }
  // ... and neither are keys from this one on.
  __device__ static int full_end(const KernelParams&, const Sequence& seq, int, int) { return seq.k_len; }
  // These return such limits of the queries that see keys k_lo..k_hi, for backward.
  __device__ static int q_begin(const KernelParams&, const Sequence&, int, int) { return 0; }
  __device__ static int q_end(const KernelParams&, const Sequence& seq, int, int) { return seq.q_len; }
  __device__ static int full_q_begin(const KernelParams&, const Sequence&, int, int) { return 0; }
  __device__ static int full_q_end(const KernelParams&, const Sequence& seq, int, int) { return seq.q_len; }
  // Returns false only if no query of q_lo..q_hi sees any key of k_lo..k_hi.
  __device__ static bool may_see(const KernelParams&, const Sequence&, int, int, int, int) { return true; }
};

}  // namespace flashjit

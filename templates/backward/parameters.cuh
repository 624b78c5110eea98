// Gradients of parameters of the score, and of the sink. Both families of backward keep scores in the same way, a thread
// with some keys, eight rows apart, and two neighbouring queries of every eight, and give what they have here:
//   own, pairs    each score to memory at once: stored, or added where others may add as well
//   queries       a sum over the keys of a warp, added to memory
//   runs          a sum for each key as long as the element stays the same, then added to memory
//   keys          a sum for each key over all queries of a head, added to memory
//   heads         a sum over all scores of a head, to the workspace: sum_gradients() adds those up, in a fixed order
// (Of what a producer has copied, hopper_backward writes own and pairs in tiles: gradient_tiles.cuh.)
#pragma once

#include "templates/row_algebra.cuh"
#include "templates/sequence.cuh"
#include "variant.gen.cuh"

namespace flashjit {

constexpr int kReads = Variant::kReads;

template <int read = 0, class Visit>
__device__ inline void each_read(const Visit& visit) {
  if constexpr (read < kReads) {
    visit(Parameter<read>());
    each_read<read + 1>(visit);
  }
}

__device__ inline void add_to_memory(float* to, float value) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}

// Returns where the gradient of the element that is read there lies.
template <int read>
__device__ inline float* element_of_gradient(const KernelParams& params, const Sequence& seq, int q, int k) {
  return params.d_extra[Variant::gradient_of(read)].data + Variant::element(Parameter<read>(), params, seq, q, k);
}

// ---- before: zeros ----

// Returns whether other launches write all of a gradient: the main loop, if it writes zeros in tiles that are not
// visited, too, or, where dS is `kept`, a last launch. They do so if the gradient has only elements of existing queries
// and keys.
template <int gradient, bool loop_writes>
__device__ inline bool is_written_whole(const KernelParams& params, bool kept) {
  Int64 planes = 0;  // Each has an element for all queries and keys.
  each_read([&](auto number) {
    constexpr int read = decltype(number)::value;
    if constexpr (Variant::gradient_of(read) == gradient) {
      if (loop_writes && Variant::covers_all(read)) planes = static_cast<Int64>(params.batch) * config.heads_q;
      if (kept && Variant::in_tiles(read))
        planes = static_cast<Int64>(Variant::has_own_batches(read) ? params.batch : 1) *
                 (config.heads_q / Variant::heads_that_share(read));
    }
  });
  const ParamGradient& g = params.d_extra[gradient];
  return planes > 0 && g.size[0] * g.size[1] * g.size[2] * g.size[3] == planes * params.q_len * params.k_len;
}

// All blocks of a launch, each of `threads` threads, run this. A warp has 1024 elements of a row at a time. With
// `loop_writes`, the loop writes zeros in tiles that are not visited.
template <int threads, bool loop_writes>
__device__ inline void zero_gradients(const KernelParams& params, bool kept = false) {
  constexpr int kPiece = 1024;
  const Int64 warp = (static_cast<Int64>(blockIdx.x) * threads + threadIdx.x) / 32,
              warps = static_cast<Int64>(gridDim.x) * threads / 32;
#pragma unroll 1
  for (int i = 0; i < config.gradients; ++i) {
    if (i == 0   ? is_written_whole<0, loop_writes>(params, kept)
        : i == 1 ? is_written_whole<1, loop_writes>(params, kept)
        : i == 2 ? is_written_whole<2, loop_writes>(params, kept)
                 : is_written_whole<3, loop_writes>(params, kept))
      continue;
    const ParamGradient& g = params.d_extra[i];
    const Int64 pieces = (g.size[3] + kPiece - 1) / kPiece, all = g.size[0] * g.size[1] * g.size[2] * pieces;
#pragma unroll 1
    for (Int64 piece = warp; piece < all; piece += warps) {
      const Int64 row = piece / pieces, plane = row / g.size[2], first = piece % pieces * kPiece;
      float* to =
          g.data + plane / g.size[1] * g.stride[0] + plane % g.size[1] * g.stride[1] + row % g.size[2] * g.stride[2];
      const Int64 end = first + kPiece < g.size[3] ? first + kPiece : g.size[3];
      if (end - first == kPiece && g.stride[3] == 1 && reinterpret_cast<Int64>(to) % 16 == 0) {
#pragma unroll
        for (int at = 0; at < kPiece; at += 128)
          reinterpret_cast<float4*>(to + first + at)[threadIdx.x % 32] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        continue;
      }
      for (Int64 at = first + threadIdx.x % 32; at < end; at += 32) to[at * g.stride[3]] = 0.0f;
    }
  }
}

// ---- in the loop ----

// Sums of heads in the workspace: [read, head, sequence, tile of keys, warp], for reads that have such sums.
struct HeadSums {
  float* data;
  int tiles, warps;
  __device__ Int64 of_head() const { return static_cast<Int64>(tiles) * warps; }
  __device__ Int64 count(const KernelParams& params) const {
    return Variant::kHeadReads * config.heads_q * static_cast<Int64>(params.batch) * of_head();
  }
  __device__ float* at(const KernelParams& params, int read, int head, int b) const {
    return data +
           ((static_cast<Int64>(Variant::head_number(read)) * config.heads_q + head) * params.batch + b) * of_head();
  }
};

// All blocks of the first launch run this, because not every tile is visited.
template <int threads>
__device__ inline void zero_head_sums(const KernelParams& params, const HeadSums& sums) {
  const Int64 count = sums.count(params);
  for (Int64 i = static_cast<Int64>(blockIdx.x) * threads + threadIdx.x; i < count;
       i += static_cast<Int64>(gridDim.x) * threads)
    sums.data[i] = 0.0f;
}

// Sums of a thread that has `keys` keys, over the tiles of a head.
template <int keys>
struct ParameterSums {
  // A sum for each key; with queries, for either query; with heads, only the first one.
  float sums[kReads > 0 ? kReads : 1][keys] = {};
  Int64 elements[kReads > 0 ? kReads : 1][keys] = {};  // With runs: the elements to which the sums belong.

  // Adds the share of a score. Two queries follow each other with key after key. `by_logit` is the gradient of the
  // logit.
  template <class Derivatives>
  __device__ void add(const KernelParams& params, const Sequence& seq, int q, int k, int key, int query, float by_logit,
                      const Derivatives& derivatives) {
    const bool exists = q < seq.q_len && k < seq.k_len;
    each_read([&](auto number) {
      constexpr int read = decltype(number)::value;
      constexpr GradientSum how = Variant::gradient_sum(read);
      if constexpr (Variant::in_tiles(read)) return;
      // 0 times an infinite derivative is 0, and counts for nothing.
      const float value = by_logit == 0.0f ? 0.0f : by_logit * derivatives.by_read[read];
      if constexpr (how == GradientSum::own) {
        if (exists) *element_of_gradient<read>(params, seq, q, k) = value;
      } else if constexpr (how == GradientSum::pairs) {
        if (exists && value != 0.0f) add_to_memory(element_of_gradient<read>(params, seq, q, k), value);
      } else if constexpr (how == GradientSum::queries) {
        sums[read][query] = key == 0 ? value : sums[read][query] + value;
        if (key == keys - 1) add_query<read>(params, seq, q, sums[read][query]);
      } else if constexpr (how == GradientSum::runs) {
        if (exists && value != 0.0f) add_run<read>(params, seq, q, k, key, value);
      } else {
        sums[read][how == GradientSum::keys ? key : 0] += value;
      }
    });
  }

  // Ends a head; `k` is the thread's first key.
  __device__ void end_head(const KernelParams& params, const Sequence& seq, int k, const HeadSums& of_heads, int tile,
                           int warp) {
    const int lane = threadIdx.x % 32;
    each_read([&](auto number) {
      constexpr int read = decltype(number)::value;
      constexpr GradientSum how = Variant::gradient_sum(read);
      if constexpr (how == GradientSum::heads) {
        float sum = sums[read][0];
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
        if (lane == 0) of_heads.at(params, read, seq.h, seq.b)[tile * of_heads.warps + warp] = sum;
        sums[read][0] = 0;
      } else if constexpr (how == GradientSum::keys || how == GradientSum::runs) {
#pragma unroll
        for (int key = 0; key < keys; ++key) {
          if constexpr (how == GradientSum::keys) {
            const float sum = quad_sum(sums[read][key]);
            if (lane % 4 == 0 && k + key * 8 < seq.k_len)
              add_to_memory(element_of_gradient<read>(params, seq, 0, k + key * 8), sum);
          } else {
            add_last_run<read>(params, key);
          }
          sums[read][key] = 0;
        }
      }
    });
  }

 private:
  // Adds up over the keys of the warp: lanes with the same remainder by 4 have the query.
  template <int read>
  __device__ static void add_query(const KernelParams& params, const Sequence& seq, int q, float sum) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    if (threadIdx.x % 32 < 4 && q < seq.q_len) add_to_memory(element_of_gradient<read>(params, seq, q, 0), sum);
  }

  template <int read>
  __device__ void add_run(const KernelParams& params, const Sequence& seq, int q, int k, int key, float value) {
    const Int64 element = Variant::element(Parameter<read>(), params, seq, q, k);
    if (element != elements[read][key]) {
      if (sums[read][key] != 0.0f) add_element<read>(params, key);
      elements[read][key] = element;
      sums[read][key] = 0;
    }
    sums[read][key] += value;
  }
  template <int read>
  __device__ void add_element(const KernelParams& params, int key) {
    add_to_memory(params.d_extra[Variant::gradient_of(read)].data + elements[read][key], sums[read][key]);
  }
  // Far from the diagonal all lanes have the same element.
  template <int read>
  __device__ void add_last_run(const KernelParams& params, int key) {
    const Int64 element = elements[read][key];
    if (!__all_sync(0xffffffff, element == __shfl_sync(0xffffffff, element, 0))) {
      if (sums[read][key] != 0.0f) add_element<read>(params, key);
      return;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sums[read][key] += __shfl_xor_sync(0xffffffff, sums[read][key], step);
    if (threadIdx.x % 32 == 0 && sums[read][key] != 0.0f) add_element<read>(params, key);
  }
};

// ---- after ----

constexpr int kSumThreads = 256;

// Returns the sum of a block, which is the same in every run.
__device__ inline float sum_of_block(float x) {
  __shared__ float of_warps[kSumThreads / 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffff, x, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kSumThreads / 32; ++warp) sum += of_warps[warp];
  return sum;
}

// Queries of all sequences follow each other. These return their number, and the number of those before a sequence.
__device__ inline Int64 all_queries(const KernelParams& p) {
  return kRows == Rows::packed ? p.offsets_q[p.batch] : static_cast<Int64>(p.batch) * p.q_len;
}
__device__ inline Int64 queries_before(const KernelParams& p, const Sequence& seq) {
  return kRows == Rows::packed ? seq.q_token : static_cast<Int64>(sequence_number(p, seq)) * p.q_len;
}

// Returns the share of a query in the gradient of its sink; rows are [head, query]. The share is P of the sink times
// its dP less the D that is subtracted from dP; dP is 0, because the sink has no V.
__device__ inline float sink_share(const KernelParams& params, const Sequence& seq, float lse, float d) {
  return lse == -kInfinity ? 0.0f : -exp2_approx((params.sink[seq.h] - lse) * kLog2e) * d;
}

__device__ inline void sum_sink(const KernelParams& params, int head, const float* sink_rows) {
  const Int64 end = all_queries(params), first = kRows == Rows::packed ? params.offsets_q[0] : 0;
  float sum = 0;
  for (Int64 i = first + threadIdx.x; i < end; i += kSumThreads) sum += sink_rows[head * end + i];
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) params.d_sink[head] = sum;
}

// Adds sums of heads to their elements: heads first..last go one after the other, and heads of one element together.
template <int read>
__device__ inline void sum_heads(const KernelParams& params, int first, int last, const HeadSums& of_heads) {
  float* element = nullptr;
  float sum = 0;
  const auto store = [&] {
    const float all = sum_of_block(sum);
    if (threadIdx.x == 0 && element) *element += all;
    sum = 0;
  };
#pragma unroll 1
  for (int head = first; head <= last; ++head) {
#pragma unroll 1
    for (int b = 0; b < params.batch; ++b) {
      const Sequence seq = sequence_of(params, b, head);
      if (seq.q_len <= 0 || seq.k_len <= 0) continue;
      float* here = element_of_gradient<read>(params, seq, 0, 0);
      if (here != element) store();
      element = here;
      const float* from = of_heads.at(params, read, head, b);
      for (Int64 i = threadIdx.x; i < of_heads.of_head(); i += kSumThreads) sum += from[i];
    }
  }
  store();
}

// There is at least a block for each head; the first one has what heads share.
__device__ inline void sum_gradients(const KernelParams& params, const float* sink_rows, const HeadSums& of_heads) {
  const int head = blockIdx.x;
  if (head >= config.heads_q) return;
  if constexpr (config.sink_gradient) sum_sink(params, head, sink_rows);
  each_read([&](auto number) {
    constexpr int read = decltype(number)::value;
    if constexpr (Variant::gradient_sum(read) == GradientSum::heads) {
      if constexpr (Variant::has_own_heads(read)) sum_heads<read>(params, head, head, of_heads);
      else if (head == 0) sum_heads<read>(params, 0, config.heads_q - 1, of_heads);
    }
  });
}

}  // namespace flashjit

// Products to logits, on the fragments of a warpgroup product. A thread holds two rows (lane / 4 and lane / 4 + 8 of its warp's 16)
// and two adjacent columns of every eight; register 4j + 2h + c is row h, column 8j + 2 (lane % 4) + c. The four lanes of a quad
// share the rows.
#pragma once

#include "templates/hopper_work.cuh"
#include "templates/scalar_math.cuh"

namespace flashjit {

constexpr int kScores = kTileKv / 2;  // registers of S
constexpr int kOutputs = output_columns(config) / 2;
using Scores = float[kScores];
using Output = float[kOutputs];

// Without a score function the scale of the scores is folded into the exponent; with one, logits are computed in the pass that
// exponentiates them if no maximum is taken before.
constexpr bool kScaleFolded = !config.has_score && config.scale > 0;
constexpr bool kLogitsInPass = !kScaleFolded && config.reference == Reference::first;

__device__ inline u32 lane_id() { return threadIdx.x % 32; }
// Of the consumers. Derived again wherever it is needed: registers are what these kernels are short of.
__device__ inline u32 warpgroup_id() { return recompute(threadIdx.x) / kThreadsPerWarpgroup - 1; }

// What all lanes of a warp have read from the same place is the same in all; told so, the compiler branches without preparing for
// a warp that parts.
__device__ inline int uniform(int value) { return __shfl_sync(0xffffffff, value, 0); }
__device__ inline Tiles uniform_tiles(const WorkState& work) {
  const Tiles tiles = work.tiles;
  return {uniform(tiles.first), uniform(tiles.last), uniform(tiles.full_first), uniform(tiles.full_last)};
}

// The row of the tile that this thread's row h is.
__device__ inline int tile_row(u32 thread, int h) {
  return static_cast<int>(thread / 32 * 16 - kThreadsPerWarpgroup / 2 + thread % 32 / 4) + h * 8;
}

// A row of the tile as a query of a head: with packed heads neighbouring rows are the heads of one query.
struct Row {
  int q, h;
};
__device__ inline Row row_of(const WorkState& work, int row) { return {work.q_lo + row / kGroup, work.seq.h + row % kGroup}; }

// What the score function is told of this thread's row h. Queries behind the last are taken for the last one.
struct Query {
  Sequence seq;
  int q;
};
__device__ inline Query query_of(const WorkState& work, u32 thread, int h) {
  const Row row = row_of(work, tile_row(thread, h));
  Query query = {work.seq, min(row.q, work.seq.q_len - 1)};
  query.seq.h = row.h;
  return query;
}

__device__ inline int first_key(u32 thread, int tile) { return tile * kTileKv + static_cast<int>(thread % 4) * 2; }

// ---- tensors that the score function reads at every key, such as a bias [head, query, key] ----
//
// A thread's scores are pairs of neighbouring keys, first those of row 0. The elements for the first pairs are fetched into registers
// before their scores are there, and after each four pairs that are done those for later ones. A lane fetches 16 bytes at a time, which
// are eight 16-bit elements: the four pairs of one eight of columns, for all lanes of its quad. They exchange them when they
// arrive: four times fewer requests than for pairs, and no sector of the cache is asked for twice.

constexpr bool kHasInputs = input_pairs(config) > 0;
constexpr int kPairsAhead = input_pairs(config);
constexpr int kRowPairs = kTileKv / 8, kPairs = 2 * kRowPairs;

// Of a pair's words, the first of parameter i.
__device__ constexpr int word_of(int i) {
  const int before = (1 << i) - 1;
  return bit_count(config.inputs_16 & before) + 2 * bit_count(config.inputs_32 & before);
}

// The four pairs of this lane in columns k, k + 8, k + 16, k + 24 of a row; of 16-bit elements, all pairs of the lane's quad in columns
// k + 8 * (lane % 4). `words` are those of the first pair, `step` apart.
__device__ inline void fetch_pairs(const u16* row, int k, u32* words, int step) {
  const uint4 eight = __ldg(reinterpret_cast<const uint4*>(row + k + lane_id() % 4 * 8));
  words[0] = eight.x;
  words[step] = eight.y;
  words[2 * step] = eight.z;
  words[3 * step] = eight.w;
}
__device__ inline void fetch_pairs(const u32* row, int k, u32* words, int step) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint2 pair = __ldg(reinterpret_cast<const uint2*>(row + k + 8 * i + lane_id() % 4 * 2));
    words[i * step] = pair.x;
    words[i * step + 1] = pair.y;
  }
}

// Word i of lane l of a quad becomes word l of lane i.
__device__ inline void transpose_quad(u32& a, u32& b, u32& c, u32& d) {
  const auto exchange = [](u32& low, u32& high, u32 distance) {
    const bool upper = lane_id() & distance;
    const u32 received = __shfl_xor_sync(0xffffffff, upper ? low : high, distance);
    low = upper ? received : low;
    high = upper ? high : received;
  };
  exchange(a, b, 1);
  exchange(c, d, 1);
  exchange(a, c, 2);
  exchange(b, d, 2);
}

// A tile and this thread's place in it.
struct Tile {
  const KernelParams& params;
  const WorkState& work;
  int index;
  Query queries[2];
  int k_lo;
  bool fetches;  // inputs, because all pairs of elements are words in memory
  u32 words[kHasInputs ? kPairsAhead * pair_words(config) : 1];  // of the pairs ahead

  __device__ void begin() {
    const u32 thread = recompute(threadIdx.x);
    queries[0] = query_of(work, thread, 0);
    queries[1] = query_of(work, thread, 1);
    k_lo = first_key(thread, index);
    if constexpr (kHasInputs) fetch_first(queries);
  }

  template <class Queries>
  __device__ void fetch_first(const Queries& rows) {
    bool pairs = (index + 1) * kTileKv <= rows[0].seq.k_len;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      visit_inputs(params, rows[h].seq, rows[h].q, [&](int, auto row) {
        constexpr int kAligned = sizeof(*row.first) == 2 ? 16 : 8;
        pairs &= row.stride == 1 && reinterpret_cast<u64>(row.first) % kAligned == 0;
      });
    }
    fetches = __all_sync(0xffffffff, pairs);
    if (!fetches) return;
#pragma unroll
    for (int pair = 0; pair < kPairsAhead; pair += 4) fetch(rows, pair);
    prefetch(rows);
  }

  // Four pairs from this one on.
  template <class Queries>
  __device__ void fetch(const Queries& rows, int pair) {
    const auto& [seq, q] = rows[pair / kRowPairs];
    visit_inputs(params, seq, q, [&](int i, auto row) {
      fetch_pairs(row.first, index * kTileKv + pair % kRowPairs * 8, words_of(pair) + word_of(i), pair_words(config));
    });
  }
  // The elements of the tile that comes next, to L2: the lanes of a quad take a quarter of its rows each.
  template <class Queries>
  __device__ void prefetch(const Queries& rows) {
    if (index == 0) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      visit_inputs(params, rows[h].seq, rows[h].q, [&](int, auto row) {
        prefetch_l2(row.first + (index - 1) * kTileKv + lane_id() % 4 * (kTileKv / 4));
      });
    }
  }
  // Those of four pairs to the lanes that they are for.
  __device__ void arrive(int pair) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (!(config.inputs_16 >> i & 1)) continue;
      const auto word = [&](int j) -> u32& { return words_of(pair + j)[word_of(i)]; };
      transpose_quad(word(0), word(1), word(2), word(3));
    }
  }

  __device__ u32* words_of(int pair) { return words + pair % (kHasInputs ? kPairsAhead : 1) * pair_words(config); }
};

// The parameters for one score: those elements that have been fetched are found there.
struct FetchedParams {
  const KernelParams& params;
  const u32* words;  // of its pair
  int second;        // 1 for the second of the pair
  __device__ operator const KernelParams&() const { return params; }
};
template <class T, class... Index>
__device__ inline T element(const FetchedParams& from, int i, Index... index) {
  if constexpr (sizeof(T) == 2) {
    if (config.inputs_16 >> i & 1) return static_cast<T>(from.words[word_of(i)] >> 16 * from.second);
  } else if constexpr (sizeof(T) == 4) {
    if (config.inputs_32 >> i & 1) return reinterpret_cast<const T&>(from.words[word_of(i) + from.second]);
  }
  return element<T>(from.params, i, index...);
}

// ---- logits ----

// Visits the logits of a tile that lies within its sequence and whose inputs are fetched, as symbolic numbers, each with its register.
template <class Math, class Visit>
__device__ inline void for_each_logit(const Scores& s, Tile& tile, Math math, const Visit& visit) {
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    const int h = pair / kRowPairs, j = pair % kRowPairs;
    if constexpr (kHasInputs) {
      if (pair % 4 == 0) tile.arrive(pair);
    }
    const auto& [seq, q] = tile.queries[h];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int i = 4 * j + 2 * h + c;
      const Scaled product = {s[i], config.scale};
      const KeyPosition<int> k = {tile.k_lo, 8 * j + c};
      if constexpr (kHasInputs) {
        visit(i, score(math, FetchedParams{tile.params, tile.words_of(pair), c}, seq, product, q, k));
      } else {
        visit(i, score(math, tile.params, seq, product, q, k));
      }
    }
    if constexpr (kHasInputs) {
      if (pair % 4 == 3 && pair - 3 + kPairsAhead < kPairs) tile.fetch(tile.queries, pair - 3 + kPairsAhead);
    }
  }
}

// Are all arguments of tanh small, in all lanes of the warp?
__device__ inline bool small_arguments(const Scores& s, Tile& tile) {
  Probe::Largest largest;
  const Probe probe = {largest};
  for_each_logit(s, tile, probe, [](int, auto) {});
  return __all_sync(0xffffffff, probe.small());
}

// The logits of any tile, read from memory. Keys at or behind k_len are taken for the last key: the score function may load from a
// tensor that ends there. Parts of a row that lie behind it are left out; and without a branch somewhere the compiler would load for
// all scores before it computes the first.
template <bool clamps>
__device__ inline void compute_logits(Scores& s, const Tile& tile) {
  constexpr int kPart = 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const auto& [seq, q] = tile.queries[h];
#pragma unroll
    for (int first = 0; first < kRowPairs; first += kPart) {
      if (config.has_score && tile.index * kTileKv + 8 * first >= uniform(seq.k_len)) break;
#pragma unroll
      for (int j = first; j < kRowPairs && j < first + kPart; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = s[4 * j + 2 * h + c];
          const KeyPosition<int> k = {tile.k_lo, 8 * j + c};
          x *= config.scale;
          if constexpr (config.has_score && clamps) {
            x = score(FullRange(), tile.params, seq, x, q, min(static_cast<int>(k), seq.k_len - 1));
          } else if constexpr (config.has_score) {
            x = score(FullRange(), tile.params, seq, x, q, k);
          }
        }
    }
  }
}

// The score function, then -infinity where a key is not visible.
__device__ inline void apply_score_and_mask(Scores& s, const KernelParams& params, const WorkState& work, int index) {
  if constexpr (!kScaleFolded) {
    Tile tile = {params, work, index};
    tile.begin();
    if (kHasInputs && tile.fetches) {
      for_each_logit(s, tile, FullRange(), [&](int i, float logit) { s[i] = logit; });
    } else {
      compute_logits<config.score_loads>(s, tile);
    }
  }
  const u32 thread = recompute(threadIdx.x);
  const int k_lo = first_key(thread, index);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const auto [seq, q] = query_of(work, thread, h);
    if (!is_mixed(uniform_tiles(work), index)) continue;
#pragma unroll
    for (int j = 0; j < kRowPairs; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const KeyPosition<int> k = {k_lo, 8 * j + c};
        if (k >= seq.k_len || (config.has_mask && !visible(params, seq, q, k))) s[4 * j + 2 * h + c] = -kInfinity;
      }
  }
}

}  // namespace flashjit

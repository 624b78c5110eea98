// Products to logits, in the registers of a warpgroup product. A thread holds two rows (lane / 4 and lane / 4 + 8 of
// its warp's 16) and two adjacent columns of every eight; register 4j + 2h + c is row h, column 8j + 2 (lane % 4) + c.
// The four lanes of a quad share the rows.
#pragma once

#include "templates/hopper/inputs.cuh"
#include "templates/hopper/work.cuh"
#include "templates/hopper/mask_votes.cuh"
#include "templates/score_and_mask.cuh"
#include "templates/row_algebra.cuh"
#include "templates/scalar_math.cuh"
#include "templates/scales.cuh"

namespace flashjit {

constexpr int kScores = kTileKv / 2;  // The registers of S.
constexpr int kOutputs = output_columns(config) / 2;
constexpr bool kAddsTiles = adds_tiles(config);
// They belong to P V.
constexpr int kProductPieces = product_pieces(config), kProductColumns = product_columns(config);
using Scores = float[kScores];
using Output = float[kOutputs];
constexpr int kTilesOfP = kTileKv / step_columns(config.element);
// Words hold two elements, or four of 8 bits, in the order of operand A.
using Probabilities = u32[kTilesOfP][4];

// Logits that are not mere products are computed in the pass that exponentiates them, if no maximum is taken before.
constexpr bool kLogitsInPass = !kScaleFolded && config.reference == Reference::first;

__device__ inline u32 lane_id() { return threadIdx.x % 32; }
// The number of a consumer warpgroup. It is derived wherever it is needed, as these kernels are short of registers.
__device__ inline u32 warpgroup_id() { return recompute(threadIdx.x) / kThreadsPerWarpgroup - 1; }

// Returns true in all threads of a warpgroup if any of them votes for it.
__device__ inline bool any_of_warpgroup(bool vote) {
  u32 result;
  asm volatile(
      "{\n .reg .pred in, out;\n setp.ne.u32 in, %1, 0;\n barrier.cta.red.or.pred out, %2, %3, in;\n selp.u32 %0, 1, 0, out;\n}"
      : "=r"(result)
      : "r"(static_cast<u32>(vote)), "r"(kVoteBarrier + warpgroup_id()), "n"(kThreadsPerWarpgroup)
      : "memory");
  return uniform(result) != 0;
}

// Returns which row of the tile this thread's row h is.
__device__ inline int tile_row(u32 thread, int h) {
  return static_cast<int>(thread / 32 * 16 - kThreadsPerWarpgroup / 2 + thread % 32 / 4) + h * 8;
}

// A row of the tile as a query of a head.
struct Row {
  int q, h;
};
__device__ inline Row row_of(const WorkState& work, int row) {
  return {query_of_row(work, row), work.seq.h + row % kGroup};
}

// The query of this thread's row h, as the score function gets it. Queries behind the last one are replaced by the last
// one.
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
// The producer has copied this tile of each (copy_inputs). A thread's scores are pairs of neighbouring keys, those of
// row 0 first. The elements for four pairs are read together, and the next four are read before these are used.

constexpr int kRowPairs = kTileKv / 8, kPairs = 2 * kRowPairs;
constexpr int kPairsAhead = 8;

// Reads the elements of parameter i for this thread's four pairs from `pair` on; those of a pair stand `kPairWords`
// words behind those of the pair before. A row's number modulo 8 is XORed into the number of a chunk of 16 bytes, as
// the swizzle does. A row that all queries share is row 0, and all lanes read it.
__device__ inline void read_input(u32 inputs, int i, int pair, u32* words) {
  const u32 lane = lane_id(), warp = recompute(threadIdx.x) % kThreadsPerWarpgroup / 32;
  const bool rows = config.inputs_q >> i & 1;
  const int h = pair / kRowPairs, key = pair % kRowPairs * 8;
  const int byte = key * input_bytes_per_key(config, i);
  const u32 panel =
      inputs + byte / kPanelWidth * input_panel_bytes(config, i) + (rows ? (warp * 16 + h * 8) * kPanelWidth : 0);
  const u32 first_chunk = byte % kPanelWidth / 16;
  if (config.inputs_16 >> i & 1) {
    // A matrix of eight rows and keys is a pair; lane l gives the address of row l % 8 of matrix l / 8.
    const u32 row = rows ? lane % 8 : 0, chunk = (first_chunk + lane / 8) ^ row;
    u32 pairs[4];
    load_matrices(pairs, panel + row * kPanelWidth + chunk * 16);
#pragma unroll
    for (int j = 0; j < 4; ++j) words[j * kPairWords] = pairs[j];
  } else {
    const u32 row = rows ? lane / 4 : 0;  // two rows share a bank: loads take twice the time of a conflict-free one
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const u32 chunk = (first_chunk + 2 * j + lane % 4 / 2) ^ row;
      load_shared_pair(words[j * kPairWords], words[j * kPairWords + 1],
                       panel + row * kPanelWidth + chunk * 16 + lane % 2 * 8);
    }
  }
}

// The two rows of a thread are found once for an item, unless no registers are left to keep them from one tile to the
// next, as with three warpgroups, or with inputs of 32 bits.
constexpr bool kKeepsQueries = kWarpgroups < 3 && config.inputs_32 == 0;
struct Queries {
  Query of[2];
  __device__ void find(const WorkState& work, u32 thread) {
    of[0] = query_of(work, thread, 0);
    of[1] = query_of(work, thread, 1);
  }
};

// A consumer's view of the inputs, and its slot of their ring.
struct Inputs {
  const SharedMemory& shared;
  bool given;  // If false, the score function reads memory.
  Ring<1> ring = {};

  __device__ u32 full() const { return shared.inputs_full(uniform(warpgroup_id())); }
  // This tile of the inputs has been read, or will not be read.
  __device__ void release() {
    if (lane_id() == 0) arrive(shared.inputs_empty(warpgroup_id()));
    ring.advance();
  }
};

// Scales of queries are loaded while O is written. Where keys have scales in blocks they are not: d=128 would spill 16
// bytes.
constexpr bool kLoadsScalesEarly = kNarrow && !kHasUnits;

// Factors from products to scores, for this thread's rows. Elements of 8 bits have scales, which are found for an item
// and, where keys have scales in blocks, for each tile. Rows of a head share one factor, because the rows with one
// scale are whole warpgroups.
struct RowScales {
  static constexpr int kCount = kGroupedHeads ? 2 : 1;
  float of[2] = {config.scale, config.scale};

  // Loads the scales of queries.
  __device__ void ask(const KernelParams& params, const WorkState& work) {
    const u32 thread = recompute(threadIdx.x);
#pragma unroll
    for (int h = 0; h < kCount; ++h) {
      const Query query = query_of(work, thread, h);
      of[h] = query_scale(params, query.seq, query.q);
    }
  }
  __device__ void receive(const KernelParams& params, const WorkState& work) {
    if constexpr (!kLoadsScalesEarly) ask(params, work);
#pragma unroll
    for (int h = 0; h < kCount; ++h) of[h] *= config.scale * work.scales.k;
  }
};

// A tile, and this thread's place in it.
struct Tile {
  const KernelParams& params;
  const WorkState& work;
  int index;
  Inputs& inputs;
  const RowScales& row_scales;
  Queries queries;
  int k_lo;
  float keys_scale = 1.0f;                               // All keys of the tile share this scale.
  u32 words[kHasInputs ? kPairsAhead * kPairWords : 1];  // The words of the pairs that have been read ahead.

  // `known` are the thread's queries, if they have been found before.
  __device__ void begin(const Queries* known = nullptr) {
    const u32 thread = recompute(threadIdx.x);
    if (known) queries = *known;
    else queries.find(work, thread);
    k_lo = first_key(thread, index);
    if constexpr (kHasInputs) {
      if (!inputs.given) return;
      wait_barrier(inputs.full(), inputs.ring.parity());
#pragma unroll
      for (int pair = 0; pair < kPairsAhead; pair += 4) read(pair);
    }
  }
  // Reads the elements of four pairs, from this pair on.
  __device__ void read(int pair) {
#pragma unroll
    for (int i = 0; i < kMaxParams; ++i) {
      if (is_input(config, i))
        read_input(inputs.shared.inputs(warpgroup_id(), i), i, pair, words_of(pair) + word_of(i));
    }
  }
  // All elements of the tile have been read.
  __device__ void release() {
    __syncwarp();
    inputs.release();
  }

  // Returns the factor from a product of row h to its score.
  __device__ float scale(int h) const {
    const float of_row = row_scales.of[h % RowScales::kCount];
    return kHasUnits ? of_row * keys_scale : of_row;
  }

  __device__ u32* words_of(int pair) { return words + pair % (kHasInputs ? kPairsAhead : 1) * kPairWords; }
};

// ---- logits ----

// Visits the logits of a tile, with the inputs that the producer has copied. Logits are symbolic numbers, and each is
// passed with the number of its register.
template <class Math, class Visit>
__device__ inline void for_each_logit(const Scores& s, Tile& tile, Math math, const Visit& visit) {
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    const int h = pair / kRowPairs, j = pair % kRowPairs;
    const auto& [seq, q] = tile.queries.of[h];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int i = 4 * j + 2 * h + c;
      const Scaled product = {s[i], tile.scale(h)};
      const KeyPosition<int> k = {tile.k_lo, 8 * j + c};
      if constexpr (kHasInputs) {
        visit(i, Variant::score(math, ReadParams{tile.params, tile.words_of(pair), c}, seq, product, q, k));
      } else {
        visit(i, Variant::score(math, tile.params, seq, product, q, k));
      }
    }
    if constexpr (kHasInputs) {
      if (pair % 4 == 3 && pair - 3 + kPairsAhead < kPairs) tile.read(pair - 3 + kPairsAhead);
      if (pair == kPairs - kPairsAhead) tile.release();
    }
  }
}

// Returns whether all arguments of tanh are small, in all lanes of the warp.
__device__ inline bool small_arguments(const Scores& s, Tile& tile) {
  Probe::Largest largest;
  const Probe probe = {largest};
  for_each_logit(s, tile, probe, [](int, auto) {});
  return __all_sync(0xffffffff, probe.small());
}

// Computes the logits of any tile, with what the score function reads from memory. Keys at or behind k_len are replaced
// by the last key, because the function may load from a tensor that ends there. Pairs behind k_len are left out. The
// branch also keeps the compiler from loading for all scores before it computes the first one.
template <bool clamps>
__device__ inline void compute_logits(Scores& s, const Tile& tile) {
  constexpr int kPairsAtOnce = 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const auto& [seq, q] = tile.queries.of[h];
#pragma unroll
    for (int first = 0; first < kRowPairs; first += kPairsAtOnce) {
      if (config.has_score && tile.index * kTileKv + 8 * first >= uniform(seq.k_len)) continue;
#pragma unroll
      for (int j = first; j < kRowPairs && j < first + kPairsAtOnce; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = s[4 * j + 2 * h + c];
          const KeyPosition<int> k = {tile.k_lo, 8 * j + c};
          x *= tile.scale(h);
          if constexpr (config.has_score && clamps) {
            x = Variant::score(FullRange(), tile.params, seq, x, q, min(static_cast<int>(k), seq.k_len - 1));
          } else if constexpr (config.has_score) {
            x = Variant::score(FullRange(), tile.params, seq, x, q, k);
          }
        }
    }
  }
}

// ---- masks ----

// Columns of a tile as bits: bit 2 j + c of word j / 16 is column 8 j + c, counted from a thread's first one. A group
// is 32 columns of the warp, 16 registers of S. The warp decides together what to do with a group.
constexpr int kColumnWords = (kTileKv + 127) / 128;
constexpr int kGroupScores = 16;

// Holds which columns are seen.
struct Columns {
  u32 of_row[2][kColumnWords];  // This thread's rows see these columns.
  u32 some[kColumnWords];       // Some row of the warp sees these columns.
  u32 hidden[kColumnWords];     // These columns are hidden from some row of the warp.
  __device__ static bool any_of_group(const u32 (&words)[kColumnWords], int group) {
    return words[group / 4] >> group % 4 * 8 & 0xff;
  }
  // Without a mask only the end of the keys cuts, and leaving groups out gains nothing. Where products are added up in
  // pieces, registers do not suffice for leaving them out: d=256 would spill 308 bytes.
  __device__ bool sees_group(int group) const {
    return !config.has_mask || kProductPieces > 1 || any_of_group(some, group);
  }
  // Returns x for score i of this thread, or -infinity if its column is hidden.
  __device__ float operator()(int i, float x) const {
    const int j = i / 4, h = i / 2 % 2, c = i % 2;
    return where_bit(of_row[h][j / 16], 1u << (j % 16 * 2 + c), x);
  }
  __device__ bool cuts_group(int group) const {
    return !config.has_mask || (sees_group(group) && any_of_group(hidden, group));
  }
};
__device__ inline Columns all_columns() {
  Columns columns;
#pragma unroll
  for (int word = 0; word < kColumnWords; ++word) {
    columns.of_row[0][word] = columns.of_row[1][word] = columns.some[word] = 0xffffffff;
    columns.hidden[word] = 0;
  }
  return columns;
}

// A bit for each column shows which keys a query sees, where these are a range: comparisons take two cycles of a
// scheduler each, and every score would need two or three. Long masks have such bits, too.
constexpr bool kMaskAsBits = config.mask_is_range || config.mask_is_long || config.mask_by_rows;

// Finds the bits of this thread's rows where a mask reads tensors.
__device__ inline void vote_on_queries(Columns& columns, const KernelParams& params, const WorkState& work, int tile) {
  using Votes = RowVotes<kTileKv>;
  const u32 thread = recompute(threadIdx.x), lane = thread % 32;
  const int first = tile * kTileKv + Votes::first_column(lane), last_key = work.seq.k_len - 1;
  const int first_row = tile_row(uniform(thread / 32) * 32, 0);
  const auto query_at = [&](int i) {
    const Row row = row_of(work, first_row + i);
    Query query = {work.seq, min(row.q, work.seq.q_len - 1)};
    query.seq.h = row.h;
    return query;
  };
  Variant::KeyReads at_keys[Votes::kVotes];
#pragma unroll
  for (int j = 0; j < Votes::kVotes; ++j)
    at_keys[j] = Variant::read_at_key(params, work.seq, min(first + j * 32, last_key));
  const Query own = query_at(lane % kVotingRows);
  const Variant::QueryReads at_own = Variant::read_at_query(params, own.seq, own.q);
  Votes votes;
  if constexpr (Variant::kReadsAndRange) {
    votes.template take_alike<Variant::kQueryReads>(at_own, [&](const Variant::QueryReads& at_query, int j) {
      return Variant::sees_by_reads(params, work.seq, at_query, at_keys[j]);
    });
  } else {
    votes.take(lane, [&](int i) {
      const Query row = query_at(i);
      const auto at_query = reads_of_lane<Variant::kQueryReads>(at_own, i);
      return [&, row, at_query](int j) {
        return Variant::visible_with(params, row.seq, at_query, at_keys[j], row.q, min(first + j * 32, last_key));
      };
    });
  }
  const int k_lo = first_key(thread, tile);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const auto [seq, q] = query_of(work, thread, h);
    const int begin = Variant::range_begin(params, seq, q, q),
              end = min(Variant::range_end(params, seq, q, q), work.seq.k_len);
#pragma unroll
    for (int word = 0; word < kColumnWords; ++word)
      columns.of_row[h][word] = votes.bits(lane, h, word, begin - k_lo, end - k_lo);
  }
}

__device__ inline Columns visible_columns(const KernelParams& params, const WorkState& work, int tile) {
  if constexpr (!kMaskAsBits) return all_columns();
  const u32 thread = recompute(threadIdx.x);
  const int k_lo = first_key(thread, tile);
  Columns columns;
  if constexpr (config.mask_by_rows) vote_on_queries(columns, params, work, tile);
#pragma unroll
  for (int h = 0; h < 2 && !config.mask_by_rows; ++h) {
    const auto [seq, q] = query_of(work, thread, h);
    if constexpr (config.mask_is_long) {
#pragma unroll
      for (int word = 0; word < kColumnWords; ++word) {
        const int first = word * kWordKeys;
        columns.of_row[h][word] = evaluate_mask(params, seq, q, k_lo + first, kTileKv - first);
      }
      continue;
    }
    const int begin = Variant::kv_begin(params, seq, q, q) - k_lo,
              end = min(Variant::kv_end(params, seq, q, q), seq.k_len) - k_lo;
#pragma unroll
    for (int word = 0; word < kColumnWords; ++word) {
      const int first = columns_before(begin - word * 128);
      columns.of_row[h][word] = bit_range(first, max(columns_before(end - word * 128) - first, 0));
    }
  }
#pragma unroll
  for (int word = 0; word < kColumnWords; ++word) {
    columns.some[word] = __reduce_or_sync(0xffffffff, columns.of_row[0][word] | columns.of_row[1][word]);
    columns.hidden[word] = __reduce_or_sync(0xffffffff, ~columns.of_row[0][word] | ~columns.of_row[1][word]);
  }
  return columns;
}

// Sets scores of hidden keys to -infinity, except in groups that no row sees.
__device__ inline void hide_keys(Scores& s, const KernelParams& params, const WorkState& work, int tile,
                                 const Columns& columns) {
  if constexpr (kMaskAsBits) {
#pragma unroll
    for (int first = 0; first < kScores; first += kGroupScores) {
      if (!columns.cuts_group(first / kGroupScores)) continue;
#pragma unroll
      for (int i = first; i < kScores && i < first + kGroupScores; ++i) s[i] = columns(i, s[i]);
    }
  } else {
    const u32 thread = recompute(threadIdx.x);
    const int k_lo = first_key(thread, tile);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto [seq, q] = query_of(work, thread, h);
#pragma unroll
      for (int j = 0; j < kRowPairs; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const KeyPosition<int> k = {k_lo, 8 * j + c};
          if (k >= seq.k_len || !Variant::visible(params, seq, q, k)) s[4 * j + 2 * h + c] = -kInfinity;
        }
    }
  }
}

// Applies the score function, and then the mask where it cuts.
__device__ inline void apply_score_and_mask(Scores& s, Tile& tile, bool mixed, const Columns& columns) {
  if constexpr (!kScaleFolded) {
    tile.begin();
    const auto keep = [&](int i, float logit) { s[i] = logit; };
    if (config.score_has_tanh && !config.score_loads && small_arguments(s, tile)) {
      for_each_logit(s, tile, SmallArguments(), keep);
    } else if (!config.score_loads || (kHasInputs && tile.inputs.given)) {
      for_each_logit(s, tile, FullRange(), keep);
    } else {
      compute_logits<config.score_loads>(s, tile);
    }
  }
  if (mixed) hide_keys(s, tile.params, tile.work, tile.index, columns);
}

}  // namespace flashjit

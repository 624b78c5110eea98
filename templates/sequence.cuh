// Finds which query tile of which head of which sequence a block works on, how long that sequence is, and where its
// rows are. Lengths and rows are found here and nowhere else: a new source of lengths, or another way to find rows, is
// a case of find_lengths, or of the functions around it, of kv_rows.cuh and of hopper/rows.cuh.
#pragma once

#include "config.gen.cuh"
#include "templates/device.cuh"
#include "templates/key_lists/layout.h"

namespace flashjit {

struct Sequence {
  int b, h, hk;  // The batch index, the query head and the KV head.
  int q_len, k_len;
  Int64 q_token, k_token;  // Its first rows among packed ones, else 0.
};

// ---- how rows are found ----

// Each batch index has rows of its own; or all rows follow each other; or they lie in pages; or a list has their
// numbers, with or without pages; or they lie in pages whose numbers a list has.
enum class Rows { strided, packed, paged, chosen, chosen_pages };
constexpr bool kChosen = config.selected > 0;
constexpr Rows kRows = config.sequences == Sequences::packed ? Rows::packed : Rows::strided;  // The rows of Q and O.
constexpr Rows kKeyRows = config.whole_pages     ? Rows::chosen_pages                         // of K and V
                          : kChosen              ? Rows::chosen
                          : config.page_size > 0 ? Rows::paged
                                                 : kRows;
// True if keys are looked up page by page.
constexpr bool kKeysInPages = kKeyRows == Rows::paged || kKeyRows == Rows::chosen_pages;
constexpr bool kKeysHaveBatch = kKeyRows == Rows::strided || (kChosen && config.page_size == 0);

// Queries that choose their keys are numbered. This turns the number into a batch index and a query.
__device__ inline void find_rows(Sequence& seq, const KernelParams& p) {
  if constexpr (kChosen) {
    const u32 number = seq.b, queries = p.queries_of_sequence;
    seq.b = number / queries;
    seq.q_token = number % queries;
    seq.k_token = 0;
    return;
  }
  seq.q_token = kRows == Rows::packed ? p.offsets_q[seq.b] : 0;
  seq.k_token = kKeyRows == Rows::packed ? p.offsets_k[seq.b] : 0;
}

// Returns the sequence's number in the call.
__device__ inline int sequence_number(const KernelParams& p, const Sequence& seq) {
  return kChosen ? seq.b * p.queries_of_sequence + static_cast<int>(seq.q_token) : seq.b;
}

// Returns the element offset of the row of query q in Q or O.
__device__ inline Int64 query_row(const Strides& s, const Sequence& seq, int head, int q) {
  return (kRows == Rows::packed ? 0 : seq.b * s.batch) + head * s.head + (seq.q_token + q) * s.token;
}
// Returns the offset of the row of key 0 in K or V, or, with pages, of the first row of page 0, from where kv_rows.cuh
// finds others.
__device__ inline Int64 key_begin(const Strides& s, const Sequence& seq) {
  return (kKeysHaveBatch ? seq.b * s.batch : 0) + seq.hk * s.head + seq.k_token * s.token;
}

// Returns the element offset of a key in the first column of V^T.
__device__ inline Int64 value_column(const Strides& s, const Sequence& seq, int key) {
  return (kKeyRows == Rows::strided ? seq.b * s.batch : 0) + seq.hk * s.head + seq.k_token + key;
}

// Returns the line of the block table that has the pages of the sequence, or those of its KV head.
__device__ inline const int* table_line(const KernelParams& p, const Sequence& seq) {
  const int* line = p.block_table + seq.b * p.table_stride_batch;
  return config.head_tables ? line + seq.hk * p.table_stride_head : line;
}

// ---- keys that a query has chosen ----

// Returns where the list of a query lies, or its count.
__device__ inline Int64 list_begin(const Strides& s, const Sequence& seq) {
  return seq.b * s.batch + seq.hk * s.head + seq.q_token * s.token;
}
__device__ inline const int* chosen_list(const KernelParams& p, const Sequence& seq) {
  return p.key_index + list_begin(p.key_index_stride, seq);
}
// Returns whether a row exists for this index, which lies in the list.
__device__ inline bool is_chosen(const KernelParams& p, const Sequence& seq, int index) {
  if constexpr (config.whole_pages) {
    constexpr u32 kPage = config.page_size > 0 ? config.page_size : 1;
    return static_cast<u32>(__ldg(chosen_list(p, seq) + static_cast<u32>(index) / kPage)) < static_cast<u32>(p.pages);
  } else {
    return static_cast<u32>(__ldg(chosen_list(p, seq) + index)) < static_cast<u32>(p.key_rows);
  }
}

// With merged lists all queries of a sequence share one, whose pages exist. These return how many tokens of the page of
// an entry some query sees, and where the numbers lie that query q sees of each page, kMergedStep apart.
constexpr bool kListsAreMerged = config.merged_queries > 0;
__device__ inline int room_of_page(const KernelParams& p, const Sequence& seq, int entry) {
  return __ldg(chosen_list(p, seq) + merged_lists(config).rooms + entry);
}
constexpr int kMergedStep = config.merged_queries;
__device__ inline const int* tokens_of_pages(const KernelParams& p, const Sequence& seq, int q) {
  return chosen_list(p, seq) + merged_lists(config).tokens + q;
}

// True if each tile lies in one page. Its keys are then seen together or not at all, but for the end of the list.
constexpr bool kTilesChosenWhole = config.whole_pages && config.page_size % config.tile_kv == 0;
// Returns whether a row exists for some of these indices. Behind the end of the list none does.
__device__ inline bool are_some_chosen(const KernelParams& p, const Sequence& seq, int first, int last) {
  if constexpr (kTilesChosenWhole) return first < seq.k_len && is_chosen(p, seq, first);
  constexpr int kPage = config.page_size > 0 ? config.page_size : 1;
  const int end = min(last + 1, seq.k_len);
#pragma unroll 1
  for (int index = first; index < end; index += kPage - index % kPage) {
    if (is_chosen(p, seq, index)) return true;
  }
  return false;
}

__device__ inline int list_length(const KernelParams& p, const Sequence& seq) {
  return min(max(p.key_count[list_begin(p.key_count_stride, seq)], 0), p.k_len);
}

// ---- how long sequences are ----

// Lengths of packed sequences lie between two offsets; other sequences share the launch's length. Keys may be fewer
// than there is room for.
__device__ inline void find_query_length(Sequence& seq, const KernelParams& p) {
  seq.q_len = kRows == Rows::packed ? p.offsets_q[seq.b + 1] - static_cast<int>(seq.q_token) : p.q_len;
}
__device__ inline void find_lengths(Sequence& seq, const KernelParams& p) {
  find_query_length(seq, p);
  seq.k_len = kKeyRows == Rows::packed ? p.offsets_k[seq.b + 1] - static_cast<int>(seq.k_token) : p.k_len;
  if constexpr (config.k_lens) seq.k_len = min(max(p.k_lens[seq.b], 0), seq.k_len);
  if (kChosen && p.key_count) seq.k_len = list_length(p, seq);
}
// KV heads may have lists of different lengths. kAtOnce of them are loaded together.
__device__ inline int longest_list(const KernelParams& p, Sequence seq) {
  constexpr int kAtOnce = config.whole_pages ? 8 : 1;
  int longest = 0;
#pragma unroll kAtOnce
  for (seq.hk = 0; seq.hk < config.heads_kv; ++seq.hk) longest = max(longest, list_length(p, seq));
  return longest;
}

// Returns where the LSE and the maximum of query q lie.
__device__ inline Int64 result_row(const KernelParams& p, const Sequence& seq, int q) {
  const Int64 first = kRows == Rows::packed ? seq.q_token : seq.b * p.row_stride_batch + (kChosen ? seq.q_token : 0);
  return first + seq.h * p.row_stride_head + q;
}

// ---- tiles of packed sequences ----

// Returns the number of the first tile of sequence b, where tiles of `rows` rows are numbered from sequence to
// sequence. Some numbers of a sequence lie behind its end: there are hardly more numbers than tiles, and a search finds
// the sequence of a tile.
__device__ inline int first_tile_of(const int* offsets, int b, int rows) { return offsets[b] / rows + b; }

struct NumberedTile {
  int b, tile;
};
__device__ inline NumberedTile numbered_tile(const int* offsets, int batch, int rows, int number) {
  int b = 0;
#pragma unroll 1
  for (int end = batch; end - b > 1;) {
    const int middle = (b + end) / 2;
    (first_tile_of(offsets, middle, rows) <= number ? b : end) = middle;
  }
  const int first = first_tile_of(offsets, b, rows);
  // Tiles may also lie in front of the first sequence. They get a number behind every end. It is computed here, because
  // its address would otherwise be computed ahead of all loops and kept by warps that have few registers.
  if (number >= first) return {b, number - first};
  return {b, first_tile_of(offsets, static_cast<int>(recompute(batch)), rows)};
}

// ---- which tile ----

constexpr bool kLongestFirst = config.order == TileOrder::longest_first;

struct WorkItem {
  Sequence seq;
  int tile;  // The query tile.
};

// Returns the tile, and its head, that starts as number `number`, where each head has `tiles` tiles. Heads are taken
// one after the other. If the longest tiles start first, heads are taken in groups that L2 holds together, a tile of
// all heads of a group before the next tile. A group of all heads would be much slower [M93]. The first group may be
// smaller than the others: with a small last group, everything would wait for its long tiles.
struct TileOfHead {
  int head, tile;
};
__device__ inline TileOfHead tile_of_head(int number, int tiles, int heads, int group) {
  if constexpr (!kLongestFirst) return {number / tiles, number % tiles};
  const int of_first = (heads - 1) % group + 1, turn = (number / tiles + group - of_first) / group;
  const int those = turn == 0 ? of_first : group, first = turn == 0 ? 0 : of_first + (turn - 1) * group;
  const int at = number - first * tiles;
  return {first + at % those, at / those};
}

__device__ inline Sequence sequence_of(const KernelParams& p, int b, int h) {
  Sequence seq;
  seq.b = b;
  seq.h = h;
  seq.hk = h / group_size(config);
  find_rows(seq, p);
  find_lengths(seq, p);
  return seq;
}

// Returns the item of a block. Blocks are numbered so that those which run together share K and V in L2. Longest first,
// the query tiles with the most keys start first and the last wave is short (with a causal mask the last tiles have the
// most).
__device__ inline WorkItem work_item(const KernelParams& p, int block) {
  const auto [head, tile] = tile_of_head(block, p.tiles_q, config.heads_q * p.batch, p.heads_per_group);
  return {sequence_of(p, head / config.heads_q, head % config.heads_q), kLongestFirst ? p.tiles_q - 1 - tile : tile};
}

}  // namespace flashjit

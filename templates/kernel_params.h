// The parameters that a launch passes to a kernel, as one block by value. Host and device share them.
#pragma once

#include "templates/kernel_config.h"

namespace flashjit {

using Int64 = long long;

// Element strides of a tensor [batch, head, token, dim]; dim is contiguous. Packed layouts ignore `batch`; with pages,
// `batch` leads from one page to the next.
struct Strides {
  Int64 batch, head, token;
};

// A run-time parameter of a mask or score: a tensor (data, strides in elements) or a scalar. GPU kernels find the
// scalar in `data` itself (an integer, or the bits of a 32-bit float). Host kernels find it where `data` points to, in
// its declared type.
struct ExtraParam {
  const void* data;
  Int64 stride[4];
};

// The place of a parameter's gradient: a tensor of the parameter's shape, or one number. The last dimension of the
// parameter is the last one here, and dimensions that it does not have are of size 1.
struct ParamGradient {
  float* data;
  Int64 stride[4], size[4];
};

// Strides of the parts that a merge reads, in elements. Columns of O are contiguous.
struct PartStrides {
  Int64 part, batch, head, token;
};

// Lists of blocks: the numbers of blocks of keys, for each batch index, head and block of queries. Strides are in
// elements.
struct BlockLists {
  const int* count;  // It is null if there are no lists.
  const int* index;
  Int64 count_stride[3], index_stride[4];
  int most;  // A list has room for this number of entries.
};

// Positions of a call's rows in the whole sequence: row i stands at begin + i * step, of `total`.
struct Places {
  int begin, step, total;
};

struct KernelParams {
  const void* q;
  const void* k;
  const void* v;
  void* o;
  float* lse;            // [batch, head, query] or, packed, [head, token]; it is contiguous.
  float* max_logit;      // It has the shape of lse.
  const float* sink;     // [head]
  const int* offsets_q;  // packed: batch + 1 token offsets.
  const int* offsets_k;
  Strides q_stride, k_stride, v_stride, o_stride;
  Int64 row_stride_batch, row_stride_head;  // The strides of lse and max_logit.
  int batch;
  int q_len, k_len;     // dense: these are the lengths. packed, or with k_lens: no sequence is longer.
  int tiles_q;          // The query tiles of the longest sequence, or, with mixes_lengths(), of all sequences.
  int heads_per_group;  // hopper: tiles of these heads are worked on together, so that their K and V stay in L2.
  // Persistent kernels: they count the next item, and the blocks that are done, and are zero before and after a launch.
  // If null, items are dealt out evenly.
  int* work_counters;
  int items;       // The items of this launch.
  int parts;       // This number of items share the keys of a query tile; backward: the queries of a tile of keys.
  int part_tiles;  // backward: each of these items has this number of query tiles of a head.
  int key_items;   // The number of items that have a first part. All first parts come before all second parts.
  int blocks;      // The blocks of the first launch, where items are dealt out evenly.
  int team;        // If not 0, items belong to clusters of this number of blocks, ...
  int team_items;  // ... and a sequence has this number of items.
  ExtraParam extra[kMaxParams];
  const int* k_lens;       // [batch]: key lengths, clamped to 0..k_len, or, packed, to what the offsets leave.
  const int* block_table;  // paged: [batch, pages of a sequence], the numbers of pages of K and V.
  Int64 table_stride_batch, table_stride_page;
  int pages;             // The pages of K and V; with config.selected, and without pages, the sequences of K.
  const float* scale_q;  // [batch, head]: the factors of elements of 8 bits; null means that all are 1.
  const float* scale_k;  // Where blocks of rows have own scales, `token` of the strides leads from one to the next.
  const float* scale_v;
  Strides scale_q_stride, scale_k_stride, scale_v_stride;
  const void* x;   // quantize reads these rows, ...
  void* y;         // ... writes them as elements of 8 bits, ...
  float* scale_y;  // ... and writes the factors of the elements, [batch, head] or by blocks of rows as well.
  Strides x_stride, y_stride, scale_y_stride;
  const void* o_parts;     // merge: the O of each part, ...
  const float* lse_parts;  // ... and its LSE; k_len is the number of parts.
  PartStrides o_parts_stride, lse_parts_stride;
  const float* max_parts;  // It has the shape of lse_parts.
  PartStrides max_parts_stride;
  const int* shared_prefix;  // [1]: the number of first keys that all sequences share.
  // append: rows of K and V of the tokens of Q. They are written to the ends of sequences in K and V.
  const void* k_new;
  const void* v_new;
  Strides k_new_stride, v_new_stride;
  // backward reads these gradients of O and, in the shape of lse, of lse. It reads o and lse as well, ...
  const void* d_o;
  const float* d_lse;
  void* dq;  // ... and writes the following gradients.
  void* dk;
  void* dv;
  Strides d_o_stride, dq_stride, dk_stride, dv_stride;
  float* d_sink;  // [head]
  // They belong to the parameters whose gradients the spec asks for, in the spec's order.
  ParamGradient d_extra[kMaxGradients];
  const float* cos;  // rope: [position, pair of columns], for at least k_len positions.
  const float* sin;
  // quantize with rope: [batch, token], clamped to 0..rope_positions - 1. If null, positions follow each other, ...
  const int* positions;
  Strides positions_stride;
  int first_position;    // ... from this one on, which may be negative.
  int rope_positions;    // The number of positions that the tables have.
  const Int64* seed_at;  // dropout: [1] each, read when the kernel runs. If null, `seed` and `offset` are taken.
  const Int64* offset_at;
  Int64 seed, offset;
  // The sizes of tensors in `extra`. An index that is read from another tensor is clamped to them.
  Int64 extra_size[kMaxParams][4];
  // In listed blocks the mask decides what is seen, and in full blocks every key is seen.
  BlockLists listed_blocks, full_blocks;
  int* tile_lists;  // Launches before the loop have written here which tiles it visits (tile_lists/).
  // config.selected: [batch, query, KV head, index], numbers of rows of K and V, or, with config.whole_pages, numbers of
  // pages, each of which stands for all its rows. `batch` above counts all queries, because each is a sequence, and
  // k_len is the number of entries of a list.
  int* key_index;
  // The number of entries of each list that count; if null, all do. Numbers below 0, or from `key_rows` on (for pages,
  // from `pages` on), belong to no row.
  int* key_count;
  Strides key_index_stride, key_count_stride;  // `token` leads from query to query; a list is contiguous.
  int queries_of_sequence;
  int key_rows;  // The rows of K: with pages those of the pool, else those of a sequence or, packed, of all tokens.
  Places q_places, k_places;  // config.places: the positions of the queries and of the keys.
  Int64 table_stride_head;    // config.head_tables: the stride from the line of a KV head to that of the next one.
  const float* weights;       // index: [batch, query, head], the factors of the heads of a query.
  // index: [batch, query, KV head, key]. If null, a launch finds the keys with the largest scores, and writes their
  // numbers to key_index, and how many there are to key_count if that is given.
  float* scores;
  Strides weights_stride, scores_stride;
  const int* q_positions;  // [batch, query], for a mask beside lists of a pool: positions in the queries' sequences.
  // The positions of keys, for the same mask; they have the shape of key_index. A page has the position of its first
  // key.
  const int* k_positions;
  Strides q_positions_stride, k_positions_stride;
};

// Hopper kernels get tensor maps as well: CUtensorMap, which TMA reads. Dimensions, innermost first:
//   dense               d, token, head, batch
//   dense, packed heads d, head of a group, token, group, batch      (Q and O)
//   packed              d, token, head, and two more that end a sequence: see kSequenceEnd in hopper/rows.cuh
//   ends_keys()         the dimensions of `packed` (K and V of the hopper loop)
//   packed heads, too   d, head of a group, token, and the two that end a sequence (Q and O)
//   inputs of the score key, query, and up to two more
struct alignas(64) TensorMap {
  unsigned long long words[16];
};
// The steps of the first dimension that ends a sequence: from one page, batch index or group of heads to the next, and
// from token to token.
struct EndSteps {
  int outer, token;
};
struct TensorMaps {
  TensorMap q, k, v, o;  // backward: `o` is the map of dO.
  TensorMap dq_k, dq_v;  // Further maps of K and V, in the tiles of a launch that makes dQ.
  TensorMap inputs[kMaxInputs];
  int has_inputs;  // 0 means that TMA cannot address one of the inputs, and the score function reads them from memory.
  EndSteps q_steps, k_steps, v_steps, o_steps;  // They are set where that dimension has everything.
};

}  // namespace flashjit

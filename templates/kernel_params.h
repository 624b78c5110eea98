// The parameters that a launch passes to a kernel: one block by value. Shared by host and device.
#pragma once

#include "templates/kernel_config.h"

namespace flashjit {

using Int64 = long long;

// Element strides of a tensor [batch, head, token, dim]; dim is contiguous. Packed layouts ignore `batch`; with pages it is
// the way from one page to the next.
struct Strides {
  Int64 batch, head, token;
};

// A run-time parameter of a mask or score: a tensor (data, strides in elements) or a scalar. GPU kernels find the
// scalar in `data` itself (an integer, or the bits of a 32-bit float), host kernels where `data` points to, in its
// declared type.
struct ExtraParam {
  const void* data;
  Int64 stride[4];
};

// Where the gradient of a parameter goes: a tensor of that one's shape, or of one number. Its last dimension is the last
// here, and those that it does not have are of size 1.
struct ParamGradient {
  float* data;
  Int64 stride[4], size[4];
};

// Strides of the parts that a merge reads, in elements. Columns of O are contiguous.
struct PartStrides {
  Int64 part, batch, head, token;
};

// Lists of blocks: for each batch index, head and block of queries the numbers of blocks of keys. Strides in elements.
struct BlockLists {
  const int* count;  // null: there are none
  const int* index;
  Int64 count_stride[3], index_stride[4];
  int most;  // numbers that a list has room for
};

// Where the rows of a call stand in the whole sequence: row i at begin + i * step, of `total`.
struct Places {
  int begin, step, total;
};

struct KernelParams {
  const void* q;
  const void* k;
  const void* v;
  void* o;
  float* lse;            // [batch, head, query] or, packed, [head, token]; contiguous
  float* max_logit;      // like lse
  const float* sink;     // [head]
  const int* offsets_q;  // packed: batch + 1 token offsets
  const int* offsets_k;
  Strides q_stride, k_stride, v_stride, o_stride;
  Int64 row_stride_batch, row_stride_head;  // of lse and max_logit
  int batch;
  int q_len, k_len;     // dense: the lengths; packed, or with k_lens: no sequence is longer
  int tiles_q;          // query tiles of the longest sequence; mixes_lengths(): of all
  int heads_per_group;  // hopper: heads whose tiles are worked on together, so that their K and V stay in L2
  int* work_counters;   // persistent kernels: the next item, and how many blocks are done; zero before and after a
                        // launch. Null: items are dealt out evenly
  int items;            // of this launch
  int parts;            // so many items share the keys of a query tile; backward: the queries of a tile of keys, ...
  int part_tiles;       // ... each has so many query tiles of a head, ...
  int key_items;        // ... and all first parts come before all second ones
  int blocks;           // of the first launch, where items are dealt out evenly
  int team;             // not 0: items are those of clusters of so many blocks, ...
  int team_items;       // ... so many of a sequence
  ExtraParam extra[kMaxParams];
  const int* k_lens;       // [batch]: key lengths, cut to 0..k_len, or, packed, to what the offsets leave
  const int* block_table;  // paged: [batch, pages of a sequence], numbers of pages of K and V
  Int64 table_stride_batch, table_stride_page;
  int pages;             // that K and V have; with config.selected, where they have none, sequences of K
  const float* scale_q;  // [batch, head]: the factors of elements of 8 bits; null: all are 1. Where rows or
  const float* scale_k;  // blocks of rows have scales of their own, `token` of the strides goes from one to the next
  const float* scale_v;
  Strides scale_q_stride, scale_k_stride, scale_v_stride;
  const void* x;   // quantize: rows, ...
  void* y;         // ... as elements of 8 bits, ...
  float* scale_y;  // ... and what these are multiplied with, [batch, head] or by blocks of rows as well
  Strides x_stride, y_stride, scale_y_stride;
  const void* o_parts;     // merge: of each part what would be O, ...
  const float* lse_parts;  // ... and the LSE; k_len says how many parts there are
  PartStrides o_parts_stride, lse_parts_stride;
  const float* max_parts;  // like lse_parts
  PartStrides max_parts_stride;
  const int* shared_prefix;  // [1]: as many first keys of all sequences are the same
  const void* k_new;         // append: rows of K and V of the tokens of Q; the ends of sequences in K and V are written
  const void* v_new;
  Strides k_new_stride, v_new_stride;
  const void* d_o;  // backward: gradients of O and, like lse, of that; o and lse are read, ...
  const float* d_lse;
  void* dq;  // ... and these are written
  void* dk;
  void* dv;
  Strides d_o_stride, dq_stride, dk_stride, dv_stride;
  float* d_sink;                         // [head]
  ParamGradient d_extra[kMaxGradients];  // of those parameters whose gradients the spec asks for, in their order
  const float* cos;                      // rope: [position, pair of columns], at least k_len positions
  const float* sin;
  const int* positions;  // quantize with rope: [batch, token], cut to 0..rope_positions - 1; null: all follow, from ...
  Strides positions_stride;
  int first_position;    // ... this one on, which may be negative
  int rope_positions;    // that tables have
  const Int64* seed_at;  // dropout: [1] each, read when the kernel runs; null: the numbers are those that follow
  const Int64* offset_at;
  Int64 seed, offset;
  Int64 extra_size[kMaxParams][4];  // of tensors in `extra`: what an index that is read from another one is cut to
  BlockLists listed_blocks, full_blocks;  // blocks in which the mask says what is seen, and in which all is
  int* tile_lists;                        // which tiles the loop visits, as launches before it have found (tile_lists/)
  int* key_index;  // config.selected: [batch, query, KV head, index], numbers of rows of K and V, or with
                   // config.whole_pages of pages, each of which stands for all its rows. `batch` above is
  int* key_count;  // that of all queries, one each, and k_len the entries of a list; as many of them count, or, null,
                   // all. Numbers below 0, or from `key_rows` (of pages, from `pages`) on, are those of no row
  Strides key_index_stride, key_count_stride;  // from query to query, `token`; a list is contiguous
  int queries_of_sequence;
  int key_rows;               // that K has: in pages, those of the pool; else of a sequence or, packed, of all tokens
  Places q_places, k_places;  // config.places: of the queries and of the keys
  Int64 table_stride_head;    // config.head_tables: from the line of a KV head to that of the next
  const float* weights;       // index: [batch, query, head], the factors of the heads of a query
  float* scores;  // index: [batch, query, KV head, key]; null: a launch finds the keys with the largest scores, and
                  // writes their numbers to key_index, and how many there are to key_count if that is given
  Strides weights_stride, scores_stride;
  const int* q_positions;  // [batch, query], for a mask beside lists of a pool: positions in the queries' sequences
  const int* k_positions;  // for the same, shaped like key_index: the positions of keys, of pages that of the first key
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
// Says how far the first of the dimensions that end a sequence steps from one page, batch index or group of heads to the next,
// and from token to token.
struct EndSteps {
  int outer, token;
};
struct TensorMaps {
  TensorMap q, k, v, o;  // of backward: o is of dO
  TensorMap dq_k, dq_v;  // K and V once more, in the tiles of a launch that makes dQ
  TensorMap inputs[kMaxInputs];
  int has_inputs;  // 0: TMA cannot address one of them, and the score function reads them from memory
  EndSteps q_steps, k_steps, v_steps, o_steps;  // where these have all in that dimension
};

}  // namespace flashjit

// The config of a host kernel of gradients has sizes and layouts beside those of HostConfig, and the blocks of its
// calls.
#pragma once

#include "codegen/host/config.h"
#include "templates/kernel_params.h"

namespace flashjit::host {

// Each tile of queries and keys takes five products. The transposed gradients of K and V are summed, because P and dS
// are then right-hand matrices, whose words are pairs of queries: they are written in this form as they are made.
//   S = Q K^T    dP = dO V^T    dV^T += dO^T P    dK^T += Q^T dS    dQ += dS K
struct BackwardConfig : HostConfig {
  explicit BackwardConfig(const HostConfig& config)
      : HostConfig(config),
        words_v(words_of(d_v)),
        width_qk(static_cast<int>(round_up(d_qk, panel))),
        tile_words(static_cast<int>(round_up(tile_q / pack, lanes))) {}

  int words_v;     // The words of a row of dO and V.
  int width_qk;    // The columns of K as it is summed into dQ.
  int tile_words;  // The words of a row of Q^T and dO^T: the queries of a tile.

  // Row strides in words.
  int do_stride() const { return words_v + 16; }
  int ds_stride() const { return tile_kv / pack + 16; }
  int gradient_stride() const { return tile_kv + 16; }  // The stride of dK^T and dV^T.
  // Returns the rows of Q^T, dO^T and the gradients. The micro-kernels make whole blocks, and whole vectors transpose
  // them.
  std::int64_t rows_of(int d) const { return round_up(round_up(d, row_block), lanes); }

  // These functions lay out the scratch of one worker, in bytes. P and dS are those of one panel of keys. With pairs, S
  // and dP have memory of their own.
  std::int64_t panel_bytes() const { return std::int64_t{tile_q} * panel * 4; }
  std::int64_t s_at() const { return 0; }
  std::int64_t dp_at() const { return panel_bytes(); }
  std::int64_t p_at() const { return pack == 1 ? s_at() : 2 * panel_bytes(); }
  std::int64_t ds_at() const { return pack == 1 ? dp_at() : 3 * panel_bytes(); }
  std::int64_t ds_rows_at() const { return 4 * panel_bytes(); }
  std::int64_t dk_at() const { return ds_rows_at() + round_up(std::int64_t{tile_q} * ds_stride() * 4, 64); }
  std::int64_t dv_at() const { return dk_at() + round_up(rows_of(d_qk) * gradient_stride() * 4, 64); }
  std::int64_t unused_row_at() const { return dv_at() + round_up(rows_of(d_v) * gradient_stride() * 4, 64); }
  std::int64_t kept_at() const { return round_up(unused_row_at() + std::max(d_qk, d_v) * 4, 64); }
  std::int64_t scratch_bytes() const { return round_up(kept_at() + kept_bytes(), 4096); }

  // These functions return sizes of the data that is kept for one query head with `queries` queries, in bytes, ...
  std::int64_t padded_queries(std::int64_t queries) const { return round_up(queries, row_block); }
  std::int64_t tiles_of(std::int64_t queries) const { return (queries + tile_q - 1) / tile_q; }
  std::int64_t q_bytes(std::int64_t queries) const { return round_up(padded_queries(queries) * q_stride() * 4, 64); }
  std::int64_t do_bytes(std::int64_t queries) const { return round_up(padded_queries(queries) * do_stride() * 4, 64); }
  std::int64_t transposed_tile_bytes(int d) const { return rows_of(d) * tile_words * 4; }
  std::int64_t transposed_bytes(std::int64_t queries, int d) const {
    return tiles_of(queries) * transposed_tile_bytes(d);
  }
  std::int64_t facts_bytes(std::int64_t queries) const { return round_up(padded_queries(queries) * 4, 64); }
  std::int64_t dq_bytes(std::int64_t queries) const { return padded_queries(queries) * width_qk * 4; }

  // ... and for one KV head: K and V in panels of keys, and K in panels of columns.
  std::int64_t v_columns_bytes(std::int64_t keys) const { return padded_keys(keys) * words_v * 4; }
  std::int64_t k_rows_bytes(std::int64_t keys) const { return v_panel_words(keys) * (width_qk / panel) * 4; }
};

// These are the arguments of a call of flashjit_pack_queries, for a tile of queries of one head.
struct QueryPackCall {
  const void* const* q;  // By row; zeros follow the last one, for whole vectors of words.
  const void* const* d_o;
  const void* const* o;
  const float* lse;    // It begins with the first row.
  const float* d_lse;  // It is set where the spec has it.
  void* q_rows;        // This and the next three are targets.
  void* do_rows;
  void* q_transposed;
  void* do_transposed;
  float* lse_facts;  // Logarithms in the units of logits, which are to be subtracted; infinity where no key is seen.
  float* delta;      // It is to be subtracted from dP.
  std::int64_t rows;
};

// These are the arguments of a call of flashjit_backward, for the keys of one tile and all queries of one head.
struct BackwardCall {
  const void* params;
  const void* q_rows;
  const void* do_rows;
  const void* q_transposed;
  const void* do_transposed;
  const float* lse_facts;
  const float* delta;
  const void* k_columns;  // They begin with key k_lo.
  const void* v_columns;
  const void* k_rows;
  float* dq;                     // Sums over the keys of one chunk.
  const ParamGradient* d_extra;  // Gradients of parameters are added here.
  char* scratch;
  std::int64_t k_panel_words;
  std::int64_t b, h, hk, q_len, k_len;
  std::int64_t k_lo, keys;
  // The states of these keys for each tile of queries, with rows of a map between them, where a map is made
  // (tile_map/tile_map.h).
  const std::uint8_t* tiles;
  FourWords key;  // The key of dropout.
};

// These are the arguments of a call of flashjit_store_keys: the gradients of a tile of keys, from a worker's scratch.
struct KeyStoreCall {
  char* scratch;
  void* dk;
  void* dv;
  std::int64_t dk_token, dv_token;  // Strides in elements.
  std::int64_t keys;
};

// These are the arguments of a call of flashjit_store_queries: the sum of the chunks' gradients.
struct QueryStoreCall {
  const float* sums;  // They begin with the first chunk's.
  void* dq;
  std::int64_t dq_token;
  std::int64_t chunk_words;  // The words from one chunk's sums to the next one's.
  std::int64_t chunks, rows;
};

using QueryPackFunction = void (*)(const QueryPackCall*);
using BackwardFunction = void (*)(const BackwardCall*);
using KeyStoreFunction = void (*)(const KeyStoreCall*);
using QueryStoreFunction = void (*)(const QueryStoreCall*);

}  // namespace flashjit::host

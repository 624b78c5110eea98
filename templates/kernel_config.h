// What one generated kernel is. Shared by the host (plan, emitter) and the device (templates): each size is computed
// here, once, by constexpr functions that both sides call. No includes: NVRTC compiles this without any header.
#pragma once

namespace flashjit {

enum class Element { f16, bf16, f32 };
enum class LseBase { none, natural, log2 };
enum class Loop { sync, hopper };                      // which templates/*_forward.cuh
enum class Reference { lazy, tile, previous, first };  // what the exponent of a score is taken relative to
enum class Exclusive { none, issue, softmax };         // what only one warpgroup at a time may do

constexpr int kMaxParams = 8;  // run-time parameters of masks and scores

struct KernelConfig {
  // The problem
  Element element = Element::bf16;  // Q, K, V
  Element output = Element::bf16;   // O
  int head_dim_qk = 0;
  int head_dim_v = 0;
  int heads_q = 0;
  int heads_kv = 0;
  bool packed = false;  // sequences lie one after the other; offsets are read on the device
  LseBase lse = LseBase::none;
  bool max_logit = false;
  bool sink = false;
  float scale = 0;         // natural units: score = scale * q.k
  bool has_score = false;  // variant.gen.cuh's score() changes s
  bool score_has_tanh = false;
  float score_cap = 0;  // not 0: score() is this times tanh(score_factor * q.k), both positive
  float score_factor = 0;
  bool score_loads = false;  // from tensors, at places that depend on the key
  int inputs_16 = 0;  // bit i: parameter i has elements of 16 bits, score() reads [..., k] of it for every key k, and
                      // the producer copies those tiles
  int inputs_32 = 0;  // likewise, of 32 bits
  int inputs_q = 0;   // which of them are read at the query as well; the others are the same for all queries
  bool inputs_of_batches = false;  // one of them is the same for all batch indices
  bool has_mask = false;           // variant.gen.cuh's visible() is not always true
  bool mask_has_holes = false;     // variant.gen.cuh's may_see() is not always true
  bool mask_is_range = false;      // a query sees all keys from kv_begin(q, q) to kv_end(q, q)
  int copy_bytes = 16;             // widest aligned global access: 16, or 8, 4, 2 for less aligned inputs

  // The schedule
  Loop loop = Loop::sync;
  int tile_q = 0;  // rows of a block: queries, or (query, head of a group) pairs
  int tile_kv = 0;
  int stages = 1;
  bool longest_first = false;
  Reference reference = Reference::lazy;
  // of the sync loop
  int warps = 0;
  bool q_in_registers = false;
  int blocks_per_sm = 1;
  int unroll_d = 0;  // k-steps of QK unrolled at a time
  // of the hopper loop
  int warpgroups = 0;  // that compute, 64 rows each; one more copies
  int q_stages = 1;
  bool overlap = false;  // Q K^T of the next tile is issued before P V of this one
  Exclusive exclusive = Exclusive::none;
  int fma_exponentials = 0;    // of eight, how many are a polynomial on the FMA pipes
  bool sum_in_matrix = false;  // row sums come from a column of ones beside V
  bool persistent = false;     // a block works on several query tiles, one after the other
  int cluster = 1;             // blocks that share K and V by multicast
  bool pack_heads = false;     // the query heads of a KV head share a tile
};

constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// mma.sync consumes 16 columns of K per step; head dims are padded to that and no further.
constexpr int padded_dim_qk(const KernelConfig& c) { return round_up(c.head_dim_qk, 16); }
constexpr int padded_dim_v(const KernelConfig& c) { return round_up(c.head_dim_v, 16); }
constexpr int threads_of(const KernelConfig& c) { return c.warps * 32; }
constexpr int rows_per_warp(const KernelConfig& c) { return c.tile_q / c.warps; }

// A row-major tile of 16-bit elements in shared memory, in 16-byte chunks. The chunk index is XOR-ed with row bits so
// that the eight rows an ldmatrix reads lie in eight different bank groups. `group` is the largest power of two (at
// most 8) that divides the chunks of a row; within it the XOR stays inside the row, so every width works without
// padding.
struct TileLayout {
  int rows = 0;
  int chunks = 0;  // 16-byte chunks per row
  constexpr unsigned group() const { return chunks % 8 == 0 ? 8 : chunks % 4 == 0 ? 4 : chunks % 2 == 0 ? 2 : 1; }
  constexpr int bytes() const { return rows * chunks * 16; }
  constexpr unsigned offset(unsigned row, unsigned chunk) const {
    return (row * chunks + (chunk ^ (row / (8 / group()) & (group() - 1)))) * 16;
  }
};

// Shared memory of the sync family: [ Q | K stages | V stages | block ]. The output tile is staged in Q's place (each
// warp only touches its own rows), so Q's region is as large as the larger of the two. Q that lives in registers passes
// through the K/V region before the loop, and then O is staged over K and V. `block` holds what all threads of the
// block agree on and would otherwise keep in registers: the sequence, its limits, where K and V of this head start.
constexpr int kBlockStateBytes = 80;

struct SyncLayout {
  TileLayout q, k, v, o;
  int q_offset = 0, k_offset = 0, v_offset = 0, o_offset = 0, block_offset = 0;
  int bytes = 0;
};

constexpr SyncLayout sync_layout(const KernelConfig& c) {
  SyncLayout s;
  s.q = {c.tile_q, padded_dim_qk(c) / 8};
  s.k = {c.tile_kv, padded_dim_qk(c) / 8};
  s.v = {c.tile_kv, padded_dim_v(c) / 8};
  s.o = {c.tile_q, padded_dim_v(c) / 8};
  const int q_or_o = s.q.bytes() > s.o.bytes() ? s.q.bytes() : s.o.bytes();
  const int kv = c.stages * (s.k.bytes() + s.v.bytes());
  s.k_offset = c.q_in_registers ? 0 : q_or_o;
  s.v_offset = s.k_offset + c.stages * s.k.bytes();
  s.block_offset = c.q_in_registers ? (q_or_o > kv ? q_or_o : kv) : q_or_o + kv;
  s.bytes = s.block_offset + kBlockStateBytes;
  return s;
}

// ---- the hopper family ----

// A tile as TMA writes and WGMMA reads it: panels of 64 columns, one below the other; within a panel the hardware XORs
// 16-byte chunks with row bits. Columns behind the head dim are zeros that TMA fills in: narrower panels would save
// their memory, but copying takes the time of its rows (d=40, two warpgroups: 32-byte rows 0.85 of 128-byte ones; H200,
// 2026-11-21).
constexpr int kPanelWidth = 128;  // bytes

struct PanelLayout {
  int rows = 0;
  int columns = 0;  // 16-bit elements, a multiple of 64
  constexpr int panels() const { return columns * 2 / kPanelWidth; }
  constexpr int panel_bytes() const { return rows * kPanelWidth; }
  constexpr int bytes() const { return rows * columns * 2; }
};
constexpr PanelLayout panel_layout(int rows, int dims) { return {rows, round_up(dims, kPanelWidth / 2)}; }

// The high word of an operand's descriptor: 128-byte swizzle, and the step from eight rows to the next.
constexpr unsigned kDescriptorHigh = 1u << 30 | 8 * kPanelWidth / 16;

constexpr int kRowsPerWarpgroup = 64;
constexpr int kThreadsPerWarpgroup = 128;

constexpr int hopper_threads(const KernelConfig& c) { return (c.warpgroups + 1) * kThreadsPerWarpgroup; }
constexpr int group_size(const KernelConfig& c) { return c.heads_q / c.heads_kv; }
constexpr int queries_per_tile(const KernelConfig& c) { return c.pack_heads ? c.tile_q / group_size(c) : c.tile_q; }
// Whether a warpgroup may leave out a KV tile that the block sees, if none of its own rows see it. Where tiles are as
// long as the block has rows that is never so with a causal mask. Holes are those of the block. (With one stage the
// producer would wait for that tile.)
constexpr bool has_own_tiles(const KernelConfig& c) {
  return c.warpgroups > 1 && c.tile_kv < c.tile_q && c.stages > 1 && c.has_mask && !c.mask_has_holes;
}

// The columns of O += P V: V's, and with sum_in_matrix eight more that hold the row sum.
constexpr int output_columns(const KernelConfig& c) { return c.head_dim_v + (c.sum_in_matrix ? 8 : 0); }

// Registers after setmaxnreg; together they fill the SM. ptxas allocates within them.
constexpr int producer_registers(const KernelConfig& c) { return c.warpgroups == 1 ? 56 : c.warpgroups == 2 ? 40 : 32; }
constexpr int consumer_registers(const KernelConfig& c) {
  return c.warpgroups == 1 ? 248 : c.warpgroups == 2 ? 232 : 160;
}

// Whether O goes to memory by TMA, from Q's place: with two of those there is time for it. A warp stores its 16 rows.
constexpr bool stages_output(const KernelConfig& c) {
  return c.q_stages == 2 && c.output != Element::f32 &&
         panel_layout(0, c.head_dim_v).panels() <= panel_layout(0, c.head_dim_qk).panels() &&
         (!c.pack_heads || 16 % group_size(c) == 0);
}

// What the score function reads at every key comes by TMA as well, beside K: for each warpgroup panels of 128 bytes by
// its 64 rows, or by one row that all queries share. One panel below the other, and one input below the other, in the
// order of the parameters.
constexpr int kMaxInputs = 4;

constexpr bool is_input(const KernelConfig& c, int i) { return (c.inputs_16 | c.inputs_32) >> i & 1; }
constexpr int input_rows(const KernelConfig& c, int i) { return c.inputs_q >> i & 1 ? kRowsPerWarpgroup : 1; }
constexpr int input_bytes_per_key(const KernelConfig& c, int i) { return c.inputs_16 >> i & 1 ? 2 : 4; }
constexpr int input_panels(const KernelConfig& c, int i) {
  return (c.tile_kv * input_bytes_per_key(c, i) + kPanelWidth - 1) / kPanelWidth;
}
// Panels begin where every swizzle does, on 1024 bytes.
constexpr int input_panel_bytes(const KernelConfig& c, int i) { return round_up(input_rows(c, i) * kPanelWidth, 1024); }
// Where the input of parameter i begins; i = kMaxParams: where they end.
constexpr int input_offset(const KernelConfig& c, int i) {
  int offset = 0;
  for (int j = 0; j < i; ++j) offset += is_input(c, j) ? input_panels(c, j) * input_panel_bytes(c, j) : 0;
  return offset;
}
constexpr int inputs_bytes(const KernelConfig& c) { return input_offset(c, kMaxParams); }
// How many bytes the copies for one warpgroup bring.
constexpr int copied_input_bytes(const KernelConfig& c) {
  int bytes = 0;
  for (int i = 0; i < kMaxParams; ++i)
    bytes += is_input(c, i) ? input_panels(c, i) * input_rows(c, i) * kPanelWidth : 0;
  return bytes;
}
// The place of parameter i among the inputs.
constexpr int input_number(const KernelConfig& c, int i) {
  int number = 0;
  for (int j = 0; j < i; ++j) number += is_input(c, j);
  return number;
}

// Shared memory: [ Q stages | K stages | V stages | inputs of each warpgroup | work states | redo list | barriers ],
// tiles on 1024 bytes, where every swizzle repeats. With sum_in_matrix a panel of ones follows each stage of V.
constexpr int kWorkStateBytes = 192;
// With two places for Q, one more than the items whose Q is on its way and the one whose tiles are visited: an item's
// state is read until O is written, which is after Q of the next item may have been released.
constexpr int kWorkSlots = 4;
// After so many items a block does those again whose references did not hold.
constexpr int kRedoPlaces = 64;

struct HopperLayout {
  PanelLayout q, k, v;
  int v_stage_bytes = 0;
  int k_offset = 0, v_offset = 0, inputs_offset = 0, state_offset = 0, redo_offset = 0, barrier_offset = 0;
  int barriers = 0;
  int bytes = 0;
};

constexpr HopperLayout hopper_layout(const KernelConfig& c) {
  HopperLayout s;
  s.q = panel_layout(c.tile_q, c.head_dim_qk);
  s.k = panel_layout(c.tile_kv, c.head_dim_qk);
  s.v = panel_layout(c.tile_kv, c.head_dim_v);
  const int q_bytes = round_up(s.q.bytes(), 1024), k_bytes = round_up(s.k.bytes(), 1024);
  s.v_stage_bytes = round_up(s.v.bytes() + (c.sum_in_matrix ? s.v.panel_bytes() : 0), 1024);
  s.k_offset = c.q_stages * q_bytes;
  s.v_offset = s.k_offset + c.stages * k_bytes;
  s.inputs_offset = s.v_offset + c.stages * s.v_stage_bytes;
  s.state_offset = s.inputs_offset + c.warpgroups * inputs_bytes(c);
  s.redo_offset = s.state_offset + kWorkSlots * kWorkStateBytes;
  s.barrier_offset = s.redo_offset + kRedoPlaces * 4;
  s.barriers = 2 * c.q_stages + 4 * c.stages + 1 + (inputs_bytes(c) > 0 ? 2 * c.warpgroups : 0);
  s.bytes = s.barrier_offset + s.barriers * 8;
  return s;
}

// The textbook version: three kernels, one after the other, through memory. Scores and product work on square tiles
// with four warps of 16 rows each, softmax on one row per block.
constexpr int kNaiveTile = 64;
constexpr int kNaiveThreads = 128;

// Rows of P end with zeros up to a whole tile, so that the product needs no bounds on its columns.
constexpr long long naive_probability_stride(int k_len) { return round_up(k_len, kNaiveTile); }

constexpr int naive_scores_smem(const KernelConfig& c) {
  return 2 * TileLayout{kNaiveTile, padded_dim_qk(c) / 8}.bytes();
}
constexpr int naive_product_smem(const KernelConfig& c) {
  return TileLayout{kNaiveTile, kNaiveTile / 8}.bytes() + TileLayout{kNaiveTile, padded_dim_v(c) / 8}.bytes();
}

}  // namespace flashjit

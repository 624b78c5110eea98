// What one generated kernel is. Shared by the host (plan, emitter) and the device (templates): each size is computed
// here, once, by constexpr functions that both sides call. No includes: NVRTC compiles this without any header.
#pragma once

namespace flashjit {

enum class Element { f16, bf16, f32 };
enum class LseBase { none, natural, log2 };

struct KernelConfig {
  // The problem
  Element element = Element::bf16;  // Q, K, V
  Element output = Element::bf16;   // O
  int head_dim_qk = 0;
  int head_dim_v = 0;
  int heads_q = 0;
  int heads_kv = 0;
  bool packed = false;              // sequences lie one after the other; offsets are read on the device
  LseBase lse = LseBase::none;
  bool max_logit = false;
  bool sink = false;
  float scale = 0;                  // natural units: score = scale * q.k
  bool has_score = false;           // variant.gen.cuh's score() changes s
  bool has_mask = false;            // variant.gen.cuh's visible() is not always true
  bool mask_has_holes = false;      // variant.gen.cuh's may_see() is not always true
  int copy_bytes = 16;              // widest aligned global access: 16, or 8, 4, 2 for less aligned inputs

  // The schedule
  int tile_q = 0;
  int tile_kv = 0;
  int warps = 0;
  int stages = 1;
  bool q_in_registers = false;
  int blocks_per_sm = 1;
  bool longest_first = false;
  int unroll_d = 0;                 // k-steps of QK unrolled at a time
};

constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// mma.sync consumes 16 columns of K per step; head dims are padded to that and no further.
constexpr int padded_dim_qk(const KernelConfig& c) { return round_up(c.head_dim_qk, 16); }
constexpr int padded_dim_v(const KernelConfig& c) { return round_up(c.head_dim_v, 16); }
constexpr int threads_of(const KernelConfig& c) { return c.warps * 32; }
constexpr int rows_per_warp(const KernelConfig& c) { return c.tile_q / c.warps; }

// A row-major tile of 16-bit elements in shared memory, in 16-byte chunks. The chunk index is XOR-ed with row bits so
// that the eight rows an ldmatrix reads lie in eight different bank groups. `group` is the largest power of two (at most
// 8) that divides the chunks of a row; within it the XOR stays inside the row, so every width works without padding.
struct TileLayout {
  int rows = 0;
  int chunks = 0;  // 16-byte chunks per row
  constexpr unsigned group() const { return chunks % 8 == 0 ? 8 : chunks % 4 == 0 ? 4 : chunks % 2 == 0 ? 2 : 1; }
  constexpr int bytes() const { return rows * chunks * 16; }
  constexpr unsigned offset(unsigned row, unsigned chunk) const {
    return (row * chunks + (chunk ^ (row / (8 / group()) & (group() - 1)))) * 16;
  }
};

// Shared memory of the sync family: [ Q | K stages | V stages | block ]. The output tile is staged in Q's place (each warp only
// touches its own rows), so Q's region is as large as the larger of the two. Q that lives in registers passes through
// the K/V region before the loop, and then O is staged over K and V. `block` holds what all threads of the block agree on and
// would otherwise keep in registers: the sequence, its limits, where K and V of this head start.
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

// The textbook version: three kernels, one after the other, through memory. Scores and product work on square tiles with
// four warps of 16 rows each, softmax on one row per block.
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

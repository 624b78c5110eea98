// The description of one generated kernel. Shared by the host (plan, emitter) and the device (templates): each size is computed
// here, once, by constexpr functions that both sides call. No includes: NVRTC compiles this without any header.
#pragma once

namespace flashjit {

// Every enum is a byte: the host keeps hundreds of schedules. compiler/spec/config_words.h has the words of each.
enum class Element : unsigned char { f16, bf16, f32, f8 };     // f8: e4m3 or e5m2, as memory has them
enum class Narrow : unsigned char { none, e4m3, e5m2, int8 };  // elements of 8 bits that memory has
enum class CacheFormat : unsigned char {
  elements,
  latent656,
  latent584
};  // rows of K: latents/rows.h has those of bytes
enum class Lse : unsigned char { none, ln, log2 };
enum class Sequences : unsigned char { dense, packed };           // packed: one after the other, offsets on the device
enum class Rope : unsigned char { none, half, interleaved };      // which columns are a pair that rotates
enum class Reference : unsigned char { lazy, tile, first };       // what the exponent of a score is taken relative to
enum class Exclusive : unsigned char { none, issue };             // what only one warpgroup at a time may do
enum class QueryStorage : unsigned char { shared, registers };    // where Q lives during the loop
enum class TileOrder : unsigned char { natural, longest_first };  // which query tiles start first
enum class Overlap : unsigned char { none, qk_pv };           // qk_pv: Q K^T of the next tile beside P V of this one
enum class RowSum : unsigned char { adds, matrix };           // matrix: from a column of ones beside V
enum class GridKind : unsigned char { tiles, persistent };    // a block per query tile, or one per SM for all
enum class Copies : unsigned char { rows, boxes };            // how rings are filled: row after row, or by TMA
enum class HeadTiles : unsigned char { single, grouped };     // grouped: the heads of a KV head share a tile
enum class Transpose : unsigned char { none, loop, launch };  // where V is, so that its keys lie along rows
enum class Keys : unsigned char { whole, parts };             // of a query tile: one block has them, or several
enum class TileSource : unsigned char { range, list };        // which tiles a loop visits: tile_lists/ has the lists
// Says how backward makes dQ: by a launch of its own, or by sums in memory of the launch of dK and dV, in any order or in that
// of keys.
enum class DqSums : unsigned char { launch, atomics, ordered };

// Says how backward sums up what scores give for the elements of a parameter that one read of the score takes.
enum class GradientSum : unsigned char {
  own,      // each score has an element to itself
  pairs,    // each score of a head has one, other heads or sequences may have the same
  queries,  // all scores of a query have one
  keys,     // all scores of a key have one
  heads,    // all scores of a head have one
  runs      // any scores: neighbours often have the same
};

constexpr int kMaxParams = 8;     // run-time parameters of masks and scores
constexpr int kMaxGradients = 4;  // of these, whose gradients backward writes
constexpr int kMaxInputs = 4;     // of these, that a producer copies beside K

// The choices that the schedule of one family adds, and what follows from them for its loop alone.
struct SyncConfig {
  int warps = 0;
  QueryStorage q_in = QueryStorage::shared;
  int blocks_per_sm = 1;
  int unroll_d = 0;  // k-steps of QK unrolled at a time
};

struct SyncBackwardConfig {
  int warps = 0;
  int blocks_per_sm = 1;
  DqSums dq = DqSums::launch;
};

struct HopperConfig {
  int warpgroups = 0;  // that compute, 64 rows each; one more copies
  int q_stages = 1;
  Overlap overlap = Overlap::none;
  Exclusive exclusive = Exclusive::none;
  RowSum row_sum = RowSum::adds;
  GridKind grid = GridKind::tiles;
  Transpose transpose = Transpose::none;
  Keys keys = Keys::whole;
};

struct HopperBackwardConfig {
  int warpgroups = 0;  // that compute
  int cluster = 1;     // blocks that share dQ: each has some of its columns
  DqSums dq = DqSums::launch;
  bool keeps_ds = false;  // dS, where there is room, is summed up by a last launch
};

// The mla loop cuts keys as the decode loop does.
struct DecodeConfig {
  int warps = 0;
  int blocks_per_sm = 1;
  Copies copies = Copies::rows;
  int evict_first_mb = 0;    // K and V that a call has room for leave L2 before other lines up to this size
  int side_by_side = 8;      // neighbouring heads that as many blocks read at the same time, at most: a power of two
  int row_tiles = 1;         // not 1: all of a KV head, whose keys as many blocks read at the same time
  int team = 1;              // not 1: blocks of a cluster that may have a row tile to themselves, at most
  int cluster = 1;           // mla: blocks that share K: each has some of the rows of a tile
  bool fixed_parts = false;  // keys are cut where the length of their sequence says, whatever else is in the call
};

struct KernelConfig {
  // The problem
  Element element = Element::bf16;  // of products: Q, K and V are widened to it where memory has elements of 8 bits
  Narrow queries = Narrow::none;    // not none: Q has elements of 8 bits, and scales
  Narrow cache = Narrow::none;      // not none: K and V have elements of 8 bits; they do where Q does
  CacheFormat cache_format =
      CacheFormat::elements;       // not elements: K has rows of bytes (latents/rows.h), whose numbers are
                                   // those of `element` once they are widened; `cache` is none
  Narrow results = Narrow::none;   // quantize: elements of y
  Element output = Element::bf16;  // O
  Element output_dq = Element::bf16, output_dk = Element::bf16, output_dv = Element::bf16;  // of backward
  int head_dim_qk = 0;
  int head_dim_v = 0;
  int heads_q = 0;
  int heads_kv = 0;
  Sequences sequences = Sequences::dense;  // of Q and O, and of K and V unless they lie in pages
  Lse lse = Lse::none;
  bool max_logit = false;
  bool dlse = false;  // backward: KernelParams has the gradient of lse
  bool sink = false;
  bool sink_gradient = false;  // backward: KernelParams::d_sink is written
  int gradients = 0;           // backward: so many of KernelParams::d_extra are
  bool k_lens = false;         // KernelParams::k_lens has the key lengths; what K and V hold are capacities
  bool v_in_k = false;         // V is the first columns of K: KernelParams::v and v_stride are those of K
  bool v_transposed = false;   // KernelParams::v has its keys along rows; `token` of v_stride is from column to column
  bool token_scales = false;   // scales of K and V of 8 bits are those of each key
  bool widened_rows = false;   // the loop finds rows of 8 bits widened and multiplied with their scales
  int scale_block = 0;         // not 0: scales of elements of 8 bits are those of so many rows of a sequence
  bool rotate = false;         // quantize: rows are multiplied with the matrix of quantize/rotation.h first
  bool linear_exp = false;     // weights of 8 bits may be interpolated between powers of two
  bool append = false;         // new rows are written to the ends of K and V first, by a launch of its own (append/)
  bool shared_prefix = false;  // merge: of parts that are keys of all sequences, and a last one of each; see there
  bool accumulate =
      false;            // O and LSE, or the gradients, hold what other keys or queries gave; the call goes on from it
  bool places = false;  // rows stand in a longer sequence where KernelParams::q_places and k_places say
  Rope rope = Rope::none;  // of Q and new K, by that launch; what the main ones read is rotated. quantize: of x
  int rope_dims = 0;       // of the first columns of a row
  double rope_base = 0;    // of frequencies that the kernel computes; 0: KernelParams has tables
  int dropped = 0;         // of 256 weights so many are dropped: dropout.h
  float scale = 0;         // natural units: score = scale * q.k
  int page_size = 0;       // not 0: K and V lie in pages of so many tokens
  int selected = 0;        // not 0: each query has a list of so many rows of K and V, and is a sequence of its own
  int listed = 0;  // index: not 0: of each query the numbers of so many keys with the largest scores are written
  bool whole_pages = false;  // its list has the numbers of so many pages instead, and their rows follow each other
  int keys_of_entry = 1;     // of lists that a mask cuts: pages of so many keys, each of which the copy has by itself
  bool head_tables = false;  // KernelParams::block_table has a line for each KV head of a sequence
  bool has_score = false;    // variant.gen.cuh's score() changes s
  bool score_has_tanh = false;
  bool score_adds = false;  // backward: it is s plus what depends on positions alone
  float score_cap = 0;      // not 0: score() is this times tanh(score_factor * q.k), both positive
  float score_factor = 0;
  bool score_loads = false;  // from tensors, at indices that depend on the key
  int inputs_16 = 0;  // bit i: parameter i has elements of 16 bits, score() reads [..., k] of it for every key k, and
                      // the producer copies those tiles
  int inputs_32 = 0;  // the same, for elements of 32 bits
  int inputs_q = 0;   // which of them are read at the query as well; the others are the same for all queries
  bool inputs_of_batches = false;  // one of them is the same for all batch indices
  bool has_mask = false;           // variant.gen.cuh's visible() is not always true
  bool mask_has_holes = false;     // variant.gen.cuh's may_see() is not always true
  bool mask_is_range = false;      // a query sees all keys from kv_begin(q, q) to kv_end(q, q)
  bool queries_are_range = false;  // backward: a key is seen by all queries from q_begin(k, k) to q_end(k, k)
  bool mask_by_rows = false;       // loops of warpgroups vote on visible() row by row (hopper/mask_votes.cuh)
  bool mask_is_long = false;       // too long to evaluate visible() for many keys at once
  bool ranges_differ = false;      // the keys that queries see together depend on the sequence, beyond its lengths
  int copy_bytes = 16;             // widest aligned global access: 16, or 8, 4, 2 for less aligned inputs

  // The schedule: what all loops have ...
  int tile_q = 0;  // rows of a block: queries, or (query, head of a group) pairs
  int tile_kv = 0;
  int stages = 1;
  TileOrder order = TileOrder::natural;
  Reference reference = Reference::lazy;
  HeadTiles head_tiles = HeadTiles::single;
  int list_heads = 0;  // not 0: tiles are visited by lists, of which so many heads of a sequence have one for each tile
  // ... and what one of them has
  SyncConfig sync;
  SyncBackwardConfig sync_backward;
  HopperConfig hopper;
  HopperBackwardConfig hopper_backward;
  DecodeConfig decode;
};

constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// Bytes of an element. Every other number of elements that a copy, a chunk or an instruction takes follows from it.
constexpr int size_of(Element e) { return e == Element::f32 ? 4 : e == Element::f8 ? 1 : 2; }

constexpr bool has_scaled_queries(const KernelConfig& c) { return c.queries != Narrow::none; }
constexpr bool is_scaled(const KernelConfig& c) { return c.cache != Narrow::none; }
// Are scores what products give, whose scale exponentials take in?
constexpr bool folds_scale(const KernelConfig& c) {
  return !c.has_score && c.scale > 0 && (!is_scaled(c) || c.widened_rows);
}
// Bytes of an element in memory: of Q, and of K and V.
constexpr int query_bytes(const KernelConfig& c) { return has_scaled_queries(c) ? 1 : size_of(c.element); }
constexpr int cache_bytes(const KernelConfig& c) { return is_scaled(c) ? 1 : size_of(c.element); }
// Says how many keys share a scale; 0: all of a sequence.
constexpr int keys_of_scale(const KernelConfig& c) { return c.token_scales ? 1 : c.scale_block; }
constexpr bool has_key_scales(const KernelConfig& c) { return keys_of_scale(c) > 0; }

// A matrix instruction takes 32 bytes of a row of Q and of K, and as much of one of V is read at a time; head dims are
// padded to that and no further.
constexpr int kStepBytes = 32;
constexpr int step_columns(Element e) { return kStepBytes / size_of(e); }
constexpr int padded_dim_qk(const KernelConfig& c) { return round_up(c.head_dim_qk, step_columns(c.element)); }
constexpr int padded_dim_v(const KernelConfig& c) { return round_up(c.head_dim_v, step_columns(c.element)); }
// Bytes of shared memory for the key of a launch.
constexpr int dropout_key_bytes(const KernelConfig& c) { return c.dropped > 0 ? 16 : 0; }
constexpr int group_size(const KernelConfig& c) { return c.heads_q / c.heads_kv; }
// A tile that has some of the heads of a group has one query.
constexpr int queries_per_tile(const KernelConfig& c) {
  if (c.head_tiles != HeadTiles::grouped) return c.tile_q;
  return c.tile_q > group_size(c) ? c.tile_q / group_size(c) : 1;
}
// Says whether a warpgroup may leave out a KV tile that the block sees, if none of its own rows see it. Where tiles are as
// long as the block has rows that is never so with a causal mask. Holes and lists are those of the block. (With one stage the
// producer would wait for that tile.)
constexpr bool has_own_tiles(const KernelConfig& c, int warpgroups) {
  return warpgroups > 1 && c.tile_kv < c.tile_q && c.stages > 1 && c.has_mask && !c.mask_has_holes && c.list_heads == 0;
}

}  // namespace flashjit

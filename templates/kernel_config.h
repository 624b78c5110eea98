// The description of one generated kernel, shared by the host (plan, emitter) and the device (templates). Each size is
// computed here, once, by constexpr functions that both sides call. This file includes nothing: NVRTC compiles it
// without any header.
#pragma once

namespace flashjit {

// Every enum is a byte, because the host keeps hundreds of schedules. compiler/spec/config_words.h has the words of
// each.
enum class Element : unsigned char { f16, bf16, f32, f8 };     // f8 is e4m3 or e5m2, as memory has them.
enum class Narrow : unsigned char { none, e4m3, e5m2, int8 };  // Elements that have 8 bits in memory.
enum class CacheFormat : unsigned char {
  elements,
  latent656,
  latent584
};  // Rows of K; latents/rows.h describes those that consist of bytes.
enum class Lse : unsigned char { none, ln, log2 };
// With packed, sequences follow each other, and their offsets are on the device.
enum class Sequences : unsigned char { dense, packed };
// Two columns form a pair that rotates: columns half a row apart, or neighbours.
enum class Rope : unsigned char { none, half, interleaved };
enum class Reference : unsigned char { lazy, tile, first };  // The exponent of a score is relative to the reference.
enum class Exclusive : unsigned char { none, issue };  // With issue, only one warpgroup at a time issues products.
enum class QueryStorage : unsigned char { shared, registers };    // Q stays there during the loop.
enum class TileOrder : unsigned char { natural, longest_first };  // The order in which query tiles start.
enum class Overlap : unsigned char { none, qk_pv };  // With qk_pv, Q K^T of the next tile runs beside P V of this one.
enum class RowSum : unsigned char { adds, matrix };  // With matrix, a column of ones beside V sums rows up.
// A grid has a block per query tile, or one per SM for all tiles.
enum class GridKind : unsigned char { tiles, persistent };
enum class Copies : unsigned char { rows, boxes };            // Rings are filled row after row, or in boxes by TMA.
enum class HeadTiles : unsigned char { single, grouped };     // With grouped, the heads of a KV head share a tile.
enum class Transpose : unsigned char { none, loop, launch };  // V is transposed there, so that its keys lie along rows.
enum class Keys : unsigned char { whole, parts };  // One block has all keys of a query tile, or several have parts.
// A loop visits a range of tiles, or those in lists (tile_lists/).
enum class TileSource : unsigned char { range, list };
// dQ is made by a launch of its own, or by the launch of dK and dV as sums in memory, added in any order or in that of
// keys.
enum class DqSums : unsigned char { launch, atomics, ordered };

// How backward sums up the derivatives of scores by the elements of a parameter that one read of the score takes.
enum class GradientSum : unsigned char {
  own,      // Each score has an element to itself.
  pairs,    // Each score of a head has an element, which other heads or sequences may share.
  queries,  // All scores of a query share an element.
  keys,     // All scores of a key share an element.
  heads,    // All scores of a head share an element.
  runs      // Any scores may share an element, and neighbours often do.
};

constexpr int kMaxParams = 8;     // Run-time parameters of masks and scores.
constexpr int kMaxGradients = 4;  // Parameters whose gradients backward writes.
constexpr int kMaxInputs = 4;     // Parameters that a producer copies beside K.

// The choices that the schedule of one family adds, and what follows from them for that family's loop alone.
struct SyncConfig {
  int warps = 0;
  QueryStorage q_in = QueryStorage::shared;
  int blocks_per_sm = 1;
  int unroll_d = 0;  // Steps along d of Q K^T that are unrolled at a time.
};

struct SyncBackwardConfig {
  int warps = 0;
  int blocks_per_sm = 1;
  DqSums dq = DqSums::launch;
};

struct HopperConfig {
  int warpgroups = 0;  // These compute, 64 rows each; one more warpgroup copies.
  int q_stages = 1;
  Overlap overlap = Overlap::none;
  Exclusive exclusive = Exclusive::none;
  RowSum row_sum = RowSum::adds;
  GridKind grid = GridKind::tiles;
  Transpose transpose = Transpose::none;
  Keys keys = Keys::whole;
};

struct HopperBackwardConfig {
  int warpgroups = 0;  // These compute.
  int cluster = 1;     // Blocks that share dQ: each has some of its columns.
  DqSums dq = DqSums::launch;
  bool keeps_ds = false;  // If true, dS is kept where there is room, and a last launch sums it up.
};

// The mla loop cuts keys as the decode loop does.
struct DecodeConfig {
  int warps = 0;
  int blocks_per_sm = 1;
  Copies copies = Copies::rows;
  int evict_first_mb = 0;  // Up to this size of K and V that a call has room for, these leave L2 before other lines.
  int side_by_side = 8;  // At most this power of two of neighbouring heads are read at the same time by as many blocks.
  int row_tiles = 1;     // If not 1: all row tiles of a KV head, whose keys as many blocks read at the same time.
  int team = 1;          // If not 1: at most this number of blocks of a cluster have a row tile to themselves.
  int cluster = 1;       // mla: blocks that share K; each copies some of the rows of a tile.
  // If true, the length of a sequence alone determines where its keys are cut, whatever else is in the call.
  bool fixed_parts = false;
};

struct KernelConfig {
  // The problem
  // Elements of products. Q, K and V are widened to it where they have 8 bits in memory.
  Element element = Element::bf16;
  Narrow queries = Narrow::none;  // If not none, Q has elements of 8 bits, and scales.
  Narrow cache = Narrow::none;    // If not none, K and V have elements of 8 bits. They do where Q does.
  // If not elements, K has rows of bytes (latents/rows.h), whose numbers have the type `element` once they are widened.
  // `cache` is none then.
  CacheFormat cache_format = CacheFormat::elements;
  Narrow results = Narrow::none;   // quantize: elements of y.
  Element output = Element::bf16;  // Elements of O.
  // Elements of backward's results.
  Element output_dq = Element::bf16, output_dk = Element::bf16, output_dv = Element::bf16;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  int heads_q = 0;
  int heads_kv = 0;
  Sequences sequences = Sequences::dense;  // Sequences of Q and O, and of K and V unless they lie in pages.
  Lse lse = Lse::none;
  bool max_logit = false;
  bool dlse = false;  // backward: KernelParams has the gradient of lse.
  bool sink = false;
  bool sink_gradient = false;  // backward: KernelParams::d_sink is written.
  int gradients = 0;           // backward: the number of gradients in KernelParams::d_extra.
  bool k_lens = false;         // KernelParams::k_lens has the key lengths, and the sizes of K and V are capacities.
  bool v_in_k = false;         // V is the first columns of K: KernelParams::v and v_stride are those of K.
  // KernelParams::v has its keys along rows, and `token` of v_stride leads from column to column.
  bool v_transposed = false;
  bool token_scales = false;  // Each key has scales of its own for K and V of 8 bits.
  bool widened_rows = false;  // The loop finds rows of 8 bits widened, and multiplied by their scales.
  int scale_block = 0;        // If not 0, this number of rows of a sequence share a scale of elements of 8 bits.
  bool rotate = false;        // quantize: rows are first multiplied by the matrix of quantize/rotation.h.
  bool linear_exp = false;    // Weights of 8 bits may be interpolated between powers of two.
  bool append = false;        // New rows are first written to the ends of K and V, by a launch of its own (append/).
  // merge: all parts but the last hold keys that all sequences share, and the last holds each sequence's own.
  bool shared_prefix = false;
  // O and LSE, or the gradients, hold results of other keys or queries, and the call adds to them.
  bool accumulate = false;
  bool places = false;  // Rows stand in a longer sequence, at the positions of KernelParams::q_places and k_places.
  // The launch that appends rotates Q and new K in this way, and the other launches read rotated rows. quantize: x is
  // rotated.
  Rope rope = Rope::none;
  int rope_dims = 0;     // Only this number of columns of a row rotate.
  int rope_from = 0;     // It is the first column that rotates.
  double rope_base = 0;  // The kernel computes frequencies from it; if 0, KernelParams has tables.
  int dropped = 0;       // This number of 256 weights is dropped: dropout.h.
  float scale = 0;       // In natural units: score = scale * q.k.
  int page_size = 0;     // If not 0, K and V lie in pages of this number of tokens.
  int selected = 0;  // If not 0, each query has a list of this number of rows of K and V, and is a sequence of its own.
  int listed = 0;  // index: if not 0, the numbers of this many keys with the largest scores are written for each query.
  // If true, the list of a query has the numbers of this many pages instead, and rows of a page follow each other.
  bool whole_pages = false;
  // If not 0, a launch merges the lists of a sequence's queries, at most this number, and queries are no sequences.
  int merged_queries = 0;
  // In lists that a mask cuts, entries are pages of this number of keys; the copy of the list has each key by itself.
  int keys_of_entry = 1;
  bool head_tables = false;  // KernelParams::block_table has a line for each KV head of a sequence.
  bool has_score = false;    // variant.gen.cuh's score() changes s.
  bool score_has_tanh = false;
  bool score_adds = false;  // backward: score() is s plus a number that depends on positions alone.
  float score_cap = 0;      // If not 0, score() is this times tanh(score_factor * q.k); both are positive.
  float score_factor = 0;
  bool score_loads = false;  // It loads from tensors, at indices that depend on the key.
  // Bit i: parameter i has elements of 16 bits, score() reads [..., k] of it for every key k, and the producer copies
  // these tiles.
  int inputs_16 = 0;
  int inputs_32 = 0;  // These parameters have elements of 32 bits, and are read and copied in the same way.
  // These inputs are read at the query as well; the others are the same for all queries.
  int inputs_q = 0;
  bool inputs_of_batches = false;  // One of the inputs is the same for all batch indices.
  bool has_mask = false;           // variant.gen.cuh's visible() is not always true.
  bool mask_has_holes = false;     // variant.gen.cuh's may_see() is not always true.
  bool mask_is_range = false;      // A query sees all keys from kv_begin(q, q) to kv_end(q, q).
  bool queries_are_range = false;  // backward: all queries from q_begin(k, k) to q_end(k, k) see a key.
  bool mask_by_rows = false;       // Loops of warpgroups vote on visible() row by row (hopper/mask_votes.cuh).
  bool mask_is_long = false;       // The mask is too long to evaluate visible() for many keys at once.
  bool ranges_differ = false;      // The keys that queries see together depend on the sequence, beyond its lengths.
  int copy_bytes = 16;             // The widest aligned global access: 16, or 8, 4, 2 for less aligned inputs.

  // The schedule: fields that all loops have ...
  int tile_q = 0;  // Rows of a block: queries, or (query, head of a group) pairs.
  int tile_kv = 0;
  int stages = 1;
  TileOrder order = TileOrder::natural;
  Reference reference = Reference::lazy;
  HeadTiles head_tiles = HeadTiles::single;
  // If not 0, lists give the tiles to visit, and this number of heads of a sequence have lists of their own.
  int list_heads = 0;
  // ... and fields that one loop has.
  SyncConfig sync;
  SyncBackwardConfig sync_backward;
  HopperConfig hopper;
  HopperBackwardConfig hopper_backward;
  DecodeConfig decode;
};

constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// Returns the bytes of an element. Every other number of elements that a copy, a chunk or an instruction takes follows
// from it.
constexpr int size_of(Element e) { return e == Element::f32 ? 4 : e == Element::f8 ? 1 : 2; }

constexpr bool has_scaled_queries(const KernelConfig& c) { return c.queries != Narrow::none; }
constexpr bool is_scaled(const KernelConfig& c) { return c.cache != Narrow::none; }
// True if scores are mere products, so that exponentials take in their scale.
constexpr bool folds_scale(const KernelConfig& c) {
  return !c.has_score && c.scale > 0 && (!is_scaled(c) || c.widened_rows);
}
// Return the bytes of an element in memory, of Q, and of K and V.
constexpr int query_bytes(const KernelConfig& c) { return has_scaled_queries(c) ? 1 : size_of(c.element); }
constexpr int cache_bytes(const KernelConfig& c) { return is_scaled(c) ? 1 : size_of(c.element); }
// Returns how many keys share a scale, or 0 if all keys of a sequence do.
constexpr int keys_of_scale(const KernelConfig& c) { return c.token_scales ? 1 : c.scale_block; }
constexpr bool has_key_scales(const KernelConfig& c) { return keys_of_scale(c) > 0; }

// A matrix instruction takes 32 bytes of a row of Q and of K, and as many bytes of a row of V are read at a time. Head
// dims are padded to a multiple of that.
constexpr int kStepBytes = 32;
constexpr int step_columns(Element e) { return kStepBytes / size_of(e); }
constexpr int padded_dim_qk(const KernelConfig& c) { return round_up(c.head_dim_qk, step_columns(c.element)); }
constexpr int padded_dim_v(const KernelConfig& c) { return round_up(c.head_dim_v, step_columns(c.element)); }
// Returns the bytes of shared memory for the key of a launch.
constexpr int dropout_key_bytes(const KernelConfig& c) { return c.dropped > 0 ? 16 : 0; }
constexpr int group_size(const KernelConfig& c) { return c.heads_q / c.heads_kv; }
// A tile that has only some of the heads of a group has one query.
constexpr int queries_per_tile(const KernelConfig& c) {
  if (c.head_tiles != HeadTiles::grouped) return c.tile_q;
  return c.tile_q > group_size(c) ? c.tile_q / group_size(c) : 1;
}
// True if a warpgroup may leave out a KV tile that the block sees, where none of its own rows see the tile. With a
// causal mask no such tile exists where tiles have as many keys as the block has rows. Holes and lists are those of the
// whole block. (With one stage the producer would wait for the left out tile.)
constexpr bool has_own_tiles(const KernelConfig& c, int warpgroups) {
  return warpgroups > 1 && c.tile_kv < c.tile_q && c.stages > 1 && c.has_mask && !c.mask_has_holes && c.list_heads == 0;
}

}  // namespace flashjit

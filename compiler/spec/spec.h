// AttentionSpec: what the user wants, never how. One text form that parses and prints without loss:
//
//   fwd bf16 d=128 heads=32/8 mask="causal & window(4096, 0)" score="softcap(50)"
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/spec/dtype.h"
#include "compiler/language/expr.h"
#include "compiler/result.h"
#include "templates/kernel_config.h"

namespace flashjit {

struct VariableRanges;

enum class Operation { Forward, Backward, Merge, Quantize, Index };
enum class Layout { Bshd, Bhsd, Packed };
enum class Alignment { BottomRight, TopLeft };
enum class Numerics { Fast, Deterministic, BatchInvariant };

// A run-time size: pinned (min == max), bounded above, or free.
struct SizeBound {
  // The sum of two positions then fits 32 bits, so `q + k_len - q_len` of a causal mask needs no 64-bit code by
  // default.
  static constexpr std::int64_t kLargest = (std::int64_t{1} << 30) - 1;
  std::int64_t min = 0, max = kLargest;
  bool pinned() const { return min == max; }
  bool operator==(const SizeBound&) const = default;
};

// Lists of blocks of so many queries and keys, for so many heads: 1, the KV heads or the query heads.
struct BlockSizes {
  int q = 0, k = 0, heads = 0;
};

struct AttentionSpec {
  Operation operation = Operation::Forward;          // fwd | bwd | merge | quantize | index
  Dtype dtype = Dtype::BF16;                         // fp16 | bf16 | fp32 (host only) | e4m3 | e5m2
  Dtype kv_dtype = Dtype::BF16;                      // kv=...   default: dtype; e4m3 | e5m2 | int8
  CacheFormat cache_format = CacheFormat::elements;  // kv=latent656 | latent584: K has rows of bytes, whose numbers,
                                                     // widened, are of kv_dtype, the dtype
  std::optional<Dtype> compute;                      // compute=e4m3 | e5m2: Q, K and V are rounded to it first
  Dtype out_dtype = Dtype::BF16;      // out=...  default: dtype, of 8 bits bf16; of O; quantize: e4m3 | e5m2
  Dtype out_dq = Dtype::BF16;         //   of bwd those of dQ, dK and dV: one for all in the text,
  Dtype out_dk = Dtype::BF16;         //   or three, out=fp32/bf16/bf16
  Dtype out_dv = Dtype::BF16;         //   (fields/outputs.h)
  int d_qk = 0, d_v = 0;              // d=128 or d=192/128
  int heads_q = 1, heads_kv = 1;      // heads=32/8 or heads=32
  Layout layout = Layout::Bshd;       // layout=bshd | bhsd | packed | paged(16) | packed/paged(16)
  int page_size = 0;                  // not 0: K and V lie in pages, and `layout` is that of Q and O alone
  int selected = 0;                   // select=keys(2048): each query has a list of so many keys (fields/select.h), or
                                      // index writes one
  bool whole_pages = false;           // select=pages(16): or of so many pages
  BlockSizes blocks;                  // blocks=128 | 64/128 | 64/128/8: lists say which blocks are seen
  Expr mask;                          // mask="..."   empty: everything visible; with blocks: in_blocks() of it
  Expr score;                         // score="..."  empty: s
  Expr list_mask;                     // mask="..." beside select=: `mask` is then empty, as kernels read lists that
                                      // have been cut by this one (fields/select.h)
  std::string mask_text, score_text;  // as written by the user: what is printed
  std::vector<Param> declared;        // params="slope: fp32[1], cap: fp32": those the user declared
  std::vector<Param> params;          // declared plus those of named rows, in the order of the parameter block;
                                      // with blocks the last is what is made of lists (fields/blocks.h)
  std::vector<std::string> grads;     // grads="slope, sink": of what bwd writes gradients as well; as `params`,
                                      // and the sink last
  double scale = 0;                   // scale=0.125; 0 means 1/sqrt(d_qk)
  Alignment alignment = Alignment::BottomRight;  // align=bottom_right | top_left
  Lse lse = Lse::none;                           // lse=ln | log2; bwd reads it, and ln is the default there
  bool max_logit = false;                        // max_logit
  bool sink = false;                             // sink: one extra logit per query head in every row's sum
  bool dlse = false;                             // dlse: bwd reads the gradient of lse as well
  bool k_lens = false;         // k_lens: key lengths on the device, up to what K and V hold; so of pages
  bool v_in_k = false;         // v_in_k: V is the first d_v columns of K, and no tensor of its own
  bool v_transposed = false;   // v_transposed: v is [batch, KV heads, d_v, tokens], in every layout
  bool token_scales = false;   // token_scales: scale_k and scale_v have numbers for each key
  int scale_block = 0;         // scales=block(128): scales are those of so many rows of Q, K and V
  bool rotate = false;         // rotate: rows are mixed before they are rounded to 8 bits
  bool linear_exp = false;     // linear_exp: weights of 8 bits may be interpolated between powers of two
  bool append = false;         // append: k_new and v_new are written to the ends of the sequences first
  bool shared_prefix = false;  // shared_prefix: the first keys of all sequences are the same, in the same pages
  bool accumulate = false;     // accumulate: O and LSE, or of bwd the gradients, are gone on from (fields/accumulate.h)
  bool places = false;         // places: rows are a part of a longer sequence (fields/places.h)
  bool head_tables = false;    // head_tables: each KV head has a block table of its own
  Rope rope = Rope::none;      // rope=half(64) | interleaved(64): of Q and k_new; of Q and K
                               // with compute; of x of quantize
  int rope_dims = 0;           //   that many columns
  double rope_base = 0;        // rope_base=10000: instead of tables
  double dropout = 0;          // dropout=0.1; kernels drop the nearest number of 256 weights
  SizeBound batch, q_len, k_len;       // b<=64  q_len=1  k_len<=131072
  int align_bytes = 16;                // bytes=16|8|4|2: what all pointers and strides are multiples of
  Numerics numerics = Numerics::Fast;  // numerics=fast | deterministic | batch_invariant

  double effective_scale() const;
};

// Parses and validates. Errors name field, value, limit and way out; the detail has a caret where a text is wrong.
Result<AttentionSpec> parse_spec(std::string_view text);

// Canonical text: fields in fixed order, defaults left out. parse_spec(print(s)) gives s again.
std::string print(const AttentionSpec& spec);

// The same for all texts that ask for the same kernel with the same arguments, however they are spelled: masks and
// scores are written out in their simple form, and so are all parameters, whoever declares them. For keys; it may be
// longer than what parse_spec takes.
std::string meaning(const AttentionSpec& spec);

// The check that parse_spec does after parsing; for specs that were built in C++ (fills `params`, parses the mask and score
// texts if the expressions are empty).
Result<void> validate(AttentionSpec& spec);

// Not attention, but what it gave for parts of the keys, put together, or what it will read, in 8 bits, or the keys that it
// will see.
inline bool merges(const AttentionSpec& spec) { return spec.operation == Operation::Merge; }
inline bool quantizes(const AttentionSpec& spec) { return spec.operation == Operation::Quantize; }
inline bool indexes(const AttentionSpec& spec) { return spec.operation == Operation::Index; }
inline bool attends(const AttentionSpec& spec) { return !merges(spec) && !quantizes(spec) && !indexes(spec); }
inline bool reads_keys(const AttentionSpec& spec) { return attends(spec) || indexes(spec); }
inline bool is_forward(const AttentionSpec& spec) { return spec.operation == Operation::Forward; }
inline bool is_backward(const AttentionSpec& spec) { return spec.operation == Operation::Backward; }
inline bool appends(const AttentionSpec& spec) { return spec.append; }
inline bool drops(const AttentionSpec& spec) { return spec.dropout > 0; }
inline bool has_blocks(const AttentionSpec& spec) { return spec.blocks.q > 0; }
inline bool selects(const AttentionSpec& spec) { return spec.selected > 0 && !indexes(spec); }
// Does it write the list that `selects` reads, or the scores that one would be made of?
inline bool writes_lists(const AttentionSpec& spec) { return indexes(spec) && spec.selected > 0; }
inline bool writes_scores(const AttentionSpec& spec) { return indexes(spec) && spec.selected == 0; }
inline bool selects_pages(const AttentionSpec& spec) { return selects(spec) && spec.whole_pages; }
inline bool selects_keys(const AttentionSpec& spec) { return selects(spec) && !spec.whole_pages; }
// The mask that the user wrote, whoever asks it.
inline const Expr& written_mask(const AttentionSpec& spec) { return spec.list_mask ? spec.list_mask : spec.mask; }
// The keys that a list has room for.
inline int listed_keys(const AttentionSpec& spec) { return spec.selected * (selects_pages(spec) ? spec.page_size : 1); }
// Does a call go on from O and LSE of other keys, or add to the gradients of others?
inline bool goes_on_from_results(const AttentionSpec& spec) { return is_forward(spec) && spec.accumulate; }
inline bool adds_to_gradients(const AttentionSpec& spec) { return is_backward(spec) && spec.accumulate; }
// The parameters that a call gives.
inline std::span<const Param> given_params(const AttentionSpec& spec) {
  return std::span(spec.params).first(spec.params.size() - (has_blocks(spec) ? 1 : 0));
}

// Says how Q and O, and how K and V lie in memory. Operations that read no keys do not ask which sequence a token is of, unless
// blocks of its rows have scales; nor do queries that have lists of keys.
inline bool is_packed(const AttentionSpec& spec) {
  return spec.layout == Layout::Packed && !selects(spec) && (reads_keys(spec) || spec.scale_block > 0);
}
inline bool is_paged(const AttentionSpec& spec) { return spec.page_size > 0; }
// Rows of a pool do not say which keys they are, so beside a mask a call gives positions: of queries, and of listed keys.
inline bool reads_positions(const AttentionSpec& spec) { return spec.list_mask && is_paged(spec); }
// Kernels find pages in lists as they are given, but keys beside a mask, as it may hide some of a page.
inline bool reads_pages(const AttentionSpec& spec) { return selects_pages(spec) && !spec.list_mask; }
inline int read_entries(const AttentionSpec& spec) { return reads_pages(spec) ? spec.selected : listed_keys(spec); }
// Have they elements of 8 bits, which scales belong to? Q only where K and V have.
inline bool has_scaled_queries(const AttentionSpec& spec) { return size_of(spec.dtype) == 1; }
inline bool has_scaled_keys(const AttentionSpec& spec) { return size_of(spec.kv_dtype) == 1; }
// Has K rows of bytes, in one of the formats of latents (templates/latents/rows.h)? They have scales of their own.
inline bool has_latent_rows(const AttentionSpec& spec) { return spec.cache_format != CacheFormat::elements; }
// Are Q, K and V rounded to elements of 8 bits first, by launches of their own (compiler/narrowing.h)?
inline bool narrows(const AttentionSpec& spec) { return spec.compute.has_value(); }
// Are there several scales for the keys of a sequence?
inline bool has_key_scales(const AttentionSpec& spec) { return spec.token_scales || spec.scale_block > 0; }
// Are the pages of a sequence found in a table?
inline bool has_block_table(const AttentionSpec& spec) { return is_paged(spec) && !selects(spec); }
inline bool has_head_tables(const AttentionSpec& spec) { return spec.head_tables; }
// Pages are whole, and sequences are not; and a merge asks whether a sequence has the prefix that others share.
inline bool implies_k_lens(const AttentionSpec& spec) {
  return has_block_table(spec) || (merges(spec) && spec.shared_prefix);
}
inline bool has_packed_keys(const AttentionSpec& spec) {
  return is_packed(spec) && !is_paged(spec) && reads_keys(spec);
}

// The elements that a cache holds of a token and KV head: K, and V where that is not a part of it.
inline int cached_dims(const AttentionSpec& spec) { return spec.d_qk + (spec.v_in_k || indexes(spec) ? 0 : spec.d_v); }

// The bytes that a cache takes for a token, of all its KV heads.
std::int64_t cached_bytes(const AttentionSpec& spec);

// Does every sequence have lengths of its own, which lie on the device?
inline bool has_own_q_lens(const AttentionSpec& spec) { return is_packed(spec); }
inline bool has_own_k_lens(const AttentionSpec& spec) { return is_packed(spec) || spec.k_lens; }

// Has it a gradient of the sink, and of which parameters, by their numbers? Tensors that hold them are called `d` and the
// name.
bool has_sink_gradient(const AttentionSpec& spec);
std::vector<int> params_with_gradients(const AttentionSpec& spec);
inline std::string gradient_name(std::string_view of) { return "d" + std::string(of); }

// Are angles read from tensors, cos and sin?
inline bool has_rope_tables(const AttentionSpec& spec) { return spec.rope != Rope::none && spec.rope_base == 0; }

// The values that variables of mask and score can have within the bounds of the spec (compiler/analysis/interval.h) ...
VariableRanges variable_ranges(const AttentionSpec& spec);
// ... and in a call of these sizes, its longest sequences.
VariableRanges variable_ranges(const AttentionSpec& spec, std::int64_t batch, std::int64_t q_len, std::int64_t k_len);

// Legal, but nothing in this build computes it: mixed KV types, dropout of caches.
Result<void> check_supported(const AttentionSpec& spec);

inline constexpr std::size_t kMaxSpecText = 16384;  // bytes
// The head dims of Q and K, and of V. Latent attention, whose V is a part of K, has wider ones.
inline constexpr int kMaxHeadDim = 256, kMaxLatentDimQk = 576, kMaxLatentDimV = 512;

}  // namespace flashjit

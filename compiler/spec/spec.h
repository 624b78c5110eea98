// An AttentionSpec holds what the user wants, never how. Its one text form parses and prints without loss:
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

// A run-time size, which is pinned (min == max), bounded above, or free.
struct SizeBound {
  // The sum of two positions of this size fits 32 bits, so `q + k_len - q_len` of a causal mask needs no 64-bit code by
  // default.
  static constexpr std::int64_t kLargest = (std::int64_t{1} << 30) - 1;
  std::int64_t min = 0, max = kLargest;
  bool pinned() const { return min == max; }
  bool operator==(const SizeBound&) const = default;
};

// Lists of a call give blocks of so many queries and keys, for so many heads: 1, the KV heads or the query heads.
struct BlockSizes {
  int q = 0, k = 0, heads = 0;
};

struct AttentionSpec {
  Operation operation = Operation::Forward;  // fwd | bwd | merge | quantize | index
  Dtype dtype = Dtype::BF16;                 // fp16 | bf16 | fp32 (host only) | e4m3 | e5m2
  Dtype kv_dtype = Dtype::BF16;              // kv=...   default: dtype; e4m3 | e5m2 | int8
  // kv=latent656 | latent584: rows of K are bytes, and their numbers have kv_dtype, which is the dtype, once widened.
  CacheFormat cache_format = CacheFormat::elements;
  std::optional<Dtype> compute;   // compute=e4m3 | e5m2: Q, K and V are rounded to it first.
  Dtype out_dtype = Dtype::BF16;  // out=...  default: dtype, for 8 bits bf16. It is O's; quantize: e4m3 | e5m2
  // bwd: the dtypes of dQ, dK and dV, one for all in the text, or three as in out=fp32/bf16/bf16 (fields/outputs.h).
  Dtype out_dq = Dtype::BF16;
  Dtype out_dk = Dtype::BF16;
  Dtype out_dv = Dtype::BF16;
  int d_qk = 0, d_v = 0;          // d=128 or d=192/128
  int heads_q = 1, heads_kv = 1;  // heads=32/8 or heads=32
  Layout layout = Layout::Bshd;   // layout=bshd | bhsd | packed | paged(16) | packed/paged(16)
  int page_size = 0;              // If not 0, K and V lie in pages, and `layout` is that of Q and O alone.
  // select=keys(2048): each query has a list of so many keys (fields/select.h), or index writes one.
  int selected = 0;
  bool whole_pages = false;  // select=pages(16): the list has so many pages instead.
  BlockSizes blocks;         // blocks=128 | 64/128 | 64/128/8: lists tell which blocks are seen.
  Expr mask;                 // mask="..."   empty: everything is visible. With blocks it is in_blocks() of the mask.
  Expr score;                // score="..."  empty: s
  // mask="..." beside select=. `mask` is then empty, because kernels read lists from which this mask has removed keys
  // (fields/select.h).
  Expr list_mask;
  std::string mask_text, score_text;  // The texts that the user wrote, which are printed.
  std::vector<Param> declared;        // params="slope: fp32[1], cap: fp32": the parameters that the user declared.
  // The declared parameters and those of named rows, in the order of the parameter block. With blocks the last one has
  // the states of blocks, which are made from lists (fields/blocks.h).
  std::vector<Param> params;
  // grads="slope, sink": bwd writes gradients of these as well. They are in the order of `params`, and the sink is
  // last.
  std::vector<std::string> grads;
  double scale = 0;                              // scale=0.125; 0 means 1/sqrt(d_qk)
  Alignment alignment = Alignment::BottomRight;  // align=bottom_right | top_left
  Lse lse = Lse::none;                           // lse=ln | log2; bwd reads it, and its default there is ln.
  bool max_logit = false;                        // max_logit
  bool sink = false;                             // sink: every row's sum has one extra logit for each query head.
  bool dlse = false;                             // dlse: bwd reads the gradient of lse as well.
  // k_lens: key lengths lie on the device, and reach up to the room of K and V, or of their pages.
  bool k_lens = false;
  bool v_in_k = false;         // v_in_k: V is the first d_v columns of K, and no tensor of its own.
  bool v_transposed = false;   // v_transposed: v is [batch, KV heads, d_v, tokens], in every layout.
  bool token_scales = false;   // token_scales: scale_k and scale_v have a number for each key.
  int scale_block = 0;         // scales=block(128): each scale counts for so many rows of Q, K or V.
  bool rotate = false;         // rotate: rows are mixed before they are rounded to 8 bits.
  bool linear_exp = false;     // linear_exp: weights of 8 bits may be interpolated between powers of two.
  bool append = false;         // append: k_new and v_new are written to the ends of the sequences first.
  bool shared_prefix = false;  // shared_prefix: the first keys of all sequences are the same, in the same pages.
  // accumulate: a call goes on from O and LSE or, for bwd, adds to the gradients (fields/accumulate.h).
  bool accumulate = false;
  bool places = false;       // places: rows are a part of a longer sequence (fields/places.h).
  bool head_tables = false;  // head_tables: each KV head has a block table of its own.
  // rope=half(64) | interleaved(64): it turns Q and k_new, with compute Q and K, and with quantize x.
  Rope rope = Rope::none;
  int rope_dims = 0;                   // So many columns turn.
  int rope_from = 0;                   // rope_from=512: it is the first of them.
  double rope_base = 0;                // rope_base=10000: angles follow from it instead of tables.
  double dropout = 0;                  // dropout=0.1; kernels drop the nearest number of 256 weights.
  SizeBound batch, q_len, k_len;       // b<=64  q_len=1  k_len<=131072
  int align_bytes = 16;                // bytes=16|8|4|2: all pointers and strides are multiples of it.
  Numerics numerics = Numerics::Fast;  // numerics=fast | deterministic | batch_invariant

  double effective_scale() const;
};

// Parses and validates. Errors name field, value, limit and way out, and the detail has a caret where a text is wrong.
Result<AttentionSpec> parse_spec(std::string_view text);

// Returns the canonical text, with fields in fixed order and without defaults. parse_spec(print(s)) gives s again.
std::string print(const AttentionSpec& spec);

// Returns a text that is equal for all specs that ask for the same kernel with the same arguments, however they are
// spelled. Masks and scores are written out in their simple form, and so are all parameters, whoever declares them. The
// text is for keys, and may be longer than what parse_spec takes.
std::string meaning(const AttentionSpec& spec);

// Does the check that parse_spec does after parsing, for specs that were built in C++. It fills `params`, and parses
// the mask and score texts if the expressions are empty.
Result<void> validate(AttentionSpec& spec);

// Three operations are not attention: merge puts together what attention gave for parts of the keys, quantize makes the
// 8 bits that attention will read, and index finds the keys that it will see.
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
// Returns true if an index writes the lists that `selects` reads; the next function, if it writes the scores of all
// keys.
inline bool writes_lists(const AttentionSpec& spec) { return indexes(spec) && spec.selected > 0; }
inline bool writes_scores(const AttentionSpec& spec) { return indexes(spec) && spec.selected == 0; }
inline bool selects_pages(const AttentionSpec& spec) { return selects(spec) && spec.whole_pages; }
inline bool selects_keys(const AttentionSpec& spec) { return selects(spec) && !spec.whole_pages; }
// Returns the mask that the user wrote, whether kernels or the cut of lists read it.
inline const Expr& written_mask(const AttentionSpec& spec) { return spec.list_mask ? spec.list_mask : spec.mask; }
// Returns the number of keys for which a list has room.
inline int listed_keys(const AttentionSpec& spec) { return spec.selected * (selects_pages(spec) ? spec.page_size : 1); }
// Returns true if a call goes on from O and LSE of other keys; the next function, if it adds to gradients of other
// calls.
inline bool goes_on_from_results(const AttentionSpec& spec) { return is_forward(spec) && spec.accumulate; }
inline bool adds_to_gradients(const AttentionSpec& spec) { return is_backward(spec) && spec.accumulate; }
// Returns the parameters that a call gives, without the states of blocks.
inline std::span<const Param> given_params(const AttentionSpec& spec) {
  return std::span(spec.params).first(spec.params.size() - (has_blocks(spec) ? 1 : 0));
}

// Returns true if Q and O are packed. Operations that read no keys need not know which sequence a token belongs to,
// unless blocks of its rows have scales; nor do queries that have lists of keys.
inline bool is_packed(const AttentionSpec& spec) {
  return spec.layout == Layout::Packed && !selects(spec) && (reads_keys(spec) || spec.scale_block > 0);
}
inline bool is_paged(const AttentionSpec& spec) { return spec.page_size > 0; }
// Rows of a pool do not tell which keys they are, so beside a mask a call gives positions of queries and of listed
// keys.
inline bool reads_positions(const AttentionSpec& spec) { return spec.list_mask && is_paged(spec); }
// Kernels find pages in lists as a call gives them. Beside a mask they find keys, because it may hide some keys of a
// page.
inline bool reads_pages(const AttentionSpec& spec) { return selects_pages(spec) && !spec.list_mask; }
inline int read_entries(const AttentionSpec& spec) { return reads_pages(spec) ? spec.selected : listed_keys(spec); }
// Returns true if Q has elements of 8 bits, which have scales. Q has them only where K and V have them.
inline bool has_scaled_queries(const AttentionSpec& spec) { return size_of(spec.dtype) == 1; }
inline bool has_scaled_keys(const AttentionSpec& spec) { return size_of(spec.kv_dtype) == 1; }
// Returns true if rows of K are bytes in one of the formats of latents (templates/latents/rows.h), which hold their own
// scales.
inline bool has_latent_rows(const AttentionSpec& spec) { return spec.cache_format != CacheFormat::elements; }
// Returns true if launches of their own first round Q, K and V to elements of 8 bits (compiler/narrowing.h).
inline bool narrows(const AttentionSpec& spec) { return spec.compute.has_value(); }
// Returns true if the keys of a sequence have several scales.
inline bool has_key_scales(const AttentionSpec& spec) { return spec.token_scales || spec.scale_block > 0; }
// Returns true if a table has the pages of a sequence.
inline bool has_block_table(const AttentionSpec& spec) { return is_paged(spec) && !selects(spec); }
inline bool has_head_tables(const AttentionSpec& spec) { return spec.head_tables; }
// Pages are whole, and sequences need not fill them, so lengths are given. A merge needs lengths to know whether a
// sequence has the prefix that others share.
inline bool implies_k_lens(const AttentionSpec& spec) {
  return has_block_table(spec) || (merges(spec) && spec.shared_prefix);
}
inline bool has_packed_keys(const AttentionSpec& spec) {
  return is_packed(spec) && !is_paged(spec) && reads_keys(spec);
}

// Returns the elements that a cache holds of a token and KV head: K, and V where that is not a part of K.
inline int cached_dims(const AttentionSpec& spec) { return spec.d_qk + (spec.v_in_k || indexes(spec) ? 0 : spec.d_v); }

// Returns the bytes that a cache takes for a token, for all its KV heads.
std::int64_t cached_bytes(const AttentionSpec& spec);

// Returns true if every sequence has a length of its own, which lies on the device.
inline bool has_own_q_lens(const AttentionSpec& spec) { return is_packed(spec); }
inline bool has_own_k_lens(const AttentionSpec& spec) { return is_packed(spec) || spec.k_lens; }

// Returns true if the spec has a gradient of the sink; the next function returns the numbers of the parameters that
// have gradients. A tensor of a gradient is named `d` and the name of its parameter.
bool has_sink_gradient(const AttentionSpec& spec);
std::vector<int> params_with_gradients(const AttentionSpec& spec);
inline std::string gradient_name(std::string_view of) { return "d" + std::string(of); }

// Returns true if angles are read from tensors, cos and sin.
inline bool has_rope_tables(const AttentionSpec& spec) { return spec.rope != Rope::none && spec.rope_base == 0; }
// Lets rows turn as those of `from` do. Rows of an empty spec do not turn.
inline void copy_rope(AttentionSpec& to, const AttentionSpec& from) {
  to.rope = from.rope;
  to.rope_dims = from.rope_dims;
  to.rope_from = from.rope_from;
  to.rope_base = from.rope_base;
}

// Returns the values that variables of mask and score can have within the bounds of the spec
// (compiler/analysis/interval.h).
VariableRanges variable_ranges(const AttentionSpec& spec);
// Returns the values that they can have in a call of these sizes, which are those of its longest sequences.
VariableRanges variable_ranges(const AttentionSpec& spec, std::int64_t batch, std::int64_t q_len, std::int64_t k_len);

// Refuses legal specs that nothing in this build computes, for example mixed KV types or dropout of caches.
Result<void> check_supported(const AttentionSpec& spec);

inline constexpr std::size_t kMaxSpecText = 16384;  // Bytes.
// The largest head dims of Q and K, and of V. Latent attention, whose V is a part of K, has wider ones.
inline constexpr int kMaxHeadDim = 256, kMaxLatentDimQk = 576, kMaxLatentDimV = 512;

}  // namespace flashjit

// The tensors of a call, one row each. This table drives checks of a call, the views of both APIs, the parameter block,
// random data, poisoning and the command's options.
//
// Both APIs take an operand by its name, and older operands by a field as well. A parameter of the spec hides the
// operand of its name, so a new row here breaks no existing spec: such an operand is then given by its field.
// validate() refuses a parameter that hides an operand without a field where the spec needs it.
//
// Gradients of parameters have no rows, because a spec defines them as it defines the parameters.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "compiler/spec/spec.h"
#include "templates/kernel_params.h"
#include "templates/append/rope.h"

namespace flashjit {

// The things that a dimension counts. The spec gives some extents; the first operand of a call that has a dimension
// gives the others.
enum class Dim {
  None,
  Batch,
  Queries,
  QueryBlocks,
  Keys,
  KeyBlocks,
  HeadsQ,
  HeadsKv,
  DQk,
  DV,
  Offsets,
  Pages,
  PageTokens,
  PageBlocks,
  TablePages,
  Parts,
  Positions,
  RopePairs,
  ListHeads,
  ListRows,
  Listed,
  ListedFull,
  Selected,
  One,
  RowBytes,
  ScoredKeys
};
inline constexpr std::size_t kDims = 26;
inline constexpr int kMaxTensorRank = 5;
// Returns the name for messages, for example "batch of q".
std::string_view meaning_of(Dim dim, const AttentionSpec& spec);
// Returns the extent that the spec gives. It is negative where a call gives it.
int extent_of(Dim dim, const AttentionSpec& spec);

// Returns what the tokens dimension of a tensor of scales counts. None: there is no such dimension, because one scale
// counts for a whole sequence.
constexpr Dim rows_of_query_scales(const AttentionSpec& spec) {
  return spec.scale_block > 0 ? Dim::QueryBlocks : Dim::None;
}
constexpr Dim rows_of_key_scales(const AttentionSpec& spec) {
  return spec.token_scales ? Dim::Keys : spec.scale_block > 0 ? Dim::KeyBlocks : Dim::None;
}

enum class OperandRole { Input, Output };

// The way in which the parameter block has the strides of an operand.
enum class OperandStrides {
  None,  // The tensor is contiguous.
  // The strides are at `strides`, and the spec's layout orders the dimensions. For a transposed operand `token` is the
  // stride of columns.
  Token,
  Row,    // The strides are row_stride_batch and row_stride_head, which all these operands share.
  Table,  // The strides are table_stride_batch, table_stride_head and table_stride_page.
  Parts,  // The strides are at `part_strides`, in whatever order the layout has them.
  Lists   // `lists` has the strides of a count or, with a dimension more, of an index.
};

struct Operand {
  std::string_view name, what;
  OperandRole role = OperandRole::Input;
  Dtype AttentionSpec::* dtype = nullptr;  // null: it is always_dtype.
  Dtype always_dtype = Dtype::F32;
  Dim dims[kMaxTensorRank] = {};  // The dimensions in layout=bshd; axes_of() converts them for other layouts.
  bool (*is_in)(const AttentionSpec& spec) = nullptr;  // The specs that have the operand; null: all.
  // The specs whose calls read the operand, and write to it as well; null: none.
  bool (*is_updated)(const AttentionSpec& spec) = nullptr;
  bool (*is_read)(const AttentionSpec& spec) = nullptr;  // The specs that read this output of other specs; null: none.
  // The specs in which its rows are bytes of a format of latents; null: none.
  bool (*in_bytes)(const AttentionSpec& spec) = nullptr;
  // The specs in which tokens lie along its rows, heads first; null: none.
  bool (*turns)(const AttentionSpec& spec) = nullptr;
  // The error behind "NAME: given, and" if a call gives the operand and the spec has none.
  std::string_view absent = {};
  bool has_field = true;  // Arguments has a field for it; otherwise a call gives it by its name.
  bool optional = false;  // A call may leave it out.
  // Leading dimensions may be left out. These, and others of size 1, count for all.
  bool repeats = false;
  Dim (*rows)(const AttentionSpec& spec) = nullptr;  // It replaces the dimension of queries or keys in `dims`.
  // The specs in which it has a dimension of KV heads; null: all.
  bool (*has_heads)(const AttentionSpec& spec) = nullptr;
  // The address is a multiple of what the spec says. Otherwise it is a multiple of an element or, on a GPU and if
  // `alignment` is not null, of so many bytes.
  bool aligned = false;
  int (*alignment)(const AttentionSpec& spec) = nullptr;
  std::size_t pointer = 0;  // The offset of its address in KernelParams.
  OperandStrides strides_kind = OperandStrides::None;
  Strides KernelParams::* strides = nullptr;
  PartStrides KernelParams::* part_strides = nullptr;
  BlockLists KernelParams::* lists = nullptr;
  Int64 KernelParams::* value = nullptr;  // The number that is set if a call gives the operand by value.

  bool belongs_to(const AttentionSpec& spec) const { return !is_in || is_in(spec); }
  bool updated_by(const AttentionSpec& spec) const { return is_updated && is_updated(spec); }
  bool is_output_of(const AttentionSpec& spec) const {
    return role == OperandRole::Output && !(is_read && is_read(spec)) && !updated_by(spec);
  }
  bool written_by(const AttentionSpec& spec) const { return is_output_of(spec) || updated_by(spec); }
  bool is_in_bytes_of(const AttentionSpec& spec) const { return in_bytes && in_bytes(spec); }
  // An operand that another operation has written has the dtype of that operation.
  Dtype dtype_of(const AttentionSpec& spec) const {
    if (is_in_bytes_of(spec)) return Dtype::U8;
    if (!dtype) return always_dtype;
    return is_read && is_read(spec) ? spec.dtype : spec.*dtype;
  }
};

// The dimensions of an operand in a spec's layout, and the axes where its tensor has them. Packed operands have the
// tokens of all sequences in one dimension and no batch, except blocks of tokens, which belong to a sequence. K and V
// in pages, and their scales, have pages instead of the batch, and the tokens or blocks of a page.
struct OperandAxes {
  int rank = 0;
  Dim dims[kMaxTensorRank] = {};
  int at[kMaxTensorRank] = {-1, -1, -1, -1, -1};  // The axes are parallel to `dims`; negative: the tensor has none.
};
OperandAxes axes_of(const Operand& operand, const AttentionSpec& spec);

inline constexpr std::string_view kOfAttention =
    "a merge reads o_parts and lse_parts, and quantize reads x; leave it out or use fwd";
inline constexpr std::string_view kOfIndex = "the spec is no index; leave it out or use index";
inline constexpr std::string_view kOfBackward = "the spec is no bwd; leave it out or use bwd";
inline constexpr std::string_view kOfMerges = "the spec is no merge; leave it out or use merge";
inline constexpr std::string_view kOfBlocks =
    "the spec does not ask for it; add blocks=128 to the spec or leave it out";
inline constexpr std::string_view kOfSelect =
    "the spec does not ask for it; add select=keys(N) or select=pages(N) to the spec or leave it out";
inline constexpr std::string_view kOfSelectedKeys =
    "the spec does not ask for it; add select=keys(N) to the spec or leave it out; with select=pages(N) give page_index";
inline constexpr std::string_view kOfSelectedPages =
    "the spec does not ask for it; add select=pages(N) to the spec or leave it out; with select=keys(N) give key_index";
inline constexpr std::string_view kOfPositions =
    "the spec does not ask for it; add a mask beside select= in pages to the spec or leave it out";
inline constexpr std::string_view kOfQuantize = "the spec is no quantize; leave it out or use quantize";

// A launch that appends reads angles one by one, so they are aligned to an element there, whatever the spec says.
constexpr int alignment_of_angles(const AttentionSpec& spec) {
  return spec.append ? size_of(Dtype::F32) : rope_table_bytes(spec.rope_dims, spec.align_bytes);
}

// Returns true if lists are read or, by an index, written.
constexpr bool has_lists(const AttentionSpec& spec) { return spec.selected > 0; }
constexpr bool has_key_lists(const AttentionSpec& spec) { return spec.selected > 0 && !spec.whole_pages; }

// clang-format off
inline constexpr std::array kOperands = {
    Operand{.name = "q", .what = "Queries", .dtype = &AttentionSpec::dtype,
            .dims = {Dim::Batch, Dim::Queries, Dim::HeadsQ, Dim::DQk}, .is_in = reads_keys, .absent = kOfAttention, .aligned = true,
            .pointer = offsetof(KernelParams, q),
            .strides_kind = OperandStrides::Token, .strides = &KernelParams::q_stride},
    Operand{.name = "k", .what = "Keys", .dtype = &AttentionSpec::kv_dtype,
            .dims = {Dim::Batch, Dim::Keys, Dim::HeadsKv, Dim::DQk}, .is_in = reads_keys, .is_updated = appends,
            .in_bytes = has_latent_rows, .absent = kOfAttention, .aligned = true,
            .pointer = offsetof(KernelParams, k),
            .strides_kind = OperandStrides::Token, .strides = &KernelParams::k_stride},
    Operand{.name = "v", .what = "Values", .dtype = &AttentionSpec::kv_dtype,
            .dims = {Dim::Batch, Dim::Keys, Dim::HeadsKv, Dim::DV},
            .is_in = [](const AttentionSpec& spec) { return attends(spec) && !spec.v_in_k; }, .is_updated = appends,
            .turns = [](const AttentionSpec& spec) { return spec.v_transposed; },
            .absent = "this spec reads none: V is the first columns of k with v_in_k, a merge has o_parts, quantize x, and index no V; leave it out",
            .aligned = true, .pointer = offsetof(KernelParams, v),
            .strides_kind = OperandStrides::Token, .strides = &KernelParams::v_stride},
    Operand{.name = "o", .what = "Outputs", .role = OperandRole::Output, .dtype = &AttentionSpec::out_dtype,
            .dims = {Dim::Batch, Dim::Queries, Dim::HeadsQ, Dim::DV},
            .is_in = [](const AttentionSpec& spec) { return !quantizes(spec) && !indexes(spec); },
            .is_updated = goes_on_from_results, .is_read = is_backward,
            .absent = "quantize writes y, and index scores, or with select=keys(N) key_index; leave it out or use fwd", .aligned = true, .pointer = offsetof(KernelParams, o),
            .strides_kind = OperandStrides::Token, .strides = &KernelParams::o_stride},
    Operand{.name = "offsets_q", .what = "Where the queries of a sequence begin", .always_dtype = Dtype::I32,
            .dims = {Dim::Offsets}, .is_in = is_packed,
            .absent = "the spec's layout is not packed; leave it out or use layout=packed",
            .pointer = offsetof(KernelParams, offsets_q)},
    Operand{.name = "offsets_k", .what = "Where the keys of a sequence begin", .always_dtype = Dtype::I32,
            .dims = {Dim::Offsets}, .is_in = has_packed_keys,
            .absent = "the spec's layout is not packed; leave it out or use layout=packed",
            .pointer = offsetof(KernelParams, offsets_k)},
    Operand{.name = "lse", .what = "Logarithms of the sums of a row", .role = OperandRole::Output,
            .dims = {Dim::Batch, Dim::HeadsQ, Dim::Queries},
            .is_in = [](const AttentionSpec& spec) { return spec.lse != Lse::none; }, .is_updated = goes_on_from_results,
            .is_read = is_backward,
            .absent = "the spec does not ask for it; add lse=ln to the spec or leave it out",
            .pointer = offsetof(KernelParams, lse), .strides_kind = OperandStrides::Row},
    Operand{.name = "max_logit", .what = "Largest logits of a row", .role = OperandRole::Output,
            .dims = {Dim::Batch, Dim::HeadsQ, Dim::Queries},
            .is_in = [](const AttentionSpec& spec) { return spec.max_logit; },
            .absent = "the spec does not ask for it; add max_logit to the spec or leave it out",
            .pointer = offsetof(KernelParams, max_logit), .strides_kind = OperandStrides::Row},
    Operand{.name = "sink", .what = "Sink logits, one per query head", .dims = {Dim::HeadsQ},
            .is_in = [](const AttentionSpec& spec) { return spec.sink; },
            .absent = "the spec does not ask for it; add sink to the spec or leave it out",
            .pointer = offsetof(KernelParams, sink)},
    Operand{.name = "k_lens", .what = "Lengths of the sequences' keys", .always_dtype = Dtype::I32,
            .dims = {Dim::Batch}, .is_in = [](const AttentionSpec& spec) { return spec.k_lens; },
            .absent = "the spec does not ask for it; add k_lens to the spec or leave it out", .has_field = false,
            .pointer = offsetof(KernelParams, k_lens)},
    Operand{.name = "block_table", .what = "Numbers of the pages of each sequence", .always_dtype = Dtype::I32,
            .dims = {Dim::Batch, Dim::HeadsKv, Dim::TablePages}, .is_in = has_block_table,
            .absent = "the spec's layout is not paged; leave it out or use layout=paged(N); with select= key_index or page_index says where rows lie",
            .has_field = false, .has_heads = has_head_tables,
            .pointer = offsetof(KernelParams, block_table), .strides_kind = OperandStrides::Table},
    Operand{.name = "scale_q", .what = "What the elements of Q are multiplied with",
            .dims = {Dim::Batch, Dim::Queries, Dim::HeadsQ}, 
            .is_in = [](const AttentionSpec& spec) { return has_scaled_queries(spec) && !indexes(spec); },
            .absent = "the elements of q have no scale in this spec; leave it out or use a dtype of e4m3 or e5m2; index has "
                      "them in weights",
            .has_field = false, .optional = true, .repeats = true, .rows = rows_of_query_scales,
            .pointer = offsetof(KernelParams, scale_q), .strides_kind = OperandStrides::Token, .strides = &KernelParams::scale_q_stride},
    Operand{.name = "scale_k", .what = "What the elements of K are multiplied with",
            .dims = {Dim::Batch, Dim::Keys, Dim::HeadsKv}, .is_in = has_scaled_keys,
            .absent = "the elements of k have no scale in this spec; leave it out or use kv=e4m3, kv=e5m2 or kv=int8",
            .has_field = false, .optional = true, .repeats = true, .rows = rows_of_key_scales,
            .pointer = offsetof(KernelParams, scale_k), .strides_kind = OperandStrides::Token, .strides = &KernelParams::scale_k_stride},
    Operand{.name = "scale_v", .what = "What the elements of V are multiplied with",
            .dims = {Dim::Batch, Dim::Keys, Dim::HeadsKv},
            .is_in = [](const AttentionSpec& spec) { return has_scaled_keys(spec) && attends(spec) && !spec.v_in_k; },
            .absent = "the elements of v have no scale in this spec; leave it out or use kv=e4m3, kv=e5m2 or kv=int8; "
                      "with v_in_k that of k counts",
            .has_field = false, .optional = true, .repeats = true, .rows = rows_of_key_scales,
            .pointer = offsetof(KernelParams, scale_v), .strides_kind = OperandStrides::Token, .strides = &KernelParams::scale_v_stride},
    Operand{.name = "o_parts", .what = "Outputs over parts of the keys", .dtype = &AttentionSpec::dtype,
            .dims = {Dim::Parts, Dim::Batch, Dim::Queries, Dim::HeadsQ, Dim::DV}, .is_in = merges,
            .absent = kOfMerges, .has_field = false, .aligned = true,
            .pointer = offsetof(KernelParams, o_parts),
            .strides_kind = OperandStrides::Parts, .part_strides = &KernelParams::o_parts_stride},
    Operand{.name = "lse_parts", .what = "Logarithms of the sums over parts of the keys",
            .dims = {Dim::Parts, Dim::Batch, Dim::HeadsQ, Dim::Queries}, .is_in = merges,
            .absent = kOfMerges, .has_field = false,
            .pointer = offsetof(KernelParams, lse_parts),
            .strides_kind = OperandStrides::Parts, .part_strides = &KernelParams::lse_parts_stride},
    Operand{.name = "max_parts", .what = "Largest logits over parts of the keys",
            .dims = {Dim::Parts, Dim::Batch, Dim::HeadsQ, Dim::Queries},
            .is_in = [](const AttentionSpec& spec) { return merges(spec) && spec.max_logit; },
            .absent = "the spec is no merge with max_logit; leave it out or add max_logit", .has_field = false,
            .pointer = offsetof(KernelParams, max_parts),
            .strides_kind = OperandStrides::Parts, .part_strides = &KernelParams::max_parts_stride},
    Operand{.name = "x", .what = "Rows to round to 8 bits", .dtype = &AttentionSpec::dtype,
            .dims = {Dim::Batch, Dim::Queries, Dim::HeadsQ, Dim::DQk}, .is_in = quantizes, .absent = kOfQuantize,
            .has_field = false, .aligned = true, .pointer = offsetof(KernelParams, x),
            .strides_kind = OperandStrides::Token, .strides = &KernelParams::x_stride},
    Operand{.name = "y", .what = "Rows of 8 bits", .role = OperandRole::Output, .dtype = &AttentionSpec::out_dtype,
            .dims = {Dim::Batch, Dim::Queries, Dim::HeadsQ, Dim::DQk}, .is_in = quantizes, .in_bytes = has_latent_rows,
            .absent = kOfQuantize, .has_field = false, .aligned = true, .pointer = offsetof(KernelParams, y),
            .strides_kind = OperandStrides::Token, .strides = &KernelParams::y_stride},
    Operand{.name = "scale", .what = "What rows of 8 bits are multiplied with", .role = OperandRole::Output,
            .dims = {Dim::Batch, Dim::Queries, Dim::HeadsQ},
            .is_in = [](const AttentionSpec& spec) { return quantizes(spec) && !has_latent_rows(spec); },
            .absent = "the spec is no quantize; leave it out or use quantize; rows of out=latent656 have their scales in them",
            .has_field = false, .rows = rows_of_query_scales, .pointer = offsetof(KernelParams, scale_y),
            .strides_kind = OperandStrides::Token, .strides = &KernelParams::scale_y_stride},
    Operand{.name = "weights", .what = "What products of each query and head count for, once they are positive",
            .dims = {Dim::Batch, Dim::Queries, Dim::HeadsQ}, .is_in = indexes, .absent = kOfIndex, .has_field = false,
            .pointer = offsetof(KernelParams, weights),
            .strides_kind = OperandStrides::Token, .strides = &KernelParams::weights_stride},
    Operand{.name = "scores", .what = "The sum of these over heads, for each query and key", .role = OperandRole::Output,
            .dims = {Dim::Batch, Dim::Queries, Dim::HeadsKv, Dim::ScoredKeys}, .is_in = writes_scores,
            .absent = "the spec is no index that writes it; leave it out, or use index without select=", .has_field = false,
            .pointer = offsetof(KernelParams, scores),
            .strides_kind = OperandStrides::Token, .strides = &KernelParams::scores_stride},
    Operand{.name = "shared_prefix", .what = "How many first keys of all sequences are the same", .always_dtype = Dtype::I32,
            .dims = {Dim::One}, .is_in = [](const AttentionSpec& spec) { return spec.shared_prefix; },
            .absent = "the spec does not ask for it; add shared_prefix to the spec or leave it out", .has_field = false,
            .pointer = offsetof(KernelParams, shared_prefix)},
    Operand{.name = "k_new", .what = "Keys of new tokens", .dtype = &AttentionSpec::dtype,
            .dims = {Dim::Batch, Dim::Queries, Dim::HeadsKv, Dim::DQk},
            .is_in = appends,
            .absent = "the spec does not ask for it; add append to the spec or leave it out", .has_field = false,
            .aligned = true, .pointer = offsetof(KernelParams, k_new),
            .strides_kind = OperandStrides::Token, .strides = &KernelParams::k_new_stride},
    Operand{.name = "v_new", .what = "Values of new tokens", .dtype = &AttentionSpec::dtype,
            .dims = {Dim::Batch, Dim::Queries, Dim::HeadsKv, Dim::DV},
            .is_in = [](const AttentionSpec& spec) { return spec.append && !spec.v_in_k; },
            .absent = "the spec does not ask for it; add append to the spec or leave it out; with v_in_k new rows of k have "
                      "those of v in them", .has_field = false,
            .aligned = true, .pointer = offsetof(KernelParams, v_new),
            .strides_kind = OperandStrides::Token, .strides = &KernelParams::v_new_stride},
    Operand{.name = "do", .what = "Gradients of outputs", .dtype = &AttentionSpec::dtype,
            .dims = {Dim::Batch, Dim::Queries, Dim::HeadsQ, Dim::DV}, .is_in = is_backward, .absent = kOfBackward,
            .has_field = false, .aligned = true, .pointer = offsetof(KernelParams, d_o),
            .strides_kind = OperandStrides::Token, .strides = &KernelParams::d_o_stride},
    Operand{.name = "dlse", .what = "Gradients of lse", .dims = {Dim::Batch, Dim::HeadsQ, Dim::Queries},
            .is_in = [](const AttentionSpec& spec) { return spec.dlse; },
            .absent = "the spec does not ask for it; add dlse to the spec, a bwd, or leave it out", .has_field = false,
            .pointer = offsetof(KernelParams, d_lse), .strides_kind = OperandStrides::Row},
    Operand{.name = "dq", .what = "Gradients of queries", .role = OperandRole::Output, .dtype = &AttentionSpec::out_dq,
            .dims = {Dim::Batch, Dim::Queries, Dim::HeadsQ, Dim::DQk}, .is_in = is_backward,
            .is_updated = adds_to_gradients, .absent = kOfBackward,
            .has_field = false, .aligned = true, .pointer = offsetof(KernelParams, dq),
            .strides_kind = OperandStrides::Token, .strides = &KernelParams::dq_stride},
    Operand{.name = "dk", .what = "Gradients of keys", .role = OperandRole::Output, .dtype = &AttentionSpec::out_dk,
            .dims = {Dim::Batch, Dim::Keys, Dim::HeadsKv, Dim::DQk}, .is_in = is_backward,
            .is_updated = adds_to_gradients, .absent = kOfBackward,
            .has_field = false, .aligned = true, .pointer = offsetof(KernelParams, dk),
            .strides_kind = OperandStrides::Token, .strides = &KernelParams::dk_stride},
    Operand{.name = "dv", .what = "Gradients of values", .role = OperandRole::Output, .dtype = &AttentionSpec::out_dv,
            .dims = {Dim::Batch, Dim::Keys, Dim::HeadsKv, Dim::DV},
            .is_in = [](const AttentionSpec& spec) { return is_backward(spec) && !spec.v_in_k; },
            .is_updated = adds_to_gradients,
            .absent = "the spec is no bwd; leave it out or use bwd; with v_in_k dk has the gradients of V in it",
            .has_field = false, .aligned = true, .pointer = offsetof(KernelParams, dv),
            .strides_kind = OperandStrides::Token, .strides = &KernelParams::dv_stride},
    Operand{.name = "dsink", .what = "Gradients of sink logits", .role = OperandRole::Output, .dims = {Dim::HeadsQ},
            .is_in = has_sink_gradient,
            .absent = "the spec does not ask for it; add grads=\"sink\" to the spec or leave it out",
            .has_field = false, .pointer = offsetof(KernelParams, d_sink)},
    Operand{.name = "cos", .what = "Cosines of positions, for rope", .dims = {Dim::Positions, Dim::RopePairs},
            .is_in = has_rope_tables,
            .absent = "the spec does not ask for it; add rope=half(N), without rope_base, to the spec or leave it out", .has_field = false,
            .alignment = alignment_of_angles, .pointer = offsetof(KernelParams, cos)},
    Operand{.name = "sin", .what = "Sines of positions, for rope", .dims = {Dim::Positions, Dim::RopePairs},
            .is_in = has_rope_tables,
            .absent = "the spec does not ask for it; add rope=half(N), without rope_base, to the spec or leave it out", .has_field = false,
            .alignment = alignment_of_angles, .pointer = offsetof(KernelParams, sin)},
    Operand{.name = "positions", .what = "Positions of the tokens of x in their sequences, for rope", .always_dtype = Dtype::I32,
            .dims = {Dim::Batch, Dim::Queries},
            .is_in = [](const AttentionSpec& spec) { return quantizes(spec) && spec.rope != Rope::none; },
            .absent = "the spec does not ask for it; add rope=half(N) to a quantize or leave it out",
            .has_field = false, .optional = true, .pointer = offsetof(KernelParams, positions),
            .strides_kind = OperandStrides::Token, .strides = &KernelParams::positions_stride},
    Operand{.name = "block_count", .what = "How many blocks of keys each block of queries has to ask the mask for",
            .always_dtype = Dtype::I32, .dims = {Dim::Batch, Dim::ListHeads, Dim::ListRows}, .is_in = has_blocks,
            .absent = kOfBlocks, .has_field = false, .repeats = true,
            .pointer = offsetof(KernelParams, listed_blocks.count),
            .strides_kind = OperandStrides::Lists, .lists = &KernelParams::listed_blocks},
    Operand{.name = "block_index", .what = "The numbers of these blocks", .always_dtype = Dtype::I32,
            .dims = {Dim::Batch, Dim::ListHeads, Dim::ListRows, Dim::Listed}, .is_in = has_blocks,
            .absent = kOfBlocks, .has_field = false, .repeats = true,
            .pointer = offsetof(KernelParams, listed_blocks.index),
            .strides_kind = OperandStrides::Lists, .lists = &KernelParams::listed_blocks},
    Operand{.name = "full_count", .what = "How many blocks of keys each block of queries sees whole",
            .always_dtype = Dtype::I32, .dims = {Dim::Batch, Dim::ListHeads, Dim::ListRows}, .is_in = has_blocks,
            .absent = kOfBlocks, .has_field = false, .optional = true, .repeats = true,
            .pointer = offsetof(KernelParams, full_blocks.count),
            .strides_kind = OperandStrides::Lists, .lists = &KernelParams::full_blocks},
    Operand{.name = "full_index", .what = "The numbers of these blocks", .always_dtype = Dtype::I32,
            .dims = {Dim::Batch, Dim::ListHeads, Dim::ListRows, Dim::ListedFull}, .is_in = has_blocks,
            .absent = kOfBlocks, .has_field = false, .optional = true, .repeats = true,
            .pointer = offsetof(KernelParams, full_blocks.index),
            .strides_kind = OperandStrides::Lists, .lists = &KernelParams::full_blocks},
    Operand{.name = "key_index", .what = "The numbers of the rows of K that each query sees", .role = OperandRole::Output,
            .always_dtype = Dtype::I32,
            .dims = {Dim::Batch, Dim::Queries, Dim::HeadsKv, Dim::Selected}, .is_in = has_key_lists, .is_read = selects_keys,
            .absent = kOfSelectedKeys, .has_field = false, .pointer = offsetof(KernelParams, key_index),
            .strides_kind = OperandStrides::Token, .strides = &KernelParams::key_index_stride},
    Operand{.name = "page_index", .what = "The numbers of the pages of K that each query sees", .always_dtype = Dtype::I32,
            .dims = {Dim::Batch, Dim::Queries, Dim::HeadsKv, Dim::Selected}, .is_in = selects_pages,
            .absent = kOfSelectedPages, .has_field = false, .pointer = offsetof(KernelParams, key_index),
            .strides_kind = OperandStrides::Token, .strides = &KernelParams::key_index_stride},
    Operand{.name = "key_count", .what = "How many keys of its list each query sees", .role = OperandRole::Output,
            .always_dtype = Dtype::I32,
            .dims = {Dim::Batch, Dim::Queries, Dim::HeadsKv}, .is_in = has_lists, .is_read = selects,
            .absent = kOfSelect, .has_field = false, .optional = true, .pointer = offsetof(KernelParams, key_count),
            .strides_kind = OperandStrides::Token, .strides = &KernelParams::key_count_stride},
    Operand{.name = "q_positions", .what = "Where queries are in their sequences", .always_dtype = Dtype::I32,
            .dims = {Dim::Batch, Dim::Queries}, .is_in = reads_positions, .absent = kOfPositions, .has_field = false,
            .pointer = offsetof(KernelParams, q_positions),
            .strides_kind = OperandStrides::Token, .strides = &KernelParams::q_positions_stride},
    Operand{.name = "k_positions", .what = "Where listed keys, or the first ones of listed pages, are in their sequences",
            .always_dtype = Dtype::I32,
            .dims = {Dim::Batch, Dim::Queries, Dim::HeadsKv, Dim::Selected}, .is_in = reads_positions,
            .absent = kOfPositions, .has_field = false, .pointer = offsetof(KernelParams, k_positions),
            .strides_kind = OperandStrides::Token, .strides = &KernelParams::k_positions_stride},
    Operand{.name = "seed", .what = "The seed of dropout", .always_dtype = Dtype::I64, .dims = {Dim::One}, .is_in = drops,
            .absent = "the spec does not ask for it; add dropout=P to the spec or leave it out", .has_field = false,
            .pointer = offsetof(KernelParams, seed_at), .value = &KernelParams::seed},
    Operand{.name = "offset", .what = "Which of the masks of a seed dropout takes", .always_dtype = Dtype::I64,
            .dims = {Dim::One}, .is_in = drops,
            .absent = "the spec does not ask for it; add dropout=P to the spec or leave it out", .has_field = false,
            .pointer = offsetof(KernelParams, offset_at), .value = &KernelParams::offset},
};
// clang-format on

// Returns the number of the row, or the number of rows if there is none of this name.
constexpr std::size_t find_operand(std::string_view name) {
  std::size_t i = 0;
  while (i < kOperands.size() && kOperands[i].name != name) ++i;
  return i;
}
// Returns the number of the row. A name that is none does not compile.
consteval std::size_t operand(std::string_view name) {
  const std::size_t found = find_operand(name);
  if (found == kOperands.size()) throw "there is no operand of this name";
  return found;
}

}  // namespace flashjit

#include "compiler/spec/operands.h"

#include <algorithm>
#include <utility>

#include "templates/latents/rows.h"

namespace flashjit {

std::string_view meaning_of(Dim dim, const AttentionSpec& spec) {
  if (quantizes(spec) && dim == Dim::Batch) return "batch of x";
  if (quantizes(spec) && dim == Dim::Queries) return "tokens of x";
  if (quantizes(spec) && dim == Dim::QueryBlocks) return "blocks of tokens of x";
  if (merges(spec) && dim == Dim::Batch) return "batch of o";
  if (merges(spec) && dim == Dim::Queries) return "tokens of o";
  if (selects_pages(spec) && dim == Dim::Selected) return "pages of a list in the spec";
  constexpr std::string_view kMeanings[kDims] = {"",
                                                 "batch of q",
                                                 "tokens of q",
                                                 "blocks of tokens of q",
                                                 "tokens of k",
                                                 "blocks of tokens of k",
                                                 "query heads of the spec",
                                                 "KV heads of the spec",
                                                 "d of the spec",
                                                 "d of V in the spec",
                                                 "as many as offsets_q",
                                                 "pages of k",
                                                 "tokens of a page in the spec",
                                                 "blocks of a page in the spec",
                                                 "pages of a sequence in block_table",
                                                 "parts of o_parts",
                                                 "positions of cos",
                                                 "half the columns that rope of the spec rotates",
                                                 "heads of lists in the spec",
                                                 "blocks of queries",
                                                 "as many as block_index",
                                                 "as many as full_index",
                                                 "keys of a list in the spec",
                                                 "it is one number",
                                                 "bytes of a row in the spec's kv, or out",
                                                 "keys of the longest sequence"};
  return kMeanings[static_cast<std::size_t>(dim)];
}

int extent_of(Dim dim, const AttentionSpec& spec) {
  switch (dim) {
    case Dim::HeadsQ: return spec.heads_q;
    case Dim::HeadsKv: return spec.heads_kv;
    case Dim::DQk: return spec.d_qk;
    case Dim::DV: return spec.d_v;
    case Dim::PageTokens: return spec.page_size;
    case Dim::PageBlocks: return spec.page_size / std::max(spec.scale_block, 1);
    case Dim::RopePairs: return spec.rope_dims / 2;
    case Dim::ListHeads: return spec.blocks.heads;
    case Dim::Selected: return spec.selected;
    case Dim::One: return 1;
    case Dim::RowBytes: return has_latent_rows(spec) ? latent_rows(spec.cache_format).row_bytes : -1;
    default: return -1;
  }
}

OperandAxes axes_of(const Operand& operand, const AttentionSpec& spec) {
  const auto dim_of = [&](Dim dim) {
    if (dim == Dim::DQk && operand.is_in_bytes_of(spec)) return Dim::RowBytes;
    if (dim == Dim::HeadsKv && operand.has_heads && !operand.has_heads(spec)) return Dim::None;
    return operand.rows && (dim == Dim::Queries || dim == Dim::Keys) ? operand.rows(spec) : dim;
  };
  const auto has = [&](Dim dim) { return std::ranges::count(operand.dims, dim, dim_of) > 0; };
  const auto in_page = [](Dim dim) {
    return dim == Dim::Batch       ? Dim::Pages
           : dim == Dim::Keys      ? Dim::PageTokens
           : dim == Dim::KeyBlocks ? Dim::PageBlocks
                                   : dim;
  };
  const bool in_pages = (has(Dim::Keys) || has(Dim::KeyBlocks)) && is_paged(spec);
  const bool of_tokens = has(Dim::Queries) || !is_packed(spec);  // Packed tokens lie one after the other.
  const bool no_batch =
      !in_pages && ((of_tokens && spec.layout == Layout::Packed) || (has(Dim::Keys) && has_packed_keys(spec)));
  OperandAxes axes;
  for (std::size_t i = 0; i < std::size(operand.dims) && operand.dims[i] != Dim::None; ++i) {
    const Dim dim = dim_of(operand.dims[i]);
    axes.dims[i] = in_pages ? in_page(dim) : dim;
    const bool is_left_out = dim == Dim::None || (no_batch && dim == Dim::Batch);
    if (!is_left_out) axes.at[i] = axes.rank++;
  }
  if (operand.turns && operand.turns(spec)) {
    const int head = axes.at[0] + 1;
    std::swap(axes.dims[1], axes.dims[3]);
    axes.at[1] = head + 1, axes.at[2] = head, axes.at[3] = head + 2;
    return axes;
  }
  // Operands of rows have tokens before heads, but in layout=bhsd. Operands with one number for each row have heads
  // before tokens in every layout.
  const int tokens = operand.part_strides ? 2 : 1;
  if (operand.aligned && spec.layout == Layout::Bhsd) std::swap(axes.at[tokens], axes.at[tokens + 1]);
  return axes;
}

}  // namespace flashjit

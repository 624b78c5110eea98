#include "compiler/spec/fields/latents.h"

#include <fmt/format.h>

#include "compiler/spec/config_words.h"
#include "templates/latents/rows.h"

namespace flashjit {

namespace {

constexpr int kLeastAlignment = size_of(Dtype::F32);

// Checks a quantize that writes such rows (out=latent656).
Result<void> check_written(const AttentionSpec& spec) {
  const LatentRows rows = latent_rows(spec.cache_format);
  const std::string_view format = word(spec.cache_format);
  const auto refuse = [&](std::string_view field, std::string_view why) {
    return invalid(fmt::format("{}: {}", field, why));
  };
  if (spec.dtype != Dtype::BF16) {
    return refuse("dtype", fmt::format("{} with out={}, whose columns without a scale are bf16; write quantize bf16",
                                       name(spec.dtype), format));
  }
  if (spec.d_qk != rows.head_dim_qk) {
    return refuse("d", fmt::format("{}, and rows of out={} have {} columns; write d={}", spec.d_qk, format,
                                   rows.head_dim_qk, rows.head_dim_qk));
  }
  if (spec.heads_q != 1)
    return refuse("heads", fmt::format("{}, and a token has one row of out={}; write heads=1", spec.heads_q, format));
  if (spec.rotate || spec.scale_block > 0 || spec.rope != Rope::none) {
    return refuse(
        spec.rotate            ? "rotate"
        : spec.scale_block > 0 ? "scales"
                               : "rope",
        fmt::format("rows of out={} are what append writes, with scales of their own columns; leave it out", format));
  }
  if (rows.scales_behind_page && spec.layout != Layout::Bshd) {
    return refuse("layout",
                  fmt::format("scales of out={} lie behind the rows of a page, and batches of x are the pages; "
                              "use layout=bshd",
                              format));
  }
  if (spec.align_bytes >= kLeastAlignment) return {};
  return refuse("bytes", fmt::format("{} is below {}, the size of a scale of out={}; use bytes={}", spec.align_bytes,
                                     kLeastAlignment, format, kLeastAlignment));
}

}  // namespace

Result<void> check_latents(const AttentionSpec& spec) {
  if (!has_latent_rows(spec)) return {};
  if (quantizes(spec)) return check_written(spec);
  const LatentRows rows = latent_rows(spec.cache_format);
  const std::string_view format = word(spec.cache_format);
  const auto refuse = [&](std::string_view field, std::string_view why) {
    return invalid(fmt::format("{}: {}", field, why));
  };
  if (!is_forward(spec)) {
    return refuse("kv", fmt::format("{} is a cache that fwd reads; write kv=bf16, or leave it out", format));
  }
  if (spec.dtype != Dtype::BF16 || spec.kv_dtype != Dtype::BF16) {
    return refuse("dtype", fmt::format("{} under kv={}, whose columns without a scale are bf16; write fwd bf16",
                                       name(spec.dtype), format));
  }
  if (!spec.v_in_k)
    return refuse("kv", fmt::format("V of {} is the first {} columns of K; add v_in_k", format, rows.head_dim_v));
  if (spec.d_qk != rows.head_dim_qk || spec.d_v != rows.head_dim_v) {
    return refuse("d",
                  fmt::format("{}/{}, and rows of kv={} have {} columns, of which V is {}; write d={}/{}", spec.d_qk,
                              spec.d_v, format, rows.head_dim_qk, rows.head_dim_v, rows.head_dim_qk, rows.head_dim_v));
  }
  if (spec.heads_kv != 1) {
    return refuse("heads", fmt::format("{} KV heads, and all query heads share the rows of kv={}; write heads={}/1",
                                       spec.heads_kv, format, spec.heads_q));
  }
  if (rows.scales_behind_page && !is_paged(spec)) {
    return refuse(
        "layout",
        fmt::format("scales of kv={} lie behind the rows of a page, and there are none; write layout=paged(64)",
                    format));
  }
  if (spec.shared_prefix) {
    return refuse(
        "shared_prefix",
        fmt::format("parts of its keys are read by kernels that widen all rows of kv={} anew; leave one of the "
                    "two out",
                    format));
  }
  if (spec.rope != Rope::none && spec.rope_from < rows.narrow_columns) {
    return refuse("rope_from",
                  fmt::format("{}, and the first {} columns of rows of kv={} have scales and do not turn; write "
                              "rope_from={}",
                              spec.rope_from, rows.narrow_columns, format, rows.narrow_columns));
  }
  if (spec.align_bytes < kLeastAlignment) {
    return refuse("bytes", fmt::format("{} is below {}, the size of a scale of kv={}; use bytes={}", spec.align_bytes,
                                       kLeastAlignment, format, kLeastAlignment));
  }
  return {};
}

}  // namespace flashjit

#include "compiler/spec/fields/narrow.h"

#include <algorithm>

#include <fmt/format.h>

#include "compiler/spec/spec_names.h"
#include "compiler/spec/whole_numbers.h"
#include "templates/quantize/rotation.h"

namespace flashjit {

namespace {

// Blocks have multiples of so many rows, so that tiles of any kernel hold whole blocks, or are parts of a few.
constexpr int kScaleBlockStep = 64;

Result<void> check_token_scales(const AttentionSpec& spec) {
  if (!spec.token_scales || has_scaled_keys(spec)) return {};
  return invalid(
      "token_scales: the elements of k have no scale; use kv=e4m3, kv=e5m2 or kv=int8, or leave token_scales out");
}

Result<void> check_scale_block(const AttentionSpec& spec) {
  const int rows = spec.scale_block;
  if (rows == 0) return {};
  if (rows < 0 || rows > kMaxScaleBlock || rows % kScaleBlockStep != 0) {
    return invalid(fmt::format("scales: {0} rows of a block are no multiple of {1} from {1} to {2}; use block({3})",
                               rows, kScaleBlockStep, kMaxScaleBlock,
                               std::clamp(round_up(rows, kScaleBlockStep), kScaleBlockStep, kMaxScaleBlock)));
  }
  const auto refuse = [&](std::string_view why) {
    return invalid(fmt::format("scales: block({}), and {}", rows, why));
  };
  if (!has_scaled_keys(spec) && !narrows(spec) && !quantizes(spec))
    return refuse("no elements have a scale; use e4m3 or e5m2, add compute=e4m3, or leave scales out");
  if (spec.token_scales) return refuse("token_scales gives each key its own; leave one of them out");
  if (is_paged(spec) && spec.page_size % rows != 0) {
    return refuse(fmt::format(
        "a page of {} tokens does not hold whole blocks, which lie in it as its keys do; use {}, or token_scales",
        spec.page_size,
        spec.page_size % kScaleBlockStep == 0 ? fmt::format("scales=block({})", kScaleBlockStep)
                                              : fmt::format("pages of {} tokens", round_up(spec.page_size, rows))));
  }
  if (spec.shared_prefix && has_scaled_queries(spec)) {
    return refuse(
        "queries of all sequences are put together for a shared_prefix, so that a block of them has no place; leave one "
        "of the two out");
  }
  return {};
}

Result<void> check_linear_exp(const AttentionSpec& spec) {
  if (!spec.linear_exp || has_scaled_queries(spec) || narrows(spec)) return {};
  return invalid(
      "linear_exp: weights are exponentiated exactly where products are not of 8 bits; use e4m3 or e5m2, add compute=e4m3, "
      "or leave it out");
}

Result<void> check_rotate(const AttentionSpec& spec) {
  if (!spec.rotate) return {};
  if (!quantizes(spec) && !narrows(spec)) {
    return invalid(
        "rotate: it goes before rounding to 8 bits, and this spec rounds nothing; add compute=e4m3, or rotate Q and K "
        "with quantize");
  }
  if (rotation_sections(spec.d_qk) != 0) return {};
  int wider = spec.d_qk + 1;
  while (rotation_sections(wider) == 0) ++wider;
  return invalid(fmt::format(
      "rotate: there is no matrix for d={}; it takes a multiple of 16 that is 1, 3 or 5 times a power of two: "
      "pad Q and K with zeros to d={}",
      spec.d_qk, wider));
}

// Checks specs whose Q, K and V are rounded first.
Result<void> check_compute(const AttentionSpec& spec) {
  if (!narrows(spec)) return {};
  const auto refuse = [&](std::string_view field, std::string_view why) {
    return invalid(fmt::format("{}: compute={} rounds Q, K and V of the call, {}", field, name(*spec.compute), why));
  };
  if (!is_forward(spec)) return refuse("compute", "and they are those of fwd; leave it out");
  if (size_of(spec.dtype) == 1) return refuse("compute", "which have 8 bits already; leave it out");
  if (spec.kv_dtype != spec.dtype) return refuse("kv", "and these have 8 bits already; leave one of the two out");
  if (is_paged(spec)) return refuse("layout", "and pages are kept; quantize what is written to them, and use kv=");
  if (spec.append) return refuse("append", "and a cache is kept; quantize what is written to it, and use kv=");
  if (spec.k_lens) return refuse("k_lens", "also what lies behind a length, which would count; use layout=packed");
  if (spec.v_in_k) return refuse("v_in_k", "and V is not rotated; give v as a tensor");
  if (spec.layout == Layout::Packed && spec.rope != Rope::none) {
    return refuse("rope",
                  "and packed tokens do not know their positions there; use layout=bshd, or quantize Q and K with rope "
                  "and positions, and fwd e4m3");
  }
  if (spec.layout == Layout::Packed && spec.scale_block == 0 && spec.numerics == Numerics::BatchInvariant)
    return refuse("numerics", "and packed sequences share a scale; use scales=block(128), or layout=bshd");
  return {};
}

}  // namespace

Result<void> check_narrowing(const AttentionSpec& spec) {
  FLASHJIT_TRY(check_compute(spec));
  FLASHJIT_TRY(check_linear_exp(spec));
  return check_rotate(spec);
}

Result<void> check_scales(const AttentionSpec& spec) {
  FLASHJIT_TRY(check_token_scales(spec));
  return check_scale_block(spec);
}

Result<void> check_transposed(const AttentionSpec& spec) {
  if (!spec.v_transposed) return {};
  const auto refuse = [](std::string_view why) { return invalid(fmt::format("v_transposed: {}", why)); };
  if (spec.v_in_k) return refuse("V is a part of K, whose rows are keys; leave v_in_k or v_transposed out");
  if (is_paged(spec))
    return refuse(
        "keys in pages have rows of their own, of which V^T would have columns; leave it out, or use layout=bshd "
        "with k_lens");
  if (spec.shared_prefix) return refuse("keys that sequences share are read as rows; leave one of the two out");
  if (has_scaled_queries(spec) && is_forward(spec)) return {};
  return refuse(fmt::format(
      "products of 8 bits read V with its keys along rows, and those of this spec read it as it is; leave it out, or use "
      "fwd {}",
      name(Dtype::E4M3)));
}

Result<void> check_narrow_supported(const AttentionSpec& spec) {
  if (quantizes(spec)) {
    return unsupported(fmt::format("dtype: {} has 8 bits already; quantize reads fp16, bf16 and, on processors, fp32",
                                   name(spec.dtype)));
  }
  if (!is_forward(spec) && !indexes(spec)) {
    return unsupported(fmt::format("dtype: {} has no kernel of {} in this build; use fp16, bf16 or{} fp32",
                                   name(spec.dtype), kOperationNames[static_cast<std::size_t>(spec.operation)],
                                   merges(spec) ? "" : ", on processors,"));
  }
  if (spec.kv_dtype != Dtype::E4M3 && spec.kv_dtype != Dtype::E5M2) {
    return unsupported(fmt::format("kv: {} under a Q of {} has no kernel in this build; use kv=e4m3 or kv=e5m2",
                                   name(spec.kv_dtype), name(spec.dtype)));
  }
  if (!spec.append) return {};
  return unsupported(fmt::format(
      "append: new rows are divided by their scales as they are written, and those of {} have been already; write them "
      "into k and v before the call, or use a Q of 16 bits: bf16 kv={}",
      name(spec.dtype), name(spec.kv_dtype)));
}

}  // namespace flashjit

#include "compiler/spec/narrow.h"

#include <algorithm>

#include <fmt/format.h>

#include "compiler/spec/spec_names.h"

namespace flashjit {

namespace {

// Rows of a block: tiles of any kernel hold whole blocks, or are parts of a few.
constexpr int kScaleBlockStep = 64, kMaxScaleBlock = 1024;

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
  if (!has_scaled_keys(spec)) return refuse("no elements have a scale; use e4m3 or e5m2, or leave scales out");
  if (spec.token_scales) return refuse("token_scales gives each key its own; leave one of them out");
  if (is_paged(spec)) {
    return refuse(
        "pages of a sequence lie anywhere, so that a block of keys has no place; leave it out, or use token_scales");
  }
  if (is_packed(spec)) {
    return refuse("packed sequences begin anywhere, so that a block has no place; leave it out, or use layout=bshd");
  }
  return {};
}

}  // namespace

Result<void> check_scales(const AttentionSpec& spec) {
  FLASHJIT_TRY(check_token_scales(spec));
  return check_scale_block(spec);
}

Result<void> check_narrow_supported(const AttentionSpec& spec) {
  if (!is_forward(spec)) {
    return unsupported(fmt::format("dtype: {} has no kernel of {} in this build; the nearest that works is fp16",
                                   name(spec.dtype), kOperationNames[static_cast<std::size_t>(spec.operation)]));
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

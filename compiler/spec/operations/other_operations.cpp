#include "compiler/spec/operations/other_operations.h"

#include <algorithm>

#include <fmt/format.h>

namespace flashjit {

namespace {

// Refuses fields of the spec that are not printed of `known`, which has the fields of its operation. `why` follows the
// name of the first such field.
Result<void> check_known(const AttentionSpec& spec, const AttentionSpec& known, std::string_view why) {
  const std::string given = print(spec), all = print(known);
  if (given == all) return {};
  const auto differs = static_cast<std::size_t>(std::ranges::mismatch(given, all).in1 - given.begin());
  const std::size_t word = given.rfind(' ', differs) + 1;
  return invalid(
      fmt::format("{}: {}", std::string_view(given).substr(word, given.find_first_of(" =<", word) - word), why));
}

// Returns the spec with those fields only that are not about keys.
AttentionSpec without_keys(const AttentionSpec& spec, int d) {
  AttentionSpec plain;
  plain.operation = spec.operation;
  plain.dtype = plain.kv_dtype = spec.dtype;
  plain.out_dtype = spec.out_dtype;
  plain.d_qk = plain.d_v = d;
  plain.heads_q = plain.heads_kv = spec.heads_q;
  plain.layout = spec.layout;
  plain.batch = spec.batch;
  plain.q_len = spec.q_len;
  plain.align_bytes = spec.align_bytes;
  plain.numerics = spec.numerics;
  return plain;
}

}  // namespace

Result<void> check_merge(const AttentionSpec& spec) {
  if (spec.shared_prefix && spec.layout == Layout::Packed) {
    return invalid(
        "shared_prefix: a merge of packed tokens does not know their sequences; use layout=bshd or layout=bhsd");
  }
  AttentionSpec plain = without_keys(spec, spec.d_v);
  plain.lse = spec.lse;
  plain.max_logit = spec.max_logit;
  plain.shared_prefix = spec.shared_prefix;
  return check_known(spec, plain,
                     "a merge knows no keys; it has out, d (one number), heads (one number), layout, lse, max_logit, "
                     "shared_prefix, b, q_len, bytes and numerics");
}

Result<void> check_quantize(const AttentionSpec& spec) {
  AttentionSpec plain = without_keys(spec, spec.d_qk);
  plain.cache_format = spec.cache_format;
  plain.rotate = spec.rotate;
  plain.scale_block = spec.scale_block;
  copy_rope(plain, spec);
  return check_known(spec, plain,
                     "quantize knows one tensor, x; it has out, d (one number), heads (one number), layout, rotate, "
                     "scales, rope, rope_from, rope_base, b, q_len, bytes and numerics");
}

Result<void> check_index(const AttentionSpec& spec) {
  if (spec.whole_pages) {
    return unsupported(fmt::format(
        "select: pages({}) of an index have no kernel in this build, which finds keys; use keys(N)", spec.selected));
  }
  AttentionSpec plain = without_keys(spec, spec.d_qk);
  plain.heads_kv = spec.heads_kv;
  plain.page_size = spec.page_size;
  plain.selected = spec.selected;
  plain.mask_text = spec.mask_text;
  plain.declared = spec.declared;
  plain.alignment = spec.alignment;
  plain.k_lens = spec.k_lens;
  plain.token_scales = spec.token_scales;
  plain.k_len = spec.k_len;
  FLASHJIT_TRY(
      check_known(spec, plain,
                  "an index adds up products of Q and K over heads, times weights, which factors belong into; it has "
                  "d (one number), heads, layout, select, mask, params, align, k_lens, token_scales, b, q_len, k_len, "
                  "bytes and numerics"));
  if (!spec.mask || !uses(spec.mask, Variable::H)) return {};
  return invalid("mask: the scores of an index are those of all heads of a KV head, and `h` is one of them; use hk");
}

}  // namespace flashjit

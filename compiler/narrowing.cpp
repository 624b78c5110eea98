#include "compiler/narrowing.h"

namespace flashjit {

namespace {

// rope and rotation change Q and K, and not V.
enum class Of { queries_or_keys, values };

Result<AttentionSpec> rounding(const AttentionSpec& spec, Of of, int heads, const SizeBound& tokens) {
  AttentionSpec component;
  component.operation = Operation::Quantize;
  component.dtype = component.kv_dtype = spec.dtype;
  component.out_dtype = *spec.compute;
  component.d_qk = component.d_v = of == Of::values ? spec.d_v : spec.d_qk;
  component.heads_q = component.heads_kv = heads;
  component.layout = spec.layout;
  component.scale_block = spec.scale_block;
  if (of != Of::values) {
    component.rotate = spec.rotate;
    copy_rope(component, spec);
  }
  component.align_bytes = spec.align_bytes;
  if (spec.layout != Layout::Packed || is_packed(component)) {  // Otherwise all tokens count as one sequence here.
    component.batch = spec.batch;
    component.q_len = tokens;
  }
  FLASHJIT_TRY(validate(component));
  return component;
}

constexpr std::int64_t kRowAlignment = 16;

constexpr std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

CallSizes rounding_sizes(const AttentionSpec& spec, const CallSizes& call, bool keys) {
  const std::int64_t tokens = keys ? call.k_tokens : call.q_tokens;
  if (is_packed(spec) && spec.scale_block == 0) return {.batch = 1, .q_len = tokens, .k_len = 1, .q_tokens = tokens};
  return {.batch = call.batch, .q_len = keys ? call.k_len : call.q_len, .k_len = 1, .q_tokens = tokens};
}

NarrowedRoom narrowed_room(const AttentionSpec& spec, const CallSizes& call) {
  NarrowedRoom room;
  const auto add = [&](bool keys, std::int64_t heads, std::int64_t d) {
    const CallSizes sizes = rounding_sizes(spec, call, keys);
    NarrowedOffsets at;
    at.row_bytes = rounded_up(d, kRowAlignment);
    at.blocks = spec.scale_block > 0 ? (sizes.q_len + spec.scale_block - 1) / spec.scale_block : 1;
    at.rows = room.bytes;
    at.scales = at.rows + rounded_up(sizes.q_tokens * heads * at.row_bytes, kWorkspaceAlignment);
    const std::int64_t scales = sizes.batch * at.blocks * heads * size_of(Dtype::F32);
    room.bytes = at.scales + rounded_up(scales, kWorkspaceAlignment);
    return at;
  };
  room.q = add(false, spec.heads_q, spec.d_qk);
  room.k = add(true, spec.heads_kv, spec.d_qk);
  room.v = add(true, spec.heads_kv, spec.d_v);
  return room;
}

AttentionSpec attention_to_rounded(const AttentionSpec& spec) {
  AttentionSpec attention = spec;
  attention.dtype = attention.kv_dtype = *spec.compute;
  attention.compute.reset();
  attention.rotate = false;
  copy_rope(attention, {});
  return attention;
}

Result<Narrowing> narrowing_of(const AttentionSpec& spec) {
  FLASHJIT_ASSIGN(q, rounding(spec, Of::queries_or_keys, spec.heads_q, spec.q_len));
  FLASHJIT_ASSIGN(k, rounding(spec, Of::queries_or_keys, spec.heads_kv, spec.k_len));
  FLASHJIT_ASSIGN(v, rounding(spec, Of::values, spec.heads_kv, spec.k_len));
  AttentionSpec attention = attention_to_rounded(spec);
  FLASHJIT_TRY(validate(attention));
  return Narrowing{std::move(q), std::move(k), std::move(v), std::move(attention)};
}

}  // namespace flashjit

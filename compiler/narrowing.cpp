#include "compiler/narrowing.h"

namespace flashjit {

namespace {

Result<AttentionSpec> rounding(const AttentionSpec& spec, int d, int heads, const SizeBound& tokens, bool rotate) {
  AttentionSpec part;
  part.operation = Operation::Quantize;
  part.dtype = part.kv_dtype = spec.dtype;
  part.out_dtype = *spec.compute;
  part.d_qk = part.d_v = d;
  part.heads_q = part.heads_kv = heads;
  part.layout = spec.layout;
  part.scale_block = spec.scale_block;
  part.rotate = rotate;
  part.align_bytes = spec.align_bytes;
  if (spec.layout != Layout::Packed) {  // whose tokens are those of one sequence here
    part.batch = spec.batch;
    part.q_len = tokens;
  }
  FLASHJIT_TRY(validate(part));
  return part;
}

}  // namespace

Result<Narrowing> narrowing_of(const AttentionSpec& spec) {
  FLASHJIT_ASSIGN(q, rounding(spec, spec.d_qk, spec.heads_q, spec.q_len, spec.rotate));
  FLASHJIT_ASSIGN(k, rounding(spec, spec.d_qk, spec.heads_kv, spec.k_len, spec.rotate));
  FLASHJIT_ASSIGN(v, rounding(spec, spec.d_v, spec.heads_kv, spec.k_len, false));
  AttentionSpec attention = spec;
  attention.dtype = attention.kv_dtype = *spec.compute;
  attention.compute.reset();
  attention.rotate = false;
  FLASHJIT_TRY(validate(attention));
  return Narrowing{std::move(q), std::move(k), std::move(v), std::move(attention)};
}

}  // namespace flashjit

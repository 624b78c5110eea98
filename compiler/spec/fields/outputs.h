// The dtypes of what calls write, which `out=` names: O or the gradients of bwd.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "compiler/spec/spec.h"

namespace flashjit {

struct OutField {
  std::string_view tensor;
  Dtype AttentionSpec::* dtype;
};

// The outputs of a spec's operation, in the order in which `out=` names them.
std::span<const OutField> out_fields(const AttentionSpec& spec);
// Sets what calls write where `out=` is left out: results are not narrowed to 8 bits, which takes a scale, and those that
// further calls go on from are not rounded.
constexpr Dtype usual_out(Dtype dtype) { return size_of(dtype) == 1 ? Dtype::BF16 : dtype; }
constexpr Dtype usual_out(const AttentionSpec& spec) {
  if (spec.operation == Operation::Quantize) return Dtype::E4M3;
  if (spec.operation == Operation::Index) return Dtype::F32;
  return spec.accumulate && spec.operation != Operation::Merge ? Dtype::F32 : usual_out(spec.dtype);
}
// The rules for all that each operation writes.
void set_out(AttentionSpec& spec, Dtype dtype);

// The value of `out=`, in its shortest form: one dtype where all are alike.
std::string print_out(const AttentionSpec& spec);

// The parts of validate() and of check_supported() that are about these.
Result<void> check_out(const AttentionSpec& spec);
Result<void> check_out_supported(const AttentionSpec& spec);

}  // namespace flashjit

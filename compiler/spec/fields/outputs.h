// The dtypes of the results of calls, which `out=` names: O or the gradients of bwd.
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

// Returns the outputs of a spec's operation, in the order in which `out=` names them.
std::span<const OutField> out_fields(const AttentionSpec& spec);
// Returns the dtype where `out=` is left out. Results are not narrowed to 8 bits, which takes a scale, and results from
// which further calls go on are not rounded.
constexpr Dtype usual_out(Dtype dtype) { return size_of(dtype) == 1 ? Dtype::BF16 : dtype; }
constexpr Dtype usual_out(const AttentionSpec& spec) {
  if (spec.operation == Operation::Quantize) return Dtype::E4M3;
  if (spec.operation == Operation::Index) return Dtype::F32;
  return spec.accumulate && spec.operation != Operation::Merge ? Dtype::F32 : usual_out(spec.dtype);
}
// Sets the dtypes of all outputs of every operation.
void set_out(AttentionSpec& spec, Dtype dtype);

// Returns the value of `out=` in its shortest form, which is one dtype where all are alike.
std::string print_out(const AttentionSpec& spec);

// validate() calls the first, and check_supported() the second.
Result<void> check_out(const AttentionSpec& spec);
Result<void> check_out_supported(const AttentionSpec& spec);

}  // namespace flashjit

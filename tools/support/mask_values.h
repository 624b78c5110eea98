// --param names the tensors and scalars that a call brings for a mask to read. With them a map can show what is hidden.
#pragma once

#include <cstdint>
#include <vector>

#include "autotune/measure/problem.h"
#include "compiler/language/expr.h"
#include "compiler/launch.h"
#include "compiler/result.h"
#include "compiler/spec/spec.h"

namespace flashjit {

class MaskValues {
 public:
  // Reads everything that the mask of `spec` reads, or nothing if `inputs` name nothing. Error Invalid comes for a name
  // that the spec does not have, for one that is missing, and for a tensor that lacks what the mask reads at these
  // sizes.
  static Result<MaskValues> read(const AttentionSpec& spec, const InputFiles& inputs, const CallSizes& sizes);
  bool given() const { return !params_.empty(); }
  // Makes the environment for evaluate(): the values of the parameters, and lengths. It is valid as long as this
  // object.
  Environment environment(std::int64_t q_len, std::int64_t k_len) const;

 private:
  std::vector<Param> params_;                     // parameters that the mask reads
  std::vector<std::vector<std::uint8_t>> bytes_;  // bytes of each parameter
  std::vector<ParamValue> values_;                // value of each parameter
};

}  // namespace flashjit

#include "compiler/spec/fields/accumulate.h"

#include <string_view>

#include <fmt/format.h>

#include "compiler/spec/fields/outputs.h"

namespace flashjit {

Result<void> check_accumulate(const AttentionSpec& spec) {
  if (!spec.accumulate) return {};
  for (const OutField& field : out_fields(spec)) {
    const Dtype dtype = spec.*field.dtype;
    if (dtype == Dtype::F32) continue;
    return invalid(
        fmt::format("out: {} is not fp32, in which a spec with accumulate keeps {} from call to call; leave it out",
                    name(dtype), field.tensor));
  }
  const struct {
    bool asked;
    std::string_view field, why;
  } without[] = {
      {is_forward(spec) && spec.sink, "sink",
       "which would count in every call; give it to the first one, a fwd with sink, out=fp32 and lse=ln"},
      {spec.max_logit, "max_logit", "whose largest so far is not read; leave it out"},
      {spec.shared_prefix, "shared_prefix", "whose parts a merge writes; leave one of the two out"},
      {narrows(spec), "compute", "whose components know no earlier keys; quantize Q, K and V, and use fwd e4m3"},
      {!spec.grads.empty(), "grads", "whose tensors are written anew by each call; add them up outside"},
  };
  for (const auto& [asked, field, why] : without) {
    if (asked) return invalid(fmt::format("{}: with accumulate a call goes on from what others gave, {}", field, why));
  }
  return {};
}

}  // namespace flashjit

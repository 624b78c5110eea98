#include "compiler/spec/fields/dropout.h"

#include <string_view>

#include <fmt/format.h>

#include "templates/dropout.h"

namespace flashjit {

Result<void> check_dropout(const AttentionSpec& spec) {
  const double p = spec.dropout;
  if (!(p >= 0 && p < 1)) return invalid(fmt::format("dropout: {} is outside 0 <= p < 1", p));
  const int dropped = dropped_of(p);
  if (p == 0 || (dropped > 0 && dropped < kDropoutNumbers)) return {};
  return invalid(fmt::format("dropout: {} is nearest to {} of {} weights, steps are of 1/{}; use {}", p, dropped,
                             kDropoutNumbers, kDropoutNumbers,
                             dropped == 0 ? "0.00390625, the least, or leave it out" : "0.99609375, the most"));
}

// Dropout is for training, which has no caches and no tensors of 8 bits.
Result<void> check_dropout_supported(const AttentionSpec& spec) {
  const struct {
    bool asked;
    std::string_view field, way_out;
  } without[] = {{is_paged(spec), "layout=paged", "use layout=packed"},
                 {spec.append, "append", "leave append out"},
                 {spec.v_in_k, "v_in_k", "give v as a tensor"},
                 {narrows(spec), "compute", "leave compute out"},
                 {has_scaled_queries(spec), "a dtype of 8 bits", "use fp16 or bf16"},
                 {has_scaled_keys(spec), "kv", "use k and v of the dtype"}};
  for (const auto& [asked, field, way_out] : without) {
    if (!asked) continue;
    return unsupported(fmt::format("dropout: {} of a spec with {}, whose kernels drop nothing; {}, or use dropout=0",
                                   spec.dropout, field, way_out));
  }
  return {};
}

}  // namespace flashjit

#include "compiler/launches/values.h"

#include <fmt/format.h>

#include "compiler/choice/cost_model.h"
#include "templates/values/layout.h"

namespace flashjit {

void add_value_rows(Plan& plan) {
  const KernelConfig& c = plan.config;
  const bool packed = c.sequences == Sequences::packed;
  plan.value_rows = static_cast<int>(plan.workspace.size());
  plan.before.push_back({.entry = "flashjit_value_rows",
                         .threads = kValueRowsThreads,
                         .smem_bytes = kValueRowsKeys * value_row_bytes(c),
                         .grid = {.keys = kValueRowsKeys, .heads = c.heads_kv, .numbered = packed},
                         .buffers = {plan.value_rows},
                         .bounds = "flashjit::kValueRowsThreads",
                         .call = "write_value_rows(params, value_rows)",
                         .file = "templates/values/rows.cuh"});
  std::vector<Extent> tokens = {{&CallSizes::batch}, {&CallSizes::k_len}};
  if (packed) tokens = {{&CallSizes::k_tokens}};
  plan.workspace.push_back({"value_rows", "char", std::int64_t{value_row_bytes(c)} * c.heads_kv, tokens});
}

std::string describe_value_rows(const Plan& plan) {
  if (plan.value_rows < 0) return {};
  return fmt::format("  a launch before it makes rows of V^T, in the workspace: {} bytes for a token\n",
                     plan.workspace[static_cast<std::size_t>(plan.value_rows)].bytes);
}

double value_rows_us(const AttentionSpec& spec, const Target& target, const Shape& shape) {
  if (!spec.v_transposed || !target.gpu) return 0;
  // A share of the memory rate, because bytes are read one by one. Neither figure is measured.
  constexpr double kLaunchUs = 2, kRate = 0.2;
  const double tokens = static_cast<double>(shape.b) * static_cast<double>(shape.k_len);
  const double bytes = 2 * tokens * spec.heads_kv * spec.d_v;  // Bytes are read and written.
  return kLaunchUs + bytes / (kRate * target.memory_tbs * 1e6);
}

}  // namespace flashjit

#include "compiler/launches/wide_rows.h"

#include <fmt/format.h>

#include "compiler/choice/cost_model.h"
#include "compiler/spec/config_words.h"
#include "templates/latents/rows.h"

namespace flashjit {

void add_wide_rows(Plan& plan) {
  const KernelConfig& c = plan.config;
  plan.wide_rows = static_cast<int>(plan.workspace.size());
  plan.before.push_back({.entry = "flashjit_wide_rows",
                         .threads = kWideRowsThreads,
                         .grid = {.rows = kWideRows},
                         .buffers = {plan.wide_rows},
                         .bounds = "flashjit::kWideRowsThreads",
                         .call = "write_wide_rows(params, wide_rows)",
                         .file = "templates/latents/wide_rows.cuh"});
  plan.workspace.push_back({.name = "wide_rows",
                            .bytes = std::int64_t{size_of(c.element)} * c.head_dim_qk,
                            .extents = {{&CallSizes::k_rows}}});
}

std::string describe_wide_rows(const Plan& plan) {
  if (plan.wide_rows < 0) return {};
  return fmt::format(
      "  a launch before it widens rows of K from {} to {}, in the workspace: {} bytes for each row of k\n",
      word(plan.config.cache_format), word(plan.config.element),
      plan.workspace[static_cast<std::size_t>(plan.wide_rows)].bytes);
}

double wide_rows_us(const AttentionSpec& spec, const Target& target, const Shape& shape) {
  if (!has_latent_rows(spec) || !target.gpu) return 0;
  constexpr double kLaunchUs = 2, kRate = 0.5;  // A share of the memory rate. Neither figure is measured.
  const double keys = static_cast<double>(shape.b) * static_cast<double>(shape.k_len);
  const double bytes = keys * (static_cast<double>(cached_bytes(spec)) + spec.d_qk * size_of(spec.dtype));
  return kLaunchUs + bytes / (kRate * target.memory_tbs * 1e6);
}

}  // namespace flashjit

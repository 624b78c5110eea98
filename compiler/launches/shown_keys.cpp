#include "compiler/launches/shown_keys.h"

#include <fmt/format.h>

#include "compiler/choice/cost_model.h"
#include "templates/key_lists/layout.h"

namespace flashjit {

void add_shown_keys(Plan& plan) {
  const KernelConfig& c = plan.config;
  plan.shown_keys = static_cast<int>(plan.workspace.size());
  plan.before.push_back({.entry = "flashjit_shown_keys",
                         .threads = kShownThreads,
                         .grid = {.keys = kShownEntries, .heads = c.heads_kv},
                         .buffers = {plan.shown_keys},
                         .bounds = "flashjit::kShownThreads",
                         .call = "write_shown_keys(params, shown_keys)",
                         .file = "templates/key_lists/shown.cuh"});
  plan.workspace.push_back({"shown_keys", "int", std::int64_t{4} * c.heads_kv * c.selected, {{&CallSizes::q_tokens}}});
}

void read_shown_keys(KernelParams& params, int heads_kv, int selected, int* keys) {
  const Int64 head = selected, token = head * heads_kv;
  params.key_index = keys;
  params.key_index_stride = {.batch = params.queries_of_sequence * token, .head = head, .token = token};
}

std::string describe_shown_keys(const Plan& plan) {
  if (plan.shown_keys < 0) return {};
  return fmt::format("  a launch before it cuts the lists by the mask, into the workspace: {} bytes for each query\n",
                     plan.workspace[static_cast<std::size_t>(plan.shown_keys)].bytes);
}

double shown_keys_us(const AttentionSpec& spec, const Target& target, const Shape& shape) {
  if (!spec.list_mask || !target.gpu) return 0;
  constexpr double kLaunchUs = 2, kRate = 0.5;  // A share of the memory rate. Neither figure is measured.
  const double entries = static_cast<double>(shape.b) * static_cast<double>(shape.k_len) * spec.heads_kv;
  return kLaunchUs + entries * 2 * sizeof(int) / (kRate * target.memory_tbs * 1e6);
}

}  // namespace flashjit

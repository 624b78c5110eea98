#include "compiler/launches/merged_lists.h"

#include <fmt/format.h>

#include "templates/key_lists/layout.h"

namespace flashjit {

void add_merged_lists(Plan& plan) {
  const KernelConfig& c = plan.config;
  plan.merged_lists = static_cast<int>(plan.workspace.size());
  plan.before.push_back({.entry = "flashjit_merged_lists",
                         .threads = kMergeThreads,
                         .grid = {.heads = c.heads_kv},
                         .buffers = {plan.merged_lists},
                         .bounds = "flashjit::kMergeThreads",
                         .call = "write_merged_lists(params, merged_lists)",
                         .file = "templates/key_lists/merged.cuh"});
  plan.workspace.push_back(
      {"merged_lists", "int", std::int64_t{4} * c.heads_kv * merged_lists(c).ints, {{&CallSizes::batch}}});
}

void read_merged_lists(KernelParams& params, const KernelConfig& config, int* lists) {
  const MergedLists merged = merged_lists(config);
  params.key_index = lists;
  params.key_count = lists + merged.count;
  params.key_index_stride =
      params.key_count_stride = {.batch = Int64{merged.ints} * config.heads_kv, .head = merged.ints, .token = 0};
}

std::string describe_merged_lists(const Plan& plan) {
  if (plan.merged_lists < 0) return {};
  return fmt::format(
      "  a launch before it merges the lists of up to {} queries, so that a page which several have chosen is read once, "
      "into the workspace: {} bytes for each sequence\n",
      plan.config.merged_queries, plan.workspace[static_cast<std::size_t>(plan.merged_lists)].bytes);
}

double merged_lists_us(const KernelConfig& config) {
  constexpr double kLaunchUs = 3, kEntryUs = 0.06;
  return config.merged_queries == 0 ? 0 : kLaunchUs + kEntryUs * merged_lists(config).entries;
}

}  // namespace flashjit

#include "tools/command/explain_costs.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "compiler/families/family.h"
#include "tools/support/mask_map.h"

namespace flashjit {

CallSizes sizes_of(const Shape& shape) {
  return {.batch = shape.b,
          .q_len = shape.q_len,
          .k_len = shape.k_len,
          .q_tokens = shape.b * shape.q_len,
          .k_tokens = shape.b * shape.k_len,
          .k_rows = shape.b * shape.k_len};
}
Footprint footprint(const Plan& plan, const Shape& shape) {
  const CallSizes sizes = sizes_of(shape);
  Footprint all;
  for (const KernelLaunch& launch : plan.before) all.launches.emplace_back(launch.entry);
  for (const KernelLaunch& launch : plan.launches) all.launches.emplace_back(launch.entry);
  all.bytes = bytes_of(plan.workspace, sizes);
  for (const WorkspaceBuffer& buffer : plan.workspace) all.buffers.emplace_back(buffer.name, bytes_of(buffer, sizes));
  return all;
}

namespace {

std::string footprint_text(const Footprint& all) {
  std::string text, buffers;
  if (all.launches.size() > 1) text += fmt::format("  launches           {}\n", fmt::join(all.launches, ", "));
  for (const auto& [name, bytes] : all.buffers)
    buffers += fmt::format("{}{} {}", buffers.empty() ? "" : ", ", name, bytes_text(static_cast<double>(bytes)));
  if (!buffers.empty())
    text += fmt::format("  workspace          {}: {}\n", bytes_text(static_cast<double>(all.bytes)), buffers);
  return text;
}

// The two times of the first line are the whole. Their parts run side by side, so they do not add up to it.
std::string predicted_text(const Plan& plan, const Roofline& r) {
  const Prediction& p = r.predicted;
  const double rest = p.total - std::max(p.compute, p.memory);
  // The numbers that are shown have to add up, too.
  const double tenths = std::round(p.total * 10) - std::round(rest * 10);
  std::string text = fmt::format("  predicted          {:.1f} us = {:.1f} us of {} + {:.1f} us to begin and to end\n",
                                 p.total, tenths / 10, p.compute > p.memory ? "arithmetic" : "memory traffic", rest);
  text += fmt::format("                     the limit is: {}; {:.2f} of {:.2f} TB/s\n", r.limit, r.predicted_tbs,
                      plan.target.memory_tbs);
  return text;
}

// A parameter that limits of tiles read counts as 0. Half of the scores that the limits leave to other parameters count
// as seen.
std::string guess_of_params(const Plan& plan, const Roofline& r) {
  const std::vector<Param> all = params_of(plan.spec.mask);
  if (r.visible >= 1) return fmt::format("{}, which the mask reads, hid nothing", names_text(all, "`"));
  const TileAnalysis& tiles = plan.tiles;
  std::vector<Param> zero, half;
  for (const Param& param : all) {
    const auto reads = [&](const Expr& limit) {
      if (!limit) return false;
      const std::vector<Param> read = params_of(limit);
      return std::ranges::find(read, param.name, &Param::name) != read.end();
    };
    const bool is_zero =
        tiles.may_see ||
        std::ranges::any_of(std::initializer_list<Expr>{tiles.begin, tiles.end, tiles.full_begin, tiles.full_end},
                            reads);
    (is_zero ? zero : half).push_back(param);
  }
  if (half.empty()) return fmt::format("{}, which the mask reads, were 0", names_text(zero, "`"));
  const std::string rest =
      fmt::format("one half were seen of what depends on {}, which the mask reads", names_text(half, "`"));
  return zero.empty() ? rest : fmt::format("{} were 0, and {}", names_text(zero, "`"), rest);
}

// Returns how the cost was counted if tensors decide what is seen, because their contents are not looked at.
std::string guess_text(const Plan& plan, const Roofline& r, bool given) {
  if (selects(plan.spec)) return " (counted with full lists, whose rows are read for each query)";
  if (r.exact) return {};
  if (has_blocks(plan.spec)) return " (counted as if the lists of the call had all blocks)";
  return fmt::format(" (counted as if {}{})", guess_of_params(plan, r), given ? ", whatever --param says" : "");
}

}  // namespace

std::string traffic_text(const Plan& plan, const Shape& shape, const Roofline& r) {
  const bool merge = merges(plan.spec);
  return fmt::format("what it costs at b={},q={}{}\n", shape.b, shape.q_len,
                     merge ? fmt::format(",parts={}", shape.k_len) : "") +
         fmt::format("  memory traffic     {}: {} once\n", bytes_text(r.fused_bytes),
                     merge ? "the parts read and O written" : "x read and y written") +
         footprint_text(footprint(plan, shape)) + predicted_text(plan, r);
}

std::string roofline_text(const Plan& plan, const Shape& shape, const Roofline& r, bool all, bool given) {
  const Prediction& p = r.predicted;
  std::string text =
      fmt::format("what it costs at b={},q={},k={}{}\n", shape.b, shape.q_len, shape.k_len, guess_text(plan, r, given));
  text += fmt::format("  arithmetic         {:.4g} GFLOP; about {:.0f}% of the scores are visible\n", r.flops * 1e-9,
                      r.visible * 100);
  text += fmt::format("  memory traffic     {} fused: {}\n", bytes_text(r.fused_bytes),
                      is_backward(plan.spec) ? "Q, K, V, O, dO read and dQ, dK, dV written once"
                      : indexes(plan.spec)   ? "Q and K read and scores written once"
                                             : "Q, K, V read and O written once");
  if (r.append_bytes > 0)
    text += fmt::format("                     {} of these to append: new rows, and Q rotated\n",
                        bytes_text(r.append_bytes));
  if (!all || indexes(plan.spec)) return text + footprint_text(footprint(plan, shape)) + predicted_text(plan, r);
  text += fmt::format(
      "                     {} in three textbook steps, {:.1f} times as much: scores and probabilities go through memory\n",
      bytes_text(r.textbook_bytes), r.fused_bytes > 0 ? r.textbook_bytes / r.fused_bytes : 0);
  text += fmt::format("  never written      {} of S and P\n", bytes_text(r.score_bytes_never_written));
  const std::string_view instruction = plan.schedule.family->instruction;
  text += fmt::format(
      "  intensity          {:.1f} FLOP per byte fused, {:.1f} in three steps; {}{} is balanced at {:.1f}\n",
      r.intensity, r.textbook_intensity, plan.target.name,
      instruction.empty() ? "" : fmt::format(" at the rate of {}", instruction), r.balance_point);
  text += fmt::format("                     {} the balance point: {} is what there is too little of\n",
                      r.intensity >= r.balance_point ? "above" : "below",
                      r.intensity >= r.balance_point ? "arithmetic" : "memory bandwidth");
  if (!is_backward(plan.spec))
    text += fmt::format("  KV cache           {} per token, {} per sequence\n", bytes_text(r.kv_cache_bytes_per_token),
                        bytes_text(r.kv_cache_bytes_per_sequence));
  text += footprint_text(footprint(plan, shape));
  text += predicted_text(plan, r);
  text += fmt::format(
      "                     each by itself, side by side: matrix units {:.1f}, exponentials {:.1f}, issue {:.1f}, shared memory {:.1f}, L2 {:.1f}, memory {:.1f} us; {:.2f} waves\n",
      p.mma, p.exp, p.issue, p.smem, p.l2, p.memory, p.waves);
  return text;
}

Json roofline_json(const Roofline& r) {
  const Prediction& p = r.predicted;
  return {{"flops", r.flops},
          {"fused_bytes", r.fused_bytes},
          {"append_bytes", r.append_bytes},
          {"textbook_bytes", r.textbook_bytes},
          {"score_bytes_never_written", r.score_bytes_never_written},
          {"intensity", r.intensity},
          {"textbook_intensity", r.textbook_intensity},
          {"balance_point", r.balance_point},
          {"limit", r.limit},
          {"kv_cache_bytes_per_token", r.kv_cache_bytes_per_token},
          {"kv_cache_bytes_per_sequence", r.kv_cache_bytes_per_sequence},
          {"visible", r.visible},
          {"exact", r.exact},
          {"predicted_us", p.total},
          {"predicted_tbs", r.predicted_tbs},
          {"mma_us", p.mma},
          {"exp_us", p.exp},
          {"issue_us", p.issue},
          {"smem_us", p.smem},
          {"l2_us", p.l2},
          {"memory_us", p.memory},
          {"waves", p.waves}};
}

}  // namespace flashjit

#include "compiler/launches/append.h"

#include <fmt/format.h>

#include "compiler/choice/cost_model.h"
#include "templates/append/layout.h"

namespace flashjit {

namespace {

// The time that a launch which appends adds where it overlaps the next one, without rope [M57] and with it [M58]. The
// time without overlap is not measured.
constexpr double kOverlappingUs = 1.2, kAloneUs = 3.0;

}  // namespace

void add_append(Plan& plan) {
  const KernelConfig& c = plan.config;
  KernelLaunch& launch =
      *plan.before.insert(plan.before.begin(), {.entry = "flashjit_append",
                                                .threads = kAppendThreads,
                                                .grid = {.pieces = append_pieces(c), .of_item = kAppendThreads},
                                                .bounds = "flashjit::kAppendThreads",
                                                .call = "appending::write_rows(params, nullptr)",
                                                .file = "templates/append/append.cuh"});
  if (c.rope == Rope::none) return;
  plan.rotated_q = static_cast<int>(plan.workspace.size());
  plan.workspace.push_back({.name = "rotated_q",
                            .bytes = std::int64_t{size_of(c.element)} * rotated_columns(c),
                            .extents = {{&CallSizes::q_tokens}}});
  launch.buffers = {plan.rotated_q};
  launch.call = "appending::write_rows(params, rotated_q)";
}

std::string describe_append(const Plan& plan) {
  if (plan.before.empty() || !plan.config.append) return {};
  std::string text = "  a launch before it writes the rows of new tokens into K and V";
  if (plan.rotated_q >= 0) {
    text += fmt::format(", and Q, rotated, into the workspace: {} bytes for a token",
                        plan.workspace[static_cast<std::size_t>(plan.rotated_q)].bytes);
  }
  return text + (plan.launches.front().overlaps ? "; the next begins meanwhile\n" : "\n");
}

double append_bytes(const AttentionSpec& spec, const Shape& shape) {
  if (!spec.append) return 0;
  const double tokens = static_cast<double>(shape.b) * static_cast<double>(shape.q_len);
  const double of_q = spec.rope == Rope::none ? 0 : spec.heads_q * spec.d_qk;
  const double of_cache = spec.heads_kv * (spec.d_qk + spec.d_v);
  return tokens * ((2 * of_q + of_cache) * size_of(spec.dtype) + of_cache * size_of(spec.kv_dtype));
}

double append_us(const AttentionSpec& spec, const Target& target, const Shape& shape) {
  if (!spec.append || !target.gpu) return 0;
  return (target.can.overlapping_launches ? kOverlappingUs : kAloneUs) +
         append_bytes(spec, shape) / (target.memory_tbs * 1e6);
}

}  // namespace flashjit

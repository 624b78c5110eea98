#include "compiler/families/gradient_launches.h"

#include <algorithm>

#include <fmt/format.h>

#include "compiler/analysis/gradient_reads.h"
#include "compiler/plan.h"

namespace flashjit {

namespace {

constexpr int kSumThreads = 256;
// The most items that may be cut, about the SMs of a large GPU. With more items a cut into halves could win little.
constexpr int kMostCutItems = 128;

int head_reads(const AttentionSpec& spec) {
  const auto reads = gradient_reads(spec);  // validate() has refused specs without such gradients.
  return reads ? static_cast<int>(std::ranges::count(*reads, GradientSum::heads, &GradientRead::sum)) : 0;
}

}  // namespace

double gradient_passes(const AttentionSpec& spec, const Shape& shape, bool sums) {
  constexpr double kBytesOfPass = 4;
  const double rows = static_cast<double>(shape.b) * spec.heads_q * static_cast<double>(shape.q_len);
  return rows * spec.d_v * kBytesOfPass + (sums ? 2.5 * rows * spec.d_qk * sizeof(float) : 0);
}

PartRule part_rule(int tile_q, int heads, bool uneven) {
  return {.queries = tile_q, .heads = heads, .most_items = kMostCutItems, .uneven = uneven};
}

void add_part_sums(Plan& plan, int tile_kv, int heads, int warps, int floats, int number_in_prepare,
                   int number_in_keys) {
  const auto add_buffer = [&](std::string name, std::string_view type, std::int64_t bytes, int after) {
    plan.workspace.push_back({name,
                              type,
                              bytes * warps * heads,
                              {{&CallSizes::batch}, {&CallSizes::k_len, tile_kv, true}},
                              bytes * warps * kMostCutItems});
    for (const auto& [launch, number] : {std::pair{0, number_in_prepare}, {1, number_in_keys}}) {
      plan.launches[launch].buffers.push_back(static_cast<int>(plan.workspace.size()) - 1);
      add_argument(plan.launches[launch].call, name, number + after);
    }
  };
  add_buffer("kv_sums", "float", std::int64_t{floats} * static_cast<int>(sizeof(float)), 0);
  add_buffer("parts_done", "int", sizeof(int), 1);
}

std::string why_not_ordered(const AttentionSpec& spec) {
  if (spec.numerics == Numerics::Fast) return {};
  const auto reads = gradient_reads(spec);
  if (!reads) return {};
  const auto found = std::ranges::find(*reads, false, &GradientRead::ordered);
  if (found == reads->end()) return {};
  return fmt::format(
      "grads: on a GPU the gradient of `{}` is summed up in any order, as several blocks add to an element, and the spec "
      "has numerics={}; index it by b and h as well (or pin b=1), use numerics=fast, or a processor",
      print(found->read), spec.numerics == Numerics::Deterministic ? "deterministic" : "batch_invariant");
}

bool sums_by_key(const AttentionSpec& spec) {
  const auto reads = gradient_reads(spec);
  return reads && std::ranges::count(*reads, GradientSum::keys, &GradientRead::sum) > 0;
}

void add_gradient_launches(Plan& plan, int tile_kv, int warps, std::string_view kept) {
  const AttentionSpec& spec = plan.spec;
  if (spec.grads.empty()) return;
  const int reads = head_reads(spec);
  const bool of_sink = has_sink_gradient(spec), of_params = plan.config.gradients > 0;
  KernelLaunch &prepare = plan.launches[0], &of_keys = plan.launches[1];
  const auto add_buffer = [&](WorkspaceBuffer buffer) {
    plan.workspace.push_back(std::move(buffer));
    return static_cast<int>(plan.workspace.size()) - 1;
  };
  std::vector<int> summed;
  std::string arguments = "params";
  if (of_sink) {
    const auto bytes = static_cast<std::int64_t>(sizeof(float)) * spec.heads_q;
    summed.push_back(add_buffer({"sink_rows", "float", bytes, {{&CallSizes::q_tokens}}}));
    prepare.buffers.push_back(summed.back());
    add_argument(prepare.call, "sink_rows", 3);
    arguments += ", sink_rows";
  } else {
    arguments += ", nullptr";
  }
  std::string begin = "begin_parameters(params)";
  if (reads > 0) {
    const auto bytes = static_cast<std::int64_t>(sizeof(float)) * spec.heads_q * reads * warps;
    summed.push_back(
        add_buffer({"head_sums", "float", bytes, {{&CallSizes::batch}, {&CallSizes::k_len, tile_kv, true}}}));
    prepare.buffers.push_back(summed.back());
    of_keys.buffers.push_back(summed.back());
    add_argument(of_keys.call, "head_sums", of_keys.tensor_maps ? 4 : 3);
    add_argument(begin, "head_sums", 1);
    arguments += ", head_sums";
  }
  if (of_params) {
    prepare.grid.least = 1;
    if (!kept.empty()) add_argument(begin, kept, 2);
    prepare.call = fmt::format("{};\n  flashjit::{}", begin, prepare.call);
  }
  if (summed.empty()) return;
  plan.launches.push_back({.entry = "flashjit_backward_sums",
                           .threads = kSumThreads,
                           .grid = {.heads = spec.heads_q, .least = spec.heads_q},
                           .overlaps = true,
                           .buffers = summed,
                           .bounds = "flashjit::kSumThreads",
                           .call = fmt::format("end_parameters({})", arguments)});
}

}  // namespace flashjit

#include "compiler/families/sync/sync.h"

#include <fmt/format.h>

#include "compiler/launches/tile_lists.h"
#include "compiler/plan.h"

namespace flashjit {

namespace {

std::string why_not(const AttentionSpec& spec, const Target&) {
  if (!goes_on_from_results(spec) || spec.d_v <= kMaxHeadDim) return {};
  return fmt::format(
      "family: sync has registers for {} columns of V, and with accumulate one of the blocks that share a row of d={}/{} "
      "would read the LSE that another has stored; write O and LSE of this call, and merge",
      kMaxHeadDim, spec.d_qk, spec.d_v);
}

std::string why_not_narrow(const AttentionSpec& spec, const Target& target) {
  if (!has_scaled_queries(spec)) {
    return fmt::format(
        "family: sync_narrow multiplies a Q of 8 bits, and the spec has {}; use family={}, or a dtype of e4m3 or e5m2",
        name(spec.dtype), kSync.name);
  }
  if (target.narrow_mma_flops_per_clock == 0) {
    return fmt::format("family: sync_narrow needs mma.sync of 8 bits, which {} does not have; use family={}",
                       target.name, kSync.name);
  }
  if (spec.d_qk % kChunkBytes != 0 || spec.d_v % kChunkBytes != 0) {
    return fmt::format(
        "family: sync_narrow copies {} bytes of a row at a time, and the spec has d={}/{}; use multiples of {}, or family={}",
        kChunkBytes, spec.d_qk, spec.d_v, kChunkBytes, kSync.name);
  }
  return why_not(spec, target);
}

// The reference of a row rises only when its maximum is far above it, so most tiles leave O alone.
void configure(const Problem&, const Schedule& s, KernelConfig& c) {
  c.reference = Reference::lazy;
  take(s.warps, c.sync.warps);
  take(s.q_in, c.sync.q_in);
  take(s.blocks_per_sm, c.sync.blocks_per_sm);
  take(s.unroll_d, c.sync.unroll_d);
}
void configure_narrow(const Problem& problem, const Schedule& s, KernelConfig& c) {
  configure(problem, s, c);
  c.element = Element::f8;
}

double matrix_rate(const Target& target) { return target.mma_flops_per_clock; }
double narrow_matrix_rate(const Target& target) { return target.narrow_mma_flops_per_clock; }

void finish(Plan& plan) {
  const KernelConfig& c = plan.config;
  plan.launches = {{.entry = "flashjit_forward",
                    .threads = threads_of(c),
                    .smem_bytes = sync_layout(c).bytes,
                    .grid = {.queries = c.tile_q, .heads = c.heads_q * value_slices(c)},
                    .bounds = "flashjit::threads_of(flashjit::config), flashjit::config.sync.blocks_per_sm",
                    .call = "sync_forward(params)"}};
  add_tile_lists(plan, Axis::Keys);
}

// Kernels that spill get somewhat slower, and the one that spills least is taken.
std::string why_rejected(const CompilerFindings&) { return {}; }

std::string describe(const KernelConfig&) { return {}; }

constexpr std::array<std::string_view, 11> kHonoured = {
    "fn",   "when=mixed", "holes", "row",     "direction=last_to_first", "smem_bytes", "registers",
    "copy", "copy_bytes", "tile",  "pending",
};

constexpr std::array<std::string_view, 22> kOptions = {
    "accumulate",  "places", "max_logit",     "sink",    "k_lens", "v_in_k",      "v_transposed", "token_scales",
    "linear_exp",  "append", "shared_prefix", "lse",     "packed", "paged",       "narrow_q",     "narrow_kv",
    "latent_rows", "scales", "rope",          "dropout", "select", "head_tables",
};
constexpr std::array<std::string_view, 20> kNarrowOptions = {
    "accumulate",   "places",     "max_logit", "sink",          "k_lens", "v_in_k",      "v_transposed",
    "token_scales", "linear_exp", "append",    "shared_prefix", "lse",    "packed",      "paged",
    "narrow_q",     "narrow_kv",  "scales",    "rope",          "select", "head_tables",
};

FamilyRow narrow_row() {
  FamilyRow row = kSync;
  row.name = "sync_narrow";
  row.options = kNarrowOptions;
  row.second_choice = "multiplies elements of 8 bits with mma.sync";
  row.why_not = why_not_narrow;
  row.enumerate = enumerate_sync_narrow;
  row.configure = configure_narrow;
  row.matrix_rate = narrow_matrix_rate;
  return row;
}

}  // namespace

const FamilyRow kSync = {
    .name = "sync",
    .summary = "Forward attention, fused.",
    .loop_file = "templates/sync/forward.cuh",
    .fields = "tile_q tile_kv warps stages q_in blocks_per_sm unroll_d tiles order",
    .second_choice = "computes this with mma.sync, which reaches about 60 % of the matrix rate",
    .why_not = why_not,
    .enumerate = enumerate_sync,
    .refuses = refuses_sync,
    .configure = configure,
    .registers = sync_registers,
    .predict = predict_sync,
    .matrix_rate = matrix_rate,
    .passes = sync_passes(),
    .finish = finish,
    .why_rejected = why_rejected,
    .honoured = kHonoured,
    .options = kOptions,
    .describe = describe,
};
const FamilyRow kSyncNarrow = narrow_row();

}  // namespace flashjit

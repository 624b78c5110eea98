#include "compiler/families/sync/sync.h"

#include "compiler/plan.h"

namespace flashjit {

namespace {

std::string why_not(const AttentionSpec&, const Target&) { return {}; }

// The reference of a row rises when its maximum is 2^8 above it: most tiles leave O alone.
void configure(const Problem&, KernelConfig& c) { c.reference = Reference::lazy; }

double matrix_rate(const Target& target) { return target.mma_flops_per_clock; }

void finish(Plan& plan) {
  const KernelConfig& c = plan.config;
  plan.launches = {{.entry = "flashjit_forward",
                    .threads = threads_of(c),
                    .smem_bytes = sync_layout(c).bytes,
                    .grid = {.queries = c.tile_q, .heads = c.heads_q * value_parts(c)},
                    .bounds = "flashjit::threads_of(flashjit::config), flashjit::config.blocks_per_sm",
                    .call = "sync_forward(params)"}};
}

// Those that spill get somewhat slower; the one that spills least is taken.
std::string why_rejected(const CompilerFindings&) { return {}; }

std::string describe(const KernelConfig&) { return {}; }

constexpr std::array<std::string_view, 11> kHonoured = {
    "fn",   "when=mixed", "holes", "row",     "direction=last_to_first", "smem_bytes", "registers",
    "copy", "copy_bytes", "tile",  "pending",
};

}  // namespace

const FamilyRow kSync = {
    .name = "sync",
    .summary = "Forward attention, fused.",
    .loop_file = "templates/sync/forward.cuh",
    .fields = "tile_q tile_kv warps stages q_in blocks_per_sm unroll_d order",
    .drops = true,
    .narrow_queries = true,
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
    .describe = describe,
};

}  // namespace flashjit

#include "compiler/families/mla/mla.h"
#include "compiler/families/mla/roles.h"

#include <algorithm>

#include <fmt/format.h>

#include "compiler/families/choices.h"
#include "compiler/families/parts.h"
#include "compiler/plan.h"
#include "compiler/spec/text_form.h"

namespace flashjit {

namespace {

void configure(const Problem& problem, const Schedule&, KernelConfig& c) {
  c.reference = Reference::lazy;
  c.tile_kv = kMlaKeys;
  c.stages = kMlaStages;
  c.decode.cluster = c.tile_q / kMlaRows;
  c.decode.fixed_parts = problem.spec.numerics == Numerics::BatchInvariant;
  if (has_scaled_queries(problem.spec)) c.element = Element::f8;
  c.widened_rows = is_scaled(c) && !multiplies_narrow(c);
  c.ranges_differ = c.has_mask && ranges_differ(problem.tiles);
  c.head_tiles = HeadTiles::grouped;
}

double matrix_rate(const Target& target) { return target.wgmma_flops_per_clock; }

void finish(Plan& plan) {
  const KernelConfig& c = plan.config;
  const int group = group_size(c);
  plan.launches = {{.entry = "flashjit_mla",
                    .threads = kMlaThreads,
                    .smem_bytes = mla_layout(c).bytes,
                    // The grid has the most tiles that a call may need, because a tile may hold only some heads of a
                    // query.
                    .grid = {.queries = std::max(1, c.tile_q / group),
                             .keys = kMlaKeys,
                             .heads = c.decode.cluster * ((group + c.tile_q - 1) / c.tile_q),
                             .blocks_per_sm = 1,
                             .cluster = c.decode.cluster},
                    .tensor_maps = true,
                    .buffers = {0},
                    .bounds = "flashjit::kMlaThreads, 1",
                    .call = "mla_forward(params, maps, parts)"},
                   {.entry = "flashjit_combine",
                    .threads = kCombineThreads,
                    .smem_bytes = kCombineBytes,
                    .grid = combine_grid(c, kCombineBlocks),
                    .adds_up = true,
                    .overlaps = true,
                    .buffers = {0},
                    .bounds = "flashjit::kCombineThreads, 4",
                    .call = "mla_combine(params, parts)"}};
  plan.maps = {
      operand_map(plan.spec, operand("q"), &TensorMaps::q, form_of_queries(plan.spec, true), queries_of_box(c))};
  if (!gathers_keys(c))
    plan.maps.push_back(operand_map(plan.spec, operand("k"), &TensorMaps::k, form_of_keys(plan.spec), keys_of_box(c)));
  if (gathers_keys(c)) plan.key_reach = kGatherReach;
  const int ranges = plan.target.sm_count / c.decode.cluster, of_range = kPartsPerBlock * kSplitTileBytes;
  plan.workspace = {parts_buffer(c, ranges)};
  if (!c.decode.fixed_parts) plan.workspace.front().bytes += std::int64_t{ranges} * of_range;
}

std::string describe(const KernelConfig& c) {
  std::string text =
      fmt::format("  tiles of {} rows: the {}, and their queries\n", c.tile_q, counted(group_size(c), "query head"));
  const std::string_view workers = c.decode.cluster > 1 ? "clusters of two blocks, which copy K for each other" : "SMs";
  if (c.decode.fixed_parts) text += fmt::format("{}, which are dealt out to {}\n", describe_fixed_parts(c), workers);
  else text += fmt::format("  the keys of all sequences are cut into as many equal ranges as there are {}\n", workers);
  text += fmt::format("  two warpgroups share O, {} columns each, and compute the scores of {} keys in turn\n",
                      half_columns(c), kMlaKeys);
  if (multiplies_narrow(c)) text += "  two of its warps transpose V, which products of 8 bits read along its keys\n";
  text += gathers_keys(c) ? std::string("  four warps gather K, a piece of 16 bytes at a time, and widen 8 bits\n")
                          : fmt::format("  TMA copies {} keys at a time, two tiles in flight\n", keys_of_box(c));
  return text + "  a second launch adds up what several blocks have of a row\n";
}

constexpr std::array<std::string_view, 13> kHonoured = {
    "fn",        "when=mixed", "holes",   "row",     "direction=first_to_last",
    "arrivals",  "copy=tma",   "barrier", "pending", "smem_bytes",
    "registers", "count",      "piece",
};

constexpr std::array<std::string_view, 19> kOptions = {
    "accumulate",    "places", "max_logit", "sink",   "k_lens",      "v_in_k",    "append",
    "shared_prefix", "lse",    "packed",    "paged",  "narrow_q",    "narrow_kv", "latent_rows",
    "token_scales",  "scales", "rope",      "select", "head_tables",
};

}  // namespace

const FamilyRow kMla = {
    .name = "mla",
    .summary = "Latent attention, V being the first columns of K, split along the keys, for Hopper.",
    .vocabulary = &kMlaVocabulary,
    .fields = "tile_q",
    .from_first = true,
    .splits_keys = true,
    .reads_latent_rows = true,
    .compiles_quickly = false,
    .second_choice = "splits the keys among all SMs, and shares O among two warpgroups at the whole matrix rate",
    .instruction = "WGMMA",
    .why_not = why_not_mla,
    .enumerate = enumerate_mla,
    .refuses = refuses_mla,
    .configure = configure,
    .registers = mla_registers,
    .predict = predict_mla,
    .prediction_error = 0.15,
    .matrix_rate = matrix_rate,
    .passes = mla_passes(),
    .finish = finish,
    .why_rejected = why_warpgroups_rejected,
    .honoured = kHonoured,
    .options = kOptions,
    .describe = describe,
};

}  // namespace flashjit

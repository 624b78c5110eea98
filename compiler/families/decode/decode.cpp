#include "compiler/families/decode/decode.h"

#include <algorithm>

#include <fmt/format.h>

#include "compiler/plan.h"

namespace flashjit {

namespace {

// Do the keys that a mask leaves depend on more than lengths?
bool ranges_differ(const TileAnalysis& tiles) {
  const auto differs = [](const Expr& expr) {
    return expr && (uses(expr, Variable::B) ||
                    std::ranges::any_of(params_of(expr), [](const Param& param) { return param.rank > 0; }));
  };
  return differs(tiles.begin) || differs(tiles.end);
}

void configure(const Problem& problem, KernelConfig& c) {
  c.reference = Reference::lazy;
  c.ranges_differ = c.has_mask && ranges_differ(problem.tiles);
}

double matrix_rate(const Target& target) { return target.mma_flops_per_clock; }

void finish(Plan& plan) {
  const KernelConfig& c = plan.config;
  const int blocks = plan.target.sm_count * c.blocks_per_sm, group = group_size(c);
  const bool boxes = c.copies == Copies::boxes;
  plan.launches = {{.entry = "flashjit_decode",
                    .threads = decode_threads(c),
                    .smem_bytes = decode_layout(c).bytes,
                    // What tiles there are at most: one may hold queries in part.
                    .grid = {.queries = std::max(1, c.tile_q / group),
                             .keys = c.tile_kv,
                             .heads = c.heads_kv * ((group + c.tile_q - 1) / c.tile_q),
                             .blocks_per_sm = c.blocks_per_sm},
                    .tensor_maps = boxes,
                    .buffers = {0},
                    .bounds = "flashjit::decode_threads(flashjit::config), flashjit::config.blocks_per_sm",
                    .call = boxes ? "decode_forward(params, maps, parts)" : "decode_forward(params, parts)"},
                   {.entry = "flashjit_combine",
                    .threads = kCombineThreads,
                    .smem_bytes = kCombineBytes,
                    // Columns of rows, four at a time.
                    .grid = {.queries = 1, .heads = c.heads_q * (c.head_dim_v / 4), .blocks_per_sm = c.blocks_per_sm},
                    .buffers = {0},
                    .bounds = "flashjit::kCombineThreads",
                    .call = "decode_combine(params, parts)"}};
  plan.workspace = {{"parts", "float", std::int64_t{4} * blocks * kPartsPerBlock * part_floats(c), {}}};
}

std::string why_rejected(const CompilerFindings& findings) {
  if (findings.spill_bytes == 0) return {};
  return fmt::format("it would spill {} bytes of registers to memory", findings.spill_bytes);
}

std::string describe(const KernelConfig& c) {
  std::string text =
      fmt::format("  tiles of {} rows: the {} query heads of a KV head, and their queries\n", c.tile_q, group_size(c));
  text += fmt::format("  the keys of all sequences are cut into {} equal ranges for each SM; {} warps share one\n",
                      c.blocks_per_sm, c.warps);
  if (has_ring(c)) {
    text += fmt::format("  each warp has {} tiles of {} keys in flight, {} KB in an SM; {}\n", c.stages, c.tile_kv,
                        c.blocks_per_sm * c.warps * decode_layout(c).ring_bytes / 1024,
                        c.copies == Copies::boxes ? "TMA copies them" : "its lanes copy them");
  } else {
    text += fmt::format("  each warp reads {} keys at a time, straight to registers\n", c.tile_kv);
  }
  return text + "  a second launch adds up what several blocks have of a row\n";
}

constexpr std::array<std::string_view, 7> kHonoured = {
    "fn", "when=mixed", "holes", "row", "direction=first_to_last", "smem_bytes", "registers",
};

}  // namespace

const FamilyRow kDecode = {
    .name = "decode",
    .summary = "Attention of few queries, split along the keys.",
    .loop_file = "templates/decode/forward.cuh",
    .fields = "tile_q tile_kv warps stages blocks_per_sm copies",
    .from_first = true,
    .splits_keys = true,
    .second_choice = "splits the keys among all SMs and is bound by reading them, not by the matrix rate",
    .why_not = why_not_decode,
    .enumerate = enumerate_decode,
    .refuses = refuses_decode,
    .configure = configure,
    .registers = decode_registers,
    .predict = predict_decode,
    .matrix_rate = matrix_rate,
    .passes = decode_passes(),
    .finish = finish,
    .why_rejected = why_rejected,
    .honoured = kHonoured,
    .describe = describe,
};

}  // namespace flashjit

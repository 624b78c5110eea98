#include "compiler/families/decode/decode.h"

#include <algorithm>

#include <fmt/format.h>

#include "compiler/families/choices.h"
#include "compiler/plan.h"

namespace flashjit {

namespace {

void configure(const Problem& problem, KernelConfig& c) {
  c.reference = Reference::lazy;
  c.ranges_differ = c.has_mask && ranges_differ(problem.tiles);
  c.fixed_parts = problem.spec.numerics == Numerics::BatchInvariant;
}

double matrix_rate(const Target& target) { return target.mma_flops_per_clock; }

// What blocks leave of row tiles which are not theirs alone; with fixed parts, every part.
WorkspaceBuffer parts_buffer(const Plan& plan) {
  const KernelConfig c = plan.config;
  const std::int64_t bytes = std::int64_t{4} * part_floats(c);
  if (!c.fixed_parts) return {"parts", "float", bytes * plan.target.sm_count * c.blocks_per_sm * kPartsPerBlock, {}};
  const auto row_tiles = [c](std::int64_t queries) { return (queries * group_size(c) + c.tile_q - 1) / c.tile_q; };
  const auto parts = [c](std::int64_t keys) { return std::int64_t{most_parts(c, static_cast<int>(keys))}; };
  return {"parts",
          "float",
          bytes * c.heads_kv,
          {{&CallSizes::batch}, {&CallSizes::q_len, 1, false, row_tiles}, {&CallSizes::k_len, 1, false, parts}}};
}

// Of the second launch: its threads have columns of rows, four at a time; with fixed parts each has one such place.
GridRule combine_grid(const KernelConfig& c) {
  constexpr int kBlocksPerSm = 4;
  const int quads = c.heads_q * (c.head_dim_v / 4);
  if (!c.fixed_parts) return {.queries = 1, .heads = quads, .blocks_per_sm = c.blocks_per_sm};
  return {.queries = 1, .heads = (quads + kCombineThreads - 1) / kCombineThreads, .blocks_per_sm = kBlocksPerSm};
}

void finish(Plan& plan) {
  const KernelConfig& c = plan.config;
  const int group = group_size(c);
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
                    .grid = combine_grid(c),
                    .buffers = {0},
                    .bounds = "flashjit::kCombineThreads",
                    .call = "decode_combine(params, parts)"}};
  plan.workspace = {parts_buffer(plan)};
}

std::string why_rejected(const CompilerFindings& findings) {
  if (findings.spill_bytes == 0) return {};
  return fmt::format("it would spill {} bytes of registers to memory", findings.spill_bytes);
}

std::string describe(const KernelConfig& c) {
  std::string text =
      fmt::format("  tiles of {} rows: the {} query heads of a KV head, and their queries\n", c.tile_q, group_size(c));
  if (c.fixed_parts) {
    const int least = 1 << part_shift(c, 1);
    text += fmt::format(
        "  the keys of a sequence are cut into parts of {} up to {} keys, and twice as long ones for four "
        "times as many; {} warps share one\n",
        least, least * least / 16, c.warps);
  } else {
    text += fmt::format("  the keys of all sequences are cut into {} equal ranges for each SM; {} warps share one\n",
                        c.blocks_per_sm, c.warps);
  }
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

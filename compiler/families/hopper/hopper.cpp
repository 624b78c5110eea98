#include "compiler/families/hopper/hopper.h"
#include "compiler/families/hopper/roles.h"
#include "compiler/families/hopper/tuned.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "compiler/analysis/read_axes.h"
#include "compiler/analysis/score_inputs.h"
#include "compiler/families/choices.h"
#include "compiler/plan.h"
#include "compiler/launches/tile_lists.h"
#include "compiler/spec/text_form.h"

namespace flashjit {

namespace {

std::string why_not(const AttentionSpec& spec, const Target& target) {
  const std::string_view other = floor_family(target.gpu)->name;
  if (!target.can.wgmma || !target.can.tma) {
    return fmt::format("family: hopper needs WGMMA and TMA, which {} does not have; use family={}", target.name, other);
  }
  if (spec.align_bytes < 16) {
    return fmt::format(
        "family: hopper copies by TMA, which needs pointers and strides that are multiples of 16 bytes, and the spec has bytes={}; align the inputs, or use family={}",
        spec.align_bytes, other);
  }
  if (spec.d_qk > kMaxHeadDim || spec.d_v > kMaxHeadDim) {
    return fmt::format("family: hopper has registers for head dims up to {}, and the spec has d={}/{}; use family={}",
                       kMaxHeadDim, spec.d_qk, spec.d_v, other);
  }
  if (has_scaled_queries(spec) && (spec.d_v % 16 != 0 || spec.d_qk % 16 != 0)) {
    return fmt::format(
        "family: hopper transposes V of 8 bits 16 columns at a time, and copies by TMA, 16 bytes of a row at least, and the spec has d={}/{}; use multiples of 16, or family={}",
        spec.d_qk, spec.d_v, other);
  }
  if (spec.scale_block > 0 && !has_scaled_queries(spec)) {
    return fmt::format(
        "family: hopper adds up P V of all keys before it looks at scales, and those of the spec are of {} keys each; use a scale for each head, or family={}",
        spec.scale_block, other);
  }
  if (spec.page_size % kSwizzledRows != 0 && (has_scaled_queries(spec) || !has_scaled_keys(spec))) {
    return fmt::format(
        "family: hopper copies K and V by TMA, {} rows at a time or a multiple of it, and pages of {} tokens end between; use pages of a multiple of {}, or family={}",
        kSwizzledRows, spec.page_size, kSwizzledRows, other);
  }
  return {};
}

// Returns whether tensors of the score are copied. They are read 32 keys at a time, and rows of several heads in a tile
// are no box of such a tensor: the score function then reads memory. It does so, too, where tiles of keys are not tiles
// of the tensor.
bool copies_inputs(const AttentionSpec& spec, const KernelConfig& c) {
  return spec.score && !spec.places && c.tile_kv % 32 == 0 && c.head_tiles != HeadTiles::grouped;
}

void configure(const Problem& problem, const Schedule& s, KernelConfig& c) {
  take(s.warpgroups, c.hopper.warpgroups);
  take(s.q_stages, c.hopper.q_stages);
  take(s.overlap, c.hopper.overlap);
  take(s.exclusive, c.hopper.exclusive);
  take(s.row_sum, c.hopper.row_sum);
  take(s.grid, c.hopper.grid);
  take(s.transpose, c.hopper.transpose);
  take(s.keys, c.hopper.keys);
  if (has_scaled_queries(problem.spec)) c.element = Element::f8;
  c.mask_is_range = problem.tiles.line_is_range;
  const bool votes = !c.places && (c.list_heads > 0 || !c.mask_is_long);
  // A mask that depends only on both positions together is evaluated for each score in the same time [M42].
  c.mask_by_rows = c.has_mask && !c.mask_is_range && votes && reads_along_one(problem.spec.mask);
  c.score_has_tanh = problem.score.has_tanh;
  c.score_loads = problem.score.loads;
  // A scale that is known only when the kernel runs makes no constants.
  c.score_cap = is_scaled(c) ? 0 : problem.score.cap;
  c.score_factor = is_scaled(c) ? 0 : problem.score.factor;
  if (copies_inputs(problem.spec, c)) set_inputs(problem.spec, score_inputs(problem.spec.score), c);
}

double matrix_rate(const Target& target) { return target.wgmma_flops_per_clock; }

// Adds the launch that leaves V, or K and V, in the form of tiles in shared memory, one after the other. Each block
// makes one tile.
void add_tiles_launch(Plan& plan, KernelLaunch launch, const char* made) {
  const KernelConfig& c = plan.config;
  const bool packed = has_packed_keys(plan.spec);
  launch.grid = {.keys = c.tile_kv, .heads = c.heads_kv, .numbered = packed};
  launch.buffers = {static_cast<int>(plan.workspace.size())};
  std::vector<Extent> tiles = {{&CallSizes::batch}, {&CallSizes::k_len, c.tile_kv, true}};
  if (packed) tiles = {{.size = &CallSizes::k_tokens, .multiple = c.tile_kv, .tiles = true, .more = &CallSizes::batch}};
  plan.workspace.push_back({made, "char", std::int64_t{made_tile_bytes(c)} * c.heads_kv, tiles});
  KernelLaunch& loop = plan.launches.front();
  loop.buffers = launch.buffers;
  add_argument(loop.call, made, 2);
  plan.before.push_back(std::move(launch));
}

// Adds the buffer for parts of items that are cut, and the launch that puts them together.
void add_parts_launch(Plan& plan) {
  const KernelConfig& c = plan.config;
  KernelLaunch& loop = plan.launches.front();
  const int buffer = static_cast<int>(plan.workspace.size());
  loop.buffers.push_back(buffer);
  add_argument(loop.call, "key_parts", 3);
  plan.workspace.push_back(
      {"key_parts",
       "float",
       std::int64_t{loop.grid.part.most_of_all} * hopper_part_floats(c) * static_cast<int>(sizeof(float)),
       {}});
  KernelLaunch combine = {.entry = "flashjit_combine_parts",
                          .threads = kCombiningThreads,
                          .grid = loop.grid,
                          .of_parts = true,
                          .overlaps = true,
                          .buffers = {buffer},
                          .bounds = "flashjit::kCombiningThreads",
                          .call = "combine_key_parts(params, key_parts)",
                          .file = "templates/hopper/combine.cuh"};
  combine.grid.part = {};
  combine.grid.persistent = false;
  combine.grid.heads *= c.tile_q / kCombinedRows;
  plan.launches.push_back(std::move(combine));
}

void add_maps(Plan& plan) {
  constexpr int kRowsPerWarp = 16;  // A warp stores its rows of O.
  const KernelConfig& c = plan.config;
  const RowsForm queries = form_of_queries(plan.spec, c.head_tiles == HeadTiles::grouped);
  const RowsForm keys = ends_keys(c) ? RowsForm::Ended : form_of_keys(plan.spec);
  const auto add = [&](std::size_t operand, TensorMap TensorMaps::* map, RowsForm form, int rows) {
    plan.maps.push_back(operand_map(plan.spec, operand, map, form, rows));
  };
  add(operand("q"), &TensorMaps::q, queries, c.tile_q);
  if (!widens(c)) add(operand("k"), &TensorMaps::k, keys, box_rows(c));
  if (!widens(c) && !reads_transposed(c)) add(operand("v"), &TensorMaps::v, keys, box_rows(c));
  if (stages_output(c)) add(operand("o"), &TensorMaps::o, queries, kRowsPerWarp);
  plan.input_maps = input_maps(plan.spec, c);
}

void finish(Plan& plan) {
  const KernelConfig& c = plan.config;
  add_maps(plan);
  if (widens(c)) plan.head_groups.row_bytes = std::int64_t{cached_dims(plan.spec)} * size_of(plan.spec.dtype);
  plan.launches = {{.entry = "flashjit_forward",
                    .threads = hopper_threads(c),
                    .smem_bytes = hopper_layout(c).bytes,
                    .grid = query_tiles(c),
                    .tensor_maps = true,
                    .bounds = "flashjit::hopper_threads(flashjit::config), flashjit::hopper_blocks(flashjit::config)",
                    .call = "hopper_forward(params, maps)"}};
  plan.reads_columns = reads_transposed(c);
  plan.linear_weights = interpolates(c);
  if (reads_transposed(c)) {
    add_tiles_launch(plan,
                     {.entry = "flashjit_transpose_values",
                      .threads = kTransposingThreads,
                      .smem_bytes = transposing_bytes(c),
                      .bounds = "flashjit::kTransposingThreads",
                      .call = "transpose_values(params, transposed)",
                      .file = "templates/hopper/transpose.cuh"},
                     "transposed");
  } else if (widens(c)) {
    add_tiles_launch(plan,
                     {.entry = "flashjit_widen_keys",
                      .threads = kWideningThreads,
                      .bounds = "flashjit::kWideningThreads",
                      .call = "widen_keys(params, widened)",
                      .file = "templates/hopper/widen.cuh"},
                     "widened");
  }
  if (c.hopper.keys == Keys::parts) add_parts_launch(plan);
  add_tile_lists(plan, Axis::Keys);
}

std::string describe(const KernelConfig& c) {
  const auto copies = [](int count, const char* what) { return fmt::format("{} in flight", counted(count, what)); };
  std::string text = fmt::format(
      "  64 rows for each warpgroup that computes, of which there {} {}, with {} registers a thread; one copies, with {}\n",
      c.hopper.warpgroups == 1 ? "is" : "are", c.hopper.warpgroups, consumer_registers(c), producer_registers(c));
  text += fmt::format("  {}, {}\n", copies(c.hopper.q_stages, "Q tile"), copies(c.stages, "K and V tile"));
  text +=
      fmt::format("  {}\n", c.hopper.overlap == Overlap::qk_pv ? "Q K^T of the next tile runs beside P V of this one"
                                                               : "one product at a time");
  if (c.hopper.exclusive == Exclusive::issue) text += "  warpgroups take turns with the products\n";
  text +=
      fmt::format("  softmax relative to the {}\n",
                  c.reference == Reference::tile
                      ? "maximum up to each tile"
                      : "maximum of the first tile; where that is too low it rises, or the query tile is done again");
  if (interpolates(c)) text += "  weights are the bits of their exponents, linear between powers of two (linear_exp)\n";
  text += fmt::format("  row sums by {}\n", c.hopper.row_sum != RowSum::matrix ? "additions"
                                            : sums_apart(c)                    ? "a product with ones"
                                                                               : "a column of ones beside V");
  if (transposes_values(c)) text += "  three of its warps transpose V, which products of 8 bits read along its keys\n";
  if (reads_transposed(c)) text += "  a launch before it transposes V, which products of 8 bits read along its keys\n";
  if (widens(c)) {
    text += fmt::format("  a launch before it widens K and V, in the workspace: {} bytes for {} keys of a sequence\n",
                        made_tile_bytes(c) * c.heads_kv, c.tile_kv);
  }
  if (adds_tiles(c)) {
    text += fmt::format("  P V of {} keys at a time{}, added up in fp32: a sum of products of 8 bits has 13 bits\n",
                        c.tile_kv * tiles_of_sum(c),
                        product_pieces(c) > 1 ? fmt::format(", {} columns", product_columns(c)) : "");
  }
  text +=
      fmt::format("  {}\n", c.hopper.grid == GridKind::persistent
                                ? hopper_blocks(c) == 2 ? "two blocks per SM, which take one query tile after the other"
                                                        : "a block per SM, which takes one query tile after the other"
                                : "a block per query tile");
  if (finds_pages(c)) {
    text += fmt::format("  keys in pages: the threads that copy take {} rows at a time\n", box_rows(c));
  }
  if (c.hopper.keys == Keys::parts)
    text += "  where there are few query tiles blocks share the keys of each; a launch behind it puts that together\n";
  if (mixes_lengths(c)) text += "  query tiles of all sequences are taken from both ends of the batch in turns\n";
  if (c.head_tiles == HeadTiles::grouped)
    text += fmt::format("  the {} query heads of a KV head share a tile of {} queries\n", group_size(c),
                        queries_per_tile(c));
  return text;
}

constexpr std::array<std::string_view, 16> kHonoured = {
    "fn",         "when=mixed", "holes",     "row",        "direction=last_to_first",
    "smem_bytes", "registers",  "copy=tma",  "copy_bytes", "count",
    "pending",    "barrier",    "redo=tile", "piece",      "on_top",
    "arrivals",
};

constexpr std::array<std::string_view, 19> kOptions = {
    "accumulate", "places", "max_logit",     "sink",    "k_lens",      "v_in_k", "v_transposed",
    "linear_exp", "append", "shared_prefix", "lse",     "packed",      "paged",  "narrow_q",
    "narrow_kv",  "scales", "rope",          "dropout", "head_tables",
};

}  // namespace

GridRule query_tiles(const KernelConfig& c) {
  constexpr int kMostItems = 132, kMostParts = 16;
  GridRule rule = {.queries = queries_per_tile(c),
                   .heads = c.head_tiles == HeadTiles::grouped ? c.heads_kv : c.heads_q,
                   .numbered = mixes_lengths(c),
                   .persistent = c.hopper.grid == GridKind::persistent,
                   .of_sm = hopper_blocks(c)};
  // A step is a tile of keys, and takes about 1.5 us.
  if (c.hopper.keys == Keys::parts)
    rule.part = {.keys = c.tile_kv,
                 .most_items = kMostItems,
                 .most_parts = kMostParts,
                 .most_of_all = 2 * kMostItems,
                 .beside = 2,
                 .sums = 3};
  return rule;
}

const FamilyRow kHopper = {
    .name = "hopper",
    .summary = "Forward attention, fused, for Hopper: one warpgroup copies, the others compute.",
    .vocabulary = &kHopperVocabulary,
    .fields =
        "tile_q tile_kv warpgroups stages q_stages overlap exclusive reference row_sum grid head_tiles transpose keys tiles order",
    .compiles_quickly = false,
    .instruction = "WGMMA",
    .why_not = why_not,
    .enumerate = enumerate_hopper,
    .refuses = refuses_hopper,
    .configure = configure,
    .warpgroups = [](const KernelConfig& c) { return c.hopper.warpgroups; },
    .registers = hopper_registers,
    .predict = predict_hopper,
    .matrix_rate = matrix_rate,
    .passes = hopper_passes(),
    .finish = finish,
    .why_rejected = why_warpgroups_rejected,
    .honoured = kHonoured,
    .options = kOptions,
    .describe = describe,
    .explain_tuned = explain_tuned,
};

}  // namespace flashjit

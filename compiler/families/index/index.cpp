#include "compiler/families/index/index.h"

#include <algorithm>
#include <array>

#include "compiler/choice/cost_common.h"
#include "compiler/families/choices.h"
#include "compiler/families/pass_common.h"
#include "compiler/plan.h"
#include "templates/index/layout.h"

namespace flashjit {

namespace {

constexpr double kLaunchMicroseconds = 5;  // The launch, and the first operands from memory.
constexpr double kReadRate = 0.72;  // The share of the memory rate that blocks reach which begin and end together.

// ---- both families ----

// Blocks are those of tiles of queries. They share the keys where that is faster. `beside` counts, in tiles of keys,
// what a block does besides its keys.
GridRule grid_of(const KernelConfig& c, int blocks_per_sm, int beside) {
  return {.queries = c.tile_q,
          .heads = c.heads_kv,
          .numbered = c.sequences == Sequences::packed,
          .part = {.keys = c.tile_kv,
                   .most_items = 1 << 30,
                   .uneven = c.has_mask || c.k_lens,
                   .blocks_per_sm = blocks_per_sm,
                   .beside = beside,
                   .sums = 0}};
}

// With lists, scores lie in the workspace, and a further launch finds the largest of each row.
void add_lists(Plan& plan) {
  const KernelConfig& c = plan.config;
  if (c.listed == 0) return;
  plan.launches.front().buffers = {0};
  plan.launches.push_back({.entry = "flashjit_index_largest",
                           .threads = kLargestThreads,
                           .grid = {.queries = 1, .heads = c.heads_kv, .numbered = c.sequences == Sequences::packed},
                           .overlaps = plan.target.can.overlapping_launches,
                           .buffers = {0},
                           .bounds = "flashjit::kLargestThreads",
                           .call = "list_largest(params, scores)",
                           .file = "templates/index/largest.cuh"});
  plan.workspace = {{.name = "scores",
                     .type = "float",
                     .bytes = std::int64_t{4} * c.heads_kv,
                     .extents = {{&CallSizes::q_tokens}, {&CallSizes::k_len, 4}}}};
}

std::string_view scores_of(const KernelConfig& c) { return c.listed > 0 ? "scores" : "params.scores"; }

Registers registers(const Problem&, const KernelConfig&) { return {}; }

// Products of tiles take their time at the rate of the family, and scores go through memory.
Prediction predict_index(const Problem& problem, const Schedule& s, const Shape& shape, const Work& work, double rate,
                         int columns) {
  const AttentionSpec& spec = problem.spec;
  const Target& target = problem.target;
  const double tiles = static_cast<double>(shape.b) * spec.heads_kv *
                       std::ceil(static_cast<double>(shape.q_len) / *s.tile_q) * work.kv_tiles;
  const double clocks = tiles * columns * *s.tile_kv * 2 * spec.d_qk / rate;
  Prediction p;
  p.mma = clocks / target.sm_count / (target.clock_ghz * 1e3);
  p.compute = p.mma;
  p.memory = unique_bytes(spec, shape) / (target.memory_tbs * 1e6 * kReadRate);
  p.latency = kLaunchMicroseconds * (writes_lists(spec) ? 2 : 1);
  p.total = std::max(p.compute, p.memory) + p.latency;
  return p;
}

std::string why_rejected(const CompilerFindings&) { return {}; }

std::string describe_lists(const KernelConfig& c) {
  if (c.listed == 0) return {};
  return fmt::format("  a launch more finds the {} largest scores of each row\n", c.listed);
}

// The mask is evaluated for each score, of which all heads together have one.
constexpr std::array<std::string_view, 1> kHonoured = {"fn"};
constexpr std::array<std::string_view, 6> kOptions = {"k_lens", "token_scales", "packed",
                                                      "paged",  "narrow_q",     "narrow_kv"};

// ---- any GPU ----

std::string why_not(const AttentionSpec&, const Target&) { return {}; }

void enumerate(const Problem&, const Schedule& pins, std::vector<Schedule>& out) {
  Schedule s = pins;
  s.family = &kIndex;
  s.tile_q = pins.tile_q.value_or(kIndexTile);
  s.tile_kv = pins.tile_kv.value_or(kIndexTile);
  out.push_back(s);
}

bool refuses(const Problem&, const Schedule& s, std::string* why) {
  if (*s.tile_q != kIndexTile)
    return refuse(why, "tile_q: {} is not {}, the only one of this family", *s.tile_q, kIndexTile);
  if (*s.tile_kv != kIndexTile)
    return refuse(why, "tile_kv: {} is not {}, the only one of this family", *s.tile_kv, kIndexTile);
  return false;
}

void configure(const Problem&, const Schedule&, KernelConfig&) {}

double matrix_rate(const Target& target) { return target.mma_flops_per_clock; }

Prediction predict_plain(const Problem& problem, const Schedule& s, const Shape& shape, const Work& work) {
  constexpr double kShareOfRate = 0.3;
  return predict_index(problem, s, shape, work, matrix_rate(problem.target) * kShareOfRate,
                       kIndexTile * problem.spec.heads_q / problem.spec.heads_kv);
}

void finish(Plan& plan) {
  const KernelConfig& c = plan.config;
  plan.launches = {{.entry = "flashjit_index",
                    .threads = kIndexThreads,
                    .smem_bytes = index_smem(c),
                    .grid = grid_of(c, 2, 3),
                    .bounds = "flashjit::kIndexThreads",
                    .call = fmt::format("index_tiles(params, {})", scores_of(c))}};
  add_lists(plan);
}

std::string describe(const KernelConfig& c) {
  return "  a head after the other is multiplied with a tile of keys, and added to scores in registers\n" +
         describe_lists(c);
}

// ---- sm_90a ----

constexpr int kPageStep = 8;  // The swizzle of shared memory repeats after so many rows.

std::string why_not_hopper(const AttentionSpec& spec, const Target& target) {
  const int group = spec.heads_q / spec.heads_kv;
  const auto refused = [](std::string_view field, std::string_view why) {
    return fmt::format("{}: {}; use family=index", field, why);
  };
  if (!target.can.wgmma) return refused("target", fmt::format("{} has no wgmma, which hopper_index uses", target.name));
  if (!has_scaled_queries(spec))
    return refused("dtype",
                   fmt::format("hopper_index multiplies elements of 8 bits, and the spec has {}", name(spec.dtype)));
  if (spec.d_qk != kHopperIndexDim)
    return refused(
        "d", fmt::format("hopper_index has rows of {} columns, and the spec has d={}", kHopperIndexDim, spec.d_qk));
  if (round_up(group, 8) > kMostIndexColumns)
    return refused("heads", fmt::format("hopper_index has room for {} heads of a KV head, and the spec has {}",
                                        kMostIndexColumns, group));
  if (spec.page_size % kPageStep != 0)
    return refused("layout", fmt::format("hopper_index copies {} rows of a page at a time, and pages have {}",
                                         kPageStep, spec.page_size));
  if (spec.align_bytes < kChunkBytes)
    return refused("bytes", fmt::format("hopper_index copies {} bytes at a time, and the spec has bytes={}",
                                        kChunkBytes, spec.align_bytes));
  return {};
}

constexpr int kStages = 5;
constexpr int kBeside = 6;  // Q, weights and the first keys come from memory while nothing is computed.

// A tile has as many queries as fit the columns of a product, and no more than a sequence has.
int most_queries(const Problem& problem) {
  const int fit = std::min(kMostIndexColumns / columns_of_query(problem.config), kMostIndexQueries);
  int queries = 1;
  while (queries * 2 <= fit && queries < problem.queries) queries *= 2;
  return std::max(queries, 1);
}

void enumerate_hopper(const Problem& problem, const Schedule& pins, std::vector<Schedule>& out) {
  for (int queries = most_queries(problem); queries > 0; queries /= 2) {
    if (pins.tile_q) queries = *pins.tile_q;
    Schedule s = pins;
    s.family = &kHopperIndex;
    s.tile_q = queries;
    s.tile_kv = pins.tile_kv.value_or(kHopperIndexKeys);
    s.stages = pins.stages.value_or(kStages);
    out.push_back(s);
    if (pins.tile_q) return;
  }
}

bool refuses_hopper(const Problem& problem, const Schedule& s, std::string* why) {
  if (*s.tile_kv != kHopperIndexKeys)
    return refuse(why, "tile_kv: {} is not {}, the only one of this family", *s.tile_kv, kHopperIndexKeys);
  if (*s.stages < 2 || *s.stages > kMaxStages) return refuse(why, "stages: {} is outside 2..{}", *s.stages, kMaxStages);
  const int fit = std::min(kMostIndexColumns / columns_of_query(problem.config), kMostIndexQueries);
  if (*s.tile_q < 1 || *s.tile_q > fit)
    return refuse(why, "tile_q: {} is outside 1..{}, the queries whose heads fit {} columns, up to {}", *s.tile_q, fit,
                  kMostIndexColumns, kMostIndexQueries);
  const KernelConfig c = config_of(problem, s);
  const int bytes = hopper_index_layout(c).bytes * index_blocks_per_sm(c), room = problem.target.smem_per_block;
  if (bytes > room)
    return refuse(why, "stages: {} need {} bytes of shared memory, {} are there", *s.stages, bytes, room);
  return false;
}

// Elements are multiplied as they are.
void configure_hopper(const Problem&, const Schedule&, KernelConfig& c) { c.element = Element::f8; }

double matrix_rate_hopper(const Target& target) { return 2 * target.wgmma_flops_per_clock; }

Prediction predict_hopper(const Problem& problem, const Schedule& s, const Shape& shape, const Work& work) {
  constexpr double kShareOfRate = 0.56;  // Scores are added up beside products, and delay these.
  // Each tile of queries copies and reads keys, which takes the time of so many further columns.
  constexpr int kKeyColumns = 32;
  const int columns = *s.tile_q * columns_of_query(problem.config) + kKeyColumns;
  return predict_index(problem, s, shape, work, matrix_rate_hopper(problem.target) * kShareOfRate, columns);
}

void finish_hopper(Plan& plan) {
  const KernelConfig& c = plan.config;
  plan.launches = {{.entry = "flashjit_index",
                    .threads = kHopperIndexThreads,
                    .smem_bytes = hopper_index_layout(c).bytes,
                    .grid = grid_of(c, index_blocks_per_sm(c), kBeside),
                    .tensor_maps = true,
                    .bounds = "flashjit::kHopperIndexThreads, flashjit::index_blocks_per_sm(flashjit::config)",
                    .call = fmt::format("index_tiles_by_warpgroups(params, maps, {})", scores_of(c))}};
  plan.maps = {
      operand_map(plan.spec, operand("k"), &TensorMaps::k, form_of_keys(plan.spec), keys_of_index_box(plan.config))};
  add_lists(plan);
}

std::string describe_hopper(const KernelConfig& c) {
  return fmt::format("  a product has 64 keys, and {} columns: {} heads of {} queries\n", index_columns(c),
                     group_size(c), c.tile_q) +
         describe_lists(c);
}

// Places the operands of the product, and sets the product.
Result<Program> place_operands(Program p, const PassContext& context) {
  const AttentionSpec& spec = context.problem.spec;
  const KernelConfig& c = context.config;
  const auto add_tile = [&](std::string name, Dtype dtype, int rows) {
    Buffer b{std::move(name), Space::Shared, dtype, fmt::format("{}", rows), fmt::format("{}", kHopperIndexDim)};
    b.layout = fmt::format("swizzle{}", kPanelWidth);
    p.buffers.push_back(std::move(b));
  };
  add_tile("Qs", spec.dtype, index_columns(c));
  add_tile("Ks", spec.kv_dtype, kHopperIndexKeys);
  load_operands(p, "Qs");
  p.body.insert(p.body.begin(), make_statement(Kind::Load, {p.buffer("Qs")}, {p.buffer("q")}));
  const std::array products = {Product{.name = "scores",
                                       .target = "S",
                                       .a = "Ks",
                                       .b = "Qs",
                                       .issuer = Issuer::Warpgroup,
                                       .rows = kKeysOfConsumer,
                                       .columns = index_columns(c) / index_halves(c),
                                       .depth = kHopperIndexDim,
                                       .m = kKeysOfConsumer,
                                       .n = index_columns(c) / index_halves(c),
                                       .k = kStepBytes}};
  FLASHJIT_TRY(assign_products(p, products));
  return p;
}

constexpr std::array kHopperPasses = {Pass{"place_operands", place_operands}};

}  // namespace

const FamilyRow kIndex = {
    .name = "index",
    .summary = "Scores of keys, by sums over the heads of a query.",
    .loop_file = "templates/index/tiles.cuh",
    .fields = "tile_q tile_kv",
    .computes = indexes,
    .from_first = true,
    .second_choice = "widens elements of 8 bits, at a fraction of the matrix rate",
    .why_not = why_not,
    .enumerate = enumerate,
    .refuses = refuses,
    .configure = configure,
    .registers = registers,
    .predict = predict_plain,
    .matrix_rate = matrix_rate,
    .finish = finish,
    .why_rejected = why_rejected,
    .honoured = kHonoured,
    .options = kOptions,
    .describe = describe,
};

const FamilyRow kHopperIndex = {
    .name = "hopper_index",
    .summary = "Scores of keys, by products of warpgroups over all heads of a query.",
    .loop_file = "templates/index/warpgroups.cuh",
    .fields = "tile_q tile_kv stages",
    .computes = indexes,
    .from_first = true,
    .why_not = why_not_hopper,
    .enumerate = enumerate_hopper,
    .refuses = refuses_hopper,
    .configure = configure_hopper,
    .registers = registers,
    .predict = predict_hopper,
    .matrix_rate = matrix_rate_hopper,
    .passes = kHopperPasses,
    .finish = finish_hopper,
    .why_rejected = why_warpgroups_rejected,
    .honoured = kHonoured,
    .options = kOptions,
    .describe = describe_hopper,
};

}  // namespace flashjit

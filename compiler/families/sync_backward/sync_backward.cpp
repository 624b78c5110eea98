#include "compiler/families/sync_backward/sync_backward.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "compiler/choice/cost_common.h"
#include "compiler/families/choices.h"
#include "compiler/families/gradient_launches.h"
#include "compiler/plan.h"
#include "templates/backward/layout.h"

namespace flashjit {

namespace {

constexpr std::string_view kBounds =
    "flashjit::backward_threads(flashjit::config), flashjit::config.sync_backward.blocks_per_sm";
constexpr int kMostWarps = 8;
constexpr int kMostColumns = 128;
constexpr int kFewestColumns = 16;  // The fewest columns also of a warp, because a load of operands brings so many.
constexpr int kReservedSmemPerBlock = 1024;

// Returns the least shared memory of the tiles that are tried.
int least_smem(const AttentionSpec& spec) {
  int least = std::numeric_limits<int>::max();
  for (const auto& [rows, columns] : {std::pair{32, 32}, std::pair{64, kFewestColumns}}) {
    KernelConfig c;
    c.head_dim_qk = spec.d_qk, c.head_dim_v = spec.d_v, c.v_in_k = spec.v_in_k, c.selected = spec.selected;
    c.tile_kv = rows, c.tile_q = columns, c.stages = 1, c.sync_backward.warps = 2;
    least = std::min(least, backward_layout(c, selects(spec) ? Side::queries : Side::keys).bytes);
  }
  return least;
}

std::string why_not(const AttentionSpec& spec, const Target& target) {
  const int least = least_smem(spec);
  if (least <= target.smem_per_block) return {};
  return fmt::format(
      "family: sync_backward takes {} bytes of shared memory for tiles of d={}/{}, and a block of {} has {}; use a GPU that has "
      "more, or a processor",
      least, spec.d_qk, spec.d_v, target.name, target.smem_per_block);
}

// Only `fast` may add up in any order. With lists it always does, because the other way has no products of matrices.
std::vector<DqSums> dq_choices(const Problem& problem, const Schedule& pins) {
  if (selects(problem.spec) && problem.spec.numerics == Numerics::Fast) return choices(pins.dq, {DqSums::atomics});
  if (pins.dq || problem.spec.numerics == Numerics::Fast) return choices(pins.dq, {DqSums::atomics, DqSums::launch});
  return {DqSums::launch};
}

void enumerate(const Problem& problem, const Schedule& pins, std::vector<Schedule>& out) {
  Schedule s = pins;
  s.family = &kSyncBackward;
  // With a mask, blocks have unequal work.
  s.order = pins.order.value_or(problem.config.has_mask ? TileOrder::longest_first : TileOrder::natural);
  for (const DqSums dq : dq_choices(problem, pins)) {
    for (const int warps : choices(pins.warps, {2, 4, 8})) {
      for (const int tile_kv : choices(pins.tile_kv, {32, 64, 128, 256})) {
        for (const int tile_q : choices(pins.tile_q, {kFewestColumns, 32, 64, kMostColumns})) {
          for (const int stages : choices(pins.stages, {1, 2})) {
            for (const int blocks : choices(pins.blocks_per_sm, {1, 2, 3})) {
              s.dq = dq;
              s.warps = warps;
              s.tile_kv = tile_kv;
              s.tile_q = tile_q;
              s.stages = stages;
              s.blocks_per_sm = blocks;
              out.push_back(s);
            }
          }
        }
      }
    }
  }
}

// Returns registers for sums, scores and dP, the derivatives of scores, and the rest of the loop.
Registers registers(const Problem& problem, const KernelConfig& c) {
  constexpr int kBase = 60, kMost = 255, kGranule = 8;
  const int groups = column_groups(c), shares = gradient_slices(c, Side::keys) * groups;
  const int of_keys = has_lists(c) ? 0 : share_of(padded_dim_qk(c), shares) + share_of(value_columns(c), shares);
  const int of_queries = c.sync_backward.dq == DqSums::launch || has_lists(c) ? share_of(padded_dim_qk(c), groups) : 0;
  const int sums = std::max(of_keys, of_queries) * kRowTiles / 2;
  const int scores = (c.has_score ? 3 : 2) * columns_of_warp(c) * kRowTiles / 2;
  const int share = problem.target.registers_per_sm / (backward_threads(c) * c.sync_backward.blocks_per_sm);
  return {kBase + sums + scores + score_registers(problem.spec), std::min(kMost, share / kGranule * kGranule)};
}

// Returns the shared memory of a launch, or that of the larger one if both loops are launched.
int smem_of(const KernelConfig& c) {
  const int of_queries = backward_layout(c, Side::queries).bytes, of_keys = backward_layout(c, Side::keys).bytes;
  if (has_lists(c)) return of_queries;
  return c.sync_backward.dq == DqSums::atomics ? of_keys : std::max(of_keys, of_queries);
}

bool refuses_fields(const AttentionSpec& spec, const Schedule& s, std::string* why) {
  if (*s.dq == DqSums::atomics && spec.numerics != Numerics::Fast)
    return refuse(why, "dq: sums in any order are numerics=fast; use dq=launch");
  if (*s.dq == DqSums::ordered)
    return refuse(why, "dq: sums in order need blocks that stay; use dq=launch, or dq=atomics with numerics=fast");
  if (*s.warps < 1 || *s.warps > kMostWarps) return refuse(why, "warps: {} is outside 1..{}", *s.warps, kMostWarps);
  const int groups = *s.tile_kv > 0 ? *s.warps * kRowsOfWarp / *s.tile_kv : 0;
  if (groups < 1 || groups * *s.tile_kv != *s.warps * kRowsOfWarp)
    return refuse(why, "tile_kv: {} is not {}, {} rows for each of {} warps, or a share of that", *s.tile_kv,
                  *s.warps * kRowsOfWarp, kRowsOfWarp, *s.warps);
  if (!std::has_single_bit(static_cast<unsigned>(*s.tile_q)) || *s.tile_q < kFewestColumns || *s.tile_q > kMostColumns)
    return refuse(why, "tile_q: {} is no power of two from {} to {}", *s.tile_q, kFewestColumns, kMostColumns);
  if (*s.tile_q > *s.warps * 32)
    return refuse(why,
                  "tile_q: {} columns are more than {} warps have threads, each of which copies what belongs to one",
                  *s.tile_q, *s.warps);
  if (*s.tile_q % (groups * kFewestColumns) != 0)
    return refuse(why, "tile_q: {} columns are no multiple of {} for each of the {} warps that share them", *s.tile_q,
                  kFewestColumns, groups);
  if (*s.stages < 1 || *s.stages > kMaxStages) return refuse(why, "stages: {} is outside 1..{}", *s.stages, kMaxStages);
  const int query_groups = (*s.tile_q + 31) / 32;
  if (*s.dq == DqSums::atomics && *s.warps % query_groups != 0)
    return refuse(why, "tile_q: {} queries, 32 for a warp, are no share of {} warps; use dq=launch", *s.tile_q,
                  *s.warps);
  if (*s.blocks_per_sm < 1) return refuse(why, "blocks_per_sm: {} is below 1", *s.blocks_per_sm);
  return false;
}

bool refuses(const Problem& problem, const Schedule& s, std::string* why) {
  if (refuses_fields(problem.spec, s, why)) return true;
  const Target& target = problem.target;
  const KernelConfig c = config_of(problem, s);
  if (has_lists(c) && block_rows(c) > kRowsOfWarp && block_rows(c) / 2 >= group_size(c))
    return refuse(why, "tile_kv: {} rows are more than twice the {} heads that share a list; use {}", *s.tile_kv,
                  group_size(c), *s.tile_kv / 2);
  const int smem = smem_of(c), blocks = *s.blocks_per_sm;
  if (problem.spec.numerics != Numerics::Fast && c.gradients > 0 && column_groups(c) > 1 && sums_by_key(problem.spec))
    return refuse(why, "warps: {} add to sums of a key in any order, numerics=fast; use {}", *s.warps,
                  *s.warps / column_groups(c));
  if (smem > target.smem_per_block) {
    return refuse(
        why,
        "tile_kv: tiles take {} bytes of shared memory, a block of {} has {}; use fewer warps or stages, or a "
        "smaller tile_q",
        smem, target.name, target.smem_per_block);
  }
  if (blocks * (smem + kReservedSmemPerBlock) > target.smem_per_sm) {
    return refuse(why, "blocks_per_sm: {} blocks take {} bytes of shared memory, {} has {}", blocks,
                  blocks * (smem + kReservedSmemPerBlock), target.name, target.smem_per_sm);
  }
  if (blocks * backward_threads(c) > target.threads_per_sm) {
    return refuse(why, "blocks_per_sm: {} blocks have {} threads, {} runs {}", blocks, blocks * backward_threads(c),
                  target.name, target.threads_per_sm);
  }
  const auto [needed, budget] = registers(problem, c);
  // The smallest tiles are kept for problems that fit no other tile, at the price of spills.
  const bool smallest = blocks == 1 && columns_of_warp(c) == kFewestColumns;
  if (needed > budget && !smallest) {
    return refuse(why, "blocks_per_sm: about {} registers per thread are needed, {} blocks of {} threads leave {}",
                  needed, blocks, backward_threads(c), budget);
  }
  return false;
}

void configure(const Problem&, const Schedule& s, KernelConfig& c) {
  take(s.warps, c.sync_backward.warps);
  take(s.blocks_per_sm, c.sync_backward.blocks_per_sm);
  take(s.dq, c.sync_backward.dq);
}

GridRule tiles_of_keys(const KernelConfig& c) {
  GridRule rule = {.keys = block_rows(c), .heads = c.heads_kv * gradient_slices(c, Side::keys)};
  if (!shares_keys(c)) return rule;
  rule.part = part_rule(c.tile_q, group_size(c), c.has_mask);
  rule.part.blocks_per_sm = c.sync_backward.blocks_per_sm;
  return rule;
}

double matrix_rate(const Target& target) { return target.mma_flops_per_clock; }

// Returns the bytes that the warps of a block load as operands for a tile, and store for each other, in one of the
// launches.
double operand_bytes(const KernelConfig& c, Side side) {
  const int rows = block_rows(c), columns = block_columns(c), groups = column_groups(c);
  const int slices = gradient_slices(c, side), qk = padded_dim_qk(c), v = padded_dim_v(c);
  const bool adds = side == Side::keys && c.sync_backward.dq == DqSums::atomics;
  // Operands of 16 x 16 are those of scores and dP, of sums, and of dQ.
  const double scores = (qk + v) / 16 * (kRowTiles + columns_of_warp(c) / 16);
  const int sums =
      share_of(qk, slices * groups) + (side == Side::keys ? share_of(value_columns(c), slices * groups) : 0);
  const double of_sums = columns / 16 * ((groups > 1 ? (side == Side::keys ? 2 : 1) * kRowTiles : 0) + sums / 16);
  const double pairs = share_of(share_of(qk, slices), dq_column_groups(c)) / 16;
  const double of_dq = adds ? rows / 16 * (query_tiles(c) * std::ceil(pairs / 2) + pairs) : 0;
  const double shared = groups > 1 ? (side == Side::keys ? 2 : 1) : adds ? 1 : 0;
  constexpr double kOperandBytes = 512;
  return slices * (c.sync_backward.warps * (scores + of_sums + of_dq) * kOperandBytes +
                   shared * rows * columns * size_of(c.element));
}

// Predicts calls whose queries have lists: a block has heads at one query, and tiles of its list. Without products of
// matrices dK and dV take the clocks of their multiplications, most of which wait. None of this is measured.
Prediction predict_lists(const Problem& problem, const Schedule& s, const Shape& shape, const Work& work) {
  constexpr double kLaunches = 3, kLaunchMicroseconds = 2.8, kBound = 1.5, kSums = 0.5, kBlockClocks = 6000;
  constexpr double kL2BytesPerClock = 15, kFmaPerClock = 128 * 0.2;
  const AttentionSpec& spec = problem.spec;
  const Target& target = problem.target;
  const KernelConfig c = config_of(problem, s);
  const double scores = block_rows(c) * block_columns(c), qk = padded_dim_qk(c), v = padded_dim_v(c);
  const bool adds = adds_keys(c);
  TileClocks tile;
  tile.mma = 2 * scores * (2 * qk + v + (adds ? qk + v : 0)) / target.mma_flops_per_clock;
  tile.exp = scores / target.exp_per_clock;
  tile.issue = scores * (2 * kSoftmaxSlots + score_slots(work) + mask_slots(work, 0)) / kIssuePerClock;
  const double copied = block_columns(c) * (qk + (spec.v_in_k ? 0 : v)) * size_of(c.element);
  tile.smem = (operand_bytes(c, Side::queries) + copied) / target.smem_bytes_per_clock;
  tile.l2 = (adds ? block_columns(c) * (qk + v) * sizeof(float) : 0) / kL2BytesPerClock;
  const double blocks = static_cast<double>(shape.b) * spec.heads_kv * row_tiles_of_list(c);
  const double tiles = blocks * std::ceil(static_cast<double>(shape.k_len) / block_columns(c));
  const double sms = std::min<double>(target.sm_count, std::max(1.0, blocks));
  const double resident = std::clamp(blocks / target.sm_count, 1.0, static_cast<double>(*s.blocks_per_sm));
  const double clocks = (kBound * tile.bound() + kSums * tile.l2) / std::min(resident, 2.0) * 2;
  const double of_keys = adds ? 0
                              : static_cast<double>(shape.b) * static_cast<double>(shape.k_len) * spec.heads_q * 2 *
                                    (qk + v) / kFmaPerClock;
  Prediction p;
  p.waves = blocks / (target.sm_count * resident);
  p.compute = (tiles * clocks + of_keys + blocks * kBlockClocks / resident) / sms / (target.clock_ghz * 1e3);
  add_units(p, tile, tiles / sms, spec, target, shape);
  p.latency = kLaunches * kLaunchMicroseconds + gradient_passes(spec, shape, adds) / (target.memory_tbs * 1e6);
  p.total = std::max(p.compute, p.memory) + p.latency;
  return p;
}

// Whole kernels take the time of their reads from shared memory, times a factor [M54].
Prediction predict_backward(const Problem& problem, const Schedule& s, const Shape& shape, const Work& work) {
  constexpr double kLaunches = 3, kLaunchMicroseconds = 2.8;
  constexpr double kBound = 1.2, kExcess = 0.15, kSums = 0.25, kOneStage = 1.1;  // Shares of the times that are added.
  // A block takes these clocks before and after its loop, and more where that is short [M55].
  constexpr double kBlockClocks = 16000;
  constexpr double kEnoughWarps = 2;       // Warps of a scheduler.
  constexpr double kL2BytesPerClock = 15;  // The rate of sums [M56].
  if (selects(problem.spec)) return predict_lists(problem, s, shape, work);
  const AttentionSpec& spec = problem.spec;
  const Target& target = problem.target;
  const KernelConfig c = config_of(problem, s);
  const double rows = block_rows(c), columns = block_columns(c), scores = rows * columns;
  const double qk = padded_dim_qk(c), v = padded_dim_v(c), slices = gradient_slices(c, Side::keys);
  // Scores and dP are computed for each slice of dK and dV, and for dQ if that has a launch of its own.
  const bool atomics = c.sync_backward.dq == DqSums::atomics;
  const double times = slices + (atomics ? 0 : 1), dims = times * (qk + v) + 2 * qk + v;
  TileClocks tile;
  tile.mma = 2 * scores * dims / target.mma_flops_per_clock;
  tile.exp = scores * times / target.exp_per_clock;
  tile.issue = scores * times * (2 * kSoftmaxSlots + score_slots(work) + mask_slots(work, 0)) / kIssuePerClock;
  tile.smem = (operand_bytes(c, Side::keys) + (atomics ? 0 : operand_bytes(c, Side::queries)) +
               times * columns * (qk + v) * size_of(c.element)) /
              target.smem_bytes_per_clock;
  tile.l2 = (atomics ? columns * qk * sizeof(float) * slices : 0) / kL2BytesPerClock;
  const double query_tiles =
      static_cast<double>(shape.b) * spec.heads_q * std::ceil(static_cast<double>(shape.q_len) / columns);
  const CallSizes sizes = {.batch = shape.b, .q_len = shape.q_len, .k_len = shape.k_len};
  const GridRule grid = tiles_of_keys(c);
  const double blocks = static_cast<double>(items_of(grid, sizes)) * parts_of(grid, sizes, target.sm_count).count;
  const double resident = std::clamp(blocks / target.sm_count, 1.0, static_cast<double>(*s.blocks_per_sm));
  const double warps_per_scheduler = std::clamp(resident * *s.warps / 4, 1.0, kEnoughWarps);
  const double excess = tile.mma + tile.exp + tile.issue + tile.smem - tile.bound();
  const double clocks = (kBound * tile.bound() + kExcess * excess + kSums * tile.l2) *
                        std::sqrt(kEnoughWarps / warps_per_scheduler) * (*s.stages > 1 ? 1 : kOneStage);
  const double tiles = query_tiles * work.kv_tiles, sms = std::min<double>(target.sm_count, std::max(1.0, blocks));
  Prediction p;
  p.waves = blocks / (target.sm_count * resident);
  p.compute = (tiles * clocks / sms + p.waves * kBlockClocks) / (target.clock_ghz * 1e3);
  add_units(p, tile, tiles / sms, spec, target, shape);
  p.latency = kLaunches * kLaunchMicroseconds + gradient_passes(spec, shape, atomics) / (target.memory_tbs * 1e6);
  p.total = std::max(p.compute, p.memory) + p.latency;
  return p;
}

// Returns the launch that finishes gradients of the side of columns: it converts the sums of the launch before, or
// computes them itself.
KernelLaunch last_launch(const KernelConfig& c) {
  if (adds_keys(c)) {
    return {.entry = "flashjit_backward_finish_keys",
            .threads = kPrepareThreads,
            .grid = {.heads = c.heads_kv, .rows = kPrepareRows},
            .buffers = {1},
            .bounds = "flashjit::kPrepareThreads",
            .call = "backward_finish_keys(params, key_sums)"};
  }
  if (has_lists(c)) {
    return {.entry = "flashjit_backward_listed_keys",
            .threads = kListedThreads,
            .grid = {.heads = c.heads_kv, .rows = kListedRows},
            .buffers = {0},
            .bounds = "flashjit::kListedThreads, 3",  // Without a number of blocks ptxas spills to make room for more.
            .call = "backward_listed_keys(params, facts)",
            .file = "templates/backward/listed_keys.cuh"};
  }
  if (c.sync_backward.dq == DqSums::atomics) {
    return {.entry = "flashjit_backward_finish",
            .threads = kPrepareThreads,
            .grid = {.queries = kPrepareRows, .heads = c.heads_q},
            .buffers = {1},
            .bounds = "flashjit::kPrepareThreads",
            .call = "backward_finish(params, dq_sums)"};
  }
  return {.entry = "flashjit_backward_queries",
          .threads = backward_threads(c),
          .smem_bytes = backward_layout(c, Side::queries).bytes,
          .grid = {.queries = block_rows(c), .heads = c.heads_q * gradient_slices(c, Side::queries)},
          .buffers = {0},
          .bounds = kBounds,
          .call = "backward_gradients<flashjit::Side::queries>(params, facts)"};
}

// Returns the launch that computes the scores of tiles: the only one that does, or the first of two.
KernelLaunch main_launch(const KernelConfig& c, const WorkspaceBuffer* sums) {
  const std::string arguments = sums ? "params, facts, " + sums->name : "params, facts";
  const std::string_view side = has_lists(c) ? "queries" : "keys";
  KernelLaunch launch = {.entry = fmt::format("flashjit_backward_{}", side),
                         .threads = backward_threads(c),
                         .smem_bytes = backward_layout(c, has_lists(c) ? Side::queries : Side::keys).bytes,
                         .grid = tiles_of_keys(c),
                         .bounds = kBounds,
                         .call = fmt::format("backward_gradients<flashjit::Side::{}>({})", side, arguments)};
  if (has_lists(c)) launch.grid = {.heads = c.heads_kv * row_tiles_of_list(c)};
  return launch;
}

WorkspaceBuffer sums_of_columns(const KernelConfig& c) {
  if (adds_keys(c))
    return {"key_sums", "float", std::int64_t{listed_row_floats(c)} * 4 * c.heads_kv, {{&CallSizes::k_rows}}};
  return {"dq_sums",
          "float",
          std::int64_t{dq_tile_floats(c)} * 4 * c.heads_q,
          {{.size = &CallSizes::q_tokens, .multiple = 16, .tiles = true, .more = &CallSizes::batch}}};
}

void finish(Plan& plan) {
  const KernelConfig& c = plan.config;
  plan.workspace = {
      {"facts", "flashjit::RowFacts", std::int64_t{sizeof(RowFacts)} * c.heads_q, {{&CallSizes::q_tokens}}}};
  if (c.sync_backward.dq == DqSums::atomics) plan.workspace.push_back(sums_of_columns(c));
  if (adds_queries(c)) plan.head_groups.row_bytes += dq_row_bytes(plan.spec);
  const WorkspaceBuffer* sums = plan.workspace.size() > 1 ? &plan.workspace[1] : nullptr;
  const std::vector<int> buffers = sums ? std::vector<int>{0, 1} : std::vector<int>{0};
  plan.launches = {{.entry = "flashjit_backward_prepare",
                    .threads = kPrepareThreads,
                    .grid = {.queries = kPrepareRows, .heads = c.heads_q},
                    .buffers = buffers,
                    .bounds = "flashjit::kPrepareThreads",
                    .call = sums ? fmt::format("backward_prepare(params, facts, {})", sums->name)
                                 : "backward_prepare(params, facts)"},
                   main_launch(c, sums),
                   last_launch(c)};
  plan.launches[1].buffers = buffers;
  if (adds_keys(c)) plan.launches[0].grid.least = 1;  // Sums are 0 also where there is no query.
  add_gradient_launches(plan, block_rows(c), c.sync_backward.warps);
  if (shares_keys(c))
    add_part_sums(plan, block_rows(c), c.heads_kv * gradient_slices(c, Side::keys), c.sync_backward.warps,
                  key_floats(c), 4, 4);
}

// Kernels that spill get somewhat slower, and the one that spills least is taken.
std::string why_rejected(const CompilerFindings&) { return {}; }

std::string describe_lists(const KernelConfig& c) {
  const std::string all =
      fmt::format("  a block has {} heads of a group, at one query, and gathers the keys of its list\n", block_rows(c));
  if (adds_keys(c)) return all + "  it adds its shares of dK and dV to sums in memory, in any order\n";
  return all +
         fmt::format("  dK and dV of {} keys by a block that looks through all lists, without matrix instructions\n",
                     kListedRows);
}

std::string describe(const KernelConfig& c) {
  if (has_lists(c)) return describe_lists(c);
  if (c.sync_backward.dq == DqSums::atomics)
    return fmt::format("  a block has {} keys, and adds its share of dQ to sums in memory, in any order\n",
                       block_rows(c)) +
           (shares_keys(c) ? std::string(kSharesQueries) : "");
  return fmt::format("  dK and dV of {0} keys, then dQ of {0} queries, by a block; scores are made twice\n",
                     block_rows(c));
}

constexpr std::array<std::string_view, 5> kHonoured = {"fn", "when=mixed", "holes", "row", "direction=first_to_last"};

constexpr std::array<std::string_view, 11> kOptions = {
    "accumulate", "places", "v_in_k", "sink", "dlse", "lse", "packed", "rope", "dropout", "grads", "select",
};

}  // namespace

const FamilyRow kSyncBackward = {
    .name = "sync_backward",
    .summary = "Gradients of attention.",
    .loop_file = "templates/backward/gradients.cuh",
    .fields = "tile_q tile_kv warps stages blocks_per_sm order dq",
    .computes = is_backward,
    .from_first = true,
    .second_choice = "computes this with mma.sync, which reaches about 60 % of the matrix rate",
    .why_not = why_not,
    .enumerate = enumerate,
    .refuses = refuses,
    .configure = configure,
    .registers = registers,
    .predict = predict_backward,
    .matrix_rate = matrix_rate,
    .finish = finish,
    .why_rejected = why_rejected,
    .honoured = kHonoured,
    .options = kOptions,
    .describe = describe,
};

}  // namespace flashjit

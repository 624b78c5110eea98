#include "compiler/families/sync_backward/sync_backward.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "compiler/choice/cost_parts.h"
#include "compiler/families/choices.h"
#include "compiler/plan.h"
#include "templates/backward/layout.h"

namespace flashjit {

namespace {

constexpr std::string_view kBounds = "flashjit::backward_threads(flashjit::config), flashjit::config.blocks_per_sm";
constexpr int kMostWarps = 8;
constexpr int kMostColumns = 64;  // of a tile: scores and dP of a warp are a register for every two of its elements
constexpr int kFewestColumns = 16;
constexpr int kReservedSmemPerBlock = 1024;

std::string why_not(const AttentionSpec&, const Target&) { return {}; }

// Only `fast` may add up in any order.
std::vector<DqSums> dq_choices(const Problem& problem, const Schedule& pins) {
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
      for (const int tile_q : choices(pins.tile_q, {kFewestColumns, 32, kMostColumns})) {
        for (const int stages : choices(pins.stages, {1, 2})) {
          for (const int blocks : choices(pins.blocks_per_sm, {1, 2, 3})) {
            s.dq = dq;
            s.warps = warps;
            s.tile_q = tile_q;
            s.tile_kv = pins.tile_kv.value_or(std::min(warps, kMostWarps) * kRowsOfWarp);
            s.stages = stages;
            s.blocks_per_sm = blocks;
            out.push_back(s);
          }
        }
      }
    }
  }
}

// Sums, scores and dP, the derivatives of scores, and what a loop needs beside them.
Registers registers(const Problem& problem, const KernelConfig& c) {
  constexpr int kBase = 60, kMost = 255, kGranule = 8;
  const int parts = gradient_parts(c, Side::keys);
  const int of_keys = (part_of(padded_dim_qk(c), parts) + part_of(padded_dim_v(c), parts)) / 2,
            sums = std::max(of_keys, padded_dim_qk(c) / 2);
  const int scores = (c.has_score ? 3 : 2) * block_columns(c) / 2;
  const int share = problem.target.registers_per_sm / (backward_threads(c) * c.blocks_per_sm);
  return {kBase + sums + scores + score_registers(problem.spec), std::min(kMost, share / kGranule * kGranule)};
}

bool refuses_fields(const AttentionSpec& spec, const Schedule& s, std::string* why) {
  if (*s.dq == DqSums::atomics && spec.numerics != Numerics::Fast)
    return refuse(why, "dq: sums in any order are numerics=fast; use dq=launch");
  if (*s.warps < 1 || *s.warps > kMostWarps) return refuse(why, "warps: {} is outside 1..{}", *s.warps, kMostWarps);
  if (*s.tile_kv != *s.warps * kRowsOfWarp)
    return refuse(why, "tile_kv: {} is not {}, {} rows for each of {} warps", *s.tile_kv, *s.warps * kRowsOfWarp,
                  kRowsOfWarp, *s.warps);
  if (*s.tile_q % kFewestColumns != 0 || *s.tile_q < kFewestColumns || *s.tile_q > kMostColumns)
    return refuse(why, "tile_q: {} is no multiple of {} up to {}", *s.tile_q, kFewestColumns, kMostColumns);
  if (*s.stages < 1 || *s.stages > kMaxStages) return refuse(why, "stages: {} is outside 1..{}", *s.stages, kMaxStages);
  if (*s.dq == DqSums::atomics && *s.warps % (*s.tile_q / 16) != 0)
    return refuse(why, "tile_q: {} queries, 16 for a warp, are no share of {} warps; use dq=launch", *s.tile_q,
                  *s.warps);
  if (*s.blocks_per_sm < 1) return refuse(why, "blocks_per_sm: {} is below 1", *s.blocks_per_sm);
  return false;
}

bool refuses(const Problem& problem, const Schedule& s, std::string* why) {
  if (refuses_fields(problem.spec, s, why)) return true;
  const Target& target = problem.target;
  const KernelConfig c = config_of(problem, s);
  const int smem = backward_layout(c).bytes, blocks = *s.blocks_per_sm;
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
  // The smallest tiles are there for whatever else does not fit, at the price of spills.
  const bool smallest = blocks == 1 && *s.tile_q == kFewestColumns;
  if (needed > budget && !smallest) {
    return refuse(why, "blocks_per_sm: about {} registers per thread are needed, {} blocks of {} threads leave {}",
                  needed, blocks, backward_threads(c), budget);
  }
  return false;
}

void configure(const Problem&, KernelConfig&) {}

double matrix_rate(const Target& target) { return target.mma_flops_per_clock; }

Prediction predict_backward(const Problem& problem, const Schedule& s, const Shape& shape, const Work& work) {
  constexpr double kLaunches = 3, kLaunchMicroseconds = 2.8, kOverlap = 0.46, kTileClocks = 1500;
  constexpr double kL2BytesPerClock = 15;  // of sums; facts of an H200, 2026-11-23
  const AttentionSpec& spec = problem.spec;
  const Target& target = problem.target;
  const KernelConfig c = config_of(problem, s);
  const double rows = block_rows(c), columns = block_columns(c), scores = rows * columns;
  const double qk = padded_dim_qk(c), v = padded_dim_v(c), parts = gradient_parts(c, Side::keys);
  // Scores and dP are made for each part of dK and dV, and for dQ, if that has a launch of its own.
  const bool atomics = c.dq == DqSums::atomics;
  const double times = parts + (atomics ? 0 : 1), dims = times * (qk + v) + 2 * qk + v;
  TileClocks tile;
  tile.mma = 2 * scores * dims / target.mma_flops_per_clock;
  tile.exp = scores * times / target.exp_per_clock;
  tile.issue = scores * times * (2 * kSoftmaxSlots + score_slots(work) + mask_slots(work, 0)) / kIssuePerClock;
  // Every warp loads all columns as operands, and its rows.
  tile.smem = (*s.warps * columns + rows) * dims * size_of(c.element) / target.smem_bytes_per_clock;
  tile.l2 = (atomics ? columns * qk * sizeof(float) : 0) / kL2BytesPerClock;
  const double pairs = static_cast<double>(shape.b) * spec.heads_q * static_cast<double>(shape.q_len) *
                       static_cast<double>(shape.k_len) * work.visible;
  const double blocks =
      static_cast<double>(shape.b) * spec.heads_q * std::ceil(static_cast<double>(shape.q_len) / rows);
  const double resident = std::clamp(blocks / target.sm_count, 1.0, static_cast<double>(*s.blocks_per_sm));
  const double warps_per_scheduler = std::max(1.0, resident * *s.warps / 4);
  const double excess = tile.mma + tile.exp + tile.issue + tile.smem - tile.bound();
  const double busy = tile.bound() + excess / std::pow(warps_per_scheduler, kOverlap) +
                      kTileClocks / (*s.stages > 1 ? 2.0 : 1.0) / (resident * resident);
  const double clocks = busy + tile.l2 / 2;  // half of it is hidden
  const double tiles = pairs / scores, sms = std::min<double>(target.sm_count, std::max(1.0, blocks));
  Prediction p;
  p.waves = blocks / (target.sm_count * resident);
  p.compute = tiles * clocks / sms / (target.clock_ghz * 1e3);
  add_units(p, tile, tiles / sms, spec, target, shape);
  p.latency = kLaunches * kLaunchMicroseconds;
  p.total = std::max(p.compute, p.memory) + p.latency;
  return p;
}

// What adds up to dQ: the launch before, or one of its own.
KernelLaunch last_launch(const KernelConfig& c) {
  if (c.dq == DqSums::atomics) {
    return {.entry = "flashjit_backward_finish",
            .threads = kPrepareThreads,
            .grid = {.queries = kPrepareRows, .heads = c.heads_q},
            .buffers = {1},
            .bounds = "flashjit::kPrepareThreads",
            .call = "backward_finish(params, dq_sums)"};
  }
  return {.entry = "flashjit_backward_queries",
          .threads = backward_threads(c),
          .smem_bytes = backward_layout(c).bytes,
          .grid = {.queries = block_rows(c), .heads = c.heads_q * gradient_parts(c, Side::queries)},
          .buffers = {0},
          .bounds = kBounds,
          .call = "backward_gradients<flashjit::Side::queries>(params, facts)"};
}

void finish(Plan& plan) {
  const KernelConfig& c = plan.config;
  const bool atomics = c.dq == DqSums::atomics;
  const std::vector<int> buffers = atomics ? std::vector<int>{0, 1} : std::vector<int>{0};
  plan.launches = {{.entry = "flashjit_backward_prepare",
                    .threads = kPrepareThreads,
                    .grid = {.queries = kPrepareRows, .heads = c.heads_q},
                    .buffers = buffers,
                    .bounds = "flashjit::kPrepareThreads",
                    .call = atomics ? "backward_prepare(params, facts, dq_sums)" : "backward_prepare(params, facts)"},
                   {.entry = "flashjit_backward_keys",
                    .threads = backward_threads(c),
                    .smem_bytes = backward_layout(c).bytes,
                    .grid = {.keys = block_rows(c), .heads = c.heads_kv * gradient_parts(c, Side::keys)},
                    .buffers = buffers,
                    .bounds = kBounds,
                    .call = atomics ? "backward_gradients<flashjit::Side::keys>(params, facts, dq_sums)"
                                    : "backward_gradients<flashjit::Side::keys>(params, facts)"},
                   last_launch(c)};
  const auto of_rows = [&](std::string name, std::string_view type, std::size_t bytes) {
    return WorkspaceBuffer{name, type, static_cast<std::int64_t>(bytes) * c.heads_q, {{&CallSizes::q_tokens}}};
  };
  plan.workspace = {of_rows("facts", "flashjit::RowFacts", sizeof(RowFacts))};
  if (atomics)
    plan.workspace.push_back(of_rows("dq_sums", "float", sizeof(float) * static_cast<std::size_t>(c.head_dim_qk)));
}

// Those that spill get somewhat slower; the one that spills least is taken.
std::string why_rejected(const CompilerFindings&) { return {}; }

std::string describe(const KernelConfig& c) {
  if (c.dq == DqSums::atomics)
    return fmt::format("  a block has {} keys, and adds its share of dQ to sums in memory, in any order\n",
                       block_rows(c));
  return fmt::format("  dK and dV of {0} keys, then dQ of {0} queries, by a block; scores are made twice\n",
                     block_rows(c));
}

constexpr std::array<std::string_view, 5> kHonoured = {"fn", "when=mixed", "holes", "row", "direction=first_to_last"};

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
    .describe = describe,
};

}  // namespace flashjit

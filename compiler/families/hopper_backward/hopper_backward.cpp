#include "compiler/families/hopper_backward/hopper_backward.h"

#include <algorithm>
#include <array>

#include "compiler/analysis/gradient_reads.h"
#include "compiler/analysis/score_inputs.h"
#include "compiler/choice/cost_common.h"
#include "compiler/language/gradient.h"
#include "compiler/families/choices.h"
#include "compiler/families/gradient_launches.h"
#include "compiler/families/hopper_backward/roles.h"
#include "compiler/plan.h"
#include "compiler/launches/tile_lists.h"

namespace flashjit {

namespace {

constexpr int kWarpgroups = 2, kStages = 2;
constexpr int kMostDim = 256;
// Calls with more bytes of dS add gradients of tensors to memory directly.
constexpr std::int64_t kMostKept = std::int64_t{8} << 30;

// With roles, the warpgroup that has dP gets P times the slope, and no score.
bool has_roles_and_gradients(const AttentionSpec& spec) {
  KernelConfig c;
  c.head_dim_qk = spec.d_qk;
  c.head_dim_v = spec.d_v;
  return has_roles(c) && !params_with_gradients(spec).empty();
}

std::string why_not(const AttentionSpec& spec, const Target& target) {
  const std::string_view other = floor_family(target.gpu, spec.operation)->name;
  if (!target.can.wgmma || !target.can.tma) {
    return fmt::format("family: hopper_backward needs WGMMA and TMA, which {} does not have; use family={}",
                       target.name, other);
  }
  if (spec.align_bytes < 16) {
    return fmt::format(
        "family: hopper_backward copies by TMA, which needs pointers and strides that are multiples of 16 bytes, and the spec has bytes={}; align the inputs, or use family={}",
        spec.align_bytes, other);
  }
  if (spec.d_qk > kMostDim || spec.d_v > kMostDim) {
    return fmt::format(
        "family: hopper_backward has registers for head dims up to {}, and the spec has d={}/{}; use family={}",
        kMostDim, spec.d_qk, spec.d_v, other);
  }
  if (has_roles_and_gradients(spec)) {
    return fmt::format(
        "family: hopper_backward has registers for gradients of parameters up to head dims that are 256 together, and the "
        "spec has grads= and d={}/{}; use family={}",
        spec.d_qk, spec.d_v, other);
  }
  return {};
}

bool needs_roles(const AttentionSpec& spec) {
  KernelConfig c;
  c.head_dim_qk = spec.d_qk;
  c.head_dim_v = spec.d_v;
  return has_roles(c);
}

// Returns the keys of a block, or of a cluster: 64 for each warpgroup, or 64 for both where they share the work in
// another way.
int usual_tile_kv(const AttentionSpec& spec, DqSums dq) {
  return needs_roles(spec) && dq == DqSums::launch ? kRowsPerWarpgroup : 2 * kRowsPerWarpgroup;
}

// Returns whether one warpgroup may compute alone, with 64 keys. Without lists it may not: two share what they read.
bool may_be_alone(const AttentionSpec& spec, const Schedule& s) {
  return !needs_roles(spec) && *s.tiles == TileSource::list;
}

// Returns why lists do not give the tiles of queries, or an empty text if they may.
std::string has_no_lists(const Problem& problem, DqSums dq) {
  if (dq != DqSums::atomics) return "only sums in any order (dq=atomics) go by lists of tiles";
  if (!params_with_gradients(problem.spec).empty()) return "with grads= what is not visited has to be known as well";
  return {};
}

void enumerate(const Problem& problem, const Schedule& pins, std::vector<Schedule>& out) {
  const AttentionSpec& spec = problem.spec;
  Schedule s = pins;
  s.family = &kHopperBackward;
  for (const DqSums dq : choices(pins.dq, {DqSums::atomics, DqSums::ordered, DqSums::launch})) {
    for (const int tile_q : choices(pins.tile_q, {128, 64})) {
      s.dq = dq;
      s.tile_q = tile_q;
      // Lists come first. They take registers that ranges leave free.
      const bool lists = lists_pay(problem) && has_no_lists(problem, dq).empty();
      for (const TileSource tiles : choices(pins.tiles, {TileSource::list, TileSource::range})) {
        if (tiles == TileSource::list && !lists && !pins.tiles) continue;
        s.tiles = tiles;
        const int usual = usual_tile_kv(spec, dq);
        if (!pins.tile_kv && tile_q == kRowsPerWarpgroup && may_be_alone(spec, s) &&
            !lies_in_block(problem, Axis::Keys, usual)) {
          s.tile_kv = kRowsPerWarpgroup;
          out.push_back(s);
        }
        s.tile_kv = pins.tile_kv.value_or(usual);
        out.push_back(s);
      }
    }
  }
}

// Returns the registers of a loop. P and dS take those that scores and dP leave.
Registers registers(const Problem& problem, const KernelConfig& c) {
  constexpr int kBase = 40;
  const int sums = has_roles(c) ? std::max(c.head_dim_qk, c.head_dim_v) / 2 : (c.head_dim_qk + c.head_dim_v) / 2;
  if (in_clusters(c))
    return {32 + sums + c.tile_q * 3 / 4 + score_registers(problem.spec), backward_consumer_registers(c)};
  // With 128 queries and a score that is more than a sum, 68 bytes spill.
  const Expr& score = problem.spec.score;
  const int fragments = c.tile_q > 64 && scores_apart(c) && c.score_cap == 0 ? 16 : 0;
  const bool reads = c.has_score && c.gradients == 0 && loads_by_position(score, copied_inputs(problem.spec, c));
  const int apart = computes_alone(c) && (scores_apart(c) || c.dropped > 0) ? 8 : 0;
  return {kBase + sums + c.tile_q + fragments + apart + (reads ? score_registers(problem.spec) : 0),
          backward_consumer_registers(c)};
}

// Tiles of packed sequences are not counted, and with gradients of parameters all warps are busy. The turn at a query
// tile follows from the previous tile of keys only where the tiles that see it follow each other.
std::string why_not_in_order(const Problem& problem) {
  const AttentionSpec& spec = problem.spec;
  if (spec.mask && !(problem.tiles.line_is_range && problem.query_tiles->line_is_range))
    return "sums in order are for masks of which each query sees one range of keys, and each key is seen by one of queries; use dq=launch";
  if (is_packed(spec)) return "sums in order are not for packed sequences; use dq=launch";
  if (!params_with_gradients(spec).empty()) return "sums in order are not for specs with grads=; use dq=launch";
  return {};
}

bool refuses(const Problem& problem, const Schedule& s, std::string* why) {
  const AttentionSpec& spec = problem.spec;
  if (*s.dq == DqSums::atomics && spec.numerics != Numerics::Fast)
    return refuse(why, "dq: sums in any order are numerics=fast; use dq=ordered or dq=launch");
  if (*s.dq == DqSums::ordered)
    if (const std::string reason = why_not_in_order(problem); !reason.empty()) return refuse(why, "dq: {}", reason);
  if (refuses_tiles(problem, s, why)) return true;
  if (const std::string reason = has_no_lists(problem, *s.dq); *s.tiles == TileSource::list && !reason.empty())
    return refuse(why, "tiles: {}; use tiles=range", reason);
  const bool alone = may_be_alone(spec, s) && *s.tile_kv == kRowsPerWarpgroup;
  if (const int usual = usual_tile_kv(spec, *s.dq); *s.tile_kv != usual && !alone)
    return refuse(why, "tile_kv: {} is not {}, which the head dims {} and {} leave registers for", *s.tile_kv, usual,
                  spec.d_qk, spec.d_v);
  if (*s.tile_q != 64 && *s.tile_q != 128) return refuse(why, "tile_q: {} is neither 64 nor 128", *s.tile_q);
  const KernelConfig c = config_of(problem, s);
  if (in_clusters(c) && *s.tile_q != kRowsPerWarpgroup)
    return refuse(why, "tile_q: with dq=atomics and head dims {} and {} one warpgroup makes dQ, of 64 queries",
                  spec.d_qk, spec.d_v);
  if (alone &&
      (*s.tile_q != kRowsPerWarpgroup || (spec.d_qk > kRowsPerWarpgroup && spec.d_qk != 2 * kRowsPerWarpgroup)))
    return refuse(why, "tile_kv: 64 keys are for tile_q=64 and head dims of 128, or up to 64; use tile_kv=128");
  if (adds_dq(c) && splits_dq_columns(c) && !alone && dq_columns(c) % 64 != 0)
    return refuse(
        why, "tile_q: 64 queries and a head dim of {} are no share for each warpgroup; use tile_q=128 or dq=launch",
        spec.d_qk);
  const int smem = hopper_backward_layout(c).bytes;
  if (const int most = alone ? backward_shared_memory(c) : problem.target.smem_per_block; smem > most)
    return refuse(why, "tile_q: tiles take {} bytes of shared memory, a block of {} has {}; use tile_q=64", smem,
                  problem.target.name, most);
  const auto [needed, budget] = registers(problem, c);
  if (needed > budget)
    return refuse(why, "tile_q: about {} registers per thread are needed, there are {}; use tile_q=64", needed, budget);
  return false;
}

// Returns which of the tensors that the score reads the producer copies: a thread has two registers for each pair of
// scores. Gradients of parameters need scores to be made once for all, before dP is there.
std::vector<Expr> inputs_of(const Problem& problem) {
  constexpr int kMostBytes = 4;
  const AttentionSpec& spec = problem.spec;
  if (!spec.score || needs_roles(spec) || spec.places) return {};
  std::vector<Expr> inputs;
  int bytes = 0;
  for (const Expr& input : score_inputs(spec.score)) {
    if (query_index(input) < 0 || bytes + size_of(input->param.dtype) > kMostBytes) continue;
    bytes += size_of(input->param.dtype);
    inputs.push_back(input);
  }
  if (params_with_gradients(spec).empty()) return inputs;
  const auto gradients = gradients_of(spec.score, spec.mask, names_of_gradients(spec));
  if (!gradients || !problem.score.adds || loads_by_position(gradients->score, inputs)) return {};
  const auto loads = [](const ReadGradient& of) { return loads_by_position(of.derivative); };
  return std::ranges::any_of(gradients->by_params, loads) ? std::vector<Expr>{} : inputs;
}

// Returns whether dS is kept. This pays if several batch indices or heads share elements of some tensor that is read in
// tiles. It must be known for each such tensor whose elements are shared, and its gradient must need no more precision
// than dS of 16 bits has.
bool keeps_tiles(const AttentionSpec& spec, const KernelConfig& c) {
  const std::vector<Expr> inputs = copied_inputs(spec, c);
  if (inputs.empty() || params_with_gradients(spec).empty()) return false;
  const auto reads = gradient_reads(spec);
  if (!reads) return false;
  bool shared = false;
  for (const GradientRead& read : *reads) {
    const auto is_it = [&](const Expr& input) { return same(input, read.read); };
    if (std::ranges::none_of(inputs, is_it)) continue;
    if (!read.index.plain || size_of(read.read->param.dtype) > 2) return false;
    shared |= read.sum == GradientSum::pairs;
  }
  return shared;
}

void configure(const Problem& problem, const Schedule& s, KernelConfig& c) {
  take(s.dq, c.hopper_backward.dq);
  c.hopper_backward.warpgroups = *s.tile_kv == kRowsPerWarpgroup && may_be_alone(problem.spec, s) ? 1 : kWarpgroups;
  c.stages = kStages;
  if (has_roles(c) && adds_dq(c)) {
    c.hopper_backward.cluster = 2;
    c.hopper_backward.warpgroups = kWarpgroups + 1;  // The third warpgroup makes dQ.
  }
  if (c.has_mask) {
    c.ranges_differ = differ_by_head(*problem.query_tiles);
    c.queries_are_range = problem.query_tiles->line_is_range;
    c.mask_by_rows = !c.places && adds_dq(c) && !c.queries_are_range && (!c.mask_is_long || c.list_heads > 0);
  }
  c.score_adds = problem.score.adds;
  c.score_cap = problem.score.cap;
  c.score_factor = problem.score.factor;
  set_inputs(problem.spec, inputs_of(problem), c);
  c.hopper_backward.keeps_ds = takes_items(c) && c.hopper_backward.dq == DqSums::atomics && !is_packed(problem.spec) &&
                               keeps_tiles(problem.spec, c);
}

// Packed sequences have any lengths: numbering the tiles of each up to the longest one would give mostly empty tiles.
bool numbers_tiles(const KernelConfig& c) { return c.sequences == Sequences::packed; }
GridRule tiles_of_queries(const KernelConfig& c, int rows) {
  return {.queries = rows, .heads = c.heads_q, .numbered = numbers_tiles(c)};
}
GridRule tiles_of_keys(const KernelConfig& c) {
  GridRule rule = {.keys = c.tile_kv,
                   .heads = c.heads_kv * c.hopper_backward.cluster,
                   .numbered = numbers_tiles(c),
                   .cluster = c.hopper_backward.cluster,
                   .persistent = takes_items(c),
                   .of_sm = backward_blocks_of_sm(c)};
  if (cuts_items(c)) {
    rule.part = part_rule(c.tile_q, group_size(c), c.has_mask);
    rule.part.blocks_per_sm = backward_blocks_of_sm(c);
  }
  return rule;
}

double matrix_rate(const Target& target) { return target.wgmma_flops_per_clock; }

// These constants are fitted to whole kernels with sums in memory, and with a launch for dQ [M44]. That launch keeps
// products busier, but takes longer than atomics. Sums in order take about as long as atomics [M45].
Prediction predict_backward(const Problem& problem, const Schedule& s, const Shape& shape, const Work& work) {
  constexpr double kLaunches = 3, kLaunchMicroseconds = 2.8;
  constexpr double kBusy = 0.8, kBusyApart = 0.95, kTileClocks = 250;
  // A tile of keys takes these, and the next one waits for it.
  constexpr double kItemClocks = 4000, kBlockClocks = 8000;
  constexpr double kWaits = 1.06;  // Sums in order wait for their turn.
  const AttentionSpec& spec = problem.spec;
  const Target& target = problem.target;
  const KernelConfig c = config_of(problem, s);
  const bool apart = !adds_dq(c);
  const double scores = static_cast<double>(c.tile_q) * block_keys(c), times = apart ? 2 : 1;
  const double dims = times * (padded_dim_qk(c) + padded_dim_v(c)) + 2 * padded_dim_qk(c) + padded_dim_v(c);
  TileClocks tile;
  tile.mma = 2 * scores * dims / target.wgmma_flops_per_clock;
  tile.exp = times * scores / target.exp_per_clock;
  const double of_mask = c.list_heads > 0 ? 0 : c.mask_by_rows ? kVotedSlots : 1;  // Most tiles of lists are full.
  tile.issue = scores * times * (score_slots(work) + of_mask * mask_slots(work, 0)) / kIssuePerClock;
  const double waits = adds_in_order(c) ? kWaits : 1.0;
  const double clocks =
      (tile.mma / (apart ? kBusyApart : kBusy) + 0.3 * tile.exp + tile.issue + times * kTileClocks) * waits;
  const double query_tiles =
      static_cast<double>(shape.b) * spec.heads_q * std::ceil(static_cast<double>(shape.q_len) / c.tile_q);
  const CallSizes sizes = {.batch = shape.b,
                           .q_len = shape.q_len,
                           .k_len = shape.k_len,
                           .q_tokens = shape.b * shape.q_len,
                           .k_tokens = shape.b * shape.k_len};
  const GridRule grid = tiles_of_keys(c);
  const double blocks =
      std::max(1.0, static_cast<double>(items_of(grid, sizes)) * parts_of(grid, sizes, target.sm_count).count);
  // A tile of several blocks is visited where one of the blocks is.
  const auto blocks_in = [&](Axis axis, int positions) {
    return problem.lists.any && !lies_in_block(problem, axis, positions) ? 1.8 : 1.0;
  };
  const double visited = work.kv_tiles * blocks_in(Axis::Keys, c.tile_kv) * blocks_in(Axis::Queries, c.tile_q);
  const double sms = std::min<double>(target.sm_count, blocks),
               tiles = query_tiles * visited * c.tile_kv / block_keys(c);
  Prediction p;
  p.waves = blocks / target.sm_count;
  double beside = std::max(1.0, p.waves) * (takes_items(c) ? kItemClocks : kBlockClocks);
  if (apart)
    beside += std::max(1.0, static_cast<double>(items_of(tiles_of_queries(c, kDqTileQ), sizes)) / target.sm_count) *
              kBlockClocks;
  p.compute = (tiles * clocks / sms + beside) / (target.clock_ghz * 1e3);
  add_units(p, tile, tiles / sms, spec, target, shape);
  p.latency = kLaunches * kLaunchMicroseconds + gradient_passes(spec, shape, !apart) / (target.memory_tbs * 1e6);
  p.total = std::max(p.compute, p.memory) + p.latency;
  return p;
}

KernelLaunch last_launch(const KernelConfig& c) {
  if (adds_dq(c)) {
    return {.entry = "flashjit_backward_finish",
            .threads = finish_threads(c),
            .grid = tiles_of_queries(c, c.tile_q),
            .adds_up = counts_items(c),
            .overlaps = true,
            .buffers = {1},
            .bounds = "flashjit::finish_threads(flashjit::config)",
            .call = "finish_backward(params, dq_sums)"};
  }
  return {.entry = "flashjit_backward_queries",
          .threads = hopper_backward_threads(c),
          .smem_bytes = dq_layout(c).bytes,
          .grid = tiles_of_queries(c, kDqTileQ),
          .tensor_maps = true,
          .overlaps = true,
          .buffers = {0},
          .bounds = "flashjit::hopper_backward_threads(flashjit::config), 1",
          .call = "backward_queries(params, maps, row_terms)"};
}

// Adds a buffer, as an argument of these launches, with these numbers.
void add_buffer(Plan& plan, WorkspaceBuffer buffer, std::initializer_list<std::pair<std::size_t, int>> arguments) {
  plan.workspace.push_back(std::move(buffer));
  for (const auto& [launch, number] : arguments) {
    KernelLaunch& with = plan.launches[launch];
    with.buffers.push_back(static_cast<int>(plan.workspace.size()) - 1);
    add_argument(with.call, plan.workspace.back().name, number);
  }
}

// Adds the buffer for dS, and the launch that sums it up. (add_gradient_launches() has passed the buffer to the first
// launch.)
void add_kept(Plan& plan) {
  const KernelConfig& c = plan.config;
  plan.launches.push_back({.entry = "flashjit_backward_kept",
                           .threads = kKeptThreads,
                           .grid = {.queries = kKeptRows, .keys = c.tile_kv, .heads = c.heads_q, .of_all = true},
                           .overlaps = true,
                           .bounds = "flashjit::kKeptThreads",
                           .call = "sum_kept(params)"});
  add_buffer(plan,
             {"kept_ds",
              "char",
              std::int64_t{hopper_backward_layout(c).exchange_bytes} * c.heads_q,
              {{&CallSizes::batch}, {&CallSizes::q_len, c.tile_q, true}, {&CallSizes::k_len, c.tile_kv, true}},
              kMostKept},
             {{1, 10}, {plan.launches.size() - 1, 1}});
  plan.launches[0].buffers.push_back(static_cast<int>(plan.workspace.size()) - 1);
}

// With sums in order, tiles of keys of one head wait for each other, most of all where a tile is no longer than a step.
// More heads are better then, as many as L2 holds. Only queries that see a tile of keys count, for the first tile, one
// in the middle and the last: a mask may let few see it. With two steps for a tile, few heads are better [M46].
std::int64_t most_rows(const Plan& plan) {
  constexpr std::int64_t kLong = HeadGroupRule{}.most_rows;
  const Expr& mask = plan.spec.mask;
  const int tile_kv = plan.config.tile_kv;
  const bool waits = adds_in_order(plan.config) && plan.config.tile_q >= tile_kv;
  if (!waits || !mask || uses(mask, Op::Load) || uses(mask, Op::Scalar)) return kLong;
  Environment at;
  const auto set = [&](Variable variable, std::int64_t value) { at.variables[static_cast<int>(variable)] = value; };
  set(Variable::QLen, kLong);
  set(Variable::KLen, kLong);
  std::int64_t rows = 1;
  for (const std::int64_t k : {std::int64_t{0}, kLong / 2, kLong - tile_kv}) {
    set(Variable::KLo, k);
    set(Variable::KHi, k + tile_kv - 1);
    rows = std::max(rows, evaluate(plan.query_tiles.end, at).integer - evaluate(plan.query_tiles.begin, at).integer);
  }
  return rows;
}

void add_maps(Plan& plan) {
  const KernelConfig& c = plan.config;
  const auto add = [&](std::size_t number, TensorMap TensorMaps::* map, int rows) {
    const bool of_queries = kOperands[number].dims[1] == Dim::Queries;
    const RowsForm form = of_queries ? form_of_queries(plan.spec, false) : form_of_keys(plan.spec);
    plan.maps.push_back(operand_map(plan.spec, number, map, form, rows));
  };
  add(operand("q"), &TensorMaps::q, c.tile_q);
  add(operand("do"), &TensorMaps::o, c.tile_q);
  add(operand("k"), &TensorMaps::k, block_keys(c));
  add(operand("v"), &TensorMaps::v, block_keys(c));
  if (!adds_dq(c)) {
    add(operand("k"), &TensorMaps::dq_k, dq_layout(c).tile_kv);
    add(operand("v"), &TensorMaps::dq_v, dq_layout(c).tile_kv);
  }
  plan.input_maps = input_maps(plan.spec, c);
}

void finish(Plan& plan) {
  const KernelConfig& c = plan.config;
  const bool sums = adds_dq(c);
  add_maps(plan);
  if (sums) plan.head_groups = {plan.head_groups.row_bytes + dq_row_bytes(plan.spec), most_rows(plan)};
  const std::vector<int> buffers = sums ? std::vector<int>{0, 1} : std::vector<int>{0};
  plan.launches = {
      {.entry = "flashjit_backward_prepare",
       .threads = kPrepareThreads,
       .smem_bytes = c.tile_q * static_cast<int>(sizeof(float)),
       .grid = tiles_of_queries(c, c.tile_q),
       .buffers = buffers,
       .bounds = "flashjit::kPrepareThreads",
       .call = sums ? "prepare_backward(params, row_terms, dq_sums)" : "prepare_backward(params, row_terms)"},
      {.entry = "flashjit_backward",
       .threads = hopper_backward_threads(c),
       .smem_bytes = hopper_backward_layout(c).bytes,
       .grid = tiles_of_keys(c),
       .tensor_maps = true,
       .overlaps = true,
       .buffers = buffers,
       .bounds =
           "flashjit::hopper_backward_threads(flashjit::config), flashjit::backward_blocks_of_sm(flashjit::config)",
       .call = sums ? "hopper_backward(params, maps, row_terms, dq_sums)" : "hopper_backward(params, maps, row_terms)"},
      last_launch(c)};
  std::vector<Extent> tiles = {{&CallSizes::batch}, {&CallSizes::q_len, c.tile_q, true}};
  if (numbers_tiles(c))
    tiles = {{.size = &CallSizes::q_tokens, .multiple = c.tile_q, .tiles = true, .more = &CallSizes::batch}};
  const auto of_tiles = [&](std::string name, std::string_view type, int bytes) {
    return WorkspaceBuffer{name, type, std::int64_t{bytes} * c.heads_q, tiles};
  };
  plan.workspace = {of_tiles("row_terms", "char", row_terms_bytes(c))};
  if (sums) plan.workspace.push_back(of_tiles("dq_sums", "float", dq_sum_floats(c) * static_cast<int>(sizeof(float))));
  add_gradient_launches(plan, c.tile_kv, 4 * c.hopper_backward.warpgroups, c.hopper_backward.keeps_ds ? "kept_ds" : "");
  constexpr int kInt = sizeof(int);
  if (counts_items(c))
    add_buffer(plan, {"counters", "int", 2 * std::int64_t{c.heads_kv} * kInt, {{&CallSizes::batch}}},
               {{0, 4}, {1, 5}, {2, 2}});
  if (c.hopper_backward.keeps_ds) add_kept(plan);
  add_tile_lists(plan, Axis::Queries);
  if (cuts_items(c)) add_part_sums(plan, c.tile_kv, c.heads_kv, cut_warps(c), cut_floats(c), 7, 8);
  if (!adds_in_order(c)) return;
  add_buffer(plan, of_tiles("added", "int", c.hopper_backward.cluster * kInt), {{0, 5}, {1, 6}});
  add_buffer(plan, {"dealt", "int", kInt, {}}, {{0, 6}, {1, 7}});
}

std::string describe(const KernelConfig& c) {
  std::string text = fmt::format("  a block has {} keys and goes over tiles of {} queries, {} in flight\n",
                                 block_keys(c), c.tile_q, c.stages);
  if (in_clusters(c))
    text += "  blocks in pairs tell each other dS; a third warpgroup makes dQ of both, half of its columns\n";
  text +=
      computes_alone(c)
          ? "  two blocks share an SM, so that one exponentiates beside the products of the other; one warpgroup copies\n"
      : has_roles(c) ? "  one warpgroup has scores and dV, the other dP and dK; one copies\n"
                     : "  two warpgroups have 64 keys each, and take turns with the products; one copies\n";
  if (adds_dq(c)) {
    text +=
        fmt::format("  dQ is added to sums in memory, {}\n", adds_in_order(c) ? "the last keys first" : "in any order");
    if (c.hopper_backward.keeps_ds)
      text += fmt::format(
          "  dS is kept in 16 bits, up to {} GiB of it; a last launch sums up the gradients of tensors from that\n",
          kMostKept >> 30);
    return cuts_items(c) ? text.append(kSharesQueries) : text;
  }
  return text + fmt::format("  then dQ of {} queries by a block, over tiles of {} keys; scores are made twice\n",
                            kDqTileQ, dq_layout(c).tile_kv);
}

constexpr std::array<std::string_view, 11> kHonoured = {
    "fn",      "when=mixed", "holes", "row",     "smem_bytes", "direction=first_to_last",
    "barrier", "copy",       "count", "pending", "arrivals",
};

constexpr std::array<std::string_view, 9> kOptions = {
    "accumulate", "places", "sink", "dlse", "lse", "packed", "rope", "dropout", "grads",
};

}  // namespace

const FamilyRow kHopperBackward = {
    .name = "hopper_backward",
    .summary = "Gradients of attention, for Hopper: one warpgroup copies, the others compute.",
    .vocabulary = &kHopperBackwardVocabulary,
    .fields = "tile_q tile_kv dq tiles",
    .computes = is_backward,
    .from_first = true,
    .axis = Axis::Queries,
    .compiles_quickly = false,
    .instruction = "WGMMA",
    .why_not = why_not,
    .enumerate = enumerate,
    .refuses = refuses,
    .configure = configure,
    .warpgroups = [](const KernelConfig& c) { return c.hopper_backward.warpgroups; },
    .registers = registers,
    .predict = predict_backward,
    .matrix_rate = matrix_rate,
    .passes = hopper_backward_passes(),
    .finish = finish,
    .why_rejected = why_warpgroups_rejected,
    .honoured = kHonoured,
    .options = kOptions,
    .describe = describe,
};

}  // namespace flashjit

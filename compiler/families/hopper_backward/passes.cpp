// Sets products, shared memory and roles of the backward loops for Hopper.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "compiler/analysis/gradient_reads.h"
#include "compiler/analysis/score_inputs.h"
#include "compiler/families/hopper_backward/hopper_backward.h"
#include "compiler/families/hopper_backward/roles.h"
#include "compiler/families/pass_common.h"

namespace flashjit {

namespace {

Buffer shared_tile(std::string name, Dtype dtype, const PanelLayout& layout, int offset, int stages) {
  Buffer b{std::move(name), Space::Shared, dtype, fmt::format("{}", layout.rows), fmt::format("{}", layout.columns)};
  b.layout = fmt::format("swizzle{}", kPanelWidth);
  b.offset = offset;
  b.bytes = layout.bytes();
  b.stages = stages;
  return b;
}

// Adds the tiles of the launch that goes over queries, and row terms, which a product with ones adds to scores and dP.
void add_tiles_of_keys(Program& p, const AttentionSpec& spec, const KernelConfig& c) {
  const HopperBackwardLayout l = hopper_backward_layout(c);
  p.buffers.push_back(shared_tile("Ks", spec.dtype, l.k, l.k_offset, l.swaps ? 1 : l.k_slots));
  p.buffers.push_back(shared_tile("Vs", spec.dtype, l.v, l.v_offset, 1));
  p.buffers.push_back(shared_tile("Qs", spec.dtype, l.q, l.q_offset, c.stages));
  p.buffers.push_back(shared_tile("dOs", spec.dtype, l.d_o, l.d_o_offset, l.d_o_stages));
  Buffer terms{"Terms", Space::Shared, Dtype::BF16, fmt::format("{}", row_terms_bytes(c) / kTermBytes), "8"};
  terms.layout = "rows";
  terms.offset = l.terms_offset;
  terms.bytes = row_terms_bytes(c);
  terms.stages = c.stages;
  if (l.terms_step != terms.bytes) terms.stride = l.terms_step;
  p.buffers.push_back(terms);
  p.buffers.push_back({"Ones", Space::Register, Dtype::BF16, "64", "16"});
  if (has_inputs(c)) {
    p.buffers.push_back({"inputs", Space::Global, Dtype::U8, "q_len", "k_len"});
    Buffer inputs{"Is", Space::Shared, Dtype::U8, fmt::format("{}", c.tile_q), fmt::format("{}", kPanelWidth)};
    inputs.layout = fmt::format("swizzle{}", kPanelWidth);
    inputs.offset = l.inputs_offset;
    inputs.bytes = c.hopper_backward.warpgroups * tile_inputs_bytes(c);
    p.buffers.push_back(std::move(inputs));
  }
  if (has_roles(c)) {
    Buffer weights{"Ps", Space::Shared, Dtype::F32, fmt::format("{}", block_keys(c)), fmt::format("{}", c.tile_q)};
    weights.layout = "rows";
    weights.offset = l.exchange_offset;
    weights.bytes = l.exchange_bytes;
    p.buffers.push_back(std::move(weights));
  }
  if (in_clusters(c)) {
    PanelLayout half = l.k;
    half.columns = dq_columns(c);
    p.buffers.push_back(shared_tile("other Ks", spec.dtype, half, l.other_k_offset, 1));
    p.buffers.push_back(shared_tile("dSs", spec.dtype, l.ds, l.ds_offset, kDsStages));
    p.buffers.push_back(shared_tile("other dSs", spec.dtype, l.ds, l.other_ds_offset, kDsStages));
  } else if (adds_dq(c)) {
    p.buffers.push_back(shared_tile("dSs", spec.dtype, l.ds, l.exchange_offset, exchanges(c)));
  }
}
// Adds the tiles of the launch that goes over keys.
void add_tiles_of_queries(Program& p, const AttentionSpec& spec, const KernelConfig& c) {
  const DqLayout l = dq_layout(c);
  p.buffers.push_back(shared_tile("row Qs", spec.dtype, l.q, 0, 1));
  p.buffers.push_back(shared_tile("row dOs", spec.dtype, l.d_o, l.d_o_offset, 1));
  p.buffers.push_back(shared_tile("column Ks", spec.dtype, l.k, l.k_offset, kDqStages));
  p.buffers.push_back(shared_tile("column Vs", spec.dtype, l.v, l.v_offset, kDqStages));
}

Result<Program> place_buffers(Program p, const PassContext& context) {
  const KernelConfig& c = context.config;
  const bool apart = !adds_dq(c);
  const int keys = hopper_backward_layout(c).bytes, queries = apart ? dq_layout(c).bytes : 0;
  FLASHJIT_TRY(set_shared_memory(p, context.problem.target, std::max(keys, queries)));
  add_tiles_of_keys(p, context.problem.spec, c);
  if (apart) add_tiles_of_queries(p, context.problem.spec, c);
  return p;
}

// ---- the loop as it is printed ----

struct CodeName {
  std::string_view buffer, code, ring = {}, fill_ring = {};
  Counter counter = Counter::Rings;
  std::string_view guard = {}, given_with = {};
};
constexpr CodeName kCodeNames[] = {
    {"S", "s"},
    {"dP", "dp"},
    {"P", "p"},
    {"dS", "ds"},
    {"dK", "dk"},
    {"dV", "dv"},
    {"dQ", "dq"},
    {"last dQ", "sums"},
    {"Ones", "ones"},
    {"Ks", "k", "key_slot", "kKeySlots", Counter::Items},
    {"Vs", "v", "", "", Counter::Items},
    {"Qs", "q", "stage", "kStages", Counter::Steps},
    {"dOs", "d_o", "", "", Counter::Steps, "Qs"},
    {"Terms", "terms", "", "", Counter::Steps, "Qs"},
    {"dSs", "exchange", "exchange", "kExchanges", Counter::Steps},
    {"Is", "inputs", "", "", Counter::Steps},
    {"row Qs", "q", "", "", Counter::Items},
    {"row dOs", "d_o", "", "", Counter::Items, "row Qs"},
    {"column Ks", "k", "", "", Counter::Steps},
    {"column Vs", "v", "stage", "", Counter::Steps},
    {"Ps", "", "", "", Counter::Steps},
};
// In clusters dO has barriers of its own, and dS goes to both blocks.
constexpr CodeName kNamesInClusters[] = {
    {"dQ", "sums"},
    {"dOs", "d_o", "", "", Counter::Steps},
    {"dSs", "ds", "", "", Counter::Steps},
    {"other dSs", "other_ds", "", "", Counter::Steps, "", "dSs"},
    {"other Ks", "other_k", "", "", Counter::Items},
};

void name_buffers(Program& p, const KernelConfig& c) {
  const auto add_registers = [&](std::string_view name, int rows, int columns) {
    p.buffers.push_back(
        {std::string(name), Space::Register, Dtype::F32, fmt::format("{}", rows), fmt::format("{}", columns)});
  };
  add_registers("dP", kRowsPerWarpgroup, c.tile_q);
  if (adds_dq(c) && !computes_alone(c)) add_registers("last dQ", kRowsPerWarpgroup, dq_columns(c));
  const auto name_all = [&](std::span<const CodeName> names) {
    for (const CodeName& name : names) {
      const int b = p.buffer(name.buffer);
      if (b < 0) continue;
      Buffer& buffer = p.buffers[static_cast<std::size_t>(b)];
      buffer.code = name.code, buffer.ring = name.ring, buffer.fill_ring = name.fill_ring;
      buffer.counter = name.counter;
      // Slots of these buffers are not given back at the end.
      if (name.buffer.starts_with("row") || name.buffer == "column Ks") buffer.behind = 1;
      if (has_roles(c) && (name.buffer == "Qs" || name.buffer == "dOs")) buffer.behind = 1;
      buffer.guard = p.buffer(name.guard), buffer.given_with = p.buffer(name.given_with);
    }
  };
  name_all(kCodeNames);
  if (in_clusters(c)) name_all(kNamesInClusters);
}

// Returns a launch whose work is in a file, with the textbook's statements of that work.
Statement launch(const Program& p, std::string_view file, auto has) {
  Statement launch = make_statement(Kind::Launch);
  launch.label = file;
  std::ranges::copy_if(p.body, std::back_inserter(launch.body), has);
  return launch;
}

Result<Program> pipeline_copies(Program p, const PassContext& context) {
  const KernelConfig& c = context.config;
  p.vocabulary = context.schedule.family->vocabulary;
  name_buffers(p, c);
  const auto is_before = [](const Statement& s) { return s.kind == Kind::Reduce; };
  const auto is_last = [&](const Statement& s) { return s.kind == Kind::Store && s.writes[0] == p.buffer("dq"); };
  Body body = {launch(p, "prepare.cuh", is_before)};
  Statement last = launch(p, "finish.cuh", is_last);
  p.body = std::move(body);
  FLASHJIT_ASSIGN(choices, backward_choices(context));
  if (has_roles(c)) {
    FLASHJIT_TRY(add_backward_roles(p, context, choices));
  } else {
    FLASHJIT_TRY(add_backward_producer(p, choices));
    FLASHJIT_TRY(add_backward_consumer(p, context, choices));
    FLASHJIT_TRY(add_backward_entry(p, context, choices));
  }
  if (!adds_dq(c)) {
    FLASHJIT_ASSIGN(queries, queries_launch(p, c));
    last = std::move(queries);
  }
  p.body.push_back(std::move(last));
  return p;
}

constexpr int kPanelColumns = 64;  // A panel of elements of 16 bits has these columns.

constexpr std::array kPasses = {Pass{"place_buffers", place_buffers}, Pass{"pipeline_copies", pipeline_copies}};

// Returns a product of a warpgroup, which has 64 rows.
Product product(const KernelConfig& c, std::string_view name, std::string_view target, std::string_view a,
                std::string_view b, int columns, int depth) {
  return {.name = name,
          .target = target,
          .a = a,
          .b = b,
          .issuer = Issuer::Warpgroup,
          .rows = kRowsPerWarpgroup,
          .columns = columns,
          .depth = depth,
          .m = kRowsPerWarpgroup,
          .n = columns,
          .k = step_columns(c.element)};
}
Product anew(Product p) {
  p.replaces = true;
  return p;
}
Product onto(Product p) {
  p.accumulates = true;
  return p;
}
Product with_rows(Product p) {
  p.b_transposed = true;
  return p;
}
Product from_registers(Product p) {
  p.a_in_registers = true;
  return p;
}
// Returns the product that subtracts what scores or dP are relative to.
Product terms(const KernelConfig& c, std::string_view target) {
  Product p = from_registers(anew(product(c, "terms", target, "Ones", "Terms", c.tile_q, step_columns(c.element))));
  p.b_in_rows = true;
  p.remark = "Ones times row terms: what the rows of the product are relative to.";
  return p;
}

}  // namespace

std::span<const Pass> hopper_backward_passes() { return kPasses; }

Result<BackwardChoices> backward_choices(const PassContext& context) {
  const KernelConfig& c = context.config;
  const AttentionSpec& spec = context.problem.spec;
  BackwardChoices has = {};
  has.adds_dq = adds_dq(c), has.ordered = adds_in_order(c);
  // Kept weights are drawn beside products: beside the products of the scores where registers allow it, else beside the
  // last products of the previous step.
  has.drops = c.dropped > 0, has.draws_first = c.tile_q > 64;
  has.signs_tell = signs_tell(c);
  has.apart = scores_apart(c);
  has.inputs = has_inputs(c);
  has.sums = c.gradients > 0;
  has.keeps = c.hopper_backward.keeps_ds;
  has.cuts_items = cuts_items(c), has.swaps = hopper_backward_layout(c).swaps;
  has.counts = counts_items(c);
  if (!has.sums) return has;
  has.zeroes = zeroes_unvisited(c) && !c.hopper_backward.keeps_ds;
  FLASHJIT_ASSIGN(loads, loads_by_position(spec, c));
  // Where scores load by position only what the producer copies, the separate gradients spill less.
  has.sums_at_once = !c.score_adds || loads;
  FLASHJIT_ASSIGN(reads, gradient_reads(spec));
  const std::vector<Expr> inputs = copied_inputs(spec, c);
  has.gradient_tiles = std::ranges::any_of(reads, [&](const GradientRead& read) { return is_in_tiles(read, inputs); });
  return has;
}

std::vector<Product> dk_dv_products(const KernelConfig& c) {
  const Product scores = product(c, "scores", "S", "Ks", "Qs", c.tile_q, padded_dim_qk(c)),
                dp = product(c, "dp", "dS", "Vs", "dOs", c.tile_q, padded_dim_v(c));
  std::vector<Product> all;
  const bool relative = !c.has_score || c.score_adds;
  if (relative) all.push_back(terms(c, "S"));
  all.push_back(relative ? onto(scores) : anew(scores));
  if (c.dropped == 0) all.push_back(terms(c, "dS"));
  all.push_back(c.dropped == 0 ? onto(dp) : anew(dp));
  const auto add_sums = [&](std::string_view name, std::string_view rest, std::string_view target, std::string_view a,
                            std::string_view b, int columns) {
    const int first = columns_at_once(c, columns);
    all.push_back(from_registers(onto(with_rows(product(c, name, target, a, b, first, c.tile_q)))));
    if (first < columns)
      all.push_back(from_registers(onto(with_rows(product(c, rest, target, a, b, columns - first, c.tile_q)))));
  };
  add_sums("dv", "dv_rest", "dV", "P", "dOs", c.head_dim_v);
  add_sums("dk", "dk_rest", "dK", "dS", "Qs", c.head_dim_qk);
  if (in_clusters(c)) {
    all.push_back(anew(with_rows(product(c, "dq", "dQ", "dSs", "Ks", kPanelColumns, block_keys(c)))));
    all.push_back(
        onto(with_rows(product(c, "dq_of_other", "dQ", "other dSs", "other Ks", kPanelColumns, block_keys(c)))));
  } else if (adds_dq(c)) {
    all.push_back(anew(with_rows(product(c, "dq", "dQ", "dSs", "Ks", dq_columns(c), c.tile_kv))));
  }
  return all;
}

std::vector<Product> dq_products(const KernelConfig& c) {
  const int keys = dq_layout(c).tile_kv;
  return {anew(product(c, "dq_scores", "S", "row Qs", "column Ks", keys, padded_dim_qk(c))),
          anew(product(c, "dq_dp", "dS", "row dOs", "column Vs", keys, padded_dim_v(c))),
          from_registers(onto(with_rows(product(c, "dq", "dQ", "dS", "column Ks", c.head_dim_qk, keys))))};
}

}  // namespace flashjit

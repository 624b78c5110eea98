// Sets tiles, roles, shared memory, copies and registers of the hopper loop.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "compiler/families/hopper/roles.h"
#include "compiler/families/hopper/hopper.h"
#include "compiler/families/pass_common.h"
#include "compiler/program/edit.h"
#include "compiler/spec/config_words.h"

namespace flashjit {

namespace {

Buffer shared_tile(std::string name, Dtype dtype, const PanelLayout& layout, int offset, int stages, int bytes) {
  Buffer b{std::move(name), Space::Shared, dtype, fmt::format("{}", layout.rows), fmt::format("{}", layout.columns)};
  b.layout = fmt::format("swizzle{}", kPanelWidth);
  b.offset = offset;
  b.bytes = bytes;
  b.stages = stages;
  return b;
}

void add_tiles(Program& p, const PassContext& context) {
  const AttentionSpec& spec = context.problem.spec;
  const KernelConfig& c = context.config;
  const HopperLayout l = hopper_layout(c);
  p.buffers.push_back(shared_tile("Qs", spec.dtype, l.q, 0, c.hopper.q_stages, l.k_offset / c.hopper.q_stages));
  const Dtype copied = widens(c) ? spec.dtype : spec.kv_dtype;
  p.buffers.push_back(shared_tile("Ks", copied, l.k, l.k_offset, c.stages, (l.v_offset - l.k_offset) / c.stages));
  p.buffers.push_back(shared_tile("Vs", copied, l.v, l.v_offset, value_stages(c), l.v_stage_bytes));
  if (transposes_values(c)) {
    p.buffers.push_back(
        shared_tile("Vc", spec.kv_dtype, l.copied_v, l.copied_v_offset, c.stages, l.copied_v_stage_bytes));
  }
  if (inputs_bytes(c) == 0) return;
  // The tensors that the score reads at every key stand in one buffer, as bytes of all of them together.
  const std::string row = fmt::format("{}", copied_input_bytes(c) / kRowsPerWarpgroup);
  p.buffers.push_back({"inputs", Space::Global, Dtype::U8, "q_len", "k_len"});
  p.buffers.push_back({"Is", Space::Shared, Dtype::U8, fmt::format("{}", c.tile_q), row});
  p.buffers.back().layout = fmt::format("swizzle{}", kPanelWidth);
  p.buffers.back().offset = l.inputs_offset;
  p.buffers.back().bytes = c.hopper.warpgroups * inputs_bytes(c);
}

Result<Program> choose_tiling(Program p, const PassContext& context) {
  size_tiles(p, context.config, output_columns(context.config));
  return p;
}

Result<Program> assign_warps(Program p, const PassContext& context) {
  spread_tiles(p);
  FLASHJIT_TRY(assign_products(p, hopper_products(context.config)));
  return p;
}

Result<Program> place_buffers(Program p, const PassContext& context) {
  FLASHJIT_TRY(set_shared_memory(p, context.problem.target, hopper_layout(context.config).bytes));
  add_tiles(p, context);
  load_operands(p, "Qs");
  p.body.insert(p.body.begin(), make_statement(Kind::Load, {p.buffer("Qs")}, {p.buffer("q")}));
  return p;
}

// Splits the program into a producer and consumers that hand each other the slots of rings.
Result<Program> pipeline_copies(Program p, const PassContext& context) {
  p.vocabulary = context.schedule.family->vocabulary;
  FLASHJIT_TRY(add_copies(p, context));
  FLASHJIT_TRY(add_consumer(p, context));
  add_entry(p, context);
  return p;
}

Result<Program> budget_registers(Program p, const PassContext& context) {
  const auto [needed, budget] = hopper_registers(context.problem, context.config);
  FLASHJIT_TRY(set_registers(p, needed, budget));
  return p;
}

// Warps need tiles, shared memory needs warps' layouts, and copies need slots. Softmax and the budget read all of
// these.
constexpr std::array kPasses = {
    Pass{"choose_tiling", choose_tiling},
    Pass{"assign_warps", assign_warps},
    Pass{"place_buffers", place_buffers},
    Pass{"pipeline_copies", pipeline_copies},
    Pass{"choose_softmax", choose_softmax},
    Pass{"sum_rows", sum_rows},
    Pass{"add_up_tiles", add_up_tiles},
    Pass{"place_waits", place_waits},
    Pass{"take_turns", take_turns},
    Pass{"drop_weights", drop_weights},
    Pass{"vote_on_masks", vote_on_masks},
    Pass{"find_listed_tiles", find_listed_tiles},
    Pass{"budget_registers", budget_registers},
};

}  // namespace

std::span<const Pass> hopper_passes() { return kPasses; }

// Returns the products of 64 rows of a whole tile by a warpgroup. P has the accumulator layout of S, which is the
// layout of operand A (with 8 bits up to the order of keys), so P never leaves registers.
std::array<Product, 2> hopper_products(const KernelConfig& c) {
  const int columns = product_columns(c);
  std::string_view remark = "";
  if (c.hopper.row_sum == RowSum::matrix) remark = "The last eight columns are ones beside V: they sum the rows of P.";
  if (adds_tiles(c)) remark = "They are the sum of a few tiles, which O takes in by additions of fp32.";
  // A product that replaces compiles faster. Other kernels lose speed by it, as ptxas then chooses other registers for
  // them [M43].
  const bool replaces =
      c.element == Element::bf16 && c.hopper.row_sum == RowSum::matrix && c.hopper.exclusive == Exclusive::none;
  return {Product{.name = "scores",
                  .target = "S",
                  .a = "Qs",
                  .b = "Ks",
                  .issuer = Issuer::Warpgroup,
                  .rows = kRowsPerWarpgroup,
                  .columns = c.tile_kv,
                  .depth = padded_dim_qk(c),
                  .m = kRowsPerWarpgroup,
                  .n = c.tile_kv,
                  .k = step_columns(c.element),
                  .a_in_registers = queries_in_registers(c),
                  .replaces = replaces},
          Product{.name = "output",
                  .target = "O",
                  .a = "P",
                  .b = "Vs",
                  .issuer = Issuer::Warpgroup,
                  .rows = kRowsPerWarpgroup,
                  .columns = columns,
                  .depth = c.tile_kv,
                  .m = kRowsPerWarpgroup,
                  .n = columns,
                  .k = step_columns(c.element),
                  .a_in_registers = true,
                  .b_transposed = c.hopper.transpose == Transpose::none,
                  .accumulates = !adds_tiles(c) || c.hopper.overlap == Overlap::qk_pv,
                  .remark = remark}};
}

}  // namespace flashjit

// Tiles, products, shared memory and registers of the decode loop. Its copies are each warp's own: there is nothing that
// one warp could take too early from another.
#include <array>

#include "compiler/families/decode/decode.h"
#include "compiler/families/pass_parts.h"

namespace flashjit {

namespace {

Result<Program> choose_tiling(Program p, const PassContext& context) {
  size_tiles(p, context.config, value_pieces(context.config) * value_columns(context.config));
  return p;
}

Result<Program> assign_warps(Program p, const PassContext& context) {
  spread_tiles(p);
  FLASHJIT_TRY(assign_products(p, decode_products(context.config)));
  return p;
}

Result<Program> place_buffers(Program p, const PassContext& context) {
  FLASHJIT_TRY(set_shared_memory(p, context.problem.target, decode_layout(context.config).bytes));
  return p;
}

Result<Program> budget_registers(Program p, const PassContext& context) {
  const auto [needed, budget] = decode_registers(context.problem, context.config);
  FLASHJIT_TRY(set_registers(p, needed, budget));
  return p;
}

constexpr std::array kPasses = {
    Pass{"choose_tiling", choose_tiling},
    Pass{"assign_warps", assign_warps},
    Pass{"place_buffers", place_buffers},
    Pass{"budget_registers", budget_registers},
};

}  // namespace

std::span<const Pass> decode_passes() { return kPasses; }

// The second product is of transposed matrices: the accumulator of S is P^T as its right operand. An instruction has 16
// rows of Q, also where a tile has eight.
std::array<Product, 2> decode_products(const KernelConfig& c) {
  return {Product{.name = "scores",
                  .target = "S",
                  .a = "q",
                  .b = "k",
                  .rows = 16,
                  .columns = c.tile_kv,
                  .depth = key_pieces(c) * key_columns(c),
                  .m = 16,
                  .n = 8,
                  .k = step_columns(c.element),
                  .a_in_registers = true},
          Product{.name = "output",
                  .target = "O",
                  .a = "v",
                  .b = "P",
                  .rows = value_pieces(c) * value_columns(c),
                  .columns = c.tile_q,
                  .depth = c.tile_kv,
                  .m = 16,
                  .n = 8,
                  .k = step_columns(c.element),
                  .a_in_registers = true,
                  .accumulates = true}};
}

}  // namespace flashjit

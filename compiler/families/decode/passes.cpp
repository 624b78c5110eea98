// Sets tiles, products, shared memory and registers of the decode loop. Each warp makes its own copies, so no warp
// could take anything too early from another.
#include <array>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "compiler/families/decode/decode.h"
#include "compiler/families/decode/roles.h"
#include "compiler/families/pass_common.h"

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

// Returns tiles of K and V in the ring of the first warp, or in registers.
Buffer tile(std::string name, const AttentionSpec& spec, const PanelLayout& panels, int offset, const KernelConfig& c) {
  Buffer b{std::move(name), has_ring(c) ? Space::Shared : Space::Register, spec.kv_dtype,
           fmt::format("{}", panels.rows), fmt::format("{}", panels.columns)};
  b.layout = has_ring(c) ? fmt::format("swizzle{}", kPanelWidth) : "fragment";
  if (!has_ring(c)) return b;
  b.offset = offset;
  b.bytes = panels.bytes();
  b.stages = c.stages;
  b.stride = decode_layout(c).stage_bytes;
  return b;
}

Result<Program> place_buffers(Program p, const PassContext& context) {
  const KernelConfig& c = context.config;
  const DecodeLayout layout = decode_layout(c);
  FLASHJIT_TRY(set_shared_memory(p, context.problem.target, layout.bytes));
  p.buffers.push_back(tile(has_ring(c) ? "Ks" : "K", context.problem.spec, layout.k, 0, c));
  p.buffers.push_back(tile(has_ring(c) ? "Vs" : "V", context.problem.spec, layout.v, layout.k.bytes(), c));
  return p;
}

Result<Program> pipeline_copies(Program p, const PassContext& context) {
  p.vocabulary = context.schedule.family->vocabulary;
  for (const auto& [buffer, code] : {std::pair{"S", "scores"}, std::pair{"O", "o"}, std::pair{"rows", "rows"}})
    p.buffers[static_cast<std::size_t>(p.buffer(buffer))].code = code;
  Body textbook = std::exchange(p.body, {});
  const Site loop = find_site(p, textbook, Kind::Loop), mask = find_site(p, textbook, Kind::Mask);
  if (!loop || !mask) return internal("pass pipeline_copies: the program has no loop, or no mask in it");
  FLASHJIT_TRY(add_decode_loop(p, context.config, loop.statement().attributes, mask.statement().attributes));
  add_decode_entries(p, context.config);
  return p;
}

Result<Program> budget_registers(Program p, const PassContext& context) {
  const auto [needed, budget] = decode_registers(context.problem, context.config);
  FLASHJIT_TRY(set_registers(p, needed, budget));
  return p;
}

constexpr std::array kPasses = {
    Pass{"choose_tiling", choose_tiling},       Pass{"assign_warps", assign_warps},
    Pass{"place_buffers", place_buffers},       Pass{"pipeline_copies", pipeline_copies},
    Pass{"budget_registers", budget_registers},
};

}  // namespace

std::span<const Pass> decode_passes() { return kPasses; }

// Returns the products. The second one is of transposed matrices: the accumulator of S is P^T as its right operand. An
// instruction has 16 rows of Q, even where a tile has eight.
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

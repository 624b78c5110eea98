// Tiles, warps, softmax and the grid.
#include <fmt/format.h>

#include "compiler/choice/candidates.h"
#include "compiler/program/passes.h"

namespace flashjit {

namespace {

bool is(const PassContext& context, Family family) { return *context.schedule.family == family; }

std::string text(int value) { return fmt::format("{}", value); }

void resize(Program& p, std::string_view buffer, std::string rows, std::string cols) {
  Buffer& b = p.buffers[p.buffer(buffer)];
  b.rows = std::move(rows);
  b.cols = std::move(cols);
}

// What a matrix instruction is: 16x8 tiles by a warp, or 64 rows of a whole tile by a warpgroup. P has the accumulator
// layout of S, which is the operand layout of A: it never leaves registers.
Result<void> assign_product(Statement& s, bool scores, const PassContext& context, const KernelConfig& sizes) {
  constexpr std::string_view kPass = "assign_warps";
  const bool hopper = is(context, Family::Hopper);
  const std::string wide = fmt::format("m64n{}k16", scores ? sizes.tile_kv : output_columns(sizes));
  FLASHJIT_TRY(s.attributes.set("shape", hopper ? wide : std::string("m16n8k16"), kPass));
  FLASHJIT_TRY(s.attributes.set("issuer", std::string(hopper ? "warpgroup" : "warp"), kPass));
  FLASHJIT_TRY(s.attributes.set("accumulator", std::string("registers"), kPass));
  FLASHJIT_TRY(s.attributes.set("a_in", std::string(hopper && scores ? "shared" : "registers"), kPass));
  if (hopper || !scores) return {};
  return s.attributes.set("unroll_d", std::int64_t{sizes.unroll_d}, kPass);
}

}  // namespace

Result<Program> choose_tiling(Program p, const PassContext& context) {
  constexpr std::string_view kPass = "choose_tiling";
  const int tile_q = *context.schedule.tile_q, tile_kv = *context.schedule.tile_kv;
  FLASHJIT_TRY(p.attributes.set("family", std::string(name(*context.schedule.family)), kPass));
  FLASHJIT_TRY(p.attributes.set("tile_q", std::int64_t{tile_q}, kPass));
  FLASHJIT_TRY(p.attributes.set("tile_kv", std::int64_t{tile_kv}, kPass));
  resize(p, "S", text(tile_q), text(tile_kv));
  resize(p, "P", text(tile_q), text(tile_kv));
  resize(p, "rows", text(tile_q), "2");
  // mma.sync consumes 16 columns at a time; WGMMA eight, and may sum rows in eight more; the host has no such grain.
  const KernelConfig sizes = sizes_of(context.spec, context.schedule);
  const int dim_v = is(context, Family::Sync)     ? padded_dim_v(sizes)
                    : is(context, Family::Hopper) ? output_columns(sizes)
                                                  : context.spec.d_v;
  resize(p, "O", text(tile_q), text(dim_v));
  if (!is(context, Family::Hopper)) return p;
  FLASHJIT_TRY(p.attributes.set("head_tiles", std::string(name(*context.schedule.heads)), kPass));
  return p;
}

Result<Program> assign_warps(Program p, const PassContext& context) {
  constexpr std::string_view kPass = "assign_warps";
  if (is(context, Family::Host)) {
    FLASHJIT_TRY(p.attributes.set("vector_bits", std::int64_t{context.target.vector_bits}, kPass));
    return p;
  }
  const KernelConfig sizes = sizes_of(context.spec, context.schedule);
  if (is(context, Family::Hopper)) {
    FLASHJIT_TRY(p.attributes.set("warpgroups", std::int64_t{sizes.warpgroups}, kPass));
    FLASHJIT_TRY(p.attributes.set("exclusive", std::string(name(*context.schedule.exclusive)), kPass));
  } else {
    FLASHJIT_TRY(p.attributes.set("warps", std::int64_t{sizes.warps}, kPass));
    FLASHJIT_TRY(p.attributes.set("rows_per_warp", std::int64_t{rows_per_warp(sizes)}, kPass));
  }
  for (const std::string_view tile : {"S", "P", "O", "rows"}) {
    Buffer& b = p.buffers[p.buffer(tile)];
    b.layout = "fragment";
    b.own_rows = true;
  }
  FLASHJIT_TRY(for_each(p.body, [&](Statement& s) -> Result<void> {
    if (s.kind == Kind::Softmax || s.kind == Kind::Reduce)
      return s.attributes.set("row_owner", std::string("quad"), kPass);
    if (s.kind == Kind::Rescale) return s.attributes.set("rescaled_by", std::string("row_owner"), kPass);
    if (s.kind != Kind::Mma) return {};
    return assign_product(s, s.writes[0] == p.buffer("S"), context, sizes);
  }));
  return p;
}

Result<Program> choose_softmax(Program p, const PassContext& context) {
  constexpr std::string_view kPass = "choose_softmax";
  const Schedule& schedule = context.schedule;
  const bool hopper = is(context, Family::Hopper);
  // The reference of the sync loop moves only when the maximum of a row has risen by 2^8: most tiles leave O alone. The
  // host moves it with every tile.
  const std::string_view reference = hopper ? name(*schedule.reference) : is(context, Family::Sync) ? "lazy" : "tile";
  // A score function or a scale that turns maxima into minima needs the scaled score itself.
  const bool folded = context.spec.score.get() == nullptr && context.spec.effective_scale() > 0;
  FLASHJIT_TRY(for_each(p.body, [&](Statement& s) -> Result<void> {
    // An old reference is right to the same rounding unless scores rise far above it; the row sums show that at the
    // end.
    if (s.kind == Kind::Finalize && hopper && *schedule.reference != SoftmaxReference::Tile)
      return s.attributes.set("redo", std::string(name(SoftmaxReference::Tile)), kPass);
    if (s.kind != Kind::Softmax) return {};
    FLASHJIT_TRY(s.attributes.set("reference", std::string(reference), kPass));
    FLASHJIT_TRY(s.attributes.set("exp", std::string(folded ? "exp2_scale_folded" : "exp2"), kPass));
    if (!hopper) return {};
    FLASHJIT_TRY(s.attributes.set("exp_fma", std::int64_t{*schedule.exp_fma}, kPass));
    return s.attributes.set("row_sum", std::string(name(*schedule.row_sum)), kPass);
  }));
  return p;
}

Result<Program> choose_grid(Program p, const PassContext& context) {
  constexpr std::string_view kPass = "choose_grid";
  if (is(context, Family::Host)) return p;
  FLASHJIT_TRY(p.attributes.set("order", std::string(name(*context.schedule.order)), kPass));
  if (is(context, Family::Sync)) return p;
  FLASHJIT_TRY(p.attributes.set("grid", std::string(name(*context.schedule.grid)), kPass));
  FLASHJIT_TRY(p.attributes.set("cluster", std::int64_t{*context.schedule.cluster}, kPass));
  return p;
}

}  // namespace flashjit

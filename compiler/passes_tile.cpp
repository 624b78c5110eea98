// Tiles, warps, softmax and the grid.
#include <fmt/format.h>

#include "compiler/candidates.h"
#include "compiler/passes.h"

namespace flashjit {

namespace {

bool sync(const PassContext& context) { return *context.schedule.family == Family::Sync; }

std::string text(int value) { return fmt::format("{}", value); }

void resize(Program& p, std::string_view buffer, std::string rows, std::string cols) {
  Buffer& b = p.buffers[p.buffer(buffer)];
  b.rows = std::move(rows);
  b.cols = std::move(cols);
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
  // mma consumes 16 columns at a time; the host has no such grain.
  const int dim_v = sync(context) ? padded_dim_v(sizes_of(context.spec, context.schedule)) : context.spec.d_v;
  resize(p, "O", text(tile_q), text(dim_v));
  return p;
}

Result<Program> assign_warps(Program p, const PassContext& context) {
  constexpr std::string_view kPass = "assign_warps";
  if (!sync(context)) {
    FLASHJIT_TRY(p.attributes.set("vector_bits", std::int64_t{context.target.vector_bits}, kPass));
    return p;
  }
  const KernelConfig sizes = sizes_of(context.spec, context.schedule);
  FLASHJIT_TRY(p.attributes.set("warps", std::int64_t{sizes.warps}, kPass));
  FLASHJIT_TRY(p.attributes.set("rows_per_warp", std::int64_t{rows_per_warp(sizes)}, kPass));
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
    const bool scores = s.writes[0] == p.buffer("S");
    FLASHJIT_TRY(s.attributes.set("shape", std::string("m16n8k16"), kPass));
    FLASHJIT_TRY(s.attributes.set("issuer", std::string("warp"), kPass));
    FLASHJIT_TRY(s.attributes.set("accumulator", std::string("registers"), kPass));
    // P has the accumulator layout of S, which is the operand layout of A: it never leaves registers.
    FLASHJIT_TRY(s.attributes.set("a_in", std::string("registers"), kPass));
    if (!scores) return {};
    return s.attributes.set("unroll_d", std::int64_t{sizes.unroll_d}, kPass);
  }));
  return p;
}

Result<Program> choose_softmax(Program p, const PassContext& context) {
  constexpr std::string_view kPass = "choose_softmax";
  // A score function or a scale that turns maxima into minima needs the scaled score itself.
  const bool folded = context.spec.score.get() == nullptr && context.spec.effective_scale() > 0;
  FLASHJIT_TRY(for_each(p.body, [&](Statement& s) -> Result<void> {
    if (s.kind != Kind::Softmax) return {};
    // The reference of a row moves only when its maximum has risen by 2^8: most tiles leave O alone. The host moves it
    // with every tile.
    FLASHJIT_TRY(s.attributes.set("reference", std::string(sync(context) ? "lazy" : "tile"), kPass));
    return s.attributes.set("exp", std::string(folded ? "exp2_scale_folded" : "exp2"), kPass);
  }));
  return p;
}

Result<Program> choose_grid(Program p, const PassContext& context) {
  constexpr std::string_view kPass = "choose_grid";
  if (!sync(context)) return p;
  const bool longest = *context.schedule.order == TileOrder::LongestFirst;
  FLASHJIT_TRY(p.attributes.set("order", std::string(longest ? "longest_first" : "natural"), kPass));
  return p;
}

}  // namespace flashjit

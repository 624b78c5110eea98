// Tiles, products, shared memory and registers of the mla loop.
#include <array>

#include <fmt/format.h>

#include "compiler/families/mla/mla.h"
#include "compiler/families/pass_parts.h"

namespace flashjit {

namespace {

Buffer shared_tile(std::string name, Dtype dtype, int rows, int columns, int offset, int stages, int bytes) {
  Buffer b{std::move(name), Space::Shared, dtype, fmt::format("{}", rows), fmt::format("{}", columns)};
  b.layout = fmt::format("swizzle{}", kPanelWidth);
  b.offset = offset;
  b.bytes = bytes;
  b.stages = stages;
  return b;
}

Result<Program> choose_tiling(Program p, const PassContext& context) {
  size_tiles(p, context.config, context.config.head_dim_v);
  return p;
}

// S in two pieces, the first of which may be issued early. O by two warpgroups: of the tiles that are a warpgroup's own,
// P is in its registers, of the other's it is in shared memory.
Result<Program> assign_warps(Program p, const PassContext& context) {
  spread_tiles(p);
  const auto [scores, more_scores, output, output_of_other] = mla_products(context.config);
  const AttentionSpec& spec = context.problem.spec;
  const MlaLayout l = mla_layout(context.config);
  p.buffers.push_back(shared_tile("Qs", spec.dtype, l.q.rows, l.q.columns, 0, 1, l.q.bytes()));
  p.buffers.push_back(shared_tile("Ks", spec.kv_dtype, l.k.rows, l.k.columns, l.k_offset, kMlaStages, l.k.bytes()));
  p.buffers.push_back(
      shared_tile("Ps", spec.dtype, l.q.rows, l.k.panel_columns(), l.k_offset + l.p_offset, 1, l.q.panel_bytes()));
  const int q = p.buffer("Qs"), k = p.buffer("Ks"), shared_p = p.buffer("Ps"), own_p = p.buffer("P"), s = p.buffer("S"),
            o = p.buffer("O");
  const auto product = [](const Product& of, int target, std::vector<int> reads) {
    Statement statement = make_statement(Kind::Mma, {target}, std::move(reads));
    statement.product = of;
    return statement;
  };
  p.body.insert(p.body.begin(), make_statement(Kind::Load, {q}, {p.buffer("q")}));
  for (Statement& loop : p.body) {
    if (loop.kind != Kind::Loop) continue;
    std::vector<Statement> body;
    for (Statement& statement : loop.body) {
      if (statement.kind != Kind::Mma) {
        body.push_back(std::move(statement));
      } else if (statement.writes[0] == s) {
        body.push_back(make_statement(Kind::Load, {k}, {p.buffer("k")}));
        body.push_back(product(scores, s, {q, k}));
        body.push_back(product(more_scores, s, {q, k}));
      } else {
        body.push_back(make_statement(Kind::Stage, {shared_p}, {own_p}));
        body.push_back(product(output, o, {own_p, k}));
        body.push_back(product(output_of_other, o, {shared_p, k}));
      }
    }
    loop.body = std::move(body);
  }
  return p;
}

Result<Program> place_buffers(Program p, const PassContext& context) {
  FLASHJIT_TRY(set_shared_memory(p, context.problem.target, mla_layout(context.config).bytes));
  return p;
}

Result<Program> budget_registers(Program p, const PassContext& context) {
  const auto [needed, budget] = mla_registers(context.problem, context.config);
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

std::span<const Pass> mla_passes() { return kPasses; }

std::array<Product, 4> mla_products(const KernelConfig& c) {
  const int step = step_columns(c.element);
  Product scores = {.name = "scores",
                    .target = "S",
                    .a = "Qs",
                    .b = "Ks",
                    .issuer = Issuer::Warpgroup,
                    .rows = kMlaRows,
                    .columns = kMlaKeys,
                    .depth = mla_layout(c).k.panel_columns(),
                    .m = kMlaRows,
                    .n = kMlaKeys,
                    .k = step};
  Product more_scores = scores;
  more_scores.name = "more_scores";
  more_scores.accumulates = true;
  Product output = {.name = "output",
                    .target = "O",
                    .a = "P",
                    .b = "Ks",
                    .issuer = Issuer::Warpgroup,
                    .rows = kMlaRows,
                    .columns = half_columns(c),
                    .depth = kMlaKeys,
                    .m = kMlaRows,
                    .n = half_columns(c),
                    .k = step,
                    .a_in_registers = true,
                    .b_transposed = true,
                    .accumulates = true,
                    .remark = "K's first columns are V."};
  Product output_of_other = output;
  output_of_other.name = "output_of_other";
  output_of_other.a = "Ps";
  output_of_other.a_in_registers = false;
  return {scores, more_scores, output, output_of_other};
}

}  // namespace flashjit

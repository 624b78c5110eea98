// Passes that set tiles, warps, shared memory, copies and registers of the sync loop.
#include <array>

#include <fmt/format.h>

#include "compiler/families/pass_common.h"
#include "compiler/families/sync/sync.h"

namespace flashjit {

namespace {

int number_of(const Program& p, std::string_view name) { return p.buffer(name); }

Buffer shared_tile(std::string name, Dtype dtype, const TileLayout& layout, int offset, int stages) {
  Buffer b{std::move(name), Space::Shared, dtype, fmt::format("{}", layout.rows), fmt::format("{}", layout.columns)};
  b.layout = fmt::format("xor{}", layout.group());
  b.offset = offset;
  b.bytes = layout.bytes();
  b.stages = stages;
  return b;
}

struct CopyWidth {
  std::string instruction;
  int bytes;
};

// Copies of sixteen bytes bypass L1, and narrower ones cannot. cp.async does not move two bytes at all.
CopyWidth copy_width(int align_bytes) {
  if (align_bytes == 16) return {"cp.async.cg", 16};
  if (align_bytes >= 4) return {"cp.async.ca", align_bytes};
  return {"registers", align_bytes};
}

struct Pipeliner {
  static constexpr std::string_view kPass = "pipeline_copies";
  Program& p;
  int stages;
  CopyWidth width;
  std::vector<Statement> out;
  Result<void> failed = {};

  template <class Value>
  void set(Statement& s, std::string_view key, Value value) {
    if (auto done = s.attributes.set(key, std::move(value), kPass); !done && failed) failed = done;
  }
  void load(std::string_view tile, std::string_view global, std::int64_t ahead) {
    Statement s = make_statement(Kind::Load, {number_of(p, tile)}, {number_of(p, global)});
    set(s, "copy", width.instruction);
    set(s, "copy_bytes", std::int64_t{width.bytes});
    if (tile != "Qs") set(s, "tile", ahead);
    out.push_back(std::move(s));
  }
  void commit() { out.push_back(make_statement(Kind::Commit)); }
  void wait_for_all_warps(std::int64_t pending) {
    Statement s = make_statement(Kind::Wait);
    set(s, "pending", pending);
    out.push_back(std::move(s));
    out.push_back(make_statement(Kind::Barrier));
  }

  void prologue(bool q_in_registers) {
    load("Qs", "q", 0);
    commit();
    if (q_in_registers) {
      // Q passes through the memory of K and V, so every warp must have its rows before they are overwritten.
      wait_for_all_warps(0);
      out.push_back(make_statement(Kind::Fragment, {number_of(p, "Qr")}, {number_of(p, "Qs")}));
      out.push_back(make_statement(Kind::Barrier));
    }
    if (stages == 1) {
      load("Ks", "k", 0);
      commit();
      return;
    }
    for (int slot = 0; slot < stages - 1; ++slot) {
      load("Ks", "k", slot);
      load("Vs", "v", slot);
      commit();
    }
  }

  // With one stage V arrives while S is computed, and the next K while P V is. With more, the newest copy goes to the
  // slot that the last tile left.
  std::vector<Statement> loop_body(std::vector<Statement> body) {
    std::vector<Statement> outer;
    std::swap(out, outer);
    wait_for_all_warps(stages == 1 ? 0 : stages - 2);
    if (stages > 1) load("Ks", "k", stages - 1);
    load("Vs", "v", stages - 1);
    commit();
    for (Statement& s : body) {
      if (s.kind == Kind::Load) continue;
      const bool scores_done = s.kind == Kind::Mma && s.writes[0] == number_of(p, "S");
      out.push_back(std::move(s));
      if (scores_done && stages == 1) {
        wait_for_all_warps(0);
        load("Ks", "k", 1);
        commit();
      }
    }
    std::swap(out, outer);
    return outer;
  }
};

// O passes through shared memory where stores of 16 bytes need it. An fp32 output goes straight from registers, because
// half of a 32-byte sector for each quad is wide enough.
void add_tiles(Program& p, const PassContext& context) {
  const AttentionSpec& spec = context.problem.spec;
  const KernelConfig& c = context.config;
  const SyncLayout layout = sync_layout(c);
  const Dtype product = weights_of(spec, c);  // Elements of 8 bits are widened as they are copied.
  p.buffers.push_back(shared_tile("Qs", product, layout.q, layout.q_offset, 1));
  p.buffers.back().own_rows = true;
  p.buffers.push_back(shared_tile("Ks", product, layout.k, layout.k_offset, c.stages));
  p.buffers.push_back(shared_tile("Vs", product, layout.v, layout.v_offset, c.stages));
  if (spec.out_dtype != Dtype::F32) {
    p.buffers.push_back(shared_tile("Os", spec.out_dtype, layout.o, layout.o_offset, 1));
    p.buffers.back().own_rows = true;
  }
  if (c.sync.q_in != QueryStorage::registers) return;
  Buffer held{"Qr", Space::Register, product, fmt::format("{}", layout.q.rows), fmt::format("{}", layout.q.columns)};
  held.layout = "fragment";
  held.own_rows = true;
  p.buffers.push_back(held);
}

Result<Program> choose_tiling(Program p, const PassContext& context) {
  size_tiles(p, context.config, padded_slice(context.config));
  return p;
}

Result<Program> assign_warps(Program p, const PassContext& context) {
  spread_tiles(p);
  FLASHJIT_TRY(assign_products(p, sync_products(context.config)));
  return p;
}

Result<Program> place_buffers(Program p, const PassContext& context) {
  const KernelConfig& c = context.config;
  FLASHJIT_TRY(set_shared_memory(p, context.problem.target, sync_layout(c).bytes));
  add_tiles(p, context);
  const bool held = c.sync.q_in == QueryStorage::registers, staged = number_of(p, "Os") >= 0;
  load_operands(p, held ? "Qr" : "Qs");
  std::vector<Statement> body;
  body.push_back(make_statement(Kind::Load, {number_of(p, "Qs")}, {number_of(p, "q")}));
  if (held) body.push_back(make_statement(Kind::Fragment, {number_of(p, "Qr")}, {number_of(p, "Qs")}));
  for (Statement& s : p.body) {
    if (staged && s.kind == Kind::Store && s.writes[0] == number_of(p, "o")) {
      body.push_back(make_statement(Kind::Stage, {number_of(p, "Os")}, {number_of(p, "O")}));
      s.reads = {number_of(p, "Os")};
    }
    body.push_back(std::move(s));
  }
  p.body = std::move(body);
  return p;
}

Result<Program> pipeline_copies(Program p, const PassContext& context) {
  Pipeliner pipeline{p, context.config.stages, copy_width(context.problem.spec.align_bytes), {}};
  std::vector<Statement> body = std::move(p.body);
  pipeline.prologue(number_of(p, "Qr") >= 0);
  for (Statement& s : body) {
    if (s.kind == Kind::Load || s.kind == Kind::Fragment) continue;  // Both are in the prologue.
    if (s.kind == Kind::Loop) {
      s.body = pipeline.loop_body(std::move(s.body));
      pipeline.out.push_back(std::move(s));
      // A tile that sees no key has not waited for Q, and with Q in registers other warps may still read K and V. Both
      // lie where O is staged.
      pipeline.wait_for_all_warps(0);
      continue;
    }
    if (s.kind == Kind::Store && s.writes[0] == number_of(p, "o"))
      pipeline.set(s, "copy_bytes", std::int64_t{pipeline.width.bytes});
    pipeline.out.push_back(std::move(s));
  }
  if (!pipeline.failed) return pipeline.failed.error();
  p.body = std::move(pipeline.out);
  return p;
}

Result<Program> budget_registers(Program p, const PassContext& context) {
  const auto [needed, budget] = sync_registers(context.problem, context.config);
  FLASHJIT_TRY(set_registers(p, needed, budget));
  return p;
}

// Warps follow tiles, shared memory follows the layouts of warps, copies follow slots, and the register budget follows
// all of them.
constexpr std::array kPasses = {
    Pass{"choose_tiling", choose_tiling},       Pass{"assign_warps", assign_warps},
    Pass{"place_buffers", place_buffers},       Pass{"pipeline_copies", pipeline_copies},
    Pass{"budget_registers", budget_registers},
};

}  // namespace

std::span<const Pass> sync_passes() { return kPasses; }

// The products of a warp have 16x8 tiles. P has the accumulator layout of S, which is also the operand layout of A, so
// it never leaves registers.
std::array<Product, 2> sync_products(const KernelConfig& c) {
  const int rows = rows_per_warp(c);
  return {Product{.name = "scores",
                  .target = "S",
                  .a = c.sync.q_in == QueryStorage::registers ? "Qr" : "Qs",
                  .b = "Ks",
                  .rows = rows,
                  .columns = c.tile_kv,
                  .depth = padded_dim_qk(c),
                  .m = 16,
                  .n = 8,
                  .k = step_columns(c.element),
                  .a_in_registers = true,
                  .unroll = c.sync.unroll_d},
          Product{.name = "output",
                  .target = "O",
                  .a = "P",
                  .b = "Vs",
                  .rows = rows,
                  .columns = padded_slice(c),
                  .depth = c.tile_kv,
                  .m = 16,
                  .n = 8,
                  .k = step_columns(c.element),
                  .a_in_registers = true,
                  .b_transposed = true,
                  .accumulates = true}};
}

}  // namespace flashjit

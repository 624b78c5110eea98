// Shared memory, asynchronous copies and registers. For the host, which has neither, these passes change nothing.
#include <fmt/format.h>

#include "compiler/choice/candidates.h"
#include "compiler/program/passes.h"
#include "compiler/families/hopper/passes.h"

namespace flashjit {

namespace {

bool is(const PassContext& context, Family family) { return *context.schedule.family == family; }

Buffer shared_tile(std::string name, Dtype dtype, const TileLayout& layout, int offset, int stages) {
  Buffer b{std::move(name), Space::Shared, dtype, fmt::format("{}", layout.rows), fmt::format("{}", layout.chunks * 8)};
  b.layout = fmt::format("xor{}", layout.group());
  b.offset = offset;
  b.bytes = layout.bytes();
  b.stages = stages;
  return b;
}

int find(const Program& p, std::string_view name) { return p.buffer(name); }

void replace_read(Statement& s, int from, int to) {
  for (int& read : s.reads) {
    if (read == from) read = to;
  }
}

// The loop's operands come from shared memory: K and V are loaded right before their product.
void load_operands(Program& p, Statement& loop, int queries) {
  std::vector<Statement> body;
  for (Statement& s : loop.body) {
    if (s.kind == Kind::Mma) {
      const bool scores = s.writes[0] == find(p, "S");
      const int global = find(p, scores ? "k" : "v"), tile = find(p, scores ? "Ks" : "Vs");
      body.push_back(make_statement(Kind::Load, {tile}, {global}));
      replace_read(s, global, tile);
      replace_read(s, find(p, "q"), queries);
    }
    body.push_back(std::move(s));
  }
  loop.body = std::move(body);
}

struct CopyWidth {
  std::string instruction;
  int bytes;
};

// Sixteen bytes bypass L1; narrower copies cannot, and two bytes are below what cp.async moves at all.
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
    Statement s = make_statement(Kind::Load, {find(p, tile)}, {find(p, global)});
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
      // Q passes through the place of K and V: every warp must have its rows before they are overwritten.
      wait_for_all_warps(0);
      out.push_back(make_statement(Kind::Fragment, {find(p, "Qr")}, {find(p, "Qs")}));
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

  // One stage: V arrives while S is computed, the next K while P V is. More: the slot that the last tile left takes the
  // newest copy.
  std::vector<Statement> loop_body(std::vector<Statement> body) {
    std::vector<Statement> outer;
    std::swap(out, outer);
    wait_for_all_warps(stages == 1 ? 0 : stages - 2);
    if (stages > 1) load("Ks", "k", stages - 1);
    load("Vs", "v", stages - 1);
    commit();
    for (Statement& s : body) {
      if (s.kind == Kind::Load) continue;
      const bool scores_done = s.kind == Kind::Mma && s.writes[0] == find(p, "S");
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

// O passes through shared memory where stores of 16 bytes need it: fp32 output goes straight from registers, half of a
// 32-byte sector per quad is wide enough.
void add_sync_tiles(Program& p, const PassContext& context) {
  const AttentionSpec& spec = context.spec;
  const KernelConfig sizes = sizes_of(spec, context.schedule);
  const SyncLayout layout = sync_layout(sizes);
  p.buffers.push_back(shared_tile("Qs", spec.dtype, layout.q, layout.q_offset, 1));
  p.buffers.back().own_rows = true;
  p.buffers.push_back(shared_tile("Ks", spec.kv_dtype, layout.k, layout.k_offset, sizes.stages));
  p.buffers.push_back(shared_tile("Vs", spec.kv_dtype, layout.v, layout.v_offset, sizes.stages));
  if (spec.out_dtype != Dtype::F32) {
    p.buffers.push_back(shared_tile("Os", spec.out_dtype, layout.o, layout.o_offset, 1));
    p.buffers.back().own_rows = true;
  }
  if (!sizes.q_in_registers) return;
  Buffer held{"Qr", Space::Register, spec.dtype, fmt::format("{}", layout.q.rows),
              fmt::format("{}", layout.q.chunks * 8)};
  held.layout = "fragment";
  held.own_rows = true;
  p.buffers.push_back(held);
}

}  // namespace

Result<Program> place_buffers(Program p, const PassContext& context) {
  constexpr std::string_view kPass = "place_buffers";
  if (is(context, Family::Host)) return p;
  const bool hopper = is(context, Family::Hopper);
  const KernelConfig sizes = sizes_of(context.spec, context.schedule);
  const int bytes = hopper ? hopper_layout(sizes).bytes : sync_layout(sizes).bytes;
  if (bytes > context.target.smem_per_block) {
    return internal(fmt::format("pass {}: {} bytes of shared memory are above the {} of {}", kPass, bytes,
                                context.target.smem_per_block, context.target.name));
  }
  FLASHJIT_TRY(p.attributes.set("smem_bytes", std::int64_t{bytes}, kPass));
  FLASHJIT_TRY(p.attributes.set("q_in", std::string(sizes.q_in_registers ? "registers" : "shared"), kPass));
  if (hopper) {
    add_hopper_tiles(p, context);
  } else {
    add_sync_tiles(p, context);
  }
  const bool staged = find(p, "Os") >= 0;
  std::vector<Statement> body;
  body.push_back(make_statement(Kind::Load, {find(p, "Qs")}, {find(p, "q")}));
  if (sizes.q_in_registers) body.push_back(make_statement(Kind::Fragment, {find(p, "Qr")}, {find(p, "Qs")}));
  for (Statement& s : p.body) {
    if (s.kind == Kind::Loop) load_operands(p, s, find(p, sizes.q_in_registers ? "Qr" : "Qs"));
    if (staged && s.kind == Kind::Store && s.writes[0] == find(p, "o")) {
      body.push_back(make_statement(Kind::Stage, {find(p, "Os")}, {find(p, "O")}));
      s.reads = {find(p, "Os")};
    }
    body.push_back(std::move(s));
  }
  p.body = std::move(body);
  return p;
}

Result<Program> pipeline_copies(Program p, const PassContext& context) {
  if (is(context, Family::Host)) return p;
  if (is(context, Family::Hopper)) return split_roles(std::move(p), context);
  Pipeliner pipeline{p, *context.schedule.stages, copy_width(context.spec.align_bytes), {}};
  FLASHJIT_TRY(p.attributes.set("stages", std::int64_t{pipeline.stages}, Pipeliner::kPass));
  std::vector<Statement> body = std::move(p.body);
  pipeline.prologue(find(p, "Qr") >= 0);
  for (Statement& s : body) {
    if (s.kind == Kind::Load || s.kind == Kind::Fragment) continue;  // both are in the prologue
    if (s.kind == Kind::Loop) {
      s.body = pipeline.loop_body(std::move(s.body));
      pipeline.out.push_back(std::move(s));
      // A tile that sees no key never waited for Q, and with Q in registers other warps may still read K and V: both
      // lie where O is staged.
      pipeline.wait_for_all_warps(0);
      continue;
    }
    if (s.kind == Kind::Store && s.writes[0] == find(p, "o"))
      pipeline.set(s, "copy_bytes", std::int64_t{pipeline.width.bytes});
    pipeline.out.push_back(std::move(s));
  }
  if (!pipeline.failed) return pipeline.failed.error();
  p.body = std::move(pipeline.out);
  return p;
}

Result<Program> budget_registers(Program p, const PassContext& context) {
  constexpr std::string_view kPass = "budget_registers";
  if (is(context, Family::Host)) return p;
  const KernelConfig sizes = sizes_of(context.spec, context.schedule);
  const int needed = estimated_registers(context.spec, sizes), budget = register_budget(context.target, sizes);
  if (needed > budget) {
    return internal(
        fmt::format("pass {}: about {} registers per thread are needed, {} are there", kPass, needed, budget));
  }
  const bool sync = is(context, Family::Sync);
  if (sync) FLASHJIT_TRY(p.attributes.set("blocks_per_sm", std::int64_t{sizes.blocks_per_sm}, kPass));
  FLASHJIT_TRY(p.attributes.set("registers", fmt::format("{}/{}", needed, budget), kPass));
  if (sync) return p;
  for (Statement& role : p.body) {
    const int limit = role.kind == Kind::Producer ? producer_registers(sizes) : consumer_registers(sizes);
    FLASHJIT_TRY(role.attributes.set("register_limit", std::int64_t{limit}, kPass));
  }
  return p;
}

}  // namespace flashjit

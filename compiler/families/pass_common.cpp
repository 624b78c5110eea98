#include "compiler/families/pass_common.h"

#include <algorithm>

#include <fmt/format.h>

namespace flashjit {

namespace {

void resize(Program& p, std::string_view buffer, int rows, int columns) {
  Buffer& b = p.buffers[p.buffer(buffer)];
  b.rows = fmt::format("{}", rows);
  b.cols = fmt::format("{}", columns);
}

void replace_read(Statement& s, int from, int to) {
  for (int& read : s.reads) {
    if (read == from) read = to;
  }
}

Result<void> check_attributes(const Attributes& attributes, std::string_view where, std::string_view family,
                              std::span<const std::string_view> honoured) {
  for (const Attribute& a : attributes.all()) {
    const std::string with_value = fmt::format("{}={}", a.key, print(a.value));
    const auto row = std::ranges::find_if(honoured, [&](std::string_view h) { return h == a.key || h == with_value; });
    if (row != honoured.end()) continue;
    return unsupported(fmt::format("{} of {}: `{}` (written by pass {}) is honoured by no loop of the {} family", a.key,
                                   where, print(a.value), a.writer, family));
  }
  return {};
}

Result<void> check_statements(const std::vector<Statement>& body, std::string_view family,
                              std::span<const std::string_view> honoured) {
  for (const Statement& s : body) {
    FLASHJIT_TRY(check_attributes(s.attributes, name(s.kind), family, honoured));
    FLASHJIT_TRY(check_statements(s.body, family, honoured));
  }
  return {};
}

}  // namespace

void size_tiles(Program& p, const KernelConfig& c, int output_columns) {
  resize(p, "S", c.tile_q, c.tile_kv);
  resize(p, "P", c.tile_q, c.tile_kv);
  resize(p, "rows", c.tile_q, 2);
  resize(p, "O", c.tile_q, output_columns);
}

void spread_tiles(Program& p) {
  for (const std::string_view tile : {"S", "P", "O", "rows"}) {
    Buffer& b = p.buffers[p.buffer(tile)];
    b.layout = "fragment";
    b.own_rows = true;
  }
}

Result<void> assign_products(Program& p, std::span<const Product> products) {
  return for_each(p.body, [&](Statement& s) -> Result<void> {
    if (s.kind != Kind::Mma) return {};
    const std::string& target = p.buffers[s.writes[0]].name;
    const auto product = std::ranges::find(products, target, &Product::target);
    if (product == products.end())
      return internal(fmt::format("pass assign_warps: nothing multiplies into {}", target));
    s.product = *product;
    return {};
  });
}

Result<void> set_shared_memory(Program& p, const Target& target, int bytes) {
  constexpr std::string_view kPass = "place_buffers";
  if (bytes > target.smem_per_block) {
    return internal(fmt::format("pass {}: {} bytes of shared memory are above the {} of {}", kPass, bytes,
                                target.smem_per_block, target.name));
  }
  return p.attributes.set("smem_bytes", std::int64_t{bytes}, kPass);
}

void load_operands(Program& p, std::string_view queries) {
  const int scores = p.buffer("S"), q = p.buffer("q");
  for (Statement& loop : p.body) {
    if (loop.kind != Kind::Loop) continue;
    std::vector<Statement> body;
    for (Statement& s : loop.body) {
      if (s.kind == Kind::Mma) {
        const bool is_scores = s.writes[0] == scores;
        const int global = p.buffer(is_scores ? "k" : "v"), tile = p.buffer(is_scores ? "Ks" : "Vs");
        body.push_back(make_statement(Kind::Load, {tile}, {global}));
        replace_read(s, global, tile);
        replace_read(s, q, p.buffer(queries));
      }
      body.push_back(std::move(s));
    }
    loop.body = std::move(body);
  }
}

Result<void> set_registers(Program& p, int needed, int budget) {
  constexpr std::string_view kPass = "budget_registers";
  if (needed > budget) {
    return internal(
        fmt::format("pass {}: about {} registers per thread are needed, {} are there", kPass, needed, budget));
  }
  return p.attributes.set("registers", fmt::format("{}/{}", needed, budget), kPass);
}

Result<void> check_honoured(const Program& p, std::string_view family, std::span<const std::string_view> honoured) {
  FLASHJIT_TRY(check_attributes(p.attributes, "program", family, honoured));
  return check_statements(p.body, family, honoured);
}

}  // namespace flashjit

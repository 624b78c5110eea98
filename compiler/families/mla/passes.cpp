// Sets tiles, products, shared memory and registers of the mla loop.
#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "compiler/families/mla/mla.h"
#include "compiler/families/mla/roles.h"
#include "compiler/families/pass_common.h"

namespace flashjit {

namespace {

// The element types of Q, K and P in shared memory.
struct Elements {
  Dtype q, k, p;
};
Elements elements_of(const AttentionSpec& spec, const KernelConfig& c) {
  if (multiplies_narrow(c)) return {spec.dtype, spec.kv_dtype, Dtype::E4M3};
  const Dtype wide = c.element == Element::bf16 ? Dtype::BF16 : Dtype::F16;
  return {wide, wide, wide};
}

// Returns a tile of shared memory, as products read it. Its slots are `stride` bytes apart.
Buffer shared_tile(std::string name, Dtype elements, int rows, int columns, int offset, int stages, int stride) {
  Buffer b{std::move(name), Space::Shared, elements, fmt::format("{}", rows), fmt::format("{}", columns)};
  b.layout = fmt::format("swizzle{}", kPanelWidth);
  b.offset = offset;
  b.bytes = panel_layout(rows, columns, size_of(elements)).bytes();
  b.stages = stages;
  b.stride = stride;
  if (stride > 0) b.bytes = std::min<std::int64_t>(b.bytes, stride);  // Slots of V^T have a half of each row.
  return b;
}
// Returns a buffer with a number for each row, by which warpgroups tell each other something.
Buffer row_numbers(std::string name, int offset) {
  Buffer b{std::move(name), Space::Shared, Dtype::F32, fmt::format("{}", kMlaRows), "1"};
  b.layout = "rows";
  b.offset = offset;
  b.bytes = kMlaRows * 4;
  return b;
}

Result<Program> choose_tiling(Program p, const PassContext& context) {
  size_tiles(p, context.config, context.config.head_dim_v);
  return p;
}

Result<Program> assign_warps(Program p, const PassContext&) {
  spread_tiles(p);
  return p;
}

// Adds the tiles. A slot of K consists of pieces that arrive by themselves, two for each half of V, and of what lies
// behind V. That is the columns that come with the last piece, and P once the scores are there: P of the first
// warpgroup's tiles in the first slot, and of the second's in the second. Where V is all of K, there is room for P
// alone behind V, and it still belongs to the reader of the last piece. Beside V^T, P has room of its own.
void add_tiles(Program& p, const AttentionSpec& spec, const KernelConfig& c) {
  const Elements elements = elements_of(spec, c);
  const MlaLayout l = mla_layout(c);
  const int stride = l.slot_bytes, piece_columns = c.head_dim_v / kMlaPieces;
  const int piece_bytes = piece_columns / l.k.panel_columns() * l.k.panel_bytes();
  p.buffers.push_back(shared_tile("Qs", elements.q, l.q.rows, l.q.columns, 0, 1, 0));
  for (int piece = 0; piece < kMlaPieces; ++piece) {
    p.buffers.push_back(shared_tile(fmt::format("K{}s", piece), elements.k, l.k.rows, piece_columns,
                                    l.k_offset + piece * piece_bytes, kMlaStages, stride));
  }
  const bool is_room = columns_behind(c) == 0;
  p.buffers.push_back(shared_tile("Ts", elements.k, l.k.rows, is_room ? l.k.panel_columns() : columns_behind(c),
                                  l.k_offset + kMlaPieces * piece_bytes, kMlaStages, stride));
  p.buffers.back().is_room = is_room;
  if (multiplies_narrow(c)) {
    p.buffers.push_back(
        shared_tile("Vs", elements.k, l.v.rows, kMlaKeys, l.v_offset, kMlaStages, l.v.bytes() / kMlaStages));
    for (const char* sums : {"T", "U"})
      p.buffers.push_back({sums, Space::Register, Dtype::F32, fmt::format("{}", kMlaRows),
                           fmt::format("{}", kMlaProductColumns), "fragment"});
  }
  for (int of = 0; of < kMlaConsumers; ++of) {
    p.buffers.push_back(
        shared_tile(fmt::format("P{}s", of), elements.p, kMlaRows, kMlaKeys, l.p_offset + of * l.p_stride, 1, 0));
    p.buffers.push_back(row_numbers(fmt::format("rises {}", of), l.row_offset + (1 + of) * kMlaRows * 4));
    p.buffers.push_back(
        row_numbers(fmt::format("sums {}", of), l.row_offset + (1 + kMlaConsumers + of) * kMlaRows * 4));
  }
}

// The names of buffers in programs, and the buffers whose barriers stand for others.
struct CodeName {
  std::string_view buffer, code, ring = {};
  Counter counter = Counter::Rings;
  std::string_view guard = {}, slot = {}, inside = {};
  int givers = 0;
};
constexpr CodeName kNarrowCodeNames[] = {
    {"S", "s"},
    {"P", "p"},
    {"O", "o"},
    {"T", "sums[0]"},
    {"U", "sums[1]"},
    {"rows", "rows"},
    {"Qs", "", "", Counter::Items},
    {"K0s", "0", "0", Counter::Steps},
    {"K1s", "1", "0", Counter::Steps, "", "K0s"},
    {"K2s", "2", "1", Counter::Steps, "", "K0s"},
    {"K3s", "3", "1", Counter::Steps, "", "K0s"},
    {"Ts", "", "1", Counter::Steps, "K3s", "K0s"},
    {"Vs", "", "", Counter::Steps},
    {"P0s", "", "", Counter::Alternating, "", "", "Qs"},
    {"P1s", "", "", Counter::Alternating, "", "", "Qs"},
    {"rises 0", "", "", Counter::Alternating, "P0s", "", "Qs"},
    {"rises 1", "", "", Counter::Alternating, "P1s", "", "Qs"},
    {"sums 0", "", "", Counter::Items, "", "", "Qs"},
    {"sums 1", "", "", Counter::Items, "", "", "Qs"},
};
constexpr CodeName kCodeNames[] = {
    {"S", "s"},
    {"P", "p"},
    {"O", "o"},
    {"rows", "rows"},
    {"Qs", "", "", Counter::Items},
    {"K0s", "0", "0", Counter::Steps, "", "", "", 1},
    {"K1s", "1", "0", Counter::Steps, "", "K0s"},
    {"K2s", "2", "1", Counter::Steps, "", "", "", 1},
    {"K3s", "3", "1", Counter::Steps, "", "K2s"},
    {"Ts", "", "1", Counter::Steps, "K3s", "K2s"},
    {"P0s", "", "", Counter::Alternating, "", "", "Ts"},
    {"P1s", "", "", Counter::Alternating, "", "", "Ts"},
    {"rises 0", "", "", Counter::Alternating, "P0s", "", "Ts"},
    {"rises 1", "", "", Counter::Alternating, "P1s", "", "Ts"},
    {"sums 0", "", "", Counter::Items, "", "", "Qs"},
    {"sums 1", "", "", Counter::Items, "", "", "Qs"},
};
void name_buffers(Program& p, const KernelConfig& c) {
  const std::span<const CodeName> names =
      multiplies_narrow(c) ? std::span<const CodeName>(kNarrowCodeNames) : kCodeNames;
  for (const CodeName& name : names) {
    Buffer& b = p.buffers[static_cast<std::size_t>(p.buffer(name.buffer))];
    b.code = name.code, b.ring = name.ring, b.counter = name.counter;
    b.givers = name.givers, b.guard = p.buffer(name.guard), b.given_with = p.buffer(name.slot),
    b.inside = p.buffer(name.inside);
  }
  if (multiplies_narrow(c)) p.buffers[static_cast<std::size_t>(p.buffer("K0s"))].in_turn = true;
}

Result<Program> place_buffers(Program p, const PassContext& context) {
  FLASHJIT_TRY(set_shared_memory(p, context.problem.target, mla_layout(context.config).bytes));
  add_tiles(p, context.problem.spec, context.config);
  return p;
}

Result<Program> pipeline_copies(Program p, const PassContext& context) {
  p.vocabulary = context.schedule.family->vocabulary;
  name_buffers(p, context.config);
  Body textbook = std::exchange(p.body, {});
  const Site loop = find_site(p, textbook, Kind::Loop), mask = find_site(p, textbook, Kind::Mask);
  if (!loop || !mask) return internal("pass pipeline_copies: the program has no loop, or no mask in it");
  FLASHJIT_TRY(add_mla_copies(p, context.config));
  FLASHJIT_TRY(add_mla_consumers(p, context.config, loop.statement().attributes, mask.statement().attributes));
  add_mla_entry(p, context.config);
  return p;
}

Result<Program> budget_registers(Program p, const PassContext& context) {
  const auto [needed, budget] = mla_registers(context.problem, context.config);
  FLASHJIT_TRY(set_registers(p, needed, budget));
  return p;
}

constexpr std::array kPasses = {
    Pass{"choose_tiling", choose_tiling},    Pass{"assign_warps", assign_warps},
    Pass{"place_buffers", place_buffers},    Pass{"pipeline_copies", pipeline_copies},
    Pass{"add_up_tiles", add_up_mla_values}, Pass{"budget_registers", budget_registers},
};

}  // namespace

std::span<const Pass> mla_passes() { return kPasses; }

std::vector<Product> mla_products(const KernelConfig& c) {
  const int step = step_columns(c.element);
  Product scores = {.name = "scores",
                    .target = "S",
                    .a = "Qs",
                    .b = "K0s",
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
                    .b = "K0s",
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
  output_of_other.a = "P0s";
  output_of_other.a_in_registers = false;
  if (!multiplies_narrow(c)) return {scores, more_scores, output, output_of_other};
  scores.replaces = true;
  Product last_scores = more_scores;
  last_scores.name = "last_scores";
  last_scores.b = "Ts";
  last_scores.depth = c.head_dim_qk - c.head_dim_v;
  Product values = output_of_other;
  values.name = "values";
  values.target = "T";
  values.b = "Vs";
  values.columns = values.n = kMlaProductColumns;
  values.b_transposed = values.accumulates = false;
  values.remark = {};
  return {scores, more_scores, values, last_scores};
}

}  // namespace flashjit

#include "compiler/cascade.h"

#include <algorithm>

#include <fmt/format.h>

#include "compiler/plan.h"

namespace flashjit {

namespace {

namespace names = cascade_params;

// Rows of a tile of the prefix: queries of all sequences, and of the heads of a KV head.
constexpr int kRowsOfTile = 128;
constexpr int kUnit = 64;  // Pieces are made of so many keys.

// Leaves in `component` the outputs that the merge reads of both attentions.
void leave_parts(AttentionSpec& component) {
  component.out_dtype = Dtype::F32;
  if (component.lse == Lse::none) component.lse = Lse::ln;
  component.shared_prefix = false;
  component.mask = Expr();
  component.score = Expr();
  component.params.clear();
}

void declare(AttentionSpec& component, std::string_view name, Dtype dtype, int rank) {
  component.declared.push_back({.name = std::string(name), .dtype = dtype, .rank = rank});
}

// Returns the length of the prefix as text: 0 where the sequence, or sequence 0, does not have it. The cut to `k_len`
// changes no value, and gives the compiler a bound.
std::string prefix_text(std::string_view queries) {
  return fmt::format("min(where(min(max({0}[0], 0), k_len) - {2} >= {1}[0], max({1}[0], 0), 0), k_len)", names::kLens,
                     names::kPrefix, queries);
}

// Returns where piece `piece` begins. All pieces have as many units, up to one.
std::string begin_text(std::string_view prefix, std::string_view piece) {
  return fmt::format("min(({0} + {1}) / {2} * {3} / max({4}, 1), {5}) * {2}", prefix, kUnit - 1, kUnit, piece,
                     names::kPieces, (SizeBound::kLargest + 1) / kUnit);
}

Result<AttentionSpec> prefix_of(const AttentionSpec& spec) {
  AttentionSpec component = spec;
  leave_parts(component);
  component.sink = component.append = false;
  copy_rope(component, {});
  component.alignment = Alignment::BottomRight;
  const std::vector<Param> read = spec.score ? params_of(spec.score) : std::vector<Param>();
  std::erase_if(component.declared, [&](const Param& param) { return std::ranges::find(read, param) == read.end(); });
  declare(component, names::kPrefix, Dtype::I32, 1);
  declare(component, names::kLens, Dtype::I32, 1);
  declare(component, names::kPieces, Dtype::U8, 0);
  std::string queries = fmt::format("{}", spec.q_len.max);
  if (!spec.q_len.pinned()) {
    declare(component, names::kQueries, Dtype::I32, 0);
    queries = fmt::format("min(max({}, 0), {})", names::kQueries, spec.q_len.max);
  }
  const std::string prefix = prefix_text(queries);
  component.mask_text =
      fmt::format("k >= {} & k < min({}, {})", begin_text(prefix, "b"), begin_text(prefix, "(b + 1)"), prefix);
  component.batch = {.min = 0, .max = kMostPieces};
  const bool fits = spec.batch.max <= SizeBound::kLargest / spec.q_len.max;
  component.q_len = {.min = 0, .max = fits ? spec.batch.max * spec.q_len.max : SizeBound::kLargest};
  FLASHJIT_TRY(validate(component));
  return component;
}

Result<AttentionSpec> own_of(const AttentionSpec& spec) {
  AttentionSpec component = spec;
  leave_parts(component);
  declare(component, names::kPrefix, Dtype::I32, 1);
  declare(component, names::kLens, Dtype::I32, 1);
  const std::string begin = fmt::format("k >= {}", prefix_text("q_len"));
  component.mask_text = spec.mask_text.empty() ? begin : fmt::format("({}) & {}", spec.mask_text, begin);
  FLASHJIT_TRY(validate(component));
  return component;
}

Result<AttentionSpec> merge_of(const AttentionSpec& spec) {
  AttentionSpec component;
  component.operation = Operation::Merge;
  component.dtype = component.kv_dtype = Dtype::F32;
  component.out_dtype = spec.out_dtype;
  component.d_qk = component.d_v = spec.d_v;
  component.heads_q = component.heads_kv = spec.heads_q;
  component.lse = spec.lse;
  component.max_logit = spec.max_logit;
  component.shared_prefix = true;
  component.batch = spec.batch;
  component.q_len = spec.q_len;
  component.align_bytes = spec.align_bytes;
  component.numerics = spec.numerics;
  FLASHJIT_TRY(validate(component));
  return component;
}

// The queries of all sequences read the same keys. Tiles that hold all heads of a KV head read those keys for the most
// queries at once. The cost model chooses the rest, and everything where no such tile is legal, because it takes the
// queries of one sequence for prompts.
Schedule prefix_pins(const AttentionSpec& prefix, const Target& target, const Schedule& pins) {
  if (pins != Schedule()) return pins;
  Schedule shared;
  shared.tile_q = kRowsOfTile;
  shared.head_tiles = prefix.heads_q == prefix.heads_kv ? HeadTiles::single : HeadTiles::grouped;
  return draft_plan(prefix, target, shared) ? shared : pins;
}

}  // namespace

Result<Cascade> cascade_of(const AttentionSpec& spec, const Target& target, const Schedule& pins) {
  FLASHJIT_ASSIGN(prefix, prefix_of(spec));
  FLASHJIT_ASSIGN(own, own_of(spec));
  FLASHJIT_ASSIGN(merge, merge_of(spec));
  const Schedule of_prefix = prefix_pins(prefix, target, pins);
  return Cascade{{std::move(prefix), of_prefix}, {std::move(own), pins}, {std::move(merge), {}}};
}

int pieces_of(const AttentionSpec& spec, const Target& target, std::int64_t queries) {
  const std::int64_t rows = queries * (spec.heads_q / spec.heads_kv);
  const std::int64_t tiles = (rows + kRowsOfTile - 1) / kRowsOfTile * spec.heads_kv;
  return static_cast<int>(std::clamp<std::int64_t>(target.sm_count / std::max<std::int64_t>(tiles, 1), 1, kMostPieces));
}

}  // namespace flashjit

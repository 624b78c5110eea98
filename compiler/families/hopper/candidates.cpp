// Enumerates the hopper schedules, and gives the reasons against all others.
#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "compiler/analysis/interval.h"
#include "compiler/analysis/read_axes.h"
#include "compiler/analysis/score_inputs.h"
#include "compiler/families/choices.h"
#include "compiler/families/hopper/hopper.h"
#include "compiler/families/hopper/tuned.h"
#include "compiler/spec/config_words.h"

namespace flashjit {

namespace {

constexpr int kMaxOutputColumns = 256;
// Tiles wider than 128 keys lost at every head dim [M22], and with 8 bits as well [M23].
constexpr std::array kTilesKv = {32, 48, 64, 80, 96, 112, 128};

// Registers besides tiles hold row state, addresses and barriers. Compiled kernels show that 192x128 tiles of d=64 and
// 128x176 of d=128 with overlap fit into the registers that three and two warpgroups leave.
constexpr int kBaseRegisters = 29;
// P takes these registers of a dying S. With 128 keys three warpgroups spill nothing at d=72, and 112 bytes at d=80.
constexpr int kSharedRegisters = 2;
// Registers besides tiles where P V of a tile has registers of its own, or those of S. Compiled kernels show that
// 128x128 tiles of d=128 and 256 fit.
constexpr int kBaseRegistersOfSums = 24;
// These registers come on top of the base. At d=128 with 128 keys, alibi spills 32 bytes, heads in groups spill 8 to
// 44, and max_logit 8 to 36.
constexpr int kPositionRegisters = 8, kStateRegisters = 6;
constexpr int kSumRegisters = 8;   // Registers of a column of ones beside V: d=64/192 with 128 keys spills 136 bytes.
constexpr int kTanhRegisters = 4;  // Registers of the second main step.
// Its registers with three warpgroups: d=32 and 64 with 128 keys spill 70 and 184 bytes.
constexpr int kTanhRegistersOfThree = 20;
// Registers of more than 240 columns of O: d=248 and 256 with 80 keys spill 32 and 160 bytes.
constexpr int kWideRegisters = 20;
// Registers of more than 128 columns with three warpgroups: d=136 with 80 keys spills 108 bytes, d=152 with 64 keys
// spills 32 bytes.
constexpr int kWideRegistersOfThree = 8;
constexpr int kMostRowsOfFew = 128;        // The most rows for each SM that count as few.
constexpr int kMostColumnsOfGroups = 240;  // The most columns of packed queries: d=256 with 64 keys spills 8 bytes.
// Registers of elements of copied tiles that a score reads, eight pairs of keys at a time, and of their addresses.
constexpr int kInputRegisters = 24;

bool refuses_tile(const AttentionSpec& spec, const Schedule& s, std::string* why) {
  if (*s.tile_q != *s.warpgroups * kRowsPerWarpgroup) {
    return refuse(why, "tile_q: {} is not {}, 64 rows for each of {} warpgroups; set warpgroups to tile_q / 64",
                  *s.tile_q, *s.warpgroups * kRowsPerWarpgroup, *s.warpgroups);
  }
  const int depth = kStepBytes / size_of(spec.dtype);
  if (*s.tile_kv % depth != 0)
    return refuse(why, "tile_kv: {} is not a multiple of {}, the depth of a matrix instruction", *s.tile_kv, depth);
  if (spec.scale_block % *s.tile_kv != 0) {
    return refuse(why, "tile_kv: {} keys have more than one scale, of which there is one for {} (scales=block)",
                  *s.tile_kv, spec.scale_block);
  }
  if (*s.tile_kv > kMaxTileKv)
    return refuse(why, "tile_kv: {} is above {}, the widest matrix instruction", *s.tile_kv, kMaxTileKv);
  if (*s.stages > kMaxStages) return refuse(why, "stages: {} is above {}", *s.stages, kMaxStages);
  return false;
}

bool refuses_loop(const Problem& problem, const Schedule& s, std::string* why) {
  const AttentionSpec& spec = problem.spec;
  if (*s.overlap == Overlap::qk_pv && *s.stages < 2)
    return refuse(
        why,
        "stages: 1 is too few for overlap=qk_pv, which reads two K/V tiles at a time; use stages=2 or overlap=none");
  if (*s.exclusive != Exclusive::none && *s.warpgroups < 2)
    return refuse(why, "exclusive: {} needs two warpgroups to take turns, there is 1; use exclusive=none",
                  word(*s.exclusive));
  if (*s.exclusive == Exclusive::issue && *s.overlap != Overlap::qk_pv)
    return refuse(why,
                  "exclusive: issue needs overlap=qk_pv, where both products are issued together; use exclusive=none");
  if (*s.keys == Keys::parts && spec.accumulate)
    return refuse(why,
                  "keys: parts of a row are put together by threads that would read an LSE which others write "
                  "(accumulate); use keys=whole");
  if (*s.keys == Keys::parts && spec.numerics == Numerics::BatchInvariant)
    return refuse(why, "keys: parts are as many as SMs want, which numerics=batch_invariant excludes; use keys=whole");
  if (refuses_tiles(problem, s, why)) return true;
  if (*s.reference == Reference::lazy)
    return refuse(why, "reference: lazy is not what this loop does; use reference=tile or first");
  if (*s.reference == Reference::first && spec.max_logit)
    return refuse(why,
                  "reference: first never finds the maximum of a row, which max_logit asks for; use reference=tile");
  if (*s.reference == Reference::first && spec.numerics == Numerics::BatchInvariant)
    return refuse(
        why,
        "reference: first does a tile again when the reference was too far off, which numerics=batch_invariant excludes; use "
        "reference=tile");
  return false;
}

// Refuses a column of ones beside V of 8 bits.
bool refuses_narrow_ones(const AttentionSpec& spec, const Schedule& s, std::string* why) {
  if (spec.lse != Lse::none)
    return refuse(
        why,
        "row_sum: matrix adds up weights as 8 bits have them, which is not exact enough for lse; use row_sum=adds");
  if (*s.transpose == Transpose::launch)
    return refuse(why,
                  "row_sum: matrix has ones beside V, where transpose=launch has the next tile; use transpose=loop");
  return false;
}

// Refuses a column of ones beside V of 16 bits.
bool refuses_wide_ones(const AttentionSpec& spec, const Schedule& s, const KernelConfig& sizes, std::string* why) {
  if (hopper_layout(sizes).v.columns != spec.d_v) {
    return refuse(
        why,
        "row_sum: matrix puts its column behind whole panels of V, and the V dim {} is no multiple of {}; use "
        "row_sum=adds",
        spec.d_v, hopper_layout(sizes).v.panel_columns());
  }
  if (*s.keys == Keys::parts)
    return refuse(why, "row_sum: matrix is not exact enough for the LSE by which parts are weighted; use row_sum=adds");
  if (spec.lse != Lse::none) {
    return refuse(
        why,
        "row_sum: matrix adds up probabilities as they are rounded for the product, which is right for O and not exact enough for "
        "lse; use row_sum=adds");
  }
  return false;
}

bool refuses_row_sum(const AttentionSpec& spec, const Schedule& s, const KernelConfig& sizes, std::string* why) {
  if (*s.row_sum == RowSum::adds) return false;
  if (has_scaled_queries(spec) ? refuses_narrow_ones(spec, s, why) : refuses_wide_ones(spec, s, sizes, why))
    return true;
  if (drops(spec))
    return refuse(
        why, "row_sum: matrix adds up what dropout={} leaves of a row, and a sum is of all of it; use row_sum=adds",
        spec.dropout);
  if (product_columns(sizes) > kMaxOutputColumns) {
    return refuse(why, "row_sum: matrix makes {} columns of the V dim {}, an instruction has {}; use row_sum=adds",
                  product_columns(sizes), spec.d_v, kMaxOutputColumns);
  }
  return false;
}

bool refuses_values(const AttentionSpec& spec, const Schedule& s, std::string* why) {
  const bool narrow = has_scaled_queries(spec);
  if (narrow && *s.transpose == Transpose::none)
    return refuse(why,
                  "transpose: none leaves the columns of V along rows, and products of {} read keys along them; use "
                  "transpose=loop or launch",
                  name(spec.dtype));
  if (!narrow && *s.transpose != Transpose::none)
    return refuse(why, "transpose: {} is for V of 8 bits, products of {} read V as it is; use transpose=none",
                  word(*s.transpose), name(spec.dtype));
  if (*s.transpose == Transpose::launch && is_paged(spec))
    return refuse(why, "transpose: launch does not go through pages, only the loop does; use transpose=loop");
  return false;
}

bool ranges_use_head(const Problem& problem) {
  const AttentionSpec& spec = problem.spec;
  const TileAnalysis& tiles = problem.tiles;
  if (!spec.mask || !uses(spec.mask, Variable::H)) return false;
  for (const Expr* expr :
       {&tiles.begin, &tiles.end, &tiles.full_begin, &tiles.full_end, &tiles.may_see, &tiles.may_see_in_blocks}) {
    if (*expr && uses(*expr, Variable::H)) return true;
  }
  return false;
}

bool refuses_heads(const Problem& problem, const Schedule& s, std::string* why) {
  const AttentionSpec& spec = problem.spec;
  if (*s.head_tiles == HeadTiles::single) return false;
  const int group = spec.heads_q / spec.heads_kv;
  if (drops(spec))
    return refuse(why,
                  "head_tiles: grouped has rows of several heads in a tile, and dropout={} draws for tiles of one; use "
                  "head_tiles=single",
                  spec.dropout);
  if (has_packed_keys(spec))
    return refuse(why,
                  "head_tiles: grouped does not do layout=packed, only packed queries beside keys in pages; use "
                  "head_tiles=single");
  if (*s.tile_q % group != 0) {
    return refuse(
        why,
        "head_tiles: grouped needs tile_q={} to be a multiple of {}, the query heads of a KV head; use head_tiles=single",
        *s.tile_q, group);
  }
  if (ranges_use_head(problem) || (*s.tiles == TileSource::list && problem.lists.by_head))
    return refuse(
        why,
        "head_tiles: grouped needs one KV range for all heads of a tile, and the mask depends on h; use head_tiles=single");
  return false;
}

bool refuses_resources(const Problem& problem, const KernelConfig& sizes, std::string* why) {
  const Target& target = problem.target;
  if (finds_pages(sizes) && boxes_of_tile(sizes) > copying_threads(sizes)) {
    return refuse(
        why,
        "tile_kv: {} keys in pages of {} tokens are {} boxes of {}, and {} threads copy one each; use a smaller "
        "tile_kv",
        sizes.tile_kv, sizes.page_size, boxes_of_tile(sizes), box_rows(sizes), copying_threads(sizes));
  }
  const int smem = hopper_layout(sizes).bytes;
  if (smem > target.smem_per_block) {
    return refuse(
        why,
        "tile_kv: tiles take {} bytes of shared memory, a block of {} has {}; use smaller tiles, fewer stages or q_stages",
        smem, target.name, target.smem_per_block);
  }
  const auto [needed, budget] = hopper_registers(problem, sizes);
  if (needed > budget) {
    return refuse(
        why, "tile_kv: about {} registers per thread are needed, {} warpgroups leave {}; use a smaller tile_kv{}",
        needed, sizes.hopper.warpgroups, budget, sizes.hopper.overlap == Overlap::qk_pv ? " or overlap=none" : "");
  }
  return false;
}

bool fits(const Problem& problem, const Schedule& s) {
  return !refuses_tile(problem.spec, s, nullptr) && !refuses_resources(problem, config_of(problem, s), nullptr);
}

// Returns whether the key's position enters other than as the index of an element.
bool depends_on_position(const Expr& expr) {
  if (expr->op == Op::Load) return false;
  if (expr->op == Op::Variable) return expr->variable == Variable::K;
  return std::ranges::any_of(expr->args, depends_on_position);
}

// ---- enumeration: each step sets some fields of `s` and hands it to the next ----

struct Enumeration {
  const Problem& problem;
  const Schedule& pins;
  std::vector<Schedule>& out;
  const AttentionSpec& spec = problem.spec;

  const bool narrow = has_scaled_queries(spec);
  const bool has_inputs = spec.score && !score_inputs(spec.score).empty();
  const bool votes = spec.mask && !problem.tiles.line_is_range && !separate_reads(spec.mask).values.empty();

  int group() const { return spec.heads_q / spec.heads_kv; }
  // Returns whether prompts and single tokens stand in one call. Scores that read tensors want tiles of one head, and
  // so do 256 columns of O, whose addresses spill.
  bool mixed() const { return is_packed(spec) && is_paged(spec) && !has_inputs && spec.d_v <= kMostColumnsOfGroups; }

  // Returns whether far keys come first and may be the largest. Tiles are visited from the last key on. Scores that
  // depend on the distance of the key, without a mask that begins there, may rise on the way by more than a reference
  // of the first tile bears. For most queries each tile would be computed twice.
  bool far_keys_first() const {
    if (!spec.score || !depends_on_position(spec.score)) return false;
    return !spec.mask || !uses(problem.tiles.end, Variable::QHi);
  }

  // Sets fields that depend on no other field.
  void run() {
    Schedule s = pins;
    s.family = &kHopper;
    s.order = pins.order.value_or(TileOrder::natural);
    s.grid = pins.grid.value_or(GridKind::persistent);
    s.tiles = pins.tiles.value_or(lists_pay(problem) ? TileSource::list : TileSource::range);
    const bool first = spec.numerics == Numerics::Fast && !spec.max_logit && !far_keys_first();
    s.reference = pins.reference.value_or(first ? Reference::first : Reference::tile);
    tiles(s);
  }

  // Tiles of 192 queries are mixed more often than they save [M24], and votes leave three warpgroups no registers.
  bool suits_lists(const Schedule& s) const {
    return *s.warpgroups < 3 && lies_in_block(problem, Axis::Queries, *s.tile_q);
  }
  bool suits(const Schedule& s) const {
    return *s.tiles == TileSource::list ? suits_lists(s) : *s.warpgroups < 3 || !votes;
  }

  void tiles(Schedule s) {
    for (int warpgroups = 1; warpgroups <= 3; ++warpgroups) {
      s.warpgroups =
          pins.warpgroups.value_or(pins.tile_q ? std::clamp(*pins.tile_q / kRowsPerWarpgroup, 1, 3) : warpgroups);
      s.tile_q = pins.tile_q.value_or(*s.warpgroups * kRowsPerWarpgroup);
      if (!suits(s) && !pins.warpgroups && !pins.tile_q) continue;
      heads(s);
      if (pins.warpgroups || pins.tile_q) return;
    }
  }

  // Heads share a tile where one head's queries do not fill it, as queries of single tokens among prompts. No tile is a
  // warpgroup taller than its rows. Three warpgroups of shared tiles are predicted too well [M25].
  void heads(Schedule s) {
    for (const HeadTiles heads : {HeadTiles::single, HeadTiles::grouped}) {
      if (pins.head_tiles && *pins.head_tiles != heads) continue;
      const bool grouped = heads == HeadTiles::grouped;
      const bool possible = group() > 1 && *s.tile_q % group() == 0;
      const bool pays = possible && !has_packed_keys(spec) && !drops(spec) && (mixed() || problem.queries < *s.tile_q);
      if (grouped && !pays && !pins.head_tiles) continue;
      if (grouped && mixed() && *s.warpgroups == 3 && spec.d_v > 64 && !pins.warpgroups && !pins.tile_q) continue;
      const std::int64_t rows = problem.queries * (grouped ? group() : 1);
      if (rows <= *s.tile_q - kRowsPerWarpgroup && *s.warpgroups > 1 && !pins.warpgroups && !pins.tile_q) continue;
      s.head_tiles = heads;
      keys(s);
    }
  }

  void keys(Schedule s) {
    std::int64_t covered = 0;  // The keys that the tile before covers: a longer tile would hold nothing more.
    for (const int tile_kv : kTilesKv) {
      if (covered >= spec.k_len.max && covered > 0 && !pins.tile_kv) return;
      s.tile_kv = pins.tile_kv.value_or(tile_kv);
      // Such tiles leave inputs in memory, or are no multiple of the depth of a matrix instruction.
      if (!pins.tile_kv && tile_kv % 32 != 0 && (has_inputs || narrow)) continue;
      if (!pins.tile_kv && *s.tiles == TileSource::list && !lies_in_block(problem, Axis::Keys, tile_kv)) continue;
      if (!pins.tile_kv && (overburdens_producer(s) || leaves_no_turns(s))) continue;
      covered = tile_kv;
      s.row_sum = pins.row_sum.value_or(RowSum::adds);  // `sums` sets the final value.
      values(s);
      if (pins.tile_kv) return;
    }
  }

  // Beside three warpgroups the warps that copy and transpose have 32 registers each. If, besides, the mask has a begin
  // as a window has, packed sequences and tiles of 96 keys spill [M26].
  bool overburdens_producer(const Schedule& s) const {
    const bool begins = spec.mask && problem.tiles.begin && uses(problem.tiles.begin, Variable::QLo);
    return narrow && begins && *s.warpgroups == 3 && (has_packed_keys(spec) || (*s.tile_kv == 96 && !is_paged(spec)));
  }

  void values(Schedule s) {
    for (const Transpose transpose : {Transpose::none, Transpose::loop, Transpose::launch}) {
      s.transpose = pins.transpose.value_or(transpose);
      if (!pins.transpose && refuses_values(spec, s, nullptr)) continue;
      buffers(s);
      if (pins.transpose) return;
    }
  }

  // One block has the SM, so memory has no other use: a schedule has as many stages as fit, with and without a second
  // Q. Three stages lose to two, because the position in the ring is then a division [M27].
  void buffers(Schedule s) {
    int stages_beside_two = 0;
    for (int q_stages = *s.grid == GridKind::persistent ? 2 : 1; q_stages > 0; --q_stages) {
      s.q_stages = pins.q_stages.value_or(q_stages);
      s.overlap = Overlap::none;  // No overlap takes the fewest registers, so only memory decides here.
      // Two blocks may share the SM (hopper_blocks).
      const bool may_share = *s.tiles == TileSource::list && *s.warpgroups == 1;
      for (const int stages : {4, 2, 1}) {
        if (may_share && stages > 2) continue;
        s.stages = pins.stages.value_or(stages);
        if (pins.stages || fits(problem, s)) break;
      }
      if (*s.stages == stages_beside_two) return;
      stages_beside_two = *s.stages;
      overlaps(s);
      if (pins.q_stages) return;
    }
  }

  // Schedules overlap wherever registers and stages allow it.
  void overlaps(Schedule s) {
    s.overlap = Overlap::qk_pv;
    if (*s.stages < 2 || !fits(problem, s)) s.overlap = Overlap::none;
    // Products of 8 bits are over too soon for a loop that waits for each. An exception are heads in groups that leave
    // no other room for 128 keys, which are then faster than fewer keys [M28]. Three warpgroups would spill.
    const bool in_groups = *s.head_tiles == HeadTiles::grouped && *s.warpgroups == 2;
    if (narrow && spec.d_v <= 128 && *s.overlap == Overlap::none && *s.tile_kv > kTilesKv.front() && !in_groups &&
        !pins.overlap && !pins.tile_kv)
      return;
    s.overlap = pins.overlap.value_or(*s.overlap);
    for (const Keys keys : {Keys::whole, Keys::parts}) {
      s.keys = pins.keys.value_or(keys);
      if (!pins.keys && keys == Keys::parts && (*s.warpgroups == 3 || !few_tiles())) return;
      sums(s);
      if (pins.keys) return;
    }
  }

  // Parts pay where one sequence has no tile for every SM. (Three warpgroups spill 84 bytes at d=64.)
  bool few_tiles() const {
    return spec.numerics == Numerics::Fast &&
           problem.queries * spec.heads_q <= std::int64_t{problem.target.sm_count} * kMostRowsOfFew;
  }

  // Interpolated weights of 128 keys beside a V dim of 128 take turns, and tensors of the score function, or masks,
  // leave no registers for these. In that case 96 keys with turns are faster than 128 without [M29]. Windows, and keys
  // with scales of blocks, take no turns anyway.
  bool leaves_no_turns(const Schedule& s) const {
    const bool tight = narrow && spec.linear_exp && spec.d_v > 112 && spec.d_v <= 128 && *s.tile_kv > 96;
    const bool turns_under_mask = spec.mask && spec.scale_block == 0 && !begins_late(problem);
    return tight && (has_inputs || turns_under_mask || (spec.mask && spec.d_qk > 128));
  }

  // Sets a column of ones beside V where this pays and registers suffice, and turns where they pay (tuned.cpp).
  void sums(Schedule s) {
    const bool overlaps = *s.overlap == Overlap::qk_pv;
    Schedule matrix = s;
    matrix.row_sum = RowSum::matrix;
    if (find_ones_row(problem, matrix).pays && !pins.row_sum &&
        !refuses_row_sum(spec, matrix, config_of(problem, matrix), nullptr) && fits(problem, matrix))
      s = matrix;
    const bool turns = overlaps && *s.warpgroups > 1 && find_turns_row(problem, s).pays;
    s.exclusive = pins.exclusive.value_or(turns ? Exclusive::issue : Exclusive::none);
    out.push_back(s);
  }
};

}  // namespace

// Returns the registers of a kernel, without those that Q takes where the others leave room (queries_in_registers).
Registers hopper_registers(const Problem& problem, const KernelConfig& c) {
  const AttentionSpec& spec = problem.spec;
  const bool overlaps = c.hopper.overlap == Overlap::qk_pv;
  const auto [scores, output] = hopper_products(c);
  int sums = accumulator_registers(scores) + output_columns(c) / 2;
  // P hardly takes registers of the dying S, not even where the next S begins only when P has been used.
  sums += c.tile_kv * size_of(c.element) / 8 - (overlaps || adds_tiles(c) ? 0 : kSharedRegisters);
  if (overlaps && adds_tiles(c)) {
    sums += accumulator_registers(output);
    if (spec.score && depends_on_position(spec.score)) sums += kPositionRegisters;
    if (spec.max_logit || c.head_tiles == HeadTiles::grouped) sums += kStateRegisters;
  }
  const int sum_column = c.hopper.row_sum == RowSum::matrix && !adds_tiles(c) ? kSumRegisters : 0;
  const bool fetches = inputs_bytes(c) > 0 && !reads_beside_inputs(spec.score);
  int reads = score_registers(spec);
  if (fetches) reads = std::min(reads, kInputRegisters);
  // Where P V of a tile has registers of its own, O takes it in before inputs are read into them. (d=64, fp32: 192x96
  // spills 16 bytes.)
  if (fetches && overlaps && adds_tiles(c) && c.reference == Reference::first && c.hopper.warpgroups < 3)
    reads = std::max(0, reads - accumulator_registers(output));
  const int tanh = !problem.score.has_tanh ? 0 : c.hopper.warpgroups > 2 ? kTanhRegistersOfThree : kTanhRegisters;
  const int columns = output_columns(c);
  int wide = 0;
  if (columns > 240 && overlaps) wide = kWideRegisters;
  else if (columns > 128 && c.hopper.warpgroups > 2) wide = kWideRegistersOfThree;
  return {(adds_tiles(c) ? kBaseRegistersOfSums : kBaseRegisters) + sums + sum_column + tanh + wide + reads,
          consumer_registers(c)};
}

bool refuses_hopper(const Problem& problem, const Schedule& s, std::string* why) {
  const AttentionSpec& spec = problem.spec;
  if (refuses_tile(spec, s, why) || refuses_loop(problem, s, why) || refuses_values(spec, s, why) ||
      refuses_heads(problem, s, why))
    return true;
  const KernelConfig sizes = config_of(problem, s);
  return refuses_row_sum(spec, s, sizes, why) || refuses_resources(problem, sizes, why);
}

void enumerate_hopper(const Problem& problem, const Schedule& pins, std::vector<Schedule>& out) {
  Enumeration{problem, pins, out}.run();
}

}  // namespace flashjit

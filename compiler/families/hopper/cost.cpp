#include <algorithm>
#include <cmath>

#include "compiler/analysis/read_axes.h"
#include "compiler/choice/cost_common.h"
#include "compiler/families/hopper/hopper.h"

namespace flashjit {

namespace {

// These are clocks of the target table's clock rate, and factors of the clocks that the matrix unit or the exp unit
// alone needs for a tile, fitted to whole kernels [M36]. Factors add up because both units are busy most of the time,
// and come out below one because the card clocks higher than the table says when they wait.
struct HopperCalibration {
  double mma = 0.83;
  double mma_at_least = 1.17;  // No tile takes less than this times its products, where rows are summed beside them.
  double exp_tile = 0.92, exp_first = 0.41;  // Factors for references of each tile, and of the first.
  double bits_slots = 0.64;  // A weight that is the bits of its exponent takes this share of slots [M37].
  double tile_clocks = 472;  // The clocks of barriers, fences and the rest of every tile.
  // Where one warpgroup, or a loop without overlap, waits for everything, these two hold instead.
  double mma_alone = 0.89;
  double tile_clocks_alone = 575;
  // Further clocks of a tile with tensors of the score function, whose inputs have one slot (bias in fp32, 64 and 128
  // keys).
  double inputs_clocks = 200;
  // Clocks from a free slot to a full one, and clocks of each box of a tile in pages.
  double ring_clocks = 2900, box_clocks = 20;
  double one_stage_clocks = 1160;  // The clocks of a tile that is copied only when the one before it is done.
  // Without turns, this share of the smaller of both is lost: warpgroups fall into step and do the same at the same time.
  // Beside matrix_sum the loss is not seen.
  double no_turns = 0.044;
  double matrix_sum = -0.04;  // Exponentials take this share less, because their additions are gone.
  // Everything takes this much longer for 8 bits with ones beside V: two warpgroups without turns hide less [M38].
  double two_warpgroups = 1.08;
  double careful_clocks_per_key = 12.7;  // Clocks of a tile that the mask cuts.
  double item_clocks = 1380;             // Clocks of a query tile for first scores and output.
  double item_clocks_per_key = 5;        // The first tile of an item is visited carefully even if no mask cuts it.
  double item_clocks_per_warpgroup = 765;
  // Further clocks where Q is not copied earlier, and O is stored from registers.
  double late_q_clocks_per_dim = 9.5;
  double block_clocks = 2500;  // Further clocks where a block is started for the tile.
  // Everything takes this much longer below 64 keys a tile: for each of the 120 specs such a tile was 7 % or more behind
  // the best with more keys.
  double few_keys = 1.1;
  double l2_bytes_per_clock = 39;  // The rate of each SM.
  double odd_sectors = 1.5;        // L2 takes this much longer for rows that do not begin with a sector of 32 bytes.
  // Everything takes this much longer in batches with single tokens, whose tiles one head alone leaves empty.
  double single_heads = 1.3;
  double launch_us = 5;
  // A launch that transposes V, or widens K and V, costs this, and reads and writes its bytes at this share of the
  // memory's rate. The time that warps of the loop take for such work shows nowhere [M39].
  double transpose_us = 2, transpose_rate = 0.8;
  // Putting parts together costs this [M40].
  double combine_us = 8;
};
constexpr HopperCalibration kCalibration;
// careful_clocks_per_key contains the cost of masks of this size, and of all masks whose rows are ranges.
constexpr int kMaskNodesInFit = 12;

TileClocks tile_clocks(const Target& target, const Schedule& s, const KernelConfig& c, const Work& work) {
  const double rows = *s.tile_q, keys = *s.tile_kv, scores = rows * keys;
  const HopperLayout layout = hopper_layout(c);
  const double kv_bytes = layout.k.bytes() + layout.copied_v.bytes();
  TileClocks t;
  // Q K^T reads both operands from shared memory, and Q again for every tile. With few keys this takes longer than the
  // product.
  const double rate = target.wgmma_flops_per_clock * 2 / size_of(c.element);
  const double scores_clocks = 2 * scores * padded_dim_qk(c) / rate;
  const double operand_bytes = (rows + keys * *s.warpgroups) * padded_dim_qk(c) * size_of(c.element);
  t.mma = std::max(scores_clocks, operand_bytes / target.smem_bytes_per_clock) +
          2 * scores * product_pieces(c) * product_columns(c) / rate;
  t.exp = interpolates(c) ? 0 : scores / target.exp_per_clock;
  // Most tiles of lists are full.
  const bool masks_all = !work.row_is_range && c.list_heads == 0;
  const double voted = c.mask_by_rows ? kVotedSlots : 1;
  double slots = work.symbolic_slots + (masks_all ? voted * mask_slots(work, kMaskNodesInFit) : 0);
  if (interpolates(c)) slots += kCalibration.bits_slots;
  t.issue = scores * slots / kIssuePerClock;
  t.smem = (kv_bytes * *s.warpgroups + layout.q.bytes()) / target.smem_bytes_per_clock;
  const double input_bytes = copied_input_bytes(c) * *s.warpgroups;
  const int bytes = size_of(c.element);
  const bool odd = c.head_dim_qk * bytes % 32 != 0 || c.head_dim_v * bytes % 32 != 0;
  t.l2 = (kv_bytes * (odd ? kCalibration.odd_sectors : 1) + input_bytes) / kCalibration.l2_bytes_per_clock;
  return t;
}

// Returns the clocks of a tile that lies in several pages: it is copied box by box, while the ring has slots for it.
double box_time(const KernelConfig& c) {
  const HopperLayout layout = hopper_layout(c);
  const int boxes = c.tile_kv / box_rows(c) * (layout.k.panels() + layout.v.panels());
  return box_rows(c) == c.tile_kv ? 0 : kCalibration.ring_clocks / c.stages + kCalibration.box_clocks * boxes;
}

double tile_time(const Schedule& s, const KernelConfig& c, const TileClocks& t) {
  const bool adds = *s.row_sum == RowSum::adds;
  double exp = *s.reference == Reference::first ? kCalibration.exp_first : kCalibration.exp_tile;
  if (!adds) exp += kCalibration.matrix_sum;
  const bool alone = *s.warpgroups == 1 || *s.overlap == Overlap::none;
  double clocks = (alone ? kCalibration.mma_alone : kCalibration.mma) * t.mma + exp * t.exp + t.issue +
                  (alone ? kCalibration.tile_clocks_alone : kCalibration.tile_clocks);
  if (*s.stages == 1) clocks += kCalibration.one_stage_clocks;
  if (inputs_bytes(c) > 0) clocks += kCalibration.inputs_clocks;
  if (!alone && *s.exclusive != Exclusive::issue && adds) clocks += kCalibration.no_turns * std::min(t.mma, t.exp);
  const bool ones_beside = !adds && adds_tiles(c) && !sums_apart(c);
  if (*s.warpgroups == 2 && ones_beside && !interpolates(c) && *s.exclusive != Exclusive::issue)
    clocks *= kCalibration.two_warpgroups;
  return std::max({clocks, (adds ? kCalibration.mma_at_least : 1) * t.mma, t.l2, t.smem, box_time(c)}) *
         (*s.tile_kv < 64 ? kCalibration.few_keys : 1);
}

// Returns the time of the launch before the loop, which reads V, or K and V, of 8 bits, and writes tiles.
double making_us(const AttentionSpec& spec, const Target& target, const Shape& shape, const KernelConfig& c) {
  if (!reads_transposed(c) && !widens(c)) return 0;
  const double tiles = static_cast<double>(shape.b) * std::ceil(static_cast<double>(shape.k_len) / c.tile_kv);
  const int columns = c.head_dim_v + (widens(c) ? c.head_dim_qk : 0);
  const double bytes = tiles * spec.heads_kv * (c.tile_kv * columns + made_tile_bytes(c));
  return kCalibration.transpose_us + bytes / (kCalibration.transpose_rate * target.memory_tbs * 1e6);
}

double item_time(const Schedule& s, const KernelConfig& c, const Work& work) {
  double clocks = kCalibration.item_clocks + kCalibration.item_clocks_per_warpgroup * *s.warpgroups;
  clocks += kCalibration.item_clocks_per_key * *s.tile_kv;
  constexpr double kMixedOfList = 2;  // Mixed tiles lie where a document begins, and on the diagonal.
  const double mixed = c.list_heads > 0 ? std::min(work.mixed_tiles, kMixedOfList) : work.mixed_tiles;
  clocks += std::max(0.0, mixed - 1) * kCalibration.careful_clocks_per_key * *s.tile_kv;
  if (*s.q_stages == 1) clocks += kCalibration.late_q_clocks_per_dim * c.head_dim_qk;
  if (*s.grid == GridKind::tiles) clocks += kCalibration.block_clocks;
  return clocks;
}

}  // namespace

Prediction predict_hopper(const Problem& problem, const Schedule& s, const Shape& shape, const Work& work) {
  const AttentionSpec& spec = problem.spec;
  const Target& target = problem.target;
  const KernelConfig c = config_of(problem, s);
  const TileClocks t = tile_clocks(target, s, c, work);
  const double tile = tile_time(s, c, t), item = item_time(s, c, work), clocks_per_us = target.clock_ghz * 1e3;
  const double tiles = static_cast<double>(shape.b) *
                       (c.head_tiles == HeadTiles::grouped ? spec.heads_kv : spec.heads_q) *
                       std::ceil(static_cast<double>(shape.q_len) / queries_per_tile(c));
  // Two blocks of an SM wait for each other's products. Beside mixed tiles smaller ones let them gain [M41].
  constexpr double kSharedSm = 1.5, kSharedSmOfMixed = 1.3;
  const bool in_blocks = block_of_reads(spec.mask, Variable::Q) > 0;
  const int of_sm = hopper_blocks(c);
  const double shared = of_sm == 1 ? 1 : in_blocks ? kSharedSm : kSharedSmOfMixed, slots = target.sm_count * of_sm;
  const Parts parts = parts_of(query_tiles(c),
                               {.batch = shape.b,
                                .q_len = shape.q_len,
                                .k_len = shape.k_len,
                                .q_tokens = shape.b * shape.q_len,
                                .k_tokens = shape.b * shape.k_len},
                               target.sm_count);
  const double of_part = 1.0 / parts.count, items = parts.count * tiles;
  const double mean = shared * (work.kv_tiles * of_part * tile + item),
               longest = shared * (work.kv_tiles_max * of_part * tile + item);

  Prediction p;
  p.waves = items / slots;
  const double empty = mixes_lengths(c) && c.head_tiles == HeadTiles::single ? kCalibration.single_heads : 1;
  p.compute = empty * makespan(items, slots, mean, longest, *s.order == TileOrder::longest_first) / clocks_per_us;
  add_units(p, t, tiles * work.kv_tiles / std::min(items, slots), spec, target, shape);
  p.latency = kCalibration.launch_us + making_us(spec, target, shape, c);
  if (parts.count > 1)
    p.latency +=
        kCalibration.combine_us + 2 * sizeof(float) * items * hopper_part_floats(c) / (target.memory_tbs * 1e6);
  p.total = std::max(p.compute, p.memory) + p.latency;
  return p;
}

}  // namespace flashjit

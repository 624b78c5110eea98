// Enumerates the sync schedules, and gives the reasons against all others.
#include <algorithm>

#include "compiler/families/choices.h"
#include "compiler/families/sync/sync.h"

namespace flashjit {

namespace {

constexpr int kMaxRegisters = 255;           // The most registers of a thread, an encoding limit of every GPU so far.
constexpr int kRegisterGranule = 8;          // Warps get registers in eights for each thread.
constexpr int kReservedSmemPerBlock = 1024;  // The system takes these bytes from each block's share of the SM.
constexpr int kMaxWarps = 16;
constexpr int kMaxBlocksPerSm = 32;

// Besides tiles, registers hold addresses, loop state and temporaries of the softmax and the mask. Compiled schedules
// show that spills are rare with so many of them [M49]. The compile log shows a kernel that spills, and it is passed
// over.
constexpr int kBaseRegisters = 35;

// Returns the number of k-steps of Q K^T that are unrolled: about four, and a divisor of the steps, because the
// remainder of an uneven unrolling costs registers. Fewer do not hide all loads [M50], and more only take compile time.
int default_unroll(int steps) {
  for (const int count : {4, 3, 5, 7, 2}) {
    if (steps % count == 0) return count;
  }
  return std::min(steps, 4);
}

// Returns the depth of a matrix instruction, which takes elements of 16 bits, or of 8.
int depth_of(Family family) { return step_columns(family == &kSyncNarrow ? Element::f8 : Element::f16); }
int steps_of(const AttentionSpec& spec, Family family) {
  const int depth = depth_of(family);
  return round_up(spec.d_qk, depth) / depth;
}

bool refuses_sync_fields(const AttentionSpec& spec, const Schedule& s, std::string* why) {
  const int depth = depth_of(s.family);
  if (*s.warps > kMaxWarps) return refuse(why, "warps: {} is above {}", *s.warps, kMaxWarps);
  if (*s.tile_q % (*s.warps * 16) != 0) {
    return refuse(why, "tile_q: {} is not a multiple of {}, 16 rows for each of {} warps", *s.tile_q, *s.warps * 16,
                  *s.warps);
  }
  if (*s.tile_kv % depth != 0)
    return refuse(why, "tile_kv: {} is not a multiple of {}, the depth of a matrix instruction", *s.tile_kv, depth);
  if (*s.tile_kv > kMaxTileKv) return refuse(why, "tile_kv: {} is above {}", *s.tile_kv, kMaxTileKv);
  if (*s.stages > kMaxStages) return refuse(why, "stages: {} is above {}", *s.stages, kMaxStages);
  if (*s.blocks_per_sm > kMaxBlocksPerSm)
    return refuse(why, "blocks_per_sm: {} is above {}", *s.blocks_per_sm, kMaxBlocksPerSm);
  const int steps = steps_of(spec, s.family);
  if (*s.unroll_d > steps)
    return refuse(why, "unroll_d: {} is above {}, the steps of d={}", *s.unroll_d, steps, spec.d_qk);
  return false;
}

bool refuses_sync_resources(const Problem& problem, const Schedule& s, std::string* why) {
  const Target& target = problem.target;
  const KernelConfig sizes = config_of(problem, s);
  const int smem = sync_layout(sizes).bytes, blocks = *s.blocks_per_sm;
  if (smem > target.smem_per_block) {
    return refuse(
        why, "tile_kv: tiles take {} bytes of shared memory, a block of {} has {}; use smaller tiles or fewer stages",
        smem, target.name, target.smem_per_block);
  }
  if (blocks * (smem + kReservedSmemPerBlock) > target.smem_per_sm) {
    return refuse(why, "blocks_per_sm: {} blocks take {} bytes of shared memory, {} has {}", blocks,
                  blocks * (smem + kReservedSmemPerBlock), target.name, target.smem_per_sm);
  }
  if (blocks * threads_of(sizes) > target.threads_per_sm) {
    return refuse(why, "blocks_per_sm: {} blocks have {} threads, {} runs {}", blocks, blocks * threads_of(sizes),
                  target.name, target.threads_per_sm);
  }
  const auto [needed, budget] = sync_registers(problem, sizes);
  if (needed > budget) {
    return refuse(why, "blocks_per_sm: about {} registers per thread are needed, {} blocks of {} threads leave {}",
                  needed, blocks, threads_of(sizes), budget);
  }
  return false;
}

// A pin of tile_q and warps fixes the rows of a warp. A pin of one of them leaves the rows free.
std::vector<int> rows_choices(const Schedule& pins, int warps) {
  if (pins.tile_q) return {std::max(1, *pins.tile_q / warps)};
  return {16, 32};
}

}  // namespace

bool refuses_sync(const Problem& problem, const Schedule& schedule, std::string* why) {
  return refuses_sync_fields(problem.spec, schedule, why) || refuses_tiles(problem, schedule, why) ||
         refuses_sync_resources(problem, schedule, why);
}

Registers sync_registers(const Problem& problem, const KernelConfig& c) {
  // A 16x8 accumulator tile in fp32 takes 4 registers of a thread, and so does a 16x16 operand of 16-bit elements, or a
  // 16x32 operand of 8 bits.
  const int m_tiles = rows_per_warp(c) / 16;
  const int sums = accumulator_registers(sync_products(c));
  const int query =
      m_tiles * 4 * (c.sync.q_in == QueryStorage::registers ? padded_dim_qk(c) / step_columns(c.element) : 1);
  const int values = c.element == Element::f8 ? 8 : 4;  // The B operands of V that are live at a time.
  const int fragments = values + m_tiles * 4;           // The A operand of P is added while S dies into it.
  const int rows = m_tiles * 4 + (c.max_logit ? m_tiles * 2 : 0);
  const int share = problem.target.registers_per_sm / (threads_of(c) * c.sync.blocks_per_sm);
  return {kBaseRegisters + sums + query + fragments + rows + score_registers(problem.spec),
          std::min(kMaxRegisters, share / kRegisterGranule * kRegisterGranule)};
}

namespace {

void enumerate(Family family, const Problem& problem, const Schedule& pins, std::vector<Schedule>& out) {
  const AttentionSpec& spec = problem.spec;
  Schedule s = pins;
  s.family = family;
  s.unroll_d = pins.unroll_d.value_or(default_unroll(steps_of(spec, family)));
  s.order = pins.order.value_or(TileOrder::natural);
  s.tiles = pins.tiles.value_or(lists_pay(problem) ? TileSource::list : TileSource::range);
  const auto suits = [&](Axis axis, const std::optional<int>& pin, int positions) {
    return pin || *s.tiles != TileSource::list || lies_in_block(problem, axis, positions);
  };
  const auto tiles_kv = family == &kSync ? choices(pins.tile_kv, {16, 32, 48, 64, 80, 96, 112, 128})
                                         : choices(pins.tile_kv, {32, 64, 96, 128}),
             all_stages = choices(pins.stages, {1, 2, 3}), all_blocks = choices(pins.blocks_per_sm, {1, 2, 3});
  const auto storages = choices(pins.q_in, {QueryStorage::shared, QueryStorage::registers});
  constexpr std::size_t kRowsAndWarps = 4;
  out.reserve(kRowsAndWarps * tiles_kv.size() * all_stages.size() * all_blocks.size() * storages.size());
  for (const int warps : choices(pins.warps, {4, 8})) {
    // More warps are refused, and the tile must not leave its range before that.
    const int most_warps = std::min(warps, kMaxWarps);
    for (const int rows : rows_choices(pins, warps)) {
      const bool is_least = pins.warps && rows == 16;  // Some tile must be left, whatever is pinned.
      if (!is_least && !suits(Axis::Queries, pins.tile_q, most_warps * rows)) continue;
      for (const int tile_kv : tiles_kv) {
        if (!suits(Axis::Keys, pins.tile_kv, tile_kv)) continue;
        for (const int stages : all_stages) {
          for (const QueryStorage q_in : storages) {
            for (const int blocks : all_blocks) {
              s.warps = warps;
              s.tile_q = pins.tile_q.value_or(most_warps * rows);
              s.tile_kv = tile_kv;
              s.stages = stages;
              s.q_in = q_in;
              s.blocks_per_sm = blocks;
              out.push_back(s);
            }
          }
        }
      }
    }
  }
}

}  // namespace

void enumerate_sync(const Problem& problem, const Schedule& pins, std::vector<Schedule>& out) {
  enumerate(&kSync, problem, pins, out);
}
void enumerate_sync_narrow(const Problem& problem, const Schedule& pins, std::vector<Schedule>& out) {
  enumerate(&kSyncNarrow, problem, pins, out);
}

}  // namespace flashjit

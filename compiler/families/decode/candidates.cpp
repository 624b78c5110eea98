// Enumerates the decode schedules, and gives the reasons against all others.
#include <algorithm>
#include <bit>

#include "compiler/families/choices.h"
#include "compiler/families/decode/decode.h"
#include "compiler/spec/fields/select.h"

namespace flashjit {

namespace {

constexpr int kMaxRegisters = 255;           // The registers per thread, an encoding limit of every GPU so far.
constexpr int kRegisterGranule = 8;          // Registers are given to warps in eights per thread.
constexpr int kReservedSmemPerBlock = 1024;  // The system takes these bytes from each block's share of the SM.
constexpr int kMaxWarps = 16;
constexpr int kMostTileRows = 32;
// Up to this number of rows decode pays without being asked for. With more than one tile, K and V are read again: from
// L2 where a call has few sequences. Where it has many, the hopper family is faster [M6].
constexpr std::int64_t kMostRows = 4 * kMostTileRows;
// Only decode and sync widen a cache of 8 bits. Blocks of sync have all keys of their rows, and widen them again for
// each tile of these. (2048 rows at 1 x 16k keys take 685 us, and in sync 1245; with a batch of 4 both take equally
// long. More than 540 rows have not been compared.)
constexpr std::int64_t kMostNarrowRows = 32 * kMostTileRows;
std::int64_t most_rows(const AttentionSpec& spec) { return has_scaled_keys(spec) ? kMostNarrowRows : kMostRows; }

// Besides tiles, registers hold addresses, loop state and temporaries of the softmax, and the pieces of a tile that are
// loaded from a ring at a time. Compiled kernels show how many these are [M7].
constexpr int kBaseRegisters = 40, kPieceRegisters = 12;
// With many rows more loads are under way [M8].
constexpr int kManyRowsRegisters = 36;

// At most this number of bytes of a cache of 8 bits is under way in an SM, unless that is pinned: with more it is
// slower [M9].
constexpr std::int64_t kMostBytesInFlight = 128 << 10;
bool is_too_much_in_flight(const AttentionSpec& spec, const Schedule& s, const Schedule& pins) {
  const std::int64_t warps = std::int64_t{*s.blocks_per_sm} * *s.warps;
  return has_scaled_keys(spec) && !pins.stages &&
         warps * *s.stages * *s.tile_kv * (spec.d_qk + spec.d_v) * size_of(spec.kv_dtype) > kMostBytesInFlight;
}

bool refuses_fields(const Problem& problem, const Schedule& s, std::string* why) {
  if (*s.tile_q % kOctet != 0 || *s.tile_q > kMostTileRows)
    return refuse(why,
                  "tile_q: {} is none of 8, 16, 24 and 32, whole matrix instructions for which a warp has registers",
                  *s.tile_q);
  if (*s.tile_kv != 16 && *s.tile_kv != 32)
    return refuse(why, "tile_kv: {} is neither 16 nor 32, which a warp reads at a time", *s.tile_kv);
  if (problem.spec.numerics == Numerics::BatchInvariant && !std::has_single_bit(static_cast<unsigned>(*s.warps)))
    return refuse(why, "warps: {} is no power of two, as the parts of numerics=batch_invariant are", *s.warps);
  if (has_many_rows(config_of(problem, s))) {
    if (*s.stages == 1)
      return refuse(why, "stages: with 1 tiles go to registers, of which {} rows leave too few; use 2 or more",
                    *s.tile_q);
    if (*s.copies == Copies::boxes)
      return refuse(why, "copies: {} rows have their parts in the rings that boxes go to; use copies=rows", *s.tile_q);
    if (problem.spec.numerics == Numerics::BatchInvariant)
      return refuse(why, "tile_q: {} rows have no room for the parts of numerics=batch_invariant; use {}", *s.tile_q,
                    problem.spec.d_qk > most_dim_of_pair(has_scaled_keys(problem.spec)) ? kOctet : 2 * kOctet);
  }
  if (merged_queries(problem.spec) > 0) {
    if (*s.stages == 1)
      return refuse(why, "stages: rows that no query of a merged list sees become zeros in a ring; use 2 or more");
    if (problem.spec.page_size % *s.tile_kv != 0)
      return refuse(why, "tile_kv: {} keys lie in several pages of {}, and a tile of a merged list in one; use 16",
                    *s.tile_kv, problem.spec.page_size);
  }
  if (*s.warps > kMaxWarps) return refuse(why, "warps: {} is above {}", *s.warps, kMaxWarps);
  if (*s.stages > kMaxStages) return refuse(why, "stages: {} is above {}", *s.stages, kMaxStages);
  if (keys_differ_by_head(problem))
    return refuse(
        why, "family: decode has one range of keys for all heads of a group, and the mask depends on h; use family={}",
        floor_family(true)->name);
  return false;
}

bool refuses_copies(const Problem& problem, const Schedule& s, std::string* why) {
  if (*s.copies == Copies::rows) return false;
  if (!problem.target.can.tma)
    return refuse(why, "copies: {} has no TMA, which copies boxes; use copies=rows", problem.target.name);
  if (*s.stages == 1)
    return refuse(why, "copies: boxes go to rings, and with stages=1 there are none; use copies=rows or stages=2");
  if (selects_keys(problem.spec))
    return refuse(why, "copies: a box has neighbouring rows, and select= any; use copies=rows");
  if (is_paged(problem.spec)) return refuse(why, "copies: a box is no page, and the layout is paged; use copies=rows");
  return false;
}

bool refuses_resources(const Problem& problem, const Schedule& s, std::string* why) {
  const Target& target = problem.target;
  const KernelConfig sizes = config_of(problem, s);
  const int smem = decode_layout(sizes).bytes, blocks = *s.blocks_per_sm, threads = decode_threads(sizes);
  if (smem > target.smem_per_block) {
    return refuse(why, "stages: tiles take {} bytes of shared memory, a block of {} has {}; use fewer warps or stages",
                  smem, target.name, target.smem_per_block);
  }
  if (blocks * (smem + kReservedSmemPerBlock) > target.smem_per_sm) {
    return refuse(why, "blocks_per_sm: {} blocks take {} bytes of shared memory, {} has {}", blocks,
                  blocks * (smem + kReservedSmemPerBlock), target.name, target.smem_per_sm);
  }
  if (target.sm_count * blocks < sides(sizes)) {
    return refuse(why,
                  "blocks_per_sm: {} on each of {} SMs are fewer than the {} heads and row tiles that blocks read "
                  "side by side",
                  blocks, target.sm_count, sides(sizes));
  }
  if (blocks * threads > target.threads_per_sm) {
    return refuse(why, "blocks_per_sm: {} blocks have {} threads, {} runs {}", blocks, blocks * threads, target.name,
                  target.threads_per_sm);
  }
  const auto [needed, budget] = decode_registers(problem, sizes);
  if (needed > budget) {
    return refuse(why, "blocks_per_sm: about {} registers per thread are needed, {} blocks of {} threads leave {}",
                  needed, blocks, threads, budget);
  }
  return false;
}

// Returns the rows of a tile: as few tiles as possible, with no more rows than needed. Tiles of 16 rows are for head
// dims, and numerics, that larger ones are refused for, and tiles of 8 rows for those that 16 are refused for.
std::vector<int> row_choices(const Problem& problem, const Schedule& pins) {
  if (pins.tile_q) return {*pins.tile_q};
  const AttentionSpec& spec = problem.spec;
  const std::int64_t group = spec.heads_q / spec.heads_kv, most = most_rows(spec) / group;
  const int rows = static_cast<int>(std::min(problem.queries, std::max<std::int64_t>(most, 1)) * group);
  if (rows <= kOctet) return {kOctet};
  const int tiles = (rows + kMostTileRows - 1) / kMostTileRows;
  std::vector<int> choices = {2 * kOctet};
  if (rows > 2 * kOctet) choices.insert(choices.begin(), round_up((rows + tiles - 1) / tiles, kOctet));
  if (spec.d_qk > most_dim_of_pair(has_scaled_keys(spec))) choices.push_back(kOctet);
  return choices;
}

void enumerate_tiles(const Problem& problem, int tile_q, const Schedule& pins, std::vector<Schedule>& out) {
  Schedule s = pins;
  s.family = &kDecode;
  s.tile_q = tile_q;
  for (const int tile_kv : choices(pins.tile_kv, {16, 32})) {
    for (const int warps : choices(pins.warps, {8, 4, 2})) {
      for (const int stages : choices(pins.stages, {1, 2, 3, 4})) {
        for (const int blocks : choices(pins.blocks_per_sm, {1, 2, 3})) {
          s.tile_kv = tile_kv;
          s.warps = warps;
          s.stages = stages;
          s.blocks_per_sm = blocks;
          if (stages > 1 && is_too_much_in_flight(problem.spec, s, pins)) continue;
          for (const Copies copies : choices(pins.copies, {Copies::rows, Copies::boxes})) {
            s.copies = copies;
            out.push_back(s);
          }
        }
      }
    }
  }
}

}  // namespace

std::string why_not_decode(const AttentionSpec& spec, const Target& target) {
  const std::string_view other = floor_family(target.gpu)->name;
  if (spec.align_bytes < 16) {
    return fmt::format(
        "family: decode reads 16 bytes at a time, and the spec has bytes={}; align pointers and strides to 16, or use "
        "family={}",
        spec.align_bytes, other);
  }
  if (spec.d_qk > kMaxHeadDim || spec.d_v > kMaxHeadDim)
    return fmt::format("family: decode has registers for head dims up to {}, and the spec has d={}/{}; use family={}",
                       kMaxHeadDim, spec.d_qk, spec.d_v, other);
  if (has_scaled_keys(spec) && (spec.d_qk % 16 != 0 || spec.d_v % 16 != 0)) {
    return fmt::format(
        "family: decode reads 16 bytes of a row at a time, and of kv={} d={}/{} is no multiple of 16; use family={}",
        name(spec.kv_dtype), spec.d_qk, spec.d_v, other);
  }
  return {};
}

bool refuses_decode(const Problem& problem, const Schedule& schedule, std::string* why) {
  return refuses_fields(problem, schedule, why) || refuses_copies(problem, schedule, why) ||
         refuses_resources(problem, schedule, why);
}

Registers decode_registers(const Problem& problem, const KernelConfig& c) {
  const int output = value_pieces(c) * value_products(c) * 4 * octets(c), scores = c.tile_kv / 2 * row_pairs(c);
  // With many rows, registers hold only a piece of 16 bytes of each octet.
  const int queries = (has_many_rows(c) ? 4 : key_pieces(c) * key_products(c) * 2) * octets(c);
  const int more = has_many_rows(c) ? kManyRowsRegisters + (has_key_scales(c) ? c.tile_kv / 2 : 0) : 0;
  // Tiles wait in registers, or pass through them piece by piece.
  const int tiles =
      has_ring(c) ? kPieceRegisters : c.tile_kv / 8 * key_pieces(c) * 4 + c.tile_kv / 16 * value_pieces(c) * 16;
  const int share = problem.target.registers_per_sm / (decode_threads(c) * c.decode.blocks_per_sm);
  return {kBaseRegisters + output + scores + queries + more + tiles + score_registers(problem.spec),
          std::min(kMaxRegisters, share / kRegisterGranule * kRegisterGranule)};
}

void enumerate_decode(const Problem& problem, const Schedule& pins, std::vector<Schedule>& out) {
  const AttentionSpec& spec = problem.spec;
  const std::int64_t group = spec.heads_q / spec.heads_kv;
  if (problem.queries > most_rows(spec) / group && !pins.family) return;
  for (const int tile_q : row_choices(problem, pins)) enumerate_tiles(problem, tile_q, pins, out);
}
}  // namespace flashjit

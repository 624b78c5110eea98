// Which decode schedules exist, and why the others do not.
#include <algorithm>
#include <bit>

#include "compiler/families/choices.h"
#include "compiler/families/decode/decode.h"

namespace flashjit {

namespace {

constexpr int kMaxRegisters = 255;           // per thread, an encoding limit of every GPU so far
constexpr int kRegisterGranule = 8;          // registers are given to warps in eights per thread
constexpr int kReservedSmemPerBlock = 1024;  // taken by the system from each block's share of the SM
constexpr int kMaxWarps = 16;
// Rows that pay without being asked for: with more tiles than one K and V are read more than once.
constexpr std::int64_t kMostRows = 16;

// Registers besides tiles: addresses, loop state, temporaries of the softmax; and the pieces of a tile that are on their
// way from a ring at a time. Compiled for sm_80 and sm_90a with d=64..256 (NVRTC 13.0, 2026-11-23).
constexpr int kBaseRegisters = 40, kPieceRegisters = 12;

// What an SM has under way of a cache of 8 bits, at most, unless it is pinned: with 192 KB 64 x 8192 keys took 277 us in
// pages and 267 in one piece, with 128 KB 266 to 270 and 261 to 265 (H200, 2026-11-23).
constexpr std::int64_t kMostBytesInFlight = 128 << 10;
bool is_too_much_in_flight(const AttentionSpec& spec, const Schedule& s, const Schedule& pins) {
  const std::int64_t warps = std::int64_t{*s.blocks_per_sm} * *s.warps;
  return has_scaled_keys(spec) && !pins.stages &&
         warps * *s.stages * *s.tile_kv * (spec.d_qk + spec.d_v) * size_of(spec.kv_dtype) > kMostBytesInFlight;
}

bool refuses_fields(const Problem& problem, const Schedule& s, std::string* why) {
  if (*s.tile_q != 8 && *s.tile_q != 16)
    return refuse(why, "tile_q: {} is neither 8 nor 16, the rows of a matrix instruction", *s.tile_q);
  if (*s.tile_kv != 16 && *s.tile_kv != 32)
    return refuse(why, "tile_kv: {} is neither 16 nor 32, which a warp reads at a time", *s.tile_kv);
  if (problem.spec.numerics == Numerics::BatchInvariant && !std::has_single_bit(static_cast<unsigned>(*s.warps)))
    return refuse(why, "warps: {} is no power of two, as the parts of numerics=batch_invariant are", *s.warps);
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
  if (target.sm_count * blocks < heads_side_by_side(sizes)) {
    return refuse(why, "blocks_per_sm: {} on each of {} SMs are fewer than the {} heads that blocks read side by side",
                  blocks, target.sm_count, heads_side_by_side(sizes));
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
  const int output = value_pieces(c) * value_products(c) * 4 * octets(c), scores = c.tile_kv / 2;
  const int queries = key_pieces(c) * key_products(c) * 2 * octets(c);
  // Tiles wait in registers, or pass through them piece by piece.
  const int tiles =
      has_ring(c) ? kPieceRegisters : c.tile_kv / 8 * key_pieces(c) * 4 + c.tile_kv / 16 * value_pieces(c) * 16;
  const int share = problem.target.registers_per_sm / (decode_threads(c) * c.blocks_per_sm);
  return {kBaseRegisters + output + scores + queries + tiles + score_registers(problem.spec),
          std::min(kMaxRegisters, share / kRegisterGranule * kRegisterGranule)};
}

void enumerate_decode(const Problem& problem, const Schedule& pins, std::vector<Schedule>& out) {
  const AttentionSpec& spec = problem.spec;
  const std::int64_t group = spec.heads_q / spec.heads_kv;
  if (spec.q_len.max > kMostRows / group && !pins.family) return;
  Schedule s = pins;
  s.family = &kDecode;
  s.tile_q = pins.tile_q.value_or(spec.q_len.max <= 8 / group ? 8 : 16);
  for (const int tile_kv : choices(pins.tile_kv, {16, 32})) {
    for (const int warps : choices(pins.warps, {8, 4, 2})) {
      for (const int stages : choices(pins.stages, {1, 2, 3, 4})) {
        for (const int blocks : choices(pins.blocks_per_sm, {1, 2, 3})) {
          s.tile_kv = tile_kv;
          s.warps = warps;
          s.stages = stages;
          s.blocks_per_sm = blocks;
          if (stages > 1 && is_too_much_in_flight(spec, s, pins)) continue;
          for (const Copies copies : choices(pins.copies, {Copies::rows, Copies::boxes})) {
            s.copies = copies;
            out.push_back(s);
          }
        }
      }
    }
  }
}

}  // namespace flashjit

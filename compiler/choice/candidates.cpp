#include "compiler/choice/candidates.h"

#include <algorithm>
#include <initializer_list>

#include <fmt/format.h>

#include "compiler/families/hopper/candidates.h"
#include "compiler/analysis/score_inputs.h"

namespace flashjit {

namespace {

constexpr int kMaxRegisters = 255;           // per thread, an encoding limit of every GPU so far
constexpr int kRegisterGranule = 8;          // registers are given to warps in eights per thread
constexpr int kReservedSmemPerBlock = 1024;  // taken by the system from each block's share of the SM
constexpr int kMaxStages = 8;
constexpr int kMaxWarps = 16;
constexpr int kMaxBlocksPerSm = 32;
constexpr int kMaxTileKv = 256;
constexpr int kMaxHostTile = 4096;

// Registers besides tiles: addresses, loop state, temporaries of the softmax and the mask. From compiling schedules of
// d=32..256 with and without a causal mask (NVRTC 13.0, sm_90a, 2026-11-21): with S and O of up to 192 registers
// together spills are rare and a few bytes, with 208 they are common. What spills is found in the compile log and
// passed over.
constexpr int kBaseRegisters = 35;
constexpr int kLoadingScoreRegisters = 60;  // addresses and values of a score that reads a tensor for every key

// How many k-steps of Q K^T are unrolled: a divisor of the steps, because the remainder of an uneven unrolling costs
// registers, and about four of them: that hides the loads (2 costs 2 to 4 %, H200, 2026-11-21), and more is only
// compile time.
int default_unroll(int steps) {
  for (const int part : {4, 3, 5, 7, 2}) {
    if (steps % part == 0) return part;
  }
  return std::min(steps, 4);
}

bool refuses_host(const Schedule& s, std::string* why) {
  if (*s.tile_q > kMaxHostTile) return refuse(why, "tile_q: {} is above {}", *s.tile_q, kMaxHostTile);
  if (*s.tile_kv > kMaxHostTile) return refuse(why, "tile_kv: {} is above {}", *s.tile_kv, kMaxHostTile);
  if (*s.tile_kv % 16 != 0) return refuse(why, "tile_kv: {} is not a multiple of 16, the widest vector", *s.tile_kv);
  return false;
}

bool refuses_sync_fields(const AttentionSpec& spec, const Schedule& s, std::string* why) {
  if (*s.warps > kMaxWarps) return refuse(why, "warps: {} is above {}", *s.warps, kMaxWarps);
  if (*s.tile_q % (*s.warps * 16) != 0) {
    return refuse(why, "tile_q: {} is not a multiple of {}, 16 rows for each of {} warps", *s.tile_q, *s.warps * 16,
                  *s.warps);
  }
  if (*s.tile_kv % 16 != 0)
    return refuse(why, "tile_kv: {} is not a multiple of 16, the depth of a matrix instruction", *s.tile_kv);
  if (*s.tile_kv > kMaxTileKv) return refuse(why, "tile_kv: {} is above {}", *s.tile_kv, kMaxTileKv);
  if (*s.stages > kMaxStages) return refuse(why, "stages: {} is above {}", *s.stages, kMaxStages);
  if (*s.blocks_per_sm > kMaxBlocksPerSm)
    return refuse(why, "blocks_per_sm: {} is above {}", *s.blocks_per_sm, kMaxBlocksPerSm);
  const int steps = round_up(spec.d_qk, 16) / 16;
  if (*s.unroll_d > steps)
    return refuse(why, "unroll_d: {} is above {}, the steps of d={}", *s.unroll_d, steps, spec.d_qk);
  return false;
}

bool refuses_sync_resources(const AttentionSpec& spec, const Target& target, const Schedule& s, std::string* why) {
  const KernelConfig sizes = sizes_of(spec, s);
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
  const int needed = estimated_registers(spec, sizes), budget = register_budget(target, sizes);
  if (needed > budget) {
    return refuse(why, "blocks_per_sm: about {} registers per thread are needed, {} blocks of {} threads leave {}",
                  needed, blocks, threads_of(sizes), budget);
  }
  return false;
}

template <class T>
std::vector<T> choices(const std::optional<T>& pin, std::initializer_list<T> values) {
  return pin ? std::vector<T>{*pin} : std::vector<T>(values);
}

// A pinned family is wanted, otherwise every one that has all pinned fields.
bool wanted(Family family, const Schedule& pins) {
  return pins.family ? *pins.family == family : foreign_field(pins, family).empty();
}

// Rows per query tile for the host: no taller than the queries there can be, so that short queries waste nothing.
std::vector<int> host_query_tiles(const AttentionSpec& spec, const Schedule& pins) {
  if (pins.tile_q) return {*pins.tile_q};
  for (const int rows : {1, 4, 16, 32}) {
    if (spec.q_len.max <= rows) return {rows};
  }
  return {64, 128, 256};
}

void enumerate_host(const AttentionSpec& spec, const Schedule& pins, std::vector<Schedule>& out) {
  for (const int tile_q : host_query_tiles(spec, pins)) {
    for (const int tile_kv : choices(pins.tile_kv, {256, 512})) {
      Schedule s = pins;
      s.family = Family::Host;
      s.tile_q = tile_q;
      s.tile_kv = tile_kv;
      out.push_back(s);
    }
  }
}

// Pinning tile_q and warps pins the rows of a warp; pinning one of them leaves the rows free.
std::vector<int> rows_choices(const Schedule& pins, int warps) {
  if (pins.tile_q) return {std::max(1, *pins.tile_q / warps)};
  return {16, 32};
}

void enumerate_sync(const AttentionSpec& spec, const Schedule& pins, std::vector<Schedule>& out) {
  Schedule s = pins;
  s.family = Family::Sync;
  s.unroll_d = pins.unroll_d.value_or(default_unroll(round_up(spec.d_qk, 16) / 16));
  s.order = pins.order.value_or(TileOrder::Natural);
  const auto tiles_kv = choices(pins.tile_kv, {16, 32, 48, 64, 80, 96, 112, 128}),
             all_stages = choices(pins.stages, {1, 2, 3}), all_blocks = choices(pins.blocks_per_sm, {1, 2, 3});
  const auto places = choices(pins.q_in, {QueryPlace::Shared, QueryPlace::Registers});
  constexpr std::size_t kRowsAndWarps = 4;
  out.reserve(kRowsAndWarps * tiles_kv.size() * all_stages.size() * all_blocks.size() * places.size());
  for (const int warps : choices(pins.warps, {4, 8})) {
    const int most_warps =
        std::min(warps, kMaxWarps);  // more are refused, and the tile must not leave its range before that
    for (const int rows : rows_choices(pins, warps)) {
      for (const int tile_kv : tiles_kv) {
        for (const int stages : all_stages) {
          for (const QueryPlace q_in : places) {
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

KernelConfig sizes_of(const AttentionSpec& spec, const Schedule& schedule) {
  KernelConfig c;
  c.loop = schedule.family == Family::Hopper ? Loop::hopper : Loop::sync;
  c.head_dim_qk = spec.d_qk;
  c.head_dim_v = spec.d_v;
  c.heads_q = spec.heads_q;
  c.heads_kv = spec.heads_kv;
  c.tile_q = *schedule.tile_q;
  c.tile_kv = *schedule.tile_kv;
  c.warps = schedule.warps.value_or(0);
  c.stages = schedule.stages.value_or(1);
  c.q_in_registers = schedule.q_in == QueryPlace::Registers;
  c.blocks_per_sm = schedule.blocks_per_sm.value_or(1);
  c.unroll_d = schedule.unroll_d.value_or(0);
  c.warpgroups = schedule.warpgroups.value_or(0);
  c.q_stages = schedule.q_stages.value_or(1);
  c.overlap = schedule.overlap == Overlap::QkPv;
  c.sum_in_matrix = schedule.row_sum == RowSum::Matrix;
  if (spec.out_dtype == Dtype::F32) c.output = Element::f32;  // decides how O is stored
  c.cluster = schedule.cluster.value_or(1);
  c.pack_heads = schedule.heads == HeadTiles::Packed;
  c.reference = schedule.reference == SoftmaxReference::First      ? Reference::first
                : schedule.reference == SoftmaxReference::Previous ? Reference::previous
                                                                   : Reference::tile;
  if (c.loop == Loop::hopper) set_inputs(spec, c);
  return c;
}

// They are read 32 keys at a time. With the reference of the tile before, logits are computed before they are
// exponentiated, and rows of several heads in a tile are no box of such a tensor: the score function reads memory then.
void set_inputs(const AttentionSpec& spec, KernelConfig& c) {
  if (!spec.score || c.tile_kv % 32 != 0 || c.reference == Reference::previous || c.pack_heads) return;
  for (const Expr& input : score_inputs(spec.score)) {
    const auto i = std::find(spec.params.begin(), spec.params.end(), input->param) - spec.params.begin();
    (size_of(input->param.dtype) == 2 ? c.inputs_16 : c.inputs_32) |= 1 << i;
    if (query_index(input) < 0) continue;
    c.inputs_q |= 1 << i;
    c.inputs_of_batches |= !uses(input, Variable::B);
  }
}

int queries_together(const KernelConfig& c) { return queries_per_tile(c) * c.cluster; }

bool loads_per_key(const Expr& expr) {
  if (!expr) return false;
  if (expr->op == Op::Load) return uses(expr, Variable::K);
  return std::ranges::any_of(expr->args, loads_per_key);
}

int score_registers(const AttentionSpec& spec) { return loads_per_key(spec.score) ? kLoadingScoreRegisters : 0; }

int estimated_registers(const AttentionSpec& spec, const KernelConfig& c) {
  if (c.loop == Loop::hopper) return hopper_registers(spec, c);
  // A 16x8 fp32 accumulator tile is 4 registers per thread, a 16x16 operand of 16-bit elements too.
  const int m_tiles = rows_per_warp(c) / 16;
  const int scores = m_tiles * c.tile_kv / 2;
  const int output = m_tiles * padded_dim_v(c) / 2;
  const int query = c.q_in_registers ? m_tiles * padded_dim_qk(c) / 4 : m_tiles * 4;
  const int fragments = 4 + m_tiles * 4;  // one B operand, and A of P while S dies into it
  const int rows = m_tiles * 4 + (spec.max_logit ? m_tiles * 2 : 0);
  return kBaseRegisters + scores + output + query + fragments + rows + score_registers(spec);
}

int register_budget(const Target& target, const KernelConfig& c) {
  if (c.loop == Loop::hopper) return consumer_registers(c);
  const int share = target.registers_per_sm / (threads_of(c) * c.blocks_per_sm);
  return std::min(kMaxRegisters, share / kRegisterGranule * kRegisterGranule);
}

int spare_registers(const AttentionSpec& spec, const Target& target, const Schedule& schedule) {
  const KernelConfig sizes = sizes_of(spec, schedule);
  return register_budget(target, sizes) - estimated_registers(spec, sizes);
}

std::string why_not_family(Family family, const AttentionSpec& spec, const Target& target) {
  if (target.gpu != (family != Family::Host)) {
    return fmt::format("family: {} does not run on {}; use family={}", name(family), target.name,
                       name(target.gpu ? Family::Sync : Family::Host));
  }
  if (family != Family::Hopper) return {};
  if (!target.can.wgmma || !target.can.tma)
    return fmt::format("family: hopper needs WGMMA and TMA, which {} does not have; use family=sync", target.name);
  if (spec.align_bytes < 16) {
    return fmt::format(
        "family: hopper copies by TMA, which needs pointers and strides that are multiples of 16 bytes, and the spec "
        "has bytes={}; align the inputs, or use family=sync",
        spec.align_bytes);
  }
  return {};
}

namespace {

// For a family that runs here and a schedule that is complete.
bool refuses_choices(const AttentionSpec& spec, const Target& target, const Schedule& s, std::string* why) {
  switch (*s.family) {
    case Family::Host: return refuses_host(s, why);
    case Family::Hopper: return refuses_hopper(spec, target, s, why);
    case Family::Sync: break;
  }
  return refuses_sync_fields(spec, s, why) || refuses_sync_resources(spec, target, s, why);
}

}  // namespace

std::string why_illegal(const AttentionSpec& spec, const Target& target, const Schedule& s) {
  if (!s.family) return "family: is not set";
  if (std::string why = why_not_family(*s.family, spec, target); !why.empty()) return why;
  if (const std::string_view field = foreign_field(s, *s.family); !field.empty()) {
    return fmt::format("{}: {} schedules have no such field, only {}; remove it", field, name(*s.family),
                       fields_of(*s.family));
  }
  if (const std::string_view field = missing_field(s, *s.family); !field.empty()) {
    return fmt::format("{}: is not set; a complete {} schedule has {}", field, name(*s.family), fields_of(*s.family));
  }
  if (std::string why = outside_range(s); !why.empty()) return why;
  std::string why;
  refuses_choices(spec, target, s, &why);
  return why;
}

bool is_legal(const AttentionSpec& spec, const Target& target, const Schedule& s) {
  return s.family && is_complete(s, *s.family) && why_not_family(*s.family, spec, target).empty() &&
         !refuses_choices(spec, target, s, nullptr);
}

std::vector<Schedule> enumerate_schedules(const AttentionSpec& spec, const Target& target, const Schedule& pins) {
  std::vector<Schedule> out;
  const auto can = [&](Family family) { return why_not_family(family, spec, target).empty(); };
  for (const Family family : {Family::Sync, Family::Host, Family::Hopper}) {
    // What cannot run is still listed when it is asked for: why_illegal then says why.
    if (!wanted(family, pins) || !(can(family) || pins.family)) continue;
    if (family == Family::Sync) enumerate_sync(spec, pins, out);
    if (family == Family::Host) enumerate_host(spec, pins, out);
    if (family == Family::Hopper) enumerate_hopper(spec, target, pins, out);
  }
  if (!out.empty()) return out;
  // The pins fit no family that runs here: the one that runs everything says which of them it lacks.
  if (target.gpu) {
    enumerate_sync(spec, pins, out);
  } else {
    enumerate_host(spec, pins, out);
  }
  return out;
}

}  // namespace flashjit

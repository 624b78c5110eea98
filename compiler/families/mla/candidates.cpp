// Enumerates the mla schedules, and gives the reasons against all others.
#include <algorithm>

#include "compiler/families/choices.h"
#include "compiler/families/mla/mla.h"

namespace flashjit {

namespace {

constexpr int kMostLatentV = 512;  // The columns of V: two warpgroups have registers for 256 each.
constexpr int kPageStep = 8;       // The swizzle of shared memory repeats after these rows.
constexpr int kGatheredColumns = 64;
constexpr int kMostCluster = 2;  // The blocks of a cluster, with 64 rows each.
// Besides tiles, registers hold addresses, loop state and temporaries of the softmax. Compiled kernels show how many
// these are [M47].
constexpr int kBaseRegisters = 40, kLeastBaseRegisters = 32;

}  // namespace

std::string why_not_mla(const AttentionSpec& spec, const Target& target) {
  const std::string_view other = floor_family(target.gpu)->name;
  if (!target.can.wgmma || !target.can.tma)
    return fmt::format("family: mla needs WGMMA and TMA, which {} does not have; use family={}", target.name, other);
  const bool has_halves = spec.d_v % kLeastLatentV == 0 && spec.d_v <= kMostLatentV;
  if (!spec.v_in_k || spec.heads_kv != 1 || !has_halves || spec.d_qk <= kMaxHeadDim) {
    return fmt::format(
        "family: mla is for v_in_k with one KV head, more than {} columns of K, and {} or {} of V, as d=576/512, and the "
        "spec has d={}/{} with {} KV heads{}; use family={}",
        kMaxHeadDim, kLeastLatentV, kMostLatentV, spec.d_qk, spec.d_v, spec.heads_kv,
        spec.v_in_k ? "" : " and no v_in_k", other);
  }
  if (spec.align_bytes < 16) {
    return fmt::format(
        "family: mla copies by TMA, which needs pointers and strides that are multiples of 16 bytes, and the spec has "
        "bytes={}; align the inputs, or use family={}",
        spec.align_bytes, other);
  }
  const bool is_narrow = has_scaled_queries(spec);
  if (is_narrow && (selects(spec) || spec.token_scales || spec.scale_block > 0)) {
    return fmt::format(
        "family: mla multiplies 8 bits with one scale of all keys of a sequence, as they lie in memory, and the "
        "spec has {}; use family={}",
        selects(spec) ? "select" : "scales of keys or blocks", other);
  }
  if (is_narrow && (spec.d_v != kMostLatentV || spec.d_qk - spec.d_v != kGatheredColumns)) {
    return fmt::format(
        "family: mla multiplies 8 bits with d={}/{} alone, and the spec has d={}/{}; use kv={} with a dtype of 16 bits, "
        "or family={}",
        kMostLatentV + kGatheredColumns, kMostLatentV, spec.d_qk, spec.d_v, name(spec.kv_dtype), other);
  }
  const bool gathers = (has_scaled_keys(spec) && !is_narrow) || has_latent_rows(spec) || selects(spec);
  if (gathers && spec.d_qk % kGatheredColumns != 0) {
    return fmt::format("family: mla gathers K by {} columns, and the spec has d={}/{}; use family={}", kGatheredColumns,
                       spec.d_qk, spec.d_v, other);
  }
  if (gathers && has_scaled_keys(spec) && spec.d_qk - spec.d_v > kGatheredColumns) {
    return fmt::format(
        "family: mla holds at most {} columns of 8 bits behind V, and the spec has d={}/{}; use family={}",
        kGatheredColumns, spec.d_qk, spec.d_v, other);
  }
  if (!gathers && spec.page_size % kPageStep != 0) {
    return fmt::format("family: mla copies {} rows of a page at a time, and pages have {}; use family={}", kPageStep,
                       spec.page_size, other);
  }
  return {};
}

void enumerate_mla(const Problem&, const Schedule& pins, std::vector<Schedule>& out) {
  Schedule s = pins;
  s.family = &kMla;
  for (const int tile_q : choices(pins.tile_q, {kMlaRows, kMostCluster * kMlaRows})) {
    s.tile_q = tile_q;
    out.push_back(s);
  }
}

bool refuses_mla(const Problem& problem, const Schedule& s, std::string* why) {
  if (*s.tile_q != kMlaRows && *s.tile_q != kMostCluster * kMlaRows) {
    return refuse(why, "tile_q: {} is neither {}, the rows of a block, nor {}, those of a cluster", *s.tile_q, kMlaRows,
                  kMostCluster * kMlaRows);
  }
  if (keys_differ_by_head(problem)) {
    return refuse(why, "family: mla has one range of keys for all heads, and the mask depends on h; use family={}",
                  floor_family(true)->name);
  }
  const KernelConfig c = config_of(problem, s);
  if (copies_rows(c) && c.decode.cluster > 1) {
    return refuse(why,
                  "tile_q: {} is that of a cluster, and rows of 16 bits that queries choose come to each block by "
                  "themselves; use tile_q={}",
                  *s.tile_q, kMlaRows);
  }
  const auto [needed, budget] = mla_registers(problem, c);
  if (needed > budget) {
    return refuse(
        why, "family: mla has {} registers per thread, and with what the score reads needs about {}; use family={}",
        budget, needed, floor_family(true)->name);
  }
  return false;
}

Registers mla_registers(const Problem& problem, const KernelConfig& c) {
  const int base = gathers_keys(c) || multiplies_narrow(c) ? kLeastBaseRegisters : kBaseRegisters;
  // Two products of P V may have registers of their own, when scores and weights are gone.
  const int scores = kMlaKeys / 2 + kMlaKeys * size_of(c.element) / 8 + score_registers(problem.spec);
  return {base + half_columns(c) / 2 + std::max(scores, multiplies_narrow(c) ? kMlaProductColumns : 0),
          mla_consumer_registers(c)};
}

}  // namespace flashjit

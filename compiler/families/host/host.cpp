#include "compiler/families/host/host.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "compiler/choice/cost_common.h"
#include "compiler/families/choices.h"
#include "compiler/families/pass_common.h"
#include "compiler/plan.h"

namespace flashjit {

namespace {

constexpr int kMaxHostTile = 4096;
constexpr double kHostChunks = 8;  // The chunks of keys whose gradients are summed.

std::string why_not(const AttentionSpec&, const Target&) { return {}; }

bool refuses_host(const Problem&, const Schedule& s, std::string* why) {
  if (*s.tile_q > kMaxHostTile) return refuse(why, "tile_q: {} is above {}", *s.tile_q, kMaxHostTile);
  if (*s.tile_kv > kMaxHostTile) return refuse(why, "tile_kv: {} is above {}", *s.tile_kv, kMaxHostTile);
  if (*s.tile_kv % 16 != 0) return refuse(why, "tile_kv: {} is not a multiple of 16, the widest vector", *s.tile_kv);
  return false;
}

std::vector<int> host_query_tiles(const AttentionSpec& spec, const Schedule& pins) {
  if (pins.tile_q) return {*pins.tile_q};
  for (const int rows : {1, 4, 16, 32}) {
    if (spec.q_len.max <= rows) return {rows};
  }
  if (is_backward(spec)) return {64};
  return {64, 128, 256};
}

// Smaller tiles of backward give more items, and their gradients stay in L2.
std::vector<int> host_key_tiles(const AttentionSpec& spec, const Schedule& pins) {
  return is_backward(spec) ? choices(pins.tile_kv, {128, 256}) : choices(pins.tile_kv, {256, 512});
}

void enumerate_host(const Problem& problem, const Schedule& pins, std::vector<Schedule>& out) {
  for (const int tile_q : host_query_tiles(problem.spec, pins)) {
    for (const int tile_kv : host_key_tiles(problem.spec, pins)) {
      Schedule s = pins;
      s.family = &kHost;
      s.tile_q = tile_q;
      s.tile_kv = tile_kv;
      out.push_back(s);
    }
  }
}

void configure(const Problem&, const Schedule&, KernelConfig& c) { c.reference = Reference::tile; }

// LLVM spills when registers do not suffice, which seldom matters.
Registers registers(const Problem&, const KernelConfig&) { return {}; }

Prediction predict_host(const Problem& problem, const Schedule& s, const Shape& shape, const Work& work) {
  const AttentionSpec& spec = problem.spec;
  const Target& target = problem.target;
  constexpr double kFmaShare = 0.6;         // The share of the peak that products of this size reach in L1 and L2.
  constexpr double kTileNanoseconds = 300;  // Loop heads and row state of each pair of tiles.
  const double query_tiles = std::ceil(static_cast<double>(shape.q_len) / *s.tile_q);
  const double query_items = static_cast<double>(shape.b) * spec.heads_q * query_tiles;
  // An item of backward is a chunk of keys with all queries.
  const double key_tiles = std::ceil(static_cast<double>(shape.k_len) / *s.tile_kv);
  const double items =
      is_backward(spec) ? static_cast<double>(shape.b) * spec.heads_kv * std::min(kHostChunks, key_tiles) : query_items;
  const double cores = std::min<double>(target.sm_count, std::max(1.0, items));
  const double tiles = query_items * work.kv_tiles;
  const double scores = tiles * std::min<double>(*s.tile_q, static_cast<double>(shape.q_len)) * *s.tile_kv;
  const double clocks_per_us = target.clock_ghz * 1e3;
  const double products = is_backward(spec) ? 3 * spec.d_qk + 2 * spec.d_v : spec.d_qk + spec.d_v;
  // K, V, the scores and O of an item should stay in L2.
  const double scratch = *s.tile_kv * products * 4.0 + *s.tile_q * (*s.tile_kv + spec.d_v) * 4.0;
  const double spill = std::max(1.0, scratch / (target.l2_mb * 1e6 * 0.75));
  Prediction p;
  p.waves = items / cores;
  p.mma = 2 * scores * products / (target.mma_flops_per_clock * kFmaShare) * spill / clocks_per_us / cores;
  p.exp = scores / target.exp_per_clock / clocks_per_us / cores;
  p.issue = scores * (kSoftmaxSlots + score_slots(work) + mask_slots(work, 0)) * 32 / target.vector_bits /
            clocks_per_us / cores;
  p.compute = (p.mma + p.exp + p.issue + tiles * kTileNanoseconds * 1e-3 / cores) * std::ceil(p.waves) / p.waves;
  p.memory = unique_bytes(spec, shape) / (target.memory_tbs * 1e6);
  p.latency = 5;
  p.total = std::max(p.compute, p.memory) + p.latency;
  return p;
}

double matrix_rate(const Target& target) { return target.mma_flops_per_clock; }

Result<Program> choose_tiling(Program p, const PassContext& context) {
  if (!is_forward(context.problem.spec)) return p;
  size_tiles(p, context.config, context.problem.spec.d_v);
  return p;
}

constexpr std::array kPasses = {Pass{"choose_tiling", choose_tiling}};

void finish(Plan&) {}

std::string why_rejected(const CompilerFindings&) { return {}; }

std::string describe(const KernelConfig&) { return {}; }

constexpr std::array<std::string_view, 5> kHonoured = {"fn", "when=mixed", "holes", "row", "direction=first_to_last"};

constexpr std::array<std::string_view, 25> kOptions = {
    "accumulate",   "places",     "max_logit", "sink",        "k_lens",      "v_in_k",        "v_transposed",
    "token_scales", "linear_exp", "dlse",      "append",      "rotate",      "shared_prefix", "lse",
    "packed",       "paged",      "narrow_q",  "narrow_kv",   "latent_rows", "scales",        "rope",
    "dropout",      "grads",      "select",    "head_tables",
};

}  // namespace

const FamilyRow kHost = {
    .name = "host",
    .fields = "tile_q tile_kv",
    .gpu = false,
    .computes = [](const AttentionSpec&) { return true; },
    .from_first = true,
    .why_not = why_not,
    .enumerate = enumerate_host,
    .refuses = refuses_host,
    .configure = configure,
    .registers = registers,
    .predict = predict_host,
    .matrix_rate = matrix_rate,
    .passes = kPasses,
    .finish = finish,
    .why_rejected = why_rejected,
    .honoured = kHonoured,
    .options = kOptions,
    .describe = describe,
};

}  // namespace flashjit

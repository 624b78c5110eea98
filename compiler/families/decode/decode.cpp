#include "compiler/families/decode/decode.h"
#include "compiler/families/decode/roles.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "compiler/families/choices.h"
#include "compiler/families/parts.h"
#include "compiler/plan.h"
#include "compiler/spec/fields/select.h"
#include "compiler/spec/text_form.h"

namespace flashjit {

namespace {

constexpr int kMostOfTeam = 8;  // Every GPU with clusters runs clusters of this size.

// Rows of K and V leave L2 first if the call has room for no more than this multiple of L2's size. Where most of L2 has
// been written before, the written lines then stay, and need not be copied out [M18]. Where L2 has been read, this
// changes nothing.
constexpr double kEvictedFirst = 4;

// Where the rows of a token do not lie side by side, few enough heads are read at a time that every SM has a range:
// more heads at a time on fewer SMs are slower [M19].
void spread_heads(const Problem& problem, KernelConfig& c) {
  if (problem.spec.layout != Layout::Bhsd) return;
  while (problem.target.sm_count * c.decode.blocks_per_sm % c.decode.side_by_side != 0) c.decode.side_by_side /= 2;
}

// Returns the number of all row tiles of a KV head, where the spec gives it, and where the tiles of a few heads fit the
// GPU several times.
int row_tiles_at_once(const Problem& problem, const KernelConfig& c) {
  const AttentionSpec& spec = problem.spec;
  const bool is_known = spec.q_len.pinned() || (selects(spec) && c.merged_queries == 0);
  if (!is_known || c.sequences == Sequences::packed || c.decode.fixed_parts) return 1;
  const std::int64_t queries = selects(spec) && c.merged_queries == 0 ? 1 : spec.q_len.max;
  const std::int64_t tiles = (queries * group_size(c) + c.tile_q - 1) / c.tile_q;
  const int blocks = problem.target.sm_count * c.decode.blocks_per_sm;
  return tiles > 1 && tiles * heads_side_by_side(c) * 2 <= blocks ? static_cast<int>(tiles) : 1;
}

void configure(const Problem& problem, const Schedule& s, KernelConfig& c) {
  take(s.warps, c.decode.warps);
  take(s.blocks_per_sm, c.decode.blocks_per_sm);
  take(s.copies, c.decode.copies);
  spread_heads(problem, c);
  c.decode.fixed_parts = problem.spec.numerics == Numerics::BatchInvariant;
  c.merged_queries = merged_queries(problem.spec);
  if (c.merged_queries > 0) c.mask_has_holes = false;  // Every page of a merged list exists.
  c.decode.row_tiles = row_tiles_at_once(problem, c);
  if (problem.target.can.tma && c.decode.copies == Copies::rows)
    c.decode.evict_first_mb = static_cast<int>(kEvictedFirst * problem.target.l2_mb);
  c.reference = Reference::lazy;
  c.ranges_differ = c.has_mask && ranges_differ(problem.tiles);
  c.decode.team = problem.target.can.clusters && c.decode.warps > 1 && !has_many_rows(c) ? kMostOfTeam : 1;
}

double matrix_rate(const Target& target) { return target.mma_flops_per_clock; }

// Teams need no second launch. Whole kernels give the limits of keys up to which teams pay [M20]. With many keys,
// ranges on all SMs are faster than teams on some [M21].
constexpr int kManyKeys = 16384;
TeamRule team_rule(const KernelConfig& c, const Target& target) {
  const double in_flight =
      1.0 * c.stages * c.decode.warps * c.tile_kv * (c.head_dim_qk + c.head_dim_v) * cache_bytes(c);
  const double enough = target.memory_tbs * 1e6 * kLoadUs / in_flight;
  return {.most = c.decode.team,
          .least_keys = c.decode.warps * c.tile_kv,
          .enough_blocks = static_cast<int>(std::ceil(enough)),
          .many_keys = kManyKeys,
          .most_keys = in_flight >= 64 << 10 ? 1024 : 256,
          .most_uneven_keys = 512,
          .even = c.sequences != Sequences::packed && !c.k_lens && c.selected == 0 && !c.ranges_differ};
}

void finish(Plan& plan) {
  const KernelConfig& c = plan.config;
  const bool boxes = c.decode.copies == Copies::boxes;
  const KernelLaunch decode = {
      .entry = "flashjit_decode",
      .threads = decode_threads(c),
      .smem_bytes = decode_layout(c).bytes,
      .grid = decode_grid(c, plan.target),
      .tensor_maps = boxes,
      .buffers = {0},
      .bounds = "flashjit::decode_threads(flashjit::config), flashjit::config.decode.blocks_per_sm",
      .call = boxes ? "decode_segments(params, &maps, parts)" : "decode_segments(params, nullptr, parts)"};
  plan.launches = {
      decode,
      {.entry = "flashjit_combine",
       .threads = kCombineThreads,
       .smem_bytes = kCombineBytes,
       .grid = combine_grid(c, c.decode.fixed_parts ? 8 : std::max(c.decode.blocks_per_sm, kCombineBlocks)),
       .adds_up = true,
       .overlaps = plan.target.can.overlapping_launches,
       .buffers = {0},
       .bounds = "flashjit::kCombineThreads, 1",
       .call = "decode_combine(params, parts)"}};
  if (c.decode.team > 1) {
    KernelLaunch& team = plan.launches.emplace_back(decode);
    team.entry = "flashjit_decode_team";
    team.of_teams = true;
    team.call = boxes ? "decode_share(params, &maps, parts)" : "decode_share(params, nullptr, parts)";
  }
  if (boxes) {
    const RowsForm form = form_of_keys(plan.spec);
    plan.maps = {operand_map(plan.spec, operand("k"), &TensorMaps::k, form, rows_in_a_page(c.tile_kv, c.page_size)),
                 operand_map(plan.spec, operand("v"), &TensorMaps::v, form, rows_in_a_page(c.tile_kv, c.page_size))};
  }
  plan.workspace = {parts_buffer(c, plan.target.sm_count * c.decode.blocks_per_sm)};
}

std::string why_rejected(const CompilerFindings& findings) {
  if (findings.spill_bytes == 0) return {};
  return fmt::format("it would spill {} bytes of registers to memory", findings.spill_bytes);
}

std::string describe(const KernelConfig& c) {
  std::string text = fmt::format("  tiles of {} rows: the {} of a KV head, and their queries\n", c.tile_q,
                                 counted(group_size(c), "query head"));
  if (c.decode.fixed_parts) {
    text += fmt::format("{}; {} warps share one\n", describe_fixed_parts(c), c.decode.warps);
  } else {
    text += fmt::format("  the keys of all sequences are cut into {} for each SM; {} warps share one\n",
                        counted(c.decode.blocks_per_sm, "equal range"), c.decode.warps);
  }
  if (has_ring(c)) {
    text += fmt::format("  each warp has {} of {} keys in flight, {} KB in an SM; {}\n", counted(c.stages, "tile"),
                        c.tile_kv, c.decode.blocks_per_sm * c.decode.warps * decode_layout(c).ring_bytes / 1024,
                        c.decode.copies == Copies::boxes ? "TMA copies them" : "its lanes copy them");
  } else {
    text += fmt::format("  each warp reads {} keys at a time, straight to registers\n", c.tile_kv);
  }
  text += "  a second launch adds up what several blocks have of a row\n";
  if (c.decode.team > 1) {
    text += fmt::format(
        "  where row tiles are as long as each other, or few, clusters of up to {} blocks have one each, and no second "
        "launch\n",
        c.decode.team);
  }
  return text;
}

constexpr std::array<std::string_view, 13> kHonoured = {
    "fn",         "when=mixed", "holes",    "row",           "direction=first_to_last",
    "smem_bytes", "registers",  "copy=tma", "copy=cp.async", "barrier=full",
    "pending",    "tile",       "count",
};

constexpr std::array<std::string_view, 20> kOptions = {
    "accumulate",   "places",     "max_logit", "sink",          "k_lens", "v_in_k",      "v_transposed",
    "token_scales", "linear_exp", "append",    "shared_prefix", "lse",    "packed",      "paged",
    "narrow_q",     "narrow_kv",  "scales",    "rope",          "select", "head_tables",
};

}  // namespace

// The grid has the most tiles that a call may need, because a tile may hold only some heads of a query.
GridRule decode_grid(const KernelConfig& c, const Target& target) {
  const int group = group_size(c);
  return {.queries = std::max(1, c.tile_q / group),
          .keys = c.tile_kv,
          .heads = c.heads_kv * ((group + c.tile_q - 1) / c.tile_q),
          .blocks_per_sm = c.decode.blocks_per_sm,
          .together = sides(c),
          .team = team_rule(c, target)};
}

const FamilyRow kDecode = {
    .name = "decode",
    .summary = "Attention of few queries, split along the keys.",
    .vocabulary = &kDecodeVocabulary,
    .fields = "tile_q tile_kv warps stages blocks_per_sm copies",
    .from_first = true,
    .splits_keys = true,
    .second_choice = "splits the keys among all SMs and is bound by reading them, not by the matrix rate",
    .why_not = why_not_decode,
    .enumerate = enumerate_decode,
    .refuses = refuses_decode,
    .configure = configure,
    .registers = decode_registers,
    .predict = predict_decode,
    .prediction_error = 0.15,
    .matrix_rate = matrix_rate,
    .passes = decode_passes(),
    .finish = finish,
    .why_rejected = why_rejected,
    .honoured = kHonoured,
    .options = kOptions,
    .describe = describe,
};

}  // namespace flashjit

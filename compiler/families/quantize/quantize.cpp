#include "compiler/families/quantize/quantize.h"

#include "compiler/choice/cost_common.h"
#include "compiler/families/choices.h"
#include "compiler/plan.h"
#include "templates/append/layout.h"
#include "templates/latents/rows.h"
#include "templates/quantize/layout.h"

namespace flashjit {

namespace {

// Rows of a block. A warp has 16 of them in registers. Blocks of scales are multiples of one of the two.
constexpr int kRows = 128, kFewRows = 64;

std::string why_not(const AttentionSpec&, const Target&) { return {}; }

int rows_of(const AttentionSpec& spec) { return spec.scale_block % kRows == 0 ? kRows : kFewRows; }

void enumerate(const Problem& problem, const Schedule& pins, std::vector<Schedule>& out) {
  Schedule s = pins;
  s.family = &kQuantize;
  s.tile_q = pins.tile_q.value_or(rows_of(problem.spec));
  out.push_back(s);
}

bool refuses(const Problem& problem, const Schedule& s, std::string* why) {
  const int rows = rows_of(problem.spec);
  if (*s.tile_q == rows) return false;
  return refuse(why, "tile_q: {} is not {}, the only one of this family for these scales", *s.tile_q, rows);
}

// There are no keys, so the work is counted with tiles of one key.
void configure(const Problem&, const Schedule&, KernelConfig& config) { config.tile_kv = 1; }

Registers registers(const Problem&, const KernelConfig&) { return {}; }

double matrix_rate(const Target&) { return 0; }

bool takes_two_launches(const KernelConfig& c) { return !has_latent_rows(c) && tiles_of_scale(c) != 1; }

Prediction predict_quantize(const Problem& problem, const Schedule& s, const Shape& shape, const Work&) {
  constexpr double kLaunchMicroseconds = 2.8;
  const bool twice = takes_two_launches(config_of(problem, s));
  Prediction p;
  p.memory = (unique_bytes(problem.spec, shape) + (twice ? quantized_bytes(problem.spec, shape) : 0)) /
             (problem.target.memory_tbs * 1e6);
  p.latency = twice ? 2 * kLaunchMicroseconds : kLaunchMicroseconds;
  p.total = p.memory + p.latency;
  return p;
}

// A thread has a piece of a row, as in the launch that appends.
KernelLaunch launch_of_latents(const KernelConfig& c) {
  return {.entry = "flashjit_quantize",
          .threads = kAppendThreads,
          .grid = {.pieces = new_key_pieces(c), .of_item = kAppendThreads},
          .bounds = "flashjit::kAppendThreads",
          .call = "quantize_latents(params)",
          .file = "templates/quantize/latents.cuh"};
}

void finish(Plan& plan) {
  const KernelConfig& c = plan.config;
  if (has_latent_rows(c)) {
    plan.launches = {launch_of_latents(c)};
    return;
  }
  const bool packed = c.sequences == Sequences::packed;
  const auto launch = [&](std::string entry, std::string call) {
    return KernelLaunch{
        .entry = std::move(entry),
        .threads = quantize_threads(c),
        .smem_bytes = quantize_smem(c),
        .grid = {.queries = c.tile_q,
                 .heads = blocks_of_heads(c),
                 .numbered = packed,
                 .blocks_per_sm = reads_ahead(c) ? quantize_blocks_per_sm(c) : 0},
        .bounds = "flashjit::quantize_threads(flashjit::config), flashjit::quantize_blocks_per_sm(flashjit::config)",
        .call = std::move(call)};
  };
  if (!takes_two_launches(c)) {
    plan.launches = {launch("flashjit_quantize", "quantize_blocks(params)")};
    return;
  }
  plan.launches = {launch("flashjit_find_largest", "find_largest(params, largest)"),
                   launch("flashjit_quantize", "quantize_tiles(params, largest)")};
  for (KernelLaunch& each : plan.launches) each.buffers = {0};
  plan.launches.back().overlaps = plan.target.can.overlapping_launches;
  plan.workspace = {{.name = "largest",
                     .type = "float",
                     .bytes = std::int64_t{4} * c.heads_q,
                     .extents = packed
                                    ? std::vector<Extent>{{.size = &CallSizes::q_tokens,
                                                           .multiple = c.tile_q,
                                                           .tiles = true,
                                                           .more = &CallSizes::batch}}
                                    : std::vector<Extent>{{&CallSizes::batch}, {&CallSizes::q_len, c.tile_q, true}}}};
}

std::string why_rejected(const CompilerFindings&) { return {}; }

std::string describe(const KernelConfig& c) {
  if (has_latent_rows(c)) return "  a thread rounds eight columns of a row, and finds their scale by itself\n";
  const std::string turns = c.rope == Rope::none ? "" : "  rows turn by their positions first\n";
  if (!takes_two_launches(c)) return turns + "  rows that share a scale are one block's: x is read once\n";
  return turns +
         "  more rows share a scale than a block has: a launch of its own finds the largest number of each block first\n";
}

constexpr std::array<std::string_view, 5> kOptions = {
    "rotate", "packed", "scales", "rope", "latent_rows",
};

}  // namespace

const FamilyRow kQuantize = {
    .name = "quantize",
    .summary = "Rows as elements of 8 bits and their scales.",
    .loop_file = "templates/quantize/quantize.cuh",
    .fields = "tile_q",
    .computes = quantizes,
    .reads_latent_rows = true,
    .why_not = why_not,
    .enumerate = enumerate,
    .refuses = refuses,
    .configure = configure,
    .registers = registers,
    .predict = predict_quantize,
    .matrix_rate = matrix_rate,
    .finish = finish,
    .why_rejected = why_rejected,
    .options = kOptions,
    .describe = describe,
};

}  // namespace flashjit

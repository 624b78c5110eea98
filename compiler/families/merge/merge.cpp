#include "compiler/families/merge/merge.h"

#include <algorithm>
#include <array>

#include "compiler/choice/cost_common.h"
#include "compiler/families/choices.h"
#include "compiler/plan.h"
#include "templates/merge/layout.h"

namespace flashjit {

namespace {

constexpr int kRows = 16;  // Rows of a block. With d=128 and elements of 16 bits each thread has a piece of a row.
constexpr int kPartsAtOnce = 4;  // A thread loads so many parts before it adds them up.

std::string why_not(const AttentionSpec&, const Target&) { return {}; }

void enumerate(const Problem&, const Schedule& pins, std::vector<Schedule>& out) {
  Schedule s = pins;
  s.family = &kMerge;
  s.tile_q = pins.tile_q.value_or(kRows);
  s.tile_kv = pins.tile_kv.value_or(kPartsAtOnce);
  out.push_back(s);
}

bool refuses(const Problem&, const Schedule& s, std::string* why) {
  if (*s.tile_q != kRows) return refuse(why, "tile_q: {} is not {}, the only one of this family", *s.tile_q, kRows);
  if (*s.tile_kv != kPartsAtOnce)
    return refuse(why, "tile_kv: {} is not {}, the only one of this family", *s.tile_kv, kPartsAtOnce);
  return false;
}

void configure(const Problem&, const Schedule&, KernelConfig&) {}

Registers registers(const Problem&, const KernelConfig&) { return {}; }

double matrix_rate(const Target&) { return 0; }

Prediction predict_merge(const Problem& problem, const Schedule&, const Shape& shape, const Work&) {
  constexpr double kLaunchMicroseconds = 2.8;
  Prediction p;
  p.memory = unique_bytes(problem.spec, shape) / (problem.target.memory_tbs * 1e6);
  p.latency = kLaunchMicroseconds;
  p.total = p.memory + p.latency;
  return p;
}

void finish(Plan& plan) {
  const KernelConfig& c = plan.config;
  plan.launches = {{.entry = "flashjit_merge",
                    .threads = kMergeThreads,
                    .grid = {.queries = std::max(1, c.tile_q / c.heads_q),
                             .heads = std::max(1, (c.heads_q + c.tile_q - 1) / c.tile_q)},
                    .bounds = "flashjit::kMergeThreads",
                    .call = "merge_parts(params)"}};
}

std::string why_rejected(const CompilerFindings&) { return {}; }

std::string describe(const KernelConfig&) {
  return "  each row of the parts is read once, and added up in their order\n";
}

constexpr std::array<std::string_view, 1> kHonoured = {"direction=first_to_last"};

constexpr std::array<std::string_view, 5> kOptions = {
    "max_logit", "k_lens", "shared_prefix", "lse", "packed",
};

}  // namespace

const FamilyRow kMerge = {
    .name = "merge",
    .summary = "Results of attention over parts of the keys, put together.",
    .loop_file = "templates/merge/forward.cuh",
    .fields = "tile_q tile_kv",
    .computes = merges,
    .from_first = true,
    .why_not = why_not,
    .enumerate = enumerate,
    .refuses = refuses,
    .configure = configure,
    .registers = registers,
    .predict = predict_merge,
    .matrix_rate = matrix_rate,
    .finish = finish,
    .why_rejected = why_rejected,
    .honoured = kHonoured,
    .options = kOptions,
    .describe = describe,
};

}  // namespace flashjit

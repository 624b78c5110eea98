#include "compiler/families/naive/naive.h"

#include <array>

#include "compiler/choice/cost_common.h"
#include "compiler/families/choices.h"
#include "compiler/plan.h"
#include "templates/naive/layout.h"

namespace flashjit {

namespace {

std::string why_not_backward(const AttentionSpec&, const Target&) { return {}; }

std::string why_not(const AttentionSpec& spec, const Target& target) {
  if (spec.d_qk <= kMaxHeadDim && spec.d_v <= kMaxHeadDim) return {};
  return fmt::format("family: naive has room for head dims up to {}, and the spec has d={}/{}; use family={}",
                     kMaxHeadDim, spec.d_qk, spec.d_v, floor_family(target.gpu)->name);
}

Schedule only_schedule(Family family, const Schedule& pins) {
  Schedule s = pins;
  s.family = family;
  s.tile_q = pins.tile_q.value_or(kNaiveTile);
  s.tile_kv = pins.tile_kv.value_or(kNaiveTile);
  return s;
}

void enumerate(const Problem&, const Schedule& pins, std::vector<Schedule>& out) {
  out.push_back(only_schedule(&kNaive, pins));
}

void enumerate_backward(const Problem&, const Schedule& pins, std::vector<Schedule>& out) {
  out.push_back(only_schedule(&kNaiveBackward, pins));
}

bool refuses(const Problem&, const Schedule& s, std::string* why) {
  if (*s.tile_q != kNaiveTile)
    return refuse(why, "tile_q: {} is not {}, the only one of this family", *s.tile_q, kNaiveTile);
  if (*s.tile_kv != kNaiveTile)
    return refuse(why, "tile_kv: {} is not {}, the only one of this family", *s.tile_kv, kNaiveTile);
  return false;
}

void configure(const Problem&, const Schedule&, KernelConfig&) {}

// The kernels are small enough for every compiler.
Registers registers(const Problem&, const KernelConfig&) { return {}; }

double matrix_rate(const Target& target) { return target.mma_flops_per_clock; }

// So many bytes of each score go through memory. Arithmetic at the full rate is hidden behind that.
Prediction predict_bytes(const Problem& problem, const Shape& shape, double bytes_of_score) {
  constexpr double kLaunches = 3, kLaunchMicroseconds = 2.8;
  const AttentionSpec& spec = problem.spec;
  const double scores =
      static_cast<double>(shape.b) * spec.heads_q * static_cast<double>(shape.q_len) * static_cast<double>(shape.k_len);
  Prediction p;
  p.memory = (unique_bytes(spec, shape) + scores * bytes_of_score) / (problem.target.memory_tbs * 1e6);
  p.latency = kLaunches * kLaunchMicroseconds;
  p.total = p.memory + p.latency;
  return p;
}

// Scores and probabilities are written and read.
Prediction predict_naive(const Problem& problem, const Schedule&, const Shape& shape, const Work&) {
  return predict_bytes(problem, shape, 2 * (4 + size_of(problem.spec.dtype)));
}

// Probabilities are written and read, and gradients of scores are read twice.
Prediction predict_backward(const Problem& problem, const Schedule&, const Shape& shape, const Work&) {
  return predict_bytes(problem, shape, 5 * size_of(problem.spec.dtype));
}

constexpr std::string_view kBounds = "flashjit::kNaiveThreads";

// Returns the buffer of the weights of all queries and keys, in rows of naive_probability_stride().
WorkspaceBuffer matrix(std::string name, const KernelConfig& c) {
  return {std::move(name),
          "flashjit::u16",
          std::int64_t{2} * c.heads_q,
          {{&CallSizes::batch}, {&CallSizes::q_len}, {&CallSizes::k_len, kNaiveTile}}};
}

void finish(Plan& plan) {
  const KernelConfig& c = plan.config;
  const std::vector<int> both = {0, 1};
  plan.launches = {{.entry = "flashjit_naive_scores",
                    .threads = kNaiveThreads,
                    .smem_bytes = naive_scores_smem(c),
                    .grid = {.queries = kNaiveTile, .keys = kNaiveTile, .heads = c.heads_q},
                    .buffers = both,
                    .bounds = kBounds,
                    .call = "naive_scores(params, scores)"},
                   {.entry = "flashjit_naive_softmax",
                    .threads = kNaiveThreads,
                    .grid = {.queries = 1, .heads = c.heads_q},
                    .buffers = both,
                    .bounds = kBounds,
                    .call = "naive_softmax(params, scores, probabilities)"},
                   {.entry = "flashjit_naive_product",
                    .threads = kNaiveThreads,
                    .smem_bytes = naive_product_smem(c),
                    .grid = {.queries = kNaiveTile, .heads = c.heads_q},
                    .buffers = both,
                    .bounds = kBounds,
                    .call = "naive_product(params, probabilities)"}};
  const Extent batch{&CallSizes::batch}, queries{&CallSizes::q_len}, keys{&CallSizes::k_len};
  plan.workspace = {{"scores", "float", std::int64_t{4} * c.heads_q, {batch, queries, keys}},
                    matrix("probabilities", c)};
}

void finish_backward(Plan& plan) {
  const KernelConfig& c = plan.config;
  plan.launches = {{.entry = "flashjit_naive_score_gradients",
                    .threads = kNaiveThreads,
                    .smem_bytes = naive_score_gradients_smem(c),
                    .grid = {.queries = kNaiveTile, .keys = kNaiveTile, .heads = c.heads_q},
                    .buffers = {0, 1},
                    .bounds = kBounds,
                    .call = "naive_score_gradients(params, probabilities, gradients)"},
                   {.entry = "flashjit_naive_query_gradients",
                    .threads = kNaiveThreads,
                    .smem_bytes = naive_gradients_smem(c),
                    .grid = {.queries = kNaiveTile, .heads = c.heads_q},
                    .buffers = {1},
                    .bounds = kBounds,
                    .call = "naive_query_gradients(params, gradients)"},
                   {.entry = "flashjit_naive_key_gradients",
                    .threads = kNaiveThreads,
                    .smem_bytes = naive_gradients_smem(c),
                    .grid = {.keys = kNaiveTile, .heads = c.heads_kv},
                    .buffers = {0, 1},
                    .bounds = kBounds,
                    .call = "naive_key_gradients(params, probabilities, gradients)"}};
  plan.workspace = {matrix("probabilities", c), matrix("gradients", c)};
}

constexpr std::string_view kSecondChoice = "takes all scores through memory, at a fraction of the matrix rate";

std::string why_rejected(const CompilerFindings&) { return {}; }

std::string describe(const KernelConfig&) { return "  three kernels; scores and probabilities go through memory\n"; }

std::string describe_backward(const KernelConfig&) {
  return "  three kernels; probabilities and gradients of scores go through memory\n";
}

// All keys are visited, in no order that counts.
constexpr std::array<std::string_view, 5> kHonoured = {"fn", "when=mixed", "holes", "row", "direction=first_to_last"};

constexpr std::array<std::string_view, 18> kOptions = {
    "places", "max_logit", "sink",  "k_lens",   "v_in_k",    "v_transposed", "linear_exp", "append", "shared_prefix",
    "lse",    "packed",    "paged", "narrow_q", "narrow_kv", "rope",         "dropout",    "select", "head_tables",
};
constexpr std::array<std::string_view, 6> kBackwardOptions = {
    "sink", "dlse", "lse", "packed", "rope", "dropout",
};

}  // namespace

const FamilyRow kNaive = {
    .name = "naive",
    .summary = "Forward attention, the textbook version: three kernels through memory.",
    .loop_file = "templates/naive/forward.cuh",
    .fields = "tile_q tile_kv",
    .is_default = false,
    .from_first = true,
    .second_choice = kSecondChoice,
    .why_not = why_not,
    .enumerate = enumerate,
    .refuses = refuses,
    .configure = configure,
    .registers = registers,
    .predict = predict_naive,
    .matrix_rate = matrix_rate,
    .finish = finish,
    .why_rejected = why_rejected,
    .honoured = kHonoured,
    .options = kOptions,
    .describe = describe,
};

const FamilyRow kNaiveBackward = {
    .name = "naive_backward",
    .summary = "Gradients of attention, the textbook version: three kernels through memory.",
    .loop_file = "templates/naive/backward.cuh",
    .fields = "tile_q tile_kv",
    .computes = is_backward,
    .is_default = false,
    .from_first = true,
    .second_choice = kSecondChoice,
    .why_not = why_not_backward,
    .enumerate = enumerate_backward,
    .refuses = refuses,
    .configure = configure,
    .registers = registers,
    .predict = predict_backward,
    .matrix_rate = matrix_rate,
    .finish = finish_backward,
    .why_rejected = why_rejected,
    .honoured = kHonoured,
    .options = kBackwardOptions,
    .describe = describe_backward,
};

}  // namespace flashjit

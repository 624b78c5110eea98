#include "compiler/choice/cost_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "compiler/launches/append.h"
#include "compiler/choice/candidates.h"
#include "compiler/choice/cost_common.h"
#include "compiler/launches/merged_lists.h"
#include "compiler/launches/shown_keys.h"
#include "compiler/launches/values.h"
#include "compiler/launches/wide_rows.h"
#include "compiler/spec/fields/select.h"

namespace flashjit {

namespace {

// Instruction slots of a score that nothing hides, as the fit gives them. A score function has one for each node: with
// two, alibi would get tiles with too few rows [M1].
constexpr double kMaskSlots = 4, kScoreSlotsPerNode = 1;

double element_bytes_of(const AttentionSpec& spec) { return size_of(spec.dtype); }

// With few queries, loops that give some SMs no share of the keys reach this share of the memory rate, after so many
// microseconds [M2].
constexpr double kReadShare = 0.91, kReadStartUs = 6;
constexpr std::int64_t kFewQueries = 64;

// Longest first pays when late query tiles have more keys. A moving window has the same number everywhere.
bool work_grows(const Work& work) { return work.kv_tiles_max > 1.3 * work.kv_tiles; }

// Samples query tiles of every size that schedules have.
class WorkSamplers {
 public:
  WorkSamplers(const Problem& problem, const Shape& shape) : problem_(problem), shape_(shape) {}

  Work of(const Schedule& schedule) {
    const KernelConfig c = config_of(problem_, schedule);
    Work work = with(queries_per_tile(c), c.tile_kv);
    const int warpgroups = schedule.family->warpgroups ? schedule.family->warpgroups(c) : 1;
    if (warpgroups < 2 || shape_.q_len < 1) return work;
    // Warpgroups leave out a tile that only other warpgroups see, and those without queries at the end leave out all
    // tiles. Half of that saves time [M3].
    constexpr double kGain = 0.5;
    const int queries = std::max(1, queries_per_tile(c) / warpgroups);
    double own = work.kv_tiles;
    if (has_own_tiles(c, warpgroups)) {
      const Work& of_warpgroup = with(queries, c.tile_kv);
      own = std::max(of_warpgroup.kv_tiles, own - 1);  // A warpgroup leaves out at most one.
      work.mixed_tiles = std::max(of_warpgroup.mixed_tiles, work.mixed_tiles - 1);
    }
    const double blocks = std::ceil(static_cast<double>(shape_.q_len) / queries_per_tile(c));
    const double working = std::ceil(static_cast<double>(shape_.q_len) / queries) / (blocks * warpgroups);
    work.kv_tiles += kGain * (own * working - work.kv_tiles);
    return work;
  }

 private:
  const Work& with(int queries, int tile_kv) {
    return samplers_.try_emplace(queries, problem_.spec, problem_.tiles, shape_, queries).first->second.with(tile_kv);
  }

  const Problem& problem_;
  Shape shape_;
  std::map<int, WorkSampler> samplers_;  // The key is the number of queries.
};

Shape quarter(Shape shape) {
  shape.b *= 4;
  shape.q_len = std::max<std::int64_t>(1, shape.q_len / 4);
  shape.k_len = std::max<std::int64_t>(1, shape.k_len / 4);
  return shape;
}

}  // namespace

void add_units(Prediction& p, const TileClocks& tile, double tiles, const AttentionSpec& spec, const Target& target,
               const Shape& shape) {
  const double microseconds = tiles / (target.clock_ghz * 1e3);
  p.mma = tile.mma * microseconds;
  p.exp = tile.exp * microseconds;
  p.issue = tile.issue * microseconds;
  p.smem = tile.smem * microseconds;
  p.l2 = tile.l2 * microseconds;
  p.memory = unique_bytes(spec, shape) / (target.memory_tbs * 1e6);
  if (shape.q_len < kFewQueries) p.memory = kReadStartUs + p.memory / kReadShare;
}

double summed_dims(const AttentionSpec& spec) {
  if (quantizes(spec)) return 0;
  if (merges(spec)) return spec.d_v;
  if (indexes(spec)) return spec.d_qk;
  return is_backward(spec) ? 3 * spec.d_qk + 2 * spec.d_v : spec.d_qk + spec.d_v;
}

double score_slots(const Work& work) { return kScoreSlotsPerNode * work.score_nodes; }

double mask_slots(const Work& work, int free_nodes) {
  if (work.kv_tiles <= 0) return 0;
  return kMaskSlots * std::max(0.0, work.mask_nodes - free_nodes) * work.mixed_tiles / work.kv_tiles;
}

double quantized_bytes(const AttentionSpec& spec, const Shape& shape) {
  return static_cast<double>(shape.b) * static_cast<double>(shape.q_len) * spec.heads_q * spec.d_qk *
         element_bytes_of(spec);
}

double unique_bytes(const AttentionSpec& spec, const Shape& shape) {
  const double b = static_cast<double>(shape.b), q = static_cast<double>(shape.q_len),
               k = static_cast<double>(shape.k_len);
  if (quantizes(spec)) {
    const double angles = has_rope_tables(spec) ? q * spec.rope_dims * size_of(Dtype::F32) : 0;
    const double written = has_latent_rows(spec) ? b * q * static_cast<double>(cached_bytes(spec))
                                                 : quantized_bytes(spec, shape) / element_bytes_of(spec);
    return quantized_bytes(spec, shape) + written + angles;
  }
  if (merges(spec)) {
    const double rows = b * q * spec.heads_q;
    return rows * (k * (spec.d_v * element_bytes_of(spec) + 4) + spec.d_v * size_of(spec.out_dtype));
  }
  if (is_backward(spec)) {
    const double of_queries = b * q * spec.heads_q, of_keys = b * k * spec.heads_kv, v = spec.v_in_k ? 0 : spec.d_v;
    return element_bytes_of(spec) * (of_queries * (spec.d_qk + 2 * spec.d_v) + of_keys * (spec.d_qk + v)) +
           of_queries * spec.d_qk * size_of(spec.out_dq) +
           of_keys * (spec.d_qk * size_of(spec.out_dk) + v * size_of(spec.out_dv));
  }
  const double read =
      b * q * spec.heads_q * spec.d_qk * element_bytes_of(spec) + b * k * static_cast<double>(cached_bytes(spec));
  if (indexes(spec)) {  // An index with lists reads its scores again, and elements of 8 bits have scales.
    const double scales = spec.token_scales ? 4 * b * k * spec.heads_kv : 0, scores = 4 * b * q * k * spec.heads_kv;
    return read + scales + 4 * b * q * spec.heads_q + (writes_lists(spec) ? 2 : 1) * scores + 4 * b * q * spec.selected;
  }
  return read + b * q * spec.heads_q * spec.d_v * size_of(spec.out_dtype);
}

double makespan(double blocks, double slots, double mean, double longest, bool longest_first) {
  const double waves = blocks / slots;
  if (waves <= 1) return longest;
  if (longest > mean * 1.05) {
    // Unequal blocks fill gaps. A part of the last block remains, which is small if the long ones went first.
    return waves * mean + (longest_first ? 0.15 : 0.5) * longest;
  }
  // Equal blocks run in whole waves, which blur because SMs drift apart.
  return mean * (0.5 * (waves + 0.5) + 0.5 * std::ceil(waves));
}

std::string print(const Shape& shape) { return fmt::format("b={},q={},k={}", shape.b, shape.q_len, shape.k_len); }

Shape seen_by_kernels(const AttentionSpec& spec, const Shape& shape) {
  if (!selects(spec)) return shape;
  if (merged_queries(spec) > 0) return {shape.b, shape.q_len, merged_keys(spec, shape.q_len)};
  return {shape.b * shape.q_len, 1, listed_keys(spec)};
}

Shape assumed_shape(const AttentionSpec& spec) {
  constexpr std::int64_t kSequence = 4096, kTokens = 16384, kDecodeKeys = 8192, kDecodeBatch = 32;
  constexpr std::int64_t kParts = 2;
  Shape shape;
  shape.q_len = spec.q_len.pinned() ? spec.q_len.max : std::min(spec.q_len.max, kSequence);
  shape.k_len = spec.k_len.pinned() ? spec.k_len.max
                                    : std::min(spec.k_len.max, shape.q_len < kFewQueries ? kDecodeKeys : kSequence);
  if (merges(spec)) shape.k_len = kParts;
  if (quantizes(spec)) shape.k_len = 1;
  const std::int64_t batch =
      shape.q_len < kFewQueries ? kDecodeBatch : std::max<std::int64_t>(1, kTokens / shape.q_len);
  shape.b = spec.batch.pinned() ? spec.batch.max : std::min(spec.batch.max, batch);
  return seen_by_kernels(spec, shape);
}

Work work_of(const Problem& problem, const Shape& shape, const Schedule& schedule) {
  return WorkSamplers(problem, seen_by_kernels(problem.spec, shape)).of(schedule);
}

Prediction predict(const Problem& problem, const Schedule& schedule, const Shape& asked, const Work& work) {
  const Shape shape = seen_by_kernels(problem.spec, asked);
  if (shape.b < 1 || shape.q_len < 1 || shape.k_len < 1) return {};
  Prediction p = schedule.family->predict(problem, schedule, shape, work);
  double before = append_us(problem.spec, problem.target, shape);
  if (schedule.transpose != Transpose::launch) before += value_rows_us(problem.spec, problem.target, shape);
  before += shown_keys_us(problem.spec, problem.target, shape) + merged_lists_us(config_of(problem, schedule));
  if (!schedule.family->reads_latent_rows) before += wide_rows_us(problem.spec, problem.target, shape);
  p.latency += before;
  p.total += before;
  return p;
}

// Lengths that the spec leaves open may be short as well, so a schedule must not be fast for long ones alone.
std::vector<Shape> ranking_shapes(const AttentionSpec& spec, const Target& target, const Shape& shape) {
  std::vector<Shape> shapes = {shape};
  if (target.gpu && !spec.q_len.pinned() && shape == assumed_shape(spec)) shapes.push_back(quarter(shape));
  return shapes;
}

// With few queries, or with a cache of 8 bits, a family that does not split the keys leaves most SMs idle if there are
// few sequences, and one that splits them may read them twice if there are many. The one that loses less over both is
// taken. Returns the shape with few sequences for this comparison, or nothing where the shape is known.
std::optional<Shape> few_sequences(const AttentionSpec& spec, const Target& target, Shape shape) {
  constexpr std::int64_t kFew = 2;
  const bool is_open = target.gpu && attends(spec) && !spec.batch.pinned() && shape == assumed_shape(spec);
  const bool is_few = shape.q_len < kFewQueries || (has_scaled_keys(spec) && !has_scaled_queries(spec));
  if (!is_open || !is_few) return {};
  shape.b = std::min(shape.b, kFew);
  return shape;
}

std::vector<Candidate> candidates(const Problem& asked, const Schedule& pins, const Shape& of_call) {
  const Shape shape = seen_by_kernels(asked.spec, of_call);
  // A caller who gives the sizes gets the best schedule for few queries also where the spec allows more. For packed
  // sequences the sizes are means, so a family that splits keys treats a long sequence among short ones like several of
  // these.
  Problem problem = asked;
  if (shape != assumed_shape(problem.spec)) problem.queries = std::min(problem.queries, shape.q_len);
  const std::vector<Shape> shapes = ranking_shapes(problem.spec, problem.target, shape);
  std::vector<WorkSamplers> samplers;
  for (const Shape& each : shapes) samplers.emplace_back(problem, each);
  const std::optional<Shape> few = few_sequences(problem.spec, problem.target, shape);
  std::optional<WorkSamplers> few_samplers;
  if (few) few_samplers.emplace(problem, *few);
  std::map<Family, bool> computes_here;
  std::map<Family, double> best_of_family;  // It counts both numbers of sequences, where those are compared.
  std::vector<Schedule> schedules = enumerate_schedules(problem, pins);
  struct Ranked {
    double rank = 1;
    // With few queries many schedules only wait for memory, and the one that computes less is safer.
    double computing = 0;
    std::size_t index = 0;  // The index is that in `schedules`.
    double microseconds = 0;
    double family = 0;  // The best product of times of its family.
  };
  std::vector<Ranked> legal;
  std::vector<std::size_t> illegal;
  for (std::size_t index = 0; index < schedules.size(); ++index) {
    Schedule& schedule = schedules[index];
    const auto [computes, is_new] = computes_here.try_emplace(schedule.family);
    if (is_new) computes->second = why_not_family(schedule.family, problem.spec, problem.target).empty();
    if (!computes->second || !fits(problem, schedule)) {
      illegal.push_back(index);
      continue;
    }
    Ranked ranked{.index = index};
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const Work work = samplers[i].of(schedule);
      // Lists that all heads share have very different lengths. A tile of all heads before the next tile spreads the
      // long ones.
      const bool uneven = work_grows(work) || (schedule.tiles == TileSource::list && !problem.lists.by_head);
      if (i == 0 && schedule.order && !pins.order && uneven) schedule.order = TileOrder::longest_first;
      const Prediction prediction = predict(problem, schedule, shapes[i], work);
      if (i == 0) ranked.microseconds = prediction.total;
      if (i == 0 && shape.q_len < kFewQueries) ranked.computing = prediction.compute;
      ranked.rank *= prediction.total;
    }
    legal.push_back(ranked);
    double& best = best_of_family.try_emplace(schedule.family, few ? HUGE_VAL : 0).first->second;
    if (few) best = std::min(best, ranked.rank * predict(problem, schedule, *few, few_samplers->of(schedule)).total);
  }
  for (Ranked& ranked : legal) ranked.family = best_of_family[schedules[ranked.index].family];
  std::ranges::sort(legal, {}, [](const Ranked& ranked) {
    return std::tuple(ranked.family, ranked.rank, ranked.computing, ranked.index);
  });
  std::vector<Candidate> out;
  out.reserve(schedules.size());
  for (const Ranked& ranked : legal) out.push_back({schedules[ranked.index], ranked.microseconds, ranked.rank, true});
  for (const std::size_t index : illegal) out.push_back({.schedule = schedules[index], .legal = false});
  return out;
}

Roofline roofline(const Plan& plan, const Shape& of_call) {
  const AttentionSpec& spec = plan.spec;
  const Shape shape = seen_by_kernels(spec, of_call);
  const Problem problem(plan.spec, plan.target, plan.tiles);
  const Work work = work_of(problem, shape, plan.schedule);
  const double scores = static_cast<double>(shape.b) * spec.heads_q * static_cast<double>(shape.q_len) *
                        static_cast<double>(selects(spec) ? listed_keys(spec) : shape.k_len);
  Roofline r;
  r.visible = work.visible;
  r.exact = work.exact;
  r.flops = 2 * scores * work.visible * summed_dims(spec);
  r.append_bytes = append_bytes(spec, shape);
  const Shape read{shape.b, shape.q_len, seen_keys(spec, plan.tiles, shape)};
  r.fused_bytes = unique_bytes(spec, read) + r.append_bytes;
  // The textbook version writes every score, visible or not: S as fp32 and P in the dtype, and reads each back once.
  if (attends(spec)) r.score_bytes_never_written = scores * (4 + element_bytes_of(spec));
  r.textbook_bytes = r.fused_bytes + 2 * r.score_bytes_never_written;
  r.intensity = r.fused_bytes > 0 ? r.flops / r.fused_bytes : 0;
  r.textbook_intensity = r.textbook_bytes > 0 ? r.flops / r.textbook_bytes : 0;
  r.balance_point = plan.schedule.family->matrix_rate(plan.target) * plan.target.clock_ghz * 1e9 *
                    plan.target.sm_count / (plan.target.memory_tbs * 1e12);
  if (attends(spec)) r.kv_cache_bytes_per_token = static_cast<double>(cached_bytes(spec));
  r.kv_cache_bytes_per_sequence = r.kv_cache_bytes_per_token * static_cast<double>(of_call.k_len);
  r.predicted = predict(problem, plan.schedule, shape, work);
  const Prediction& p = r.predicted;
  r.predicted_tbs = p.total > 0 ? r.fused_bytes / p.total * 1e-6 : 0;
  const std::pair<double, const char*> limits[] = {{p.mma, "matrix units"},   {p.exp, "exponentials"},
                                                   {p.smem, "shared memory"}, {p.issue, "issue"},
                                                   {p.memory, "memory"},      {p.l2, "L2"},
                                                   {p.latency, "latency"}};
  r.limit = std::max_element(std::begin(limits), std::end(limits))->second;
  return r;
}

}  // namespace flashjit

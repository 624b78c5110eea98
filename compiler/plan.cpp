#include "compiler/plan.h"

#include <algorithm>

#include <fmt/format.h>

#include "compiler/launches/append.h"
#include "compiler/launches/block_states.h"
#include "compiler/choice/candidates.h"
#include "compiler/choice/cost_model.h"
#include "compiler/program/passes.h"
#include "compiler/families/gradient_launches.h"
#include "compiler/families/pass_common.h"
#include "compiler/spec/operations/options.h"
#include "compiler/spec/fields/shared_prefix.h"
#include "compiler/spec/text_form.h"
#include "compiler/launches/merged_lists.h"
#include "compiler/launches/shown_keys.h"
#include "compiler/launches/values.h"
#include "compiler/launches/wide_rows.h"
#include "templates/dropout.h"
#include "templates/latents/rows.h"

namespace flashjit {

namespace {

constexpr int kUsualPage = 8;  // tokens: rows that a warp or more copies at a time

Result<void> check_target(const AttentionSpec& spec, const Target& target) {
  if (target.gpu && spec.dtype == Dtype::F32 && !merges(spec)) {
    return unsupported(
        fmt::format("dtype: fp32 runs on host targets only, {} computes {}; use bf16, or a target like x86-64-v3",
                    target.name, is_forward(spec) || indexes(spec) ? "fp16, bf16, e4m3 and e5m2" : "fp16 and bf16"));
  }
  if (target.gpu && !target.can.cp_async) {
    return unsupported(fmt::format(
        "target: {} has no asynchronous copies, which every kernel of this build uses; the oldest target is sm_80",
        target.name));
  }
  if (!target.gpu || spec.grads.empty()) return {};
  if (selects(spec) && !params_with_gradients(spec).empty()) {
    return unsupported(
        "grads: on a GPU no loop makes gradients of parameters of a score where queries have lists (select=); leave "
        "them out, or use a processor");
  }
  const std::string unordered = why_not_ordered(spec);
  return unordered.empty() ? Result<void>() : unsupported(unordered);
}

// Pins that contradict the spec or target are the caller's mistake: say which field and why, for the schedule that
// comes closest.
Result<Schedule> choose(const std::vector<Candidate>& candidates, const AttentionSpec& spec, const Target& target,
                        const Schedule& pins) {
  if (candidates.empty())
    return internal(fmt::format("no schedule for `{}` on {} with {}", print(spec), target.name, print(pins)));
  const Candidate& best = candidates.front();
  if (best.legal) return best.schedule;
  const Family floor = floor_family(target.gpu, spec.operation);
  if (const std::string_view option = first_unhonoured(spec, floor->options); !option.empty()) {
    return unsupported(fmt::format("{}: no loop for {} honours it in this spec; leave it out", option, target.name));
  }
  const std::string why = why_illegal(spec, target, best.schedule);
  // Nothing pinned and nothing legal is a hole in the enumeration, unless not even this family takes the spec.
  if (pins == Schedule{}) {
    if (const std::string refused = floor->why_not(spec, target); !refused.empty()) return unsupported(refused);
    return internal(fmt::format("no schedule for `{}` on {}: {}", print(spec), target.name, why));
  }
  return invalid(fmt::format("schedule {}", why),
                 fmt::format("no schedule for {} honours the pins {}", target.name, print(pins)));
}

Result<Program> run_passes(const PassContext& context, const DumpSink& sink, bool verify_each) {
  Program program;
  std::vector<Pass> passes(shared_passes().begin(), shared_passes().end());
  const std::span<const Pass> own = context.schedule.family->passes;
  passes.insert(passes.end(), own.begin(), own.end());
  for (const Pass& pass : passes) {
    auto next = pass.run(std::move(program), context);
    if (!next) return next.error();
    program = std::move(*next);
    program.passes.push_back(pass.name);
    if (sink) sink(pass.name, dump(program));
    if (!verify_each) continue;
    if (auto verified = verify(program); !verified) {
      Error error = verified.error();
      error.message = fmt::format("after pass {}: {}", pass.name, error.message);
      error.detail = dump(program);
      return error;
    }
  }
  return program;
}

// The subexpression of mask, score or the limits of tiles that does not fit 32 bits; empty where everything does.
Expr first_wide_subexpression(const AttentionSpec& spec, const TileAnalysis& tiles) {
  const VariableRanges ranges = variable_ranges(spec);
  for (const Expr* expr : {&spec.mask, &spec.list_mask, &spec.score, &tiles.begin, &tiles.end, &tiles.full_begin,
                           &tiles.full_end, &tiles.may_see, &tiles.may_see_in_blocks}) {
    if (const Expr wide = *expr ? wide_subexpression(*expr, ranges) : Expr()) return wide;
  }
  return Expr();
}

// And what makes it narrow: the bounds of the spec say nothing of parameters.
std::string why_wide(const Expr& wide) {
  const std::vector<Param> params = params_of(wide);
  std::string advice = "bound q_len and k_len, or use smaller constants";
  if (!params.empty()) {
    const bool read_alone = wide->op == Op::Scalar || wide->op == Op::Load;
    advice = fmt::format("`{}` can be anything that {} holds: {}", params[0].name, name(params[0].dtype),
                         read_alone ? "declare it as i32" : "cut it with min and max, or declare it as u8");
  }
  return fmt::format("mask or score need 64-bit integers, as for {}; {}", quoted(print(wide)), advice);
}

// The family that computes most per clock on the target; of several the one that computes more specs.
Family first_choice(const AttentionSpec& spec, const Target& target) {
  Family first = floor_family(target.gpu, spec.operation);
  for (const Family family : families()) {
    const bool runs = family->gpu == target.gpu && family->is_default && family->computes(spec);
    if (runs && family->matrix_rate(target) > first->matrix_rate(target)) first = family;
  }
  return first;
}

// Why the plan is not of this family, which comes before its own.
std::string why_passed_over(Family family, const Plan& plan, const Schedule& pins) {
  if (std::string why = why_not_family(family, plan.spec, plan.target); !why.empty()) return why;
  if (pins.family) return fmt::format("family={} is pinned", name(pins.family));
  if (const std::string_view field = foreign_field(pins, family); !field.empty())
    return fmt::format("{} is pinned, which {} schedules do not have", field, name(family));
  const auto best = std::ranges::find(*plan.candidates, family, [](const Candidate& c) { return c.schedule.family; });
  if (!best->legal) return why_illegal(plan.spec, plan.target, best->schedule);
  return fmt::format("{:.1f} us are predicted for it at {}, {:.1f} us for the best of the {} family",
                     plan.candidates->front().predicted_us, print(assumed_shape(plan.spec)), best->predicted_us,
                     name(family));
}

std::vector<std::string> notes_of(const Plan& plan) {
  std::vector<std::string> notes;
  const AttentionSpec& spec = plan.spec;
  if (plan.target.gpu && spec.align_bytes < 16) {
    notes.push_back(fmt::format(
        "slow path: inputs are only {0}-byte aligned, copies are {0} bytes wide; align pointers and strides to 16",
        spec.align_bytes));
  }
  if (plan.target.gpu && spec.page_size % kUsualPage != 0) {
    notes.push_back(fmt::format(
        "slow path: pages of {} tokens are no multiple of {}, so copies look up the page of every row; use larger pages",
        spec.page_size, kUsualPage));
  }
  if (plan.target.gpu && attends(spec) && spec.d_qk % 16 != 0) {
    notes.push_back(fmt::format("d={} is padded to {} inside the kernel: matrix instructions take 16 columns at a time",
                                spec.d_qk, padded_dim_qk(plan.config)));
  }
  const Product* output = find_product(plan.program, "O");
  if (output && spec.d_v % 16 != 0 && spec.d_v != spec.d_qk && output->columns > spec.d_v) {
    notes.push_back(
        fmt::format("the V dim {} is padded to {} inside the kernel: matrix instructions take 16 columns at a time",
                    spec.d_v, output->columns));
  }
  if (plan.target.gpu && attends(spec) && spec.shared_prefix) {
    notes.push_back(fmt::format("shared_prefix: each sequence reads the shared keys that it sees by itself, since {}",
                                why_read_by_each(spec)));
  }
  if (const int dropped = dropped_of(spec.dropout); dropped != spec.dropout * kDropoutNumbers) {
    notes.push_back(fmt::format("dropout={} counts as {}/{}: the random numbers of weights are bytes", spec.dropout,
                                dropped, kDropoutNumbers));
  }
  if (spec.places && spec.mask && uses(spec.mask, Op::Load)) {
    notes.push_back(
        "places: what a tensor of the mask hides costs as much as what it shows, since lists of tiles count from the first "
        "row of a call; what positions alone hide is skipped");
  }
  if (plan.wide_ints) notes.push_back(why_wide(first_wide_subexpression(spec, plan.tiles)));
  return notes;
}

// Each launch behind another one begins while that runs, up to the one or the other that is a family's first.
void overlap_with_before(Plan& plan) {
  if (plan.before.empty() || !plan.target.can.overlapping_launches) return;
  for (KernelLaunch& launch : plan.before) launch.overlaps = &launch != &plan.before.front();
  for (KernelLaunch& launch : plan.launches) {
    if (&launch == &plan.launches.front() || launch.of_teams) launch.overlaps = true;
  }
}

std::string why_family(const Plan& plan, const Schedule& pins) {
  const Family family = plan.schedule.family, first = first_choice(plan.spec, plan.target);
  if (family == first) return {};
  return fmt::format("the {} family {} of {}: {}", name(family), family->second_choice, plan.target.name,
                     why_passed_over(first, plan, pins));
}

// Blocks that a mask reads are looked at for the tiles of the schedule. Launches of gradients have several sizes.
void look_at_blocks(Plan& plan) {
  constexpr int kWidest = 128;
  if (plan.spec.places) {  // rows of a tile may stand in any number of blocks
    plan.tiles.may_see_in_blocks = {};
    return;
  }
  const KernelConfig& c = plan.config;
  const TileSizes sizes =
      is_backward(plan.spec) ? TileSizes{kWidest, kWidest} : TileSizes{std::max(queries_per_tile(c), 1), c.tile_kv};
  // With many blocks in a tile there may be too much to ask.
  if (const Expr may_see = analyse_tiles(plan.spec.mask, Axis::Keys, sizes).may_see_in_blocks)
    plan.tiles.may_see_in_blocks = may_see;
}

// Adds what a call launches, and the buffers between: schedule and config say it, whatever the passes do.
void add_launches(Plan& plan) {
  plan.head_groups.row_bytes = std::int64_t{cached_dims(plan.spec)} * size_of(plan.spec.kv_dtype);
  plan.schedule.family->finish(plan);
  if (plan.target.gpu) add_block_states(plan);
  if (plan.spec.list_mask && plan.target.gpu) add_shown_keys(plan);
  if (plan.config.merged_queries > 0) add_merged_lists(plan);
  if (plan.config.append && plan.target.gpu) add_append(plan);
  if (plan.config.v_transposed && plan.target.gpu && !plan.reads_columns) add_value_rows(plan);
  if (has_latent_rows(plan.config) && plan.target.gpu && !plan.schedule.family->reads_latent_rows) add_wide_rows(plan);
  overlap_with_before(plan);
}

}  // namespace

bool needs_workspace(const Plan& plan, const Schedule& schedule) {
  Plan other;
  other.spec = plan.spec;
  other.target = plan.target;
  other.tiles = plan.tiles;
  other.query_tiles = plan.query_tiles;
  other.schedule = schedule;
  other.config = config_of(Problem(other.spec, other.target, other.tiles), schedule);
  add_launches(other);
  return !other.workspace.empty();
}

std::vector<std::string> Plan::all_notes() const {
  std::vector<std::string> all = notes;
  if (!why_family.empty()) all.push_back(why_family);
  return all;
}

Result<Plan> draft_plan(const AttentionSpec& spec, const Target& target, const Schedule& pins, const DumpSink& sink) {
  FLASHJIT_TRY(check_supported(spec));
  FLASHJIT_TRY(check_target(spec, target));
  Plan plan;
  plan.spec = spec;
  plan.target = target;
  plan.tiles = analyse_tiles(spec.mask);
  const Problem problem(plan.spec, plan.target, plan.tiles);
  if (problem.query_tiles) plan.query_tiles = *problem.query_tiles;
  plan.candidates = std::make_shared<const Candidates>(candidates(problem, pins, assumed_shape(spec)));
  FLASHJIT_ASSIGN(schedule, choose(*plan.candidates, spec, target, pins));
  plan.schedule = schedule;
  plan.config = config_of(problem, schedule);
  if (plan.tiles.may_see_in_blocks) look_at_blocks(plan);
  FLASHJIT_ASSIGN(program, run_passes({problem, plan.schedule, plan.config}, sink, sink != nullptr));
  FLASHJIT_TRY(check_honoured(program, name(schedule.family), schedule.family->honoured));
  add_launches(plan);
  plan.wide_ints = static_cast<bool>(first_wide_subexpression(spec, plan.tiles));
  plan.program = std::move(program);
  plan.notes = notes_of(plan);
  plan.why_family = why_family(plan, pins);
  return plan;
}

Result<void> verify_plan(const Plan& plan) {
  if (verify(plan.program)) return {};
  const Problem problem(plan.spec, plan.target, plan.tiles);
  const auto again = run_passes({problem, plan.schedule, plan.config}, {}, true);
  return again ? internal("a program breaks the rules, and did not when its passes ran again") : again.error();
}

Result<Plan> make_plan(const AttentionSpec& spec, const Target& target, const Schedule& pins, const DumpSink& sink) {
  FLASHJIT_ASSIGN(plan, draft_plan(spec, target, pins, sink));
  FLASHJIT_TRY(verify_plan(plan));
  return std::move(plan);
}

}  // namespace flashjit

#include "runtime/compile/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "compiler/choice/candidates.h"
#include "compiler/families/family.h"
#include "runtime/compile/facts.h"
#include "runtime/compile/verify.h"

namespace flashjit {
namespace {

// Returns why a kernel must not run, or could not be made for want of registers, or an empty text if neither is so.
std::string why_rejected(Family family, const Result<Compiled>& compiled) {
  CompilerFindings findings;
  std::string refused, serialised, ignored;
  if (compiled) {
    if (const std::string_view wrong = known_wrong(compiled->binary->facts); !wrong.empty())
      return fmt::format("its results are wrong: {}", wrong);
    serialised = fact(compiled->binary->facts, "serialised");
    ignored = fact(compiled->binary->facts, "setmaxnreg_ignored");
    findings = {compiled->facts.spill_bytes, serialised, ignored, {}};
  } else {
    refused = refused_for_registers(compiled.error().detail);
    findings.refused_for_registers = refused;
  }
  return family->why_rejected(findings);
}

// This many candidates of a family are compiled before the family is given up, or one that spills is accepted. Each
// costs a compile.
constexpr int kMostAttempts = 4;
constexpr int kRegisterStep = 16;  // Each further attempt has at least this many more spare registers, by estimate.

class Search {
 public:
  Search(const Plan& first, const CompileOptions& options, const CompilePlan& compile)
      : first_(first), options_(options), compile_(compile) {}

  Result<Compiled> run() {
    FLASHJIT_ASSIGN(best, choose());
    for (std::string& passed_over : notes_) best.facts.notes.push_back(std::move(passed_over));
    return std::move(best);
  }

 private:
  Result<Compiled> choose() {
    if (options_.effort == Effort::Quick) return run_quick();
    if (!options_.override_dir.empty()) return run_as_it_is();
    for (const Family family : left()) {
      FLASHJIT_ASSIGN(plan, best_of(family));
      if (!plan) continue;
      FLASHJIT_ASSIGN(accepted, run_family(family, std::move(*plan)));
      if (accepted) return std::move(*accepted);
    }
    const Family floor = floor_family(first_.target.gpu, first_.spec.operation);
    const std::string way_out =
        first_.schedule.family == floor
            ? "no other schedule is left: leave out pins, if there are any"
            : fmt::format("the pins leave no other schedule: leave some out, or pin family={}", name(floor));
    return unsupported(fmt::format("schedule {}; {}", notes_.front(), way_out),
                       fmt::format("{}", fmt::join(notes_, "\n")));
  }

  // Returns the family of the first choice, and the families after it.
  std::span<const Family> left() const {
    return {std::ranges::find(families(), first_.schedule.family), families().end()};
  }
  static bool is_legal(const Candidate& candidate, Family family) {
    return candidate.legal && candidate.schedule.family == family;
  }
  int room(const Schedule& schedule) const { return spare_registers(problem_, schedule); }

  // Nobody pinned the schedule of such a plan. The first plan knows why its family was chosen. For another family the
  // notes tell what was passed over.
  Result<Plan> plan_of(const Candidate& candidate) const {
    FLASHJIT_ASSIGN(plan, draft_plan(first_.spec, first_.target, candidate.schedule));
    plan.why_family = candidate.schedule.family == first_.schedule.family ? first_.why_family : "";
    return std::move(plan);
  }

  // Returns nothing if the pins leave no schedule of the family.
  Result<std::optional<Plan>> best_of(Family family) const {
    if (family == first_.schedule.family) return std::optional(first_);
    for (const Candidate& candidate : *first_.candidates) {
      if (!is_legal(candidate, family)) continue;
      FLASHJIT_ASSIGN(plan, plan_of(candidate));
      return std::optional(std::move(plan));
    }
    return std::optional<Plan>();
  }

  // Takes the choice itself if its family compiles quickly, else the best schedule of a family that does. Spills do not
  // matter for such a short time.
  Result<Compiled> run_quick() {
    for (const Family family : left()) {
      if (!family->compiles_quickly) continue;
      FLASHJIT_ASSIGN(plan, best_of(family));
      if (!plan) continue;
      auto compiled = compile_(std::move(*plan));
      if (!compiled || known_wrong(compiled->binary->facts).empty()) return compiled;
      notes_.push_back(why_rejected(family, compiled));
    }
    return unsupported(fmt::format("the pins leave no schedule of the {} family, which alone can be compiled quickly",
                                   name(floor_family(first_.target.gpu, first_.spec.operation))),
                       fmt::format("{}", fmt::join(notes_, "\n")));
  }

  // Another schedule would need other edits, and whoever edits wants to see what becomes of them.
  Result<Compiled> run_as_it_is() {
    auto compiled = compile_(first_);
    if (!compiled) return compiled;
    if (const std::string why = why_rejected(first_.schedule.family, compiled); !why.empty()) {
      notes_.push_back(fmt::format("without override_dir this kernel would be passed over: {}", why));
    }
    return compiled;
  }

  // Takes the first kernel that spills nothing, or the one that spills least. Returns nothing if all are rejected; then
  // notes tell why.
  Result<std::optional<Compiled>> run_family(Family family, Plan start) {
    std::optional<Compiled> best;
    std::string passed_over;
    std::vector<Schedule> tried = {start.schedule};
    int least = room(start.schedule);
    FLASHJIT_TRY(attempt(family, std::move(start), best, passed_over));
    for (const Candidate& candidate : *first_.candidates) {
      if ((best && best->facts.spill_bytes == 0) || tried.size() == kMostAttempts) break;
      if (!is_legal(candidate, family) || std::ranges::find(tried, candidate.schedule) != tried.end()) continue;
      // Except for wrong results, all reasons to reject a kernel come from registers. A schedule that is estimated to
      // be as tight would be no better.
      if (!last_was_wrong_ && room(candidate.schedule) < least + kRegisterStep) continue;
      least = std::max(least, room(candidate.schedule));
      auto next = plan_of(candidate);
      if (!next) continue;
      tried.push_back(candidate.schedule);
      FLASHJIT_TRY(attempt(family, std::move(*next), best, passed_over));
    }
    if (!passed_over.empty()) notes_.push_back(passed_over);
    return best;
  }

  // Takes the kernel of `plan` if it is not rejected and spills less than the best.
  Result<void> attempt(Family family, Plan plan, std::optional<Compiled>& best, std::string& passed_over) {
    const Schedule schedule = plan.schedule;
    auto next = compile_(std::move(plan));
    last_was_wrong_ = next && !known_wrong(next->binary->facts).empty();
    if (const std::string why = why_rejected(family, next); !why.empty()) {
      notes_.push_back(fmt::format("{} was passed over: {}", print(schedule), why));
      return {};
    }
    if (!next) return next.error();
    if (best && next->facts.spill_bytes >= best->facts.spill_bytes) return {};
    if (best) {
      passed_over = fmt::format("{} would spill {} bytes of registers and was passed over", best->facts.schedule,
                                best->facts.spill_bytes);
    }
    best = std::move(*next);
    return {};
  }

  const Plan& first_;
  const Problem problem_{first_.spec, first_.target, first_.tiles};
  const CompileOptions& options_;
  const CompilePlan& compile_;
  std::vector<std::string> notes_;  // notes about schedules that were passed over
  bool last_was_wrong_ = false;     // The last attempt computed wrong results.
};

}  // namespace

Result<Compiled> search_kernel(const Plan& first, const CompileOptions& options, const CompilePlan& compile) {
  return Search(first, options, compile).run();
}

}  // namespace flashjit

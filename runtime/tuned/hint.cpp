#include "runtime/tuned/hint.h"

#include <algorithm>

#include <fmt/format.h>

#include "compiler/families/family.h"
#include "runtime/tuned/records.h"

namespace flashjit {
namespace {

class Comparison {
 public:
  Comparison(const Plan& plan, const Schedule& unhinted, const Shape& shape)
      : problem_(plan.spec, plan.target, plan.tiles),
        unhinted_(unhinted),
        shapes_{shape, rounded(shape)},
        times_{time_of(unhinted, shapes_[0]), time_of(unhinted, shapes_[1])} {}

  bool is_faster(const Schedule& schedule) const {
    const double error = std::max(schedule.family->prediction_error, unhinted_.family->prediction_error);
    return time_of(schedule, shapes_[1]) * (1 + error) < times_[1] &&
           time_of(schedule, shapes_[0]) * (1 + error) < times_[0];
  }

 private:
  double time_of(const Schedule& schedule, const Shape& shape) const {
    return predict(problem_, schedule, shape, work_of(problem_, shape, schedule)).total;
  }

  const Problem problem_;
  const Schedule& unhinted_;
  const Shape shapes_[2];
  const double times_[2];
};

}  // namespace

Result<std::string> canonical_hint(std::string_view text) {
  FLASHJIT_ASSIGN(shape, parse_hint(text));
  return shape ? print(rounded(*shape)) : std::string();
}

Result<std::optional<Shape>> parse_hint(std::string_view text) {
  if (text.empty()) return std::optional<Shape>();
  FLASHJIT_ASSIGN(shape, parse_shape_hint(text));
  return std::optional(shape);
}

HintedChoice schedule_for(const Plan& plan, const Schedule& unhinted, const Shape& shape, bool workspace) {
  // Results of the other numerics classes may not depend on the sizes that somebody expects.
  if (plan.spec.numerics != Numerics::Fast) return {};
  const bool may_need = workspace || needs_workspace(plan, unhinted);
  const Comparison comparison(plan, unhinted, shape);
  HintedChoice choice;
  for (const Candidate& candidate : candidates(Problem(plan.spec, plan.target, plan.tiles), {}, rounded(shape))) {
    // All candidates that follow are slower at these sizes.
    if (!candidate.legal || candidate.schedule == unhinted || !comparison.is_faster(candidate.schedule)) break;
    if (may_need || !needs_workspace(plan, candidate.schedule)) {
      choice.schedule = candidate.schedule;
      break;
    }
    if (choice.passed_over.empty()) {
      choice.passed_over = fmt::format(
          "{} is predicted to be faster for {}, and needs a workspace: ask for it with the option `workspace`",
          print(candidate.schedule), print(rounded(shape)));
    }
  }
  return choice;
}

}  // namespace flashjit

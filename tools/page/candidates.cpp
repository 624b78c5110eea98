#include "tools/page/candidates.h"

#include <algorithm>
#include <map>
#include <vector>

#include <fmt/format.h>

#include "compiler/choice/candidates.h"
#include "compiler/families/family.h"

namespace flashjit {
namespace {

constexpr int kShownCandidates = 6;  // limit for all families together
constexpr int kShownShort = 3;       // limit without --all
constexpr int kShownOfOthers = 1;    // limit for each family that is not among these
constexpr int kShownRefusals = 4;

// Explains why the first schedule of the list is not the one that was chosen.
std::string why_not_first(const Plan& plan) {
  std::string shapes;
  for (const Shape& shape : ranking_shapes(plan.spec, plan.target, assumed_shape(plan.spec)))
    shapes += (shapes.empty() ? "" : " and ") + print(shape);
  return fmt::format("  * is not the first: where prepare is told no sizes, a schedule is chosen for {}\n", shapes);
}

std::string refused_text(const Plan& plan, const Candidates& all) {
  std::string text;
  int shown = 0, refused = 0;
  const Problem problem(plan.spec, plan.target, plan.tiles);
  std::vector<std::string> reasons;
  for (const Candidate& candidate : all) {
    if (candidate.legal) continue;
    ++refused;
    if (shown == kShownRefusals) continue;
    const std::string why = why_illegal(problem, candidate.schedule);
    // One example of each reason tells more than many of the same.
    if (std::find(reasons.begin(), reasons.end(), why) != reasons.end()) continue;
    reasons.push_back(why);
    text += fmt::format("  refused  {}\n           {}\n", differing_fields(candidate.schedule, plan.schedule), why);
    ++shown;
  }
  return refused > shown ? text + fmt::format("  and {} more refused\n", refused - shown) : text;
}

}  // namespace

Candidates candidates_at(const Plan& plan, const Schedule& pins, const Shape& shape) {
  const Problem problem(plan.spec, plan.target, plan.tiles);
  Candidates all = candidates(problem, pins, shape);
  if (std::ranges::find(all, plan.schedule, &Candidate::schedule) == all.end()) {
    const Work work = work_of(problem, shape, plan.schedule);
    all.push_back({.schedule = plan.schedule, .predicted_us = predict(problem, plan.schedule, shape, work).total});
  }
  std::ranges::stable_sort(all, {}, [](const Candidate& c) { return std::pair(!c.legal, c.predicted_us); });
  return all;
}

std::string differing_fields(const Schedule& schedule, const Schedule& chosen) {
  if (schedule == chosen || schedule.family != chosen.family) return print(schedule);
  const std::string own = print(schedule), other = "," + print(chosen) + ",";
  std::string text;
  for (std::string_view rest = own; !rest.empty();) {
    const std::string field(rest.substr(0, rest.find(',')));
    rest.remove_prefix(std::min(rest.size(), field.size() + 1));
    if (other.find("," + field + ",") == other.npos) text += (text.empty() ? "" : ",") + field;
  }
  return text;
}

std::string candidates_text(const Plan& plan, const Candidates& all, const Shape& shape, bool whole) {
  std::string text =
      fmt::format("candidates (predicted time at {}; * is the schedule above, others in what differs)\n", print(shape));
  int legal = 0, listed = 0;
  const int most = whole ? kShownCandidates : kShownShort;
  std::map<Family, int> of_family;
  for (const Candidate& candidate : all) {
    if (!candidate.legal) continue;
    const int earlier = of_family[candidate.schedule.family]++;
    const bool chosen = candidate.schedule == plan.schedule;
    if (legal++ >= most && (!whole || earlier >= kShownOfOthers) && !chosen) continue;
    text += fmt::format("  {:9.1f} us {} {}\n", candidate.predicted_us, chosen ? '*' : ' ',
                        differing_fields(candidate.schedule, plan.schedule));
    ++listed;
  }
  if (legal > listed) text += fmt::format("  and {} more\n", legal - listed);
  if (all.front().schedule != plan.schedule) text += why_not_first(plan);
  return whole ? text + refused_text(plan, all) : text;
}

Json candidates_json(const Plan& plan, const Candidates& all) {
  const Problem problem(plan.spec, plan.target, plan.tiles);
  Json list = Json::array();
  for (const Candidate& candidate : all) {
    list.push_back({{"schedule", print(candidate.schedule)},
                    {"predicted_us", candidate.predicted_us},
                    {"why_illegal", candidate.legal ? Json() : Json(why_illegal(problem, candidate.schedule))}});
  }
  return list;
}

}  // namespace flashjit

#include <algorithm>
#include <iterator>
#include <vector>

#include <fmt/format.h>

#include "compiler/choice/candidates.h"
#include "tools/page/markup.h"
#include "tools/page/pictures.h"
#include "tools/page/candidates.h"

namespace flashjit {
namespace {

constexpr std::size_t kMostRows = 40, kMostRefusals = 200;

std::string candidate_row(const Plan& plan, const Candidate& candidate, double longest) {
  const bool chosen = candidate.schedule == plan.schedule;
  return fmt::format(
      "<tr{}><td class=\"number\">{:.1f} us<span class=\"track\"><span class=\"bar\" style=\"width:{:.1f}%\"></span>"
      "</span></td><td class=\"words\">{}<code>{}</code></td></tr>\n",
      chosen ? " class=\"chosen\"" : "", candidate.predicted_us, 100 * candidate.predicted_us / longest,
      chosen ? "<strong>chosen</strong> " : "", broken_at_commas(differing_fields(candidate.schedule, plan.schedule)));
}

std::string refused_rows(const Plan& plan, const Candidates& candidates) {
  const Problem problem(plan.spec, plan.target, plan.tiles);
  std::string rows;
  std::size_t refused = 0;
  for (const Candidate& candidate : candidates) {
    if (candidate.legal || ++refused > kMostRefusals) continue;
    rows += fmt::format("<tr><td class=\"words\"><code>{}</code></td><td class=\"words\">{}</td></tr>\n",
                        broken_at_commas(differing_fields(candidate.schedule, plan.schedule)),
                        escaped(why_illegal(problem, candidate.schedule)));
  }
  if (refused == 0) return {};
  if (refused > kMostRefusals)
    rows += fmt::format("<tr><td colspan=\"2\">and {} more refused</td></tr>\n", refused - kMostRefusals);
  return fmt::format(
      "<details><summary>{} refused, and why</summary>\n<div class=\"scroll\"><table>\n<thead><tr><th>schedule</th>"
      "<th>reason</th></tr></thead>\n<tbody>\n{}</tbody></table></div></details>\n",
      refused, rows);
}

}  // namespace

std::string candidates_table(const Plan& plan, const Candidates& candidates) {
  std::vector<Candidate> legal;
  std::ranges::copy_if(candidates, std::back_inserter(legal), &Candidate::legal);
  std::stable_partition(legal.begin(), legal.end(),
                        [&](const Candidate& each) { return each.schedule == plan.schedule; });
  if (legal.empty()) return {};
  const std::size_t shown = std::min(legal.size(), kMostRows);
  double longest = 0;
  for (std::size_t i = 0; i < shown; ++i) longest = std::max(longest, legal[i].predicted_us);
  std::string rows;
  for (std::size_t i = 0; i < shown && longest > 0; ++i) rows += candidate_row(plan, legal[i], longest);
  if (legal.size() > shown) rows += fmt::format("<tr><td colspan=\"2\">and {} more</td></tr>\n", legal.size() - shown);
  return fmt::format(
             "<div class=\"scroll\"><table>\n<thead><tr><th class=\"number\">predicted</th><th>schedule; of others, in "
             "what it differs</th></tr></thead>\n<tbody>\n{}</tbody></table></div>\n",
             rows) +
         refused_rows(plan, candidates);
}

}  // namespace flashjit

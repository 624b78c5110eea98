#include "compiler/choice/candidates.h"

#include <algorithm>

#include <fmt/format.h>

#include "compiler/spec/operations/options.h"
#include "compiler/spec/spec_names.h"

namespace flashjit {

namespace {

// Returns true for a pinned family or, without one, for every family that takes part by default and has all pinned
// fields.
bool wanted(Family family, const Schedule& pins) {
  return pins.family ? pins.family == family : family->is_default && foreign_field(pins, family).empty();
}

}  // namespace

int spare_registers(const Problem& problem, const Schedule& schedule) {
  return schedule.family->registers(problem, config_of(problem, schedule)).spare();
}

std::string why_not_family(Family family, const AttentionSpec& spec, const Target& target) {
  const std::string_view other = floor_family(target.gpu, spec.operation)->name;
  if (family->gpu != target.gpu)
    return fmt::format("family: {} does not run on {}; use family={}", family->name, target.name, other);
  if (!family->computes(spec))
    return fmt::format("family: {} does not compute {}; use family={}", family->name,
                       kOperationNames[static_cast<std::size_t>(spec.operation)], other);
  if (const std::string_view option = first_unhonoured(spec, family->options); !option.empty())
    return fmt::format("family: {} does not honour {}, which the spec has; use family={}", family->name, option, other);
  return family->why_not(spec, target);
}

std::string why_illegal(const Problem& problem, const Schedule& s) {
  if (!s.family) return "family: is not set";
  if (std::string why = why_not_family(s.family, problem.spec, problem.target); !why.empty()) return why;
  if (const std::string_view field = foreign_field(s, s.family); !field.empty()) {
    return fmt::format("{}: {} schedules have no such field, only {}; remove it", field, name(s.family),
                       fields_of(s.family));
  }
  if (const std::string_view field = missing_field(s, s.family); !field.empty()) {
    return fmt::format("{}: is not set; a complete {} schedule has {}", field, name(s.family), fields_of(s.family));
  }
  if (std::string why = outside_range(s); !why.empty()) return why;
  std::string why;
  s.family->refuses(problem, s, &why);
  return why;
}

std::string why_illegal(const AttentionSpec& spec, const Target& target, const Schedule& schedule) {
  const TileAnalysis tiles = analyse_tiles(spec.mask);
  return why_illegal(Problem(spec, target, tiles), schedule);
}

bool fits(const Problem& problem, const Schedule& s) {
  return is_complete(s, s.family) && !s.family->refuses(problem, s, nullptr);
}

bool is_legal(const Problem& problem, const Schedule& s) {
  return s.family && why_not_family(s.family, problem.spec, problem.target).empty() && fits(problem, s);
}

bool is_legal(const AttentionSpec& spec, const Target& target, const Schedule& schedule) {
  const TileAnalysis tiles = analyse_tiles(spec.mask);
  return is_legal(Problem(spec, target, tiles), schedule);
}

std::vector<Schedule> enumerate_schedules(const Problem& problem, const Schedule& pins) {
  std::vector<Schedule> out;
  // If two are predicted to take the same time, the first one is taken. So families that ask for less come first.
  for (auto at = families().rbegin(); at != families().rend(); ++at) {
    const Family family = *at;
    // A schedule that cannot run is still listed if its family is pinned, so that why_illegal can give the reason.
    const bool can = why_not_family(family, problem.spec, problem.target).empty();
    if (wanted(family, pins) && (can || pins.family)) family->enumerate(problem, pins, out);
  }
  // If the pins fit no family that runs here, the family that runs everything names the fields that it lacks.
  if (out.empty()) floor_family(problem.target.gpu, problem.spec.operation)->enumerate(problem, pins, out);
  return out;
}

}  // namespace flashjit

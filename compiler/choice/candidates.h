// The schedules of a spec on a target, and the reasons against all others. The default choice and the tuner both start
// here.
#pragma once

#include <string>
#include <vector>

#include "compiler/families/family.h"

namespace flashjit {

// Returns the registers that the estimate leaves of the budget, for a complete schedule.
int spare_registers(const Problem& problem, const Schedule& schedule);

// Returns the reason why no schedule of `family` computes the spec on the target, whatever its fields, and names a
// family that does. Empty: some schedules do.
std::string why_not_family(Family family, const AttentionSpec& spec, const Target& target);

// Returns nothing if the schedule is complete and can run. Otherwise names the field, its value and the limit.
std::string why_illegal(const Problem& problem, const Schedule& schedule);
std::string why_illegal(const AttentionSpec& spec, const Target& target, const Schedule& schedule);
// Returns true if why_illegal is empty, without making its text.
bool is_legal(const Problem& problem, const Schedule& schedule);
// Returns true if the schedule is legal, given that its family computes the problem. A family is checked once, and each
// schedule by this.
bool fits(const Problem& problem, const Schedule& schedule);
bool is_legal(const AttentionSpec& spec, const Target& target, const Schedule& schedule);

// Returns all complete schedules that honour the pins, legal and illegal ones, in a fixed order. There is at least one.
std::vector<Schedule> enumerate_schedules(const Problem& problem, const Schedule& pins);

}  // namespace flashjit

// This file says which schedules exist for a spec on a target, and why the others do not. The default choice and the tuner
// both start here.
#pragma once

#include <string>
#include <vector>

#include "compiler/families/family.h"

namespace flashjit {

// The registers of the budget that the estimate leaves, for a complete schedule.
int spare_registers(const Problem& problem, const Schedule& schedule);

// Why no schedule of `family` computes the spec on the target, whatever its fields: names the reason and the family
// that does. Empty: some do.
std::string why_not_family(Family family, const AttentionSpec& spec, const Target& target);

// Empty when the schedule is complete and can run; otherwise names the field, its value and the limit.
std::string why_illegal(const Problem& problem, const Schedule& schedule);
std::string why_illegal(const AttentionSpec& spec, const Target& target, const Schedule& schedule);
// The same without the words.
bool is_legal(const Problem& problem, const Schedule& schedule);
// Is the schedule legal, if its family is known to compute the problem? Families are asked once, schedules each.
bool fits(const Problem& problem, const Schedule& schedule);
bool is_legal(const AttentionSpec& spec, const Target& target, const Schedule& schedule);

// All complete schedules that honour the pins, legal and illegal ones, in a fixed order. Never empty.
std::vector<Schedule> enumerate_schedules(const Problem& problem, const Schedule& pins);

}  // namespace flashjit

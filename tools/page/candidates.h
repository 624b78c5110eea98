// These functions list the schedules that a spec could have, in the forms in which `explain` shows them.
#pragma once

#include <string>

#include "compiler/choice/cost_model.h"
#include "compiler/plan.h"
#include "tools/support/output.h"

namespace flashjit {

// Lists all at the shape that the other figures are for, by predicted time; the schedule that was chosen is among them.
Candidates candidates_at(const Plan& plan, const Schedule& pins, const Shape& shape);

// Returns the fields in which it differs from `chosen`; all of them where the family is another.
std::string differing_fields(const Schedule& schedule, const Schedule& chosen);

// Shows the first of them, or as many as `--all` does where `whole` is true, which has what was refused, too.
std::string candidates_text(const Plan& plan, const Candidates& all, const Shape& shape, bool whole);
Json candidates_json(const Plan& plan, const Candidates& all);

}  // namespace flashjit

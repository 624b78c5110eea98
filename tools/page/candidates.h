// These functions list the schedules that a spec could have, in the forms in which `explain` shows them.
#pragma once

#include <string>

#include "compiler/choice/cost_model.h"
#include "compiler/plan.h"
#include "tools/support/output.h"

namespace flashjit {

// Lists all schedules by predicted time, at the shape that the other figures are for. The chosen schedule is among
// them.
Candidates candidates_at(const Plan& plan, const Schedule& pins, const Shape& shape);

// Returns the fields in which `schedule` differs from `chosen`, or all of them if the family is another.
std::string differing_fields(const Schedule& schedule, const Schedule& chosen);

// Shows the first schedules, or with `whole` as many as `--all` does, with the refused ones.
std::string candidates_text(const Plan& plan, const Candidates& all, const Shape& shape, bool whole);
Json candidates_json(const Plan& plan, const Candidates& all);

}  // namespace flashjit

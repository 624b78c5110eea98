// This file says which schedule a hint of the sizes gives (PrepareOptions::shape), and why not the fastest.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "compiler/choice/cost_model.h"
#include "compiler/plan.h"

namespace flashjit {

// The hint of PrepareOptions::shape as text of its class; empty, if it is.
Result<std::string> canonical_hint(std::string_view text);
// The same as sizes; none: it is empty.
Result<std::optional<Shape>> parse_hint(std::string_view text);

struct HintedChoice {
  std::optional<Schedule> schedule;  // none: the one that no hint gives stays
  std::string passed_over;           // a faster one that needs a workspace, which nobody brings; for Facts::notes
};

// For these sizes, in place of `unhinted`, which is what no hint gives: the plan's schedule or that of a record. The
// cost model chooses by the class of the sizes (`rounded`), so that few kernels serve many calls, and the choice has to be
// faster than `unhinted` by more than the model's error, for the class and for the sizes themselves. `workspace`: the
// caller brings one; without it no schedule is given that needs one, unless `unhinted` does.
HintedChoice schedule_for(const Plan& plan, const Schedule& unhinted, const Shape& shape, bool workspace);

}  // namespace flashjit
